"""The `README.md` of an export: the lines that use it where this package is not installed.

Every line of code in it runs in the export's folder; the tests run it.
"""

from roformer_tf.tasks.base import Task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


def export_card(to: str, tokenizer: RoFormerTokenizer, task: Task) -> str:
    """Give the text: what the files are, how texts become rows, and how rows become answers."""
    labels = f"Labels, in the order of the logits: {', '.join(task.labels)}.\n" * bool(task.labels)
    if task.units == "characters":
        labels += "Each character is a token, the first after [CLS], and has logits of its own.\n"
    if task.units == "words":
        rows = _NO_ROWS
    else:
        # jieba's words, unless characters are the units
        code = _JIEBA if (tokenizer.tokenization, task.units) == ("word", None) else _TOKENIZERS
        example = ("今天天气很好", "天气不错") if len(task.text_columns) > 1 else "今天天气很好"
        length = task.max_length
        rows = _ROWS.format(code=code.format(length=length), texts=[example], length=length)
    if to == "savedmodel":
        server, run = "TensorFlow Serving", _SAVED_MODEL
    else:
        server, run = "`roformer-tf serve`", _ONNX
    return _CARD.format(name=task.name, to=to, labels=labels, server=server, rows=rows, run=run)


_CARD = """\
# A RoFormer for {name}, exported as {to}

{labels}
{server} answers over HTTP from this folder. In a program it takes `token_ids` and `segment_ids`,
int32 (batch, length), padded with 0.

{rows}
Rows to answers:

```python
{run}```
"""
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
import onnxruntime  # pip install onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
names = [output.name for output in session.get_outputs()]
answers = dict(zip(names, session.run(names, inputs)))
"""
_SAVED_MODEL = """\
import tensorflow as tf

model = tf.saved_model.load(".")
answers = model.serve({name: tf.constant(array) for name, array in inputs.items()})
"""
