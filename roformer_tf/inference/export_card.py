"""The `README.md` of an export: the lines that use it where this package is not installed.

Every line of code in it runs in the export's folder; the tests run it.
"""

from collections.abc import Sequence

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.tasks.base import Task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

ORDER_SCORES = "transitions.json"
"""What labels score for their order, beside a graph that tags."""


def export_card(to: str, tokenizer: RoFormerTokenizer, task: Task) -> str:
    """Give the text: what the files are, how texts become rows, and how rows become answers."""
    labels = f"Labels, in the order of the logits: {', '.join(task.labels)}.\n" * bool(task.labels)
    if task.units == "characters":
        labels += "Each character is a token, the first after [CLS], and has logits of its own.\n"
    if task.units == "words":
        rows = _NO_ROWS
    else:
        # jieba's words, unless characters are the units
        by_words = (tokenizer.tokenization, task.units) == ("word", None)
        example = ("今天天气很好", "天气不错") if len(task.text_columns) > 1 else "今天天气很好"
        rows = _rows(by_words, [example], task.max_length)
    run = _run(to)
    server = "TensorFlow Serving" if to == "savedmodel" else "`roformer-tf serve`"
    decoding = ""
    if task.decoding.order_scores():
        learnt = _LEARNT if task.crf else ""
        decoding = _DECODING.format(file=ORDER_SCORES, learnt=learnt)
        decoding += _CODE.format(code=_DECODE) * (task.units == "characters")
    return _CARD.format(
        name=task.name,
        to=to,
        labels=labels,
        server=server,
        rows=rows,
        run=_CODE.format(code=run),
        decoding=decoding,
    )


def vector_card(to: str, tokenizer: RoFormerTokenizer, config: EmbeddingConfig) -> str:
    """Give the text for what gives vectors."""
    texts = ["今天天气很好", "天气不错"]
    return _VECTOR_CARD.format(
        to=to,
        rows=_rows(tokenizer.tokenization == "word", texts, config.max_length),
        run=_CODE.format(code=_run(to) + _COSINES),
    )


def _rows(by_words: bool, texts: Sequence[str | tuple[str, str]], length: int) -> str:
    """How texts become rows."""
    code = _JIEBA if by_words else _TOKENIZERS
    return _ROWS.format(code=code.format(length=length), texts=texts, length=length)


def _run(to: str) -> str:
    """How rows become answers."""
    return _SAVED_MODEL if to == "savedmodel" else _ONNX


_VECTOR_CARD = """\
# A RoFormer for sentence vectors, exported as {to}

It takes `token_ids` and `segment_ids`, int32 (batch, length), padded with 0, and gives `vectors`,
float32 (batch, numbers), of length 1: the product of two is their cosine.

{rows}
Rows to vectors:
{run}"""
_COSINES = """\
vectors = np.asarray(answers["vectors"])
cosines = vectors @ vectors.T
"""
_CARD = """\
# A RoFormer for {name}, exported as {to}

{labels}
{server} answers over HTTP from this folder. In a program it takes `token_ids` and `segment_ids`,
int32 (batch, length), padded with 0.

{rows}
Rows to answers:
{run}{decoding}"""
_CODE = """
```python
{code}```
"""
_DECODING = """
Tags are not the likeliest label of each unit: some may not follow each other, such as I-LOC behind
O{learnt}. `{file}` holds what labels score at the beginning of a text, behind each other and at
its end, -1e9 where they may not be; `roformer_tf` answers with the sequence of the highest total
score (Viterbi).
"""
_LEARNT = ", and what they score behind each other is learnt (a conditional random field)"
_DECODE = '''\
import json

import numpy as np

with open("task.json", encoding="utf-8") as file:
    labels = json.load(file)["labels"]
with open("transitions.json", encoding="utf-8") as file:
    scores = json.load(file)
start, transitions, end = (np.array(scores[key]) for key in ("start", "transitions", "end"))


def decode(logits):
    """Logits of a text's units (units, labels) to their tags."""
    best, came_from = start + logits[0], []
    for row in logits[1:]:
        paths = best[:, None] + transitions
        came_from.append(paths.argmax(axis=0))
        best = paths.max(axis=0) + row
    path = [(best + end).argmax()]
    for before in reversed(came_from):
        path.append(before[path[-1]])
    return [labels[number] for number in reversed(path)]


lengths = (inputs["token_ids"] != 0).sum(axis=1)  # with [CLS] and [SEP]
logits = np.asarray(answers["logits"])
tags = [decode(row[1 : length - 1]) for row, length in zip(logits, lengths)]
'''
_ROWS = """\
Texts to rows; a text of more than {length} tokens keeps its beginning, whatever `roformer_tf` does:

```python
import numpy as np

texts = {texts}
{code}```
"""
_TOKENIZERS = """\
from tokenizers import Tokenizer  # pip install tokenizers

tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({length})
tokenizer.enable_padding()
rows = tokenizer.encode_batch(texts)
inputs = {{
    "token_ids": np.array([row.ids for row in rows], "int32"),
    "segment_ids": np.array([row.type_ids for row in rows], "int32"),
}}
"""
_JIEBA = """\
# Words are jieba's, which no tokenizer.json can hold, so there is none here.
from transformers import RoFormerTokenizer  # pip install transformers rjieba

tokenizer = RoFormerTokenizer.from_pretrained(".")
rows = tokenizer(
    texts,
    padding=True,
    truncation=True,
    max_length={length},
    return_token_type_ids=True,
    return_tensors="np",
)
inputs = {{
    "token_ids": rows["input_ids"].astype("int32"),
    "segment_ids": rows["token_type_ids"].astype("int32"),
}}
"""
_NO_ROWS = """\
Texts to rows: this model labels words that white space separates, each by its first token. Which
token that is no tokenizer file can say, so `tokenizer.json` refuses: use `roformer_tf`.
"""
_ONNX = """\
import onnxruntime  # pip install 'onnxruntime>=1.22'; earlier ones attend wrongly

session = onnxruntime.InferenceSession("model.onnx")
names = [output.name for output in session.get_outputs()]
answers = dict(zip(names, session.run(names, inputs)))
"""
_SAVED_MODEL = """\
import tensorflow as tf

model = tf.saved_model.load(".")
answers = model.serve({name: tf.constant(array) for name, array in inputs.items()})
"""
