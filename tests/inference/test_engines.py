"""Tests that graphs predict as Keras does, for all tasks, and without loading Keras."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.engines.choice import MODULES
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.inference.opening import (
    open_finetuned,
    share_weights,
)
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.vectors.paraphrase import Paraphrase
from roformer_tf.tasks.vectors.scored_pairs import Embedding
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS
from tests.inference.conftest import TASKS, TOKENIZER
from tests.support.finetuned import load_finetuned, predict
from tests.support.random_model import save_random_models

pytestmark = pytest.mark.usefixtures("eager_steps")
TEXTS = ["今天天气很好", "北京", "我们去公园学习" * 9, "很好", "今", "上海的天气"]
ENGINES = [
    pytest.param(
        engine,
        marks=pytest.mark.skipif(
            not all(map(find_spec, MODULES[engine])), reason=f"needs the packages of {engine}"
        ),
    )
    for engine in ("onnx", "openvino")
]


def examples_of(task):
    count = len(task.text_columns)
    text_tuples = [
        tuple(TEXTS[(i + k) % len(TEXTS)] for k in range(count)) for i in range(len(TEXTS))
    ]
    return [task.labelling.for_prediction(Example(texts, None, "")) for texts in text_tuples]


@pytest.mark.quick_cases("*-onnx", "tagging-openvino", "pair-openvino", "regression-openvino")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TASKS)
def test_predictions_of_every_task_equal_keras(name, engine, finetuned):
    model, tokenizer, task = load_finetuned(finetuned(name))
    actual = open_finetuned(finetuned(name), engine, "float32")
    assert (actual.choice.engine, actual.task) == (engine, task)
    examples = examples_of(task)
    want = predict(model, tokenizer, task, examples)
    for got, item in zip(
        predict(actual.model, actual.tokenizer, actual.task, examples), want, strict=True
    ):
        np.testing.assert_allclose(got.scores, item.scores, rtol=0, atol=1e-5)
        is_number = isinstance(item.label, float)
        assert got.label == (pytest.approx(item.label, abs=1e-5) if is_number else item.label)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_may_share_a_predictor(engine, finetuned):
    predictor = roformer_tf.load(str(finetuned("classification")), engine=engine)
    want = predictor(TEXTS)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(predictor, [TEXTS] * 40)) == [want] * 40


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "pooling"), [(Embedding, "mean"), (Paraphrase, "pooler")])
def test_predictions_of_vector_tasks_equal_keras(kind, pooling, engine, tmp_path):
    tasks = {"vectors": kind(text_columns=("a", "b"))}
    folder = save_random_models(tasks, tmp_path, TOKENIZER, pooling=pooling)["vectors"]
    actual, want = (open_finetuned(folder, name, "float32") for name in (engine, "keras"))
    examples = [Example(pair, BELONGS, "") for pair in zip(TEXTS[::2], TEXTS[1::2], strict=True)]
    for got, expected in zip(actual.predict(examples), want.predict(examples), strict=True):
        assert got.label.rank == expected.label.rank
        np.testing.assert_allclose(got.scores, expected.scores, rtol=0, atol=1e-5)
    assert len({float(x.scores[0]) for x in want.predict(examples)}) == len(examples)


WITHOUT_KERAS = """
import json, sys
for name in ("tensorflow", "jax", "grain", "tf2onnx"):
    sys.modules[name] = None  # importing them fails
import numpy as np
import roformer_tf
from roformer_tf.serving.serve_predictions import as_example, load_served_task
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.inference.embed import VectorSettings
finetuned, char = sys.argv[1:]
vector = VectorSettings().open(char).embed(["今天天气很好"])[0]
served = load_served_task(finetuned, "m", ServeConfig(model=(finetuned,), precision="float32"))
result = {
    "load": roformer_tf.load(finetuned, precision="float32")(["今天天气很好"])[0]["scores"],
    "served": served.predict([as_example(["今天天气很好"], served.task)])[0].label,
    "vector": vector.tolist(),
    "filled": roformer_tf.load(char, precision="float32")(["今天天气很[MASK]"])[0]["scores"],
}
assert "keras" not in sys.modules
print(json.dumps(result))
"""


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
@pytest.mark.slow
def test_predictions_need_neither_tensorflow_nor_keras(finetuned, released):
    arguments = [str(finetuned("classification")), str(released("hf_char"))]
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    actual = json.loads(process.stdout)
    settings = {"engine": "keras", "precision": "float32"}
    want = roformer_tf.load(arguments[0], **settings)(["今天天气很好"])[0]["scores"]
    assert actual["load"] == pytest.approx(want, abs=1e-5)
    vector = VectorSettings(engine="keras").open(arguments[1]).embed(["今天天气很好"])[0]
    np.testing.assert_allclose(actual["vector"], vector, atol=1e-5)
    filled = roformer_tf.load(arguments[1], **settings)(["今天天气很[MASK]"])[0]["scores"]
    assert actual["filled"][0] == pytest.approx(filled[0], abs=1e-5)


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_processes_that_share_weights_predict_the_same(precision, finetuned, tmp_path):
    folder = finetuned("pair")
    opened = open_finetuned(folder, "onnx", precision)
    shared = share_weights(folder, opened.choice, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "weights"}
    other = open_finetuned(folder, "onnx", precision, threads=1, shared=shared)
    assert (other.model.precision, other.model.tokens) == (precision, opened.model.tokens)
    examples = examples_of(opened.task)
    for got, want in zip(
        predict(other.model, other.tokenizer, other.task, examples),
        predict(opened.model, opened.tokenizer, opened.task, examples),
        strict=True,
    ):
        np.testing.assert_allclose(got.scores, want.scores, rtol=0, atol=1e-6)


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
def test_inconsistent_model_files_are_refused(finetuned, tmp_path):
    import shutil

    folder = shutil.copytree(finetuned("classification"), tmp_path / "mixed")
    TASKS["multilabel"].save(folder)
    with pytest.raises(InputError, match="do not belong together"):
        open_finetuned(folder, "onnx")
    with OpenedSource(folder) as source:
        assert source.checkpoint().config.num_labels == 2
