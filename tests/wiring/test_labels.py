"""Each setting that is stored with a fine-tuned model is used by every way to predict.

Each model has one setting that its predictions for these texts depend on. The reference is the
model before it is saved. Without the setting, the same model predicts something else.
"""

import json
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines.choice import Choice
from roformer_tf.engines.model import GraphModel
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.inference.opening import share_weights
from roformer_tf.labelled.examples import Example
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ServeConfig, WorkerPart
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.finetuned import predict
from tests.support.random_model import LETTERS, random_model
from tests.support.wiring import assert_wired, post

pytestmark = pytest.mark.usefixtures("eager_steps")


def random_texts(count, seed):
    rng = np.random.default_rng(seed)
    letters = list(LETTERS + "AaBb")
    return ["".join(rng.choice(letters, rng.integers(2, 24))) for _ in range(count)]


TEXTS = random_texts(16, 0)
PAIRS = list(zip(TEXTS, random_texts(16, 1), strict=True))
SPACED = [" ".join(text[i : i + 2] for i in range(0, len(text), 2)) for text in TEXTS]
TOKENS = [*SPECIAL_TOKENS, *LETTERS, *"AaBb"]
ABC, BIO = ("丙", "甲", "乙"), ("O", "B-LOC", "I-LOC")


def tokenizer(lower_case=True):
    return RoFormerTokenizer({x: i for i, x in enumerate(TOKENS)}, "char", lower_case=lower_case)


@dataclass(frozen=True)
class Case:
    """A model with a setting, and the mistake of ignoring the setting."""

    task: Any
    without: dict = field(default_factory=dict)
    """Fields of the task if the setting were ignored."""
    config: dict = field(default_factory=dict)
    model_without: Any = None
    """model → a substitute that predicts as if the setting were ignored."""
    tokenizer: Any = field(default_factory=tokenizer)
    tokenizer_without: Any = None
    texts: list = field(default_factory=lambda: TEXTS)


def by_first_token(model):
    """A classifier with mean pooling, computed as if it used the first token."""
    head = model.parts()["classifier"].out_proj

    def logits(rows):
        hidden = keras.ops.convert_to_numpy(model.parts()["encoder"](rows))[:, 0]
        return keras.ops.convert_to_numpy(head(hidden))

    return GraphModel(logits, "onnx", "float32")


SHORT = {"labels": ABC, "max_length": 8}
CASES = {
    "thresholds": Case(
        Multilabel(labels=ABC, thresholds=(0.9, 0.1, 0.35)), without={"thresholds": ()}
    ),
    "max_length": Case(Classification(**SHORT), without={"max_length": 512}),
    "windows": Case(Classification(**SHORT, long_texts="windows"), without={"long_texts": "head"}),
    "head-tail": Case(
        Classification(**SHORT, long_texts="head-tail"), without={"long_texts": "head"}
    ),
    "label order": Case(Classification(labels=ABC), without={"labels": tuple(sorted(ABC))}),
    "order of tags": Case(
        Tagging(labels=("I-LOC", "O", "B-LOC")), without={"labels": tuple(sorted(BIO))}
    ),
    "scheme": Case(Tagging(labels=BIO, scheme="IOB2"), without={"scheme": ""}),
    "crf": Case(
        Tagging(labels=BIO, scheme="IOB2", crf=True), without={"crf": False}, config={"crf": True}
    ),
    "words are units": Case(
        Tagging(labels=BIO, spaced_units=True), without={"spaced_units": False}, texts=SPACED
    ),
    "mean and deviation": Case(
        Regression(mean=3.0, deviation=1.5), without={"mean": 0.0, "deviation": 1.0}
    ),
    "text columns": Case(
        Pair(labels=("1", "0"), text_columns=("问", "答")), without={"text_columns": ("答", "问")}
    ),
    "pooling": Case(
        Classification(labels=ABC), config={"pooling": "mean"}, model_without=by_first_token
    ),
    "lower case": Case(
        Classification(labels=ABC), tokenizer=tokenizer(False), tokenizer_without=tokenizer(True)
    ),
}


class Predictions(NamedTuple):
    """A model's predictions for the examples of a case."""

    predictions: list
    plain: list
    """The predictions in the common format of `plain`."""


@dataclass
class Prepared:
    """A model's folder, its reference predictions, and those without the setting."""

    folder: Path
    task: Any
    examples: list
    want: Predictions
    wrong: Predictions

    @cached_property
    def export(self):
        """The folder of the model's ONNX export."""
        folder = self.folder.with_name("export")
        assert main(["export", str(self.folder), "--to", "onnx", "--output", str(folder)]) == 0
        return folder

    def metric_value(self, model_predictions):
        """The metric of predictions if the reference predictions were the labels."""
        gold = [item.label for item in self.want.predictions]
        return self.task.metrics.compute(gold, model_predictions.predictions)[self.metric]

    @property
    def metric(self):
        """A metric that depends on the setting."""
        metrics = {"multilabel": "micro_f1", "tagging": "f1", "regression": "mae"}
        return metrics.get(self.task.name, "accuracy")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, eagerly):
    """prepared("crf") → the case with its predictions, computed once."""

    @cache
    def make(name):
        case = CASES[name]
        task = case.task
        keras.utils.set_random_seed(4)
        model = random_model(task, case.tokenizer, **case.config)
        texts = PAIRS if len(task.text_columns) > 1 else [(text,) for text in case.texts]
        with eagerly():
            make_labels_vary(model, case, texts)
        folder = tmp_path_factory.mktemp("kept") / "model"
        LabelledDataset([], task).save_model(model, folder)
        mistaken = case.model_without(model) if case.model_without else model
        without = replace(task, **case.without)
        swapped = "text_columns" in case.without
        with eagerly():
            want = predictions_of(
                model, case.tokenizer, task.decoding.with_arrays(model.named_variables()), texts
            )
            inputs = [pair[::-1] for pair in texts] if swapped else texts
            wrong = predictions_of(
                mistaken, case.tokenizer_without or case.tokenizer, without, inputs
            )
        examples = [task.labelling.for_prediction(Example(item, None, "")) for item in texts]
        return Prepared(folder, task, examples, want, wrong)

    return make


def make_labels_vary(model, case, texts):
    """Set the head's bias so that all labels are predicted, and set the weights of a CRF."""
    rng = np.random.default_rng(1)
    weights = model.named_variables()
    for key, variable in weights.items():
        if "crf" in key:
            variable.assign(2 * rng.normal(size=variable.shape))
    examples = [case.task.labelling.for_prediction(Example(item, None, "")) for item in texts]
    encoded = case.task.labelling.encode(examples, case.tokenizer)
    logits = case.task.decoding.combine(case.task.decoding.run(model, encoded, 32), encoded)
    (bias,) = (
        x
        for key, x in weights.items()
        if "classifier" in key and key.endswith("bias") and x.shape == (case.task.outputs,)
    )
    bias.assign(
        bias - np.concatenate([item.reshape(-1, case.task.outputs) for item in logits]).mean(0)
    )


def predictions_of(model, tokenizer, task, texts):
    examples = [task.labelling.for_prediction(Example(item, None, "")) for item in texts]
    actual = predict(model, tokenizer, task, examples)
    results = [task.decoding.as_json(*pair) for pair in zip(examples, actual, strict=True)]
    return Predictions(actual, list(map(plain, results)))


def plain(prediction):
    """A prediction in a common format: tags, a number, or the labels and their probabilities."""
    if "tags" in prediction:
        return [tag if isinstance(tag, str) else tag["label"] for tag in prediction["tags"]]
    if "score" in prediction:
        return prediction["score"]
    scores = prediction.get("scores") or {
        key[2:-1]: x for key, x in prediction.items() if key.startswith("p(")
    }
    label = prediction.get("label", prediction.get("labels"))
    return [label if isinstance(label, str) else sorted(label), scores]


def precision_of(folder):
    """The precision to request. An export has a fixed one."""
    return None if (folder / "model.onnx").exists() else "float32"


def engine_flags(folder, engine):
    precision = precision_of(folder)
    return ["--engine", engine, *(["--precision", precision] if precision else [])]


def loaded(prepared, folder, engine, **_):
    texts = [item.texts if len(item.texts) > 1 else item.texts[0] for item in prepared.examples]
    return roformer_tf.load(folder, engine=engine, precision=precision_of(folder))(texts)


def predicted(prepared, folder, engine, tmp_path, **_):
    source, out = tmp_path / "texts.tsv", tmp_path / "answers.jsonl"
    write_table(source, prepared)
    flags = ["--input", source, "--output", out, *engine_flags(folder, engine)]
    assert main(["predict", str(folder), *map(str, flags)]) == 0
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def served(prepared, folder, engine, tmp_path, workers=1, **_):
    config = ServeConfig(model=(str(folder),), engine=engine, precision=precision_of(folder))
    part = None
    if workers > 1:  # open the model as one of several workers does
        shared = share_weights(folder, Choice(engine, "float32"), tmp_path)
        part = WorkerPart(1, shared)
    texts = [
        list(item.texts) if len(item.texts) > 1 else item.texts[0] for item in prepared.examples
    ]
    app = open_service(config, [part])
    (actual,) = post(app, ("/predict", {"texts": texts}))
    return actual["predictions"]


def evaluated(prepared, folder, engine, tmp_path, **_):
    """The metric that `evaluate` computes on a file with the reference predictions as labels."""
    gold = [item.label for item in prepared.want.predictions]
    if prepared.task.name == "tagging":
        data = tmp_path / "data.conll"
        rows = [
            zip(item.units, x, strict=True) for item, x in zip(prepared.examples, gold, strict=True)
        ]
        lines = ["".join(f"{unit}\t{tag}\n" for unit, tag in row) for row in rows]
        data.write_text("\n".join(lines), encoding="utf-8")
    else:
        data = tmp_path / "data.tsv"
        write_table(data, prepared, [",".join(x) if isinstance(x, tuple) else str(x) for x in gold])
    out = tmp_path / "figures.json"
    flags = ["--data", data, "--output", out, *engine_flags(folder, engine)]
    assert main(["evaluate", str(folder), *map(str, flags)]) == 0
    return json.loads(out.read_text("utf-8"))["test"][prepared.metric]


def write_table(path, prepared, labels=None):
    """Write a file of the examples whose text columns are in another order than in training."""
    names = prepared.task.text_columns
    lines = [[*names[::-1], *(["label"] if labels else [])]]
    for number, item in enumerate(prepared.examples):
        lines.append([*item.texts[::-1], *([labels[number]] if labels else [])])
    path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


WAYS = {"load": loaded, "predict": predicted, "serve": served, "evaluate": evaluated}
WAYS["serve --workers"] = partial(served, workers=2)
NEEDED = {"keras": [], "onnx": ["onnx", "onnxruntime"], "openvino": ["onnx", "openvino"]}


def cell(way, engine, exported=False):
    """A column of the table."""
    missing = [item for item in NEEDED[engine] if not find_spec(item)]
    if way.startswith("serve") and not find_spec("fastapi"):
        missing.append("fastapi")
    skipped = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
    name = f"{way}-{'export' if exported else engine}"
    return pytest.param(way, engine, exported, marks=skipped, id=name)


TABLE = [
    *(cell(way, engine) for way in ("load", "predict", "serve") for engine in ("keras", "onnx")),
    *(cell("evaluate", engine) for engine in ("keras", "onnx")),
    *(cell(way, "openvino") for way in ("load", "serve --workers")),
    cell("serve --workers", "onnx"),
    *(cell(way, "onnx", exported=True) for way in ("load", "predict", "serve", "evaluate")),
]


@pytest.mark.quick_cases(  # the rest opens a model as `load` does
    *("*-onnx", "*-load-openvino", "*-load-export", "*-load-keras"),
)
@pytest.mark.parametrize(("way", "engine", "exported"), TABLE)
@pytest.mark.parametrize("case", CASES)
def test_stored_settings_determine_predictions(case, way, engine, exported, prepared, tmp_path):
    item = prepared(case)
    folder = item.folder
    if exported:
        folder = item.export
    actual = WAYS[way](item, folder, engine, tmp_path=tmp_path)
    if way != "evaluate":
        assert_wired(list(map(plain, actual)), item.want.plain, {f"{case} lost": item.wrong.plain})
    elif case != "words are units":  # a labelled file defines its own units
        assert_wired(
            actual, item.metric_value(item.want), {f"{case} lost": item.metric_value(item.wrong)}
        )
