"""Exported folders can be opened like any model and give the predictions of the original."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf import errors
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.search.document_files import Document
from roformer_tf.search.retriever import open_reranker
from roformer_tf.search.writing import add_documents
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.tasks.choices.multiple_choice import Choices
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.scored_pairs import Embedding
from tests.inference.conftest import SIZES, TASKS, TOKENIZER
from tests.support.random_model import save_random_models
from tests.support.wiring import post

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
pytestmark = [
    pytest.mark.usefixtures("eager_steps"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="it writes a SavedModel"),
    pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]"),
]
TARGETS = ["savedmodel", "onnx", "onnxruntime"]
if find_spec("openvino"):
    TARGETS.append("openvino")
TEXTS = ["今天天气很好", "北京", "我们去公园学习" * 9, "上海的天气"]
MORE = {
    "crf": Tagging(labels=("O", "B-LOC", "I-LOC"), crf=True),
    "choices": Choices(text_columns=("text", "choices")),
    "spans": Spans(labels=("甲", "乙"), max_length=64),
    "embedding": Embedding.from_settings(data="scores", text_columns=("a", "b"), levels=(0.0, 1.0)),
}
KINDS = [*TASKS, *MORE]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """source("pair") → a folder as `finetune` writes it, and its predictions in Keras."""

    @cache
    def make(kind):
        task = (TASKS | MORE)[kind]
        sizes = {"crf": True} if kind == "crf" else {}
        sizes |= {"pooling": "mean"} if kind == "embedding" else {}
        folder = tmp_path_factory.mktemp(kind)
        folders = save_random_models({kind: task}, folder, TOKENIZER, **SIZES | sizes)
        if kind == "embedding":
            EmbeddingConfig("mean", 24).save(folders[kind])
        return folders[kind], roformer_tf.load(folders[kind], engine="keras")(examples(kind))

    return make


@pytest.fixture(scope="module")
def exported(source, tmp_path_factory):
    """exported("onnx", "pair") → the folder of the export, written once."""

    @cache
    def make(to, kind):
        folder = tmp_path_factory.mktemp(to) / "out"
        export(source(kind)[0], folder, to)
        return folder

    return make


def examples(kind):
    """Return inputs for the model that `load` returns."""
    if kind == "choices":
        return [(text, TEXTS[:3]) for text in TEXTS]
    columns = 1 if kind == "embedding" else len((TASKS | MORE)[kind].text_columns)
    rows = [tuple(TEXTS[(i + j) % len(TEXTS)] for j in range(columns)) for i in range(len(TEXTS))]
    return [row[0] for row in rows] if columns == 1 else rows


def flat(value):
    """Return all numbers and strings of a prediction in order."""
    if isinstance(value, dict):
        return [x for key in value for x in (key, *flat(value[key]))]
    if isinstance(value, list | tuple | np.ndarray):
        return [x for each in value for x in flat(each)]
    return [value]


def assert_same(actual, want):
    actual, want = flat(actual), flat(want)
    texts = [[x if isinstance(x, str) else "" for x in each] for each in (actual, want)]
    assert texts[0] == texts[1]
    numbers = [[0 if isinstance(x, str) else x for x in each] for each in (actual, want)]
    np.testing.assert_allclose(*numbers, rtol=0, atol=1e-5)


@pytest.mark.quick_cases(
    *("openvino-pair", "openvino-embedding", "savedmodel-classification"),
    *("onnx-embedding", "onnx-regression", "onnxruntime-spans"),
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", TARGETS)
def test_an_export_predicts_like_its_model(to, kind, source, exported):
    folder, (_, want) = exported(to, kind), source(kind)
    assert_same(roformer_tf.load(folder)(examples(kind)), want)
    app = open_service(ServeConfig(model=(str(folder),)))
    if kind == "embedding":
        (served,) = post(app, ("/embed", {"texts": TEXTS}))
        assert_same(served["vectors"], [x["vector"] for x in want])
        return
    texts = examples(kind)
    if kind == "choices":
        texts = [{"text": text, "choices": choices} for text, choices in texts]
    (served,) = post(app, ("/predict", {"texts": texts}))
    assert_same(served["predictions"], want)


ROWS = {
    "classification": [{"text": text, "label": "好坏"[i % 2]} for i, text in enumerate(TEXTS)],
    "regression": [{"text": text, "label": i} for i, text in enumerate(TEXTS)],
    "embedding": [{"a": TEXTS[0], "b": text, "label": i % 2} for i, text in enumerate(TEXTS)],
}


@pytest.mark.parametrize("to", [x for x in TARGETS if x != "savedmodel"])
def test_a_graph_is_opened_without_the_package_that_writes_it(exported, to, monkeypatch):
    folder = exported(to, "pair")
    monkeypatch.setattr(errors, "find_spec", lambda x: None if x == "onnx" else find_spec(x))
    monkeypatch.setitem(sys.modules, "onnx", None)  # an import raises ImportError
    assert roformer_tf.load(folder)(("北京", "天气"))["label"]


@pytest.mark.quick_cases("openvino")
@pytest.mark.parametrize("to", TARGETS)
def test_threads_may_share_an_export(to, exported):
    predictor, pairs = roformer_tf.load(exported(to, "pair")), examples("pair")
    want = predictor(pairs)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(predictor, [pairs] * 40)) == [want] * 40


@pytest.mark.quick_cases("openvino-embedding")
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("to", TARGETS)
def test_evaluate_gives_the_metrics_of_the_model(to, kind, source, exported, tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS[kind])), "utf-8")
    reports = []
    for model in (source(kind)[0], exported(to, kind)):
        flags = ["--data", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "report.json")]
        assert main(["evaluate", str(model), *flags]) == 0
        reports.append(json.loads((tmp_path / "report.json").read_text("utf-8"))["test"])
    assert_same(*reports)


def test_an_export_can_search_the_index_of_its_model(source, exported, tmp_path):
    folder, _ = source("embedding")
    add_documents(tmp_path / "index", VectorSettings().open(folder), [*map(Document, TEXTS)])
    model = str(exported("onnxruntime", "embedding"))
    config = ServeConfig(model=(model,), index=tmp_path / "index")
    (answer,) = post(open_service(config), ("/search", {"text": TEXTS[1], "top": 1}))
    assert answer["results"][0][0]["document"] == TEXTS[1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pooling": "cls"}, "with pooling mean, not cls"),
        ({"max_length": 8}, "with max_length 24, not 8"),
        ({"dimensions": 3}, "with dimensions 32, not 3"),
        ({"precision": "int8"}, "not int8"),
        ({"engine": "keras"}, "not keras"),
    ],
)
def test_settings_of_exported_vectors_cannot_be_changed(settings, reason, exported):
    with pytest.raises(InputError, match=reason):
        VectorSettings(**settings).open(exported("onnx", "embedding"))


@pytest.mark.parametrize("kind", ["classification", "embedding"])
def test_an_int8_export_is_opened_in_its_own_precision_alone(kind, exported):
    folder = exported("int8", kind)
    assert len(roformer_tf.load(folder)(TEXTS)) == len(TEXTS)
    assert len(roformer_tf.load(folder, precision="int8")(TEXTS)) == len(TEXTS)
    with pytest.raises(InputError, match="in int8, not float32"):
        roformer_tf.load(folder, precision="float32")
    if kind == "embedding":
        assert VectorSettings().open(folder).choice.precision == "int8"
        with pytest.raises(InputError, match="in int8, not float32"):
            VectorSettings(precision="float32").open(folder)


def test_an_int8_export_can_rerank(source, tmp_path):
    export(source("pair")[0], tmp_path / "int8", "int8")
    assert (
        open_reranker(str(tmp_path / "int8"), VectorSettings()).finetuned.choice.precision == "int8"
    )
    with pytest.raises(InputError, match="in int8, not float32"):
        open_reranker(str(tmp_path / "int8"), VectorSettings(precision="float32"))


@pytest.mark.quick_cases("onnx-settings", "onnxruntime-one segment")
@pytest.mark.parametrize("reason", ["settings", "one segment"])
@pytest.mark.parametrize("to", TARGETS)
def test_an_export_of_pairs_without_segments_predicts_like_its_model(reason, to, source, tmp_path):
    folder = tmp_path / "model"
    if reason == "settings":
        shutil.copytree(source("pair")[0], folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        settings["model_input_names"] = ["input_ids", "attention_mask"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    else:
        sizes = SIZES | {"type_vocab_size": 1}
        folder = save_random_models({"pair": TASKS["pair"]}, tmp_path, TOKENIZER, **sizes)["pair"]
    want = roformer_tf.load(folder, engine="keras")(examples("pair"))
    export(folder, tmp_path / "out", to)
    assert_same(roformer_tf.load(tmp_path / "out")(examples("pair")), want)


@pytest.mark.quick_cases("openvino")
@pytest.mark.parametrize("to", TARGETS)
def test_files_that_are_overwritten_change_nothing_until_the_export_is_opened_again(
    exported, tmp_path, to
):
    load = roformer_tf.load(shutil.copytree(exported(to, "pair"), tmp_path / "out"))
    want = load(examples("pair"))
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:  # as cp does, not as a new file
                file.write(bytes(path.stat().st_size))
    assert load(examples("pair")) == want
