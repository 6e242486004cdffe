"""The code in the README of an export runs unchanged."""

import re
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf.export.command import export
from roformer_tf.export.formats import export_card
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.finetuned import load_finetuned
from tests.support.task_files import load_task

TOKENS = [*SPECIAL_TOKENS, "天气", "今天", *dict.fromkeys("今天天气很好我们去公园北京上海的了")]
TEXTS = ["今天天气很好", "我们去北京了，上海的天气好", "好" * 60]


def code_of(card):
    """Return the code of a card without its example texts."""
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    return re.sub(r"^texts = .*$", "", "\n".join(blocks), flags=re.MULTILINE)


@pytest.mark.hf
@pytest.mark.parametrize("tokenization", ["word", "char"])
@pytest.mark.parametrize("name", ["classification", "pair", "tagging"])
def test_the_card_tokenizes_like_the_package(name, tokenization, tmp_path, monkeypatch):
    task = {
        "classification": Classification(labels=("坏", "好"), max_length=32),
        "pair": Ranking(text_columns=("a", "b", "c"), max_length=32),
        "tagging": Tagging(labels=("O", "B-LOC", "I-LOC"), max_length=100),
    }[name]
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = RoFormerTokenizer(vocabulary, tokenization, units=task.units)
    tokenizer.save_pretrained(tmp_path)
    rows, run = code_of(export_card("onnxruntime", tokenizer, task.max_length, task)).split(
        "import onnxruntime"
    )
    assert "roformer_tf" not in rows + run
    texts = [(text, text[:9]) for text in TEXTS] if name == "pair" else TEXTS
    monkeypatch.chdir(tmp_path)
    actual = {"texts": texts}
    exec(rows, actual)
    if name == "tagging":
        want = [
            [tokenizer.cls_id, *(i for unit in text for i in tokenizer.ids(unit)), tokenizer.sep_id]
            for text in TEXTS
        ]
    else:
        want = [tokenizer.encode(*item, max_length=32)[0] for item in map(as_texts, texts)]
    got = [row[row != 0].tolist() for row in actual["inputs"]["token_ids"]]
    assert got == want
    assert actual["inputs"]["segment_ids"].max() == (name == "pair")
    assert actual["inputs"]["token_ids"].dtype == np.int32


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow writes exports")
def test_the_card_gives_segment_ids_of_questions_like_the_package(finetuned, tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    folder = finetuned("question-answering")
    export(folder, tmp_path / "out", "savedmodel")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    rows, _ = code_of(card).split("import tensorflow")
    texts = [("今天好？", "我们今天去公园，北京好"), ("谁", "学习" * 9)]
    monkeypatch.chdir(tmp_path / "out")
    actual = {"texts": texts}
    exec(rows, actual)
    task = load_task(folder)
    examples = [Example(pair, None, "") for pair in texts]
    encoded = task.labelling.encode(examples, RoFormerTokenizer.from_pretrained(folder))
    for name, arrays in (("token_ids", encoded.token_ids), ("segment_ids", encoded.segment_ids)):
        for row, want in zip(actual["inputs"][name], arrays, strict=True):
            assert row[: len(want)].tolist() == want.tolist()


def test_the_card_of_a_model_without_segments_puts_pairs_into_segment_0(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    task = Pair(labels=("0", "1"), text_columns=("a", "b"))
    tokenizer = RoFormerTokenizer({token: i for i, token in enumerate(TOKENS)}, "char")
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    for segments in (True, False):
        tokenizer.segments = segments
        card = export_card("onnx", tokenizer, task.max_length, task)
        actual = {"texts": [("今天", "好")]}
        exec(code_of(card).split("import onnxruntime")[0], actual)
        assert actual["inputs"]["token_type_ids"].any() == segments


def as_texts(example):
    return example if isinstance(example, tuple) else (example,)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow writes exports")
@pytest.mark.parametrize("to", ["savedmodel", "onnxruntime"])
def test_the_card_gives_the_logits_of_the_model(to, finetuned, tmp_path, monkeypatch):
    if to == "onnxruntime" and not find_spec("onnxruntime"):
        pytest.skip("needs the extra [onnx]")
    folder = finetuned("classification")
    export(folder, tmp_path / "out", to)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "坏, 好" in card
    model, tokenizer, _ = load_finetuned(folder)
    inputs = tokenizer(["今天天气很好", "北京"])
    _, run = code_of(card).split(
        "import onnxruntime" if to == "onnxruntime" else "import tensorflow"
    )
    monkeypatch.chdir(tmp_path / "out")
    actual = {"inputs": inputs}
    exec(f"import {'onnxruntime' if to == 'onnxruntime' else 'tensorflow'}{run}", actual)
    want = np.asarray(model(inputs))
    np.testing.assert_allclose(np.asarray(actual["answers"]["logits"]), want, atol=1e-4)


def test_the_card_has_no_tokenizer_code_for_spaced_units(released):
    task = Tagging(labels=("O", "B-LOC"), spaced_units=True)
    tokenizer = RoFormerTokenizer.from_pretrained(released("char"))
    card = export_card("onnxruntime", tokenizer, task.max_length, task)
    assert "import onnxruntime" in card
    assert "Tokenizer.from_file" not in card
    assert "use `roformer_tf`" in card
