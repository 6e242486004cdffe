"""Tests of constrained decoding of tags in load, predict, serve and exports.

The expected tags are the best of all sequences that the scheme allows, by enumeration.
"""

import dataclasses
import json
import re
import shutil
from importlib.util import find_spec
from itertools import pairwise, product

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.labelled.examples import Example
from roformer_tf.models.heads import RoFormerForTokenClassification
from roformer_tf.serving.serve_predictions import as_example
from roformer_tf.tasks.tagging import Tagging
from tests.support.finetuned import load_finetuned, predict
from tests.support.service_app import served_task

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TASK = Tagging(labels=TAGS, scheme="IOB2", long_texts="windows")
TEXTS = ["今天天气", "好", "去北京", "我们去公", "上海的天", "了好好了", "学习学", "今天去了"]


def is_legal(tags):
    previous = ("O", *tags[:-1])
    return all(x[0] != "I" or y[1:] == x[1:] for x, y in zip(tags, previous, strict=True))


def log_softmax(x):
    return (
        x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1))[:, None]
    )


def enumerated(emissions, start=0.0, transitions=None, end=0.0):
    """Return the best legal tags, and the probability of each over all legal sequences."""
    transitions = np.zeros((len(TAGS), len(TAGS))) if transitions is None else transitions
    start, end = (np.broadcast_to(x, len(TAGS)) for x in (start, end))
    paths, totals = [], []
    for path in product(range(len(TAGS)), repeat=len(emissions)):
        if is_legal([TAGS[i] for i in path]):
            steps = sum(transitions[a, b] for a, b in pairwise(path))
            emission = sum(row[i] for row, i in zip(emissions, path, strict=True))
            paths.append(path)
            totals.append(emission + steps + start[path[0]] + end[path[-1]])
    weights = np.exp(np.array(totals) - max(totals))
    weights /= weights.sum()
    best = paths[int(np.argmax(totals))]
    probabilities = [
        sum(w for p, w in zip(paths, weights, strict=True) if p[t] == i) for t, i in enumerate(best)
    ]
    return [TAGS[i] for i in best], probabilities


@pytest.fixture(scope="module")
def folders(finetuned, tmp_path_factory):
    """Folders by `crf`: a random model of five tags, as `finetune` writes it."""
    source, folders_by_crf = finetuned("tagging"), {}
    encoder = roformer_tf.RoFormerEncoder.from_pretrained(source)
    for crf in (False, True):
        keras.utils.set_random_seed(2)
        model = RoFormerForTokenClassification(encoder.config.replace(num_labels=5, crf=crf))
        rng = np.random.default_rng(0)
        for name, variable in model.named_variables().items():
            if name.startswith("crf/"):
                variable.assign(rng.normal(size=variable.shape))
        model.tokenizer = encoder.tokenizer.replaced(units="characters")
        folder = tmp_path_factory.mktemp("tags") / "model"
        model.save_pretrained(folder)
        dataclasses.replace(TASK, crf=crf).save(folder)
        folders_by_crf[crf] = folder
    return folders_by_crf


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("crf", [False, True])
def test_tags_are_the_best_legal_ones(crf, folders):
    model, tokenizer, task = load_finetuned(folders[crf])
    weights = {}
    if crf:
        names = ("start", "transitions", "end")
        arrays = (model.crf.start, model.crf.transitions, model.crf.end)
        weights = {name: np.asarray(x, "float64") for name, x in zip(names, arrays, strict=True)}
    examples = [task.labelling.for_prediction(Example((text,), None, "")) for text in TEXTS]
    predictions = predict(model, tokenizer, task, examples)
    differing = 0
    for text, example, prediction in zip(TEXTS, examples, predictions, strict=True):
        logits = np.asarray(model(tokenizer([text])), "float64")[0, 1:-1]
        tags, probabilities = enumerated(log_softmax(logits), **weights)
        assert list(prediction.label) == tags
        output = [
            item["probability"] for item in task.decoding.as_json(example, prediction)["tags"]
        ]
        if not crf:  # without a CRF, the unit's own probability
            probabilities = np.exp(log_softmax(logits))[
                range(len(tags)), [TAGS.index(x) for x in tags]
            ]
        assert output == pytest.approx(probabilities, abs=1e-5)
        differing += [TAGS[i] for i in logits.argmax(-1)] != tags
    assert differing >= 2  # the test data must include illegal most likely tags


def test_labels_of_the_same_name_are_refused(folders, finetuned, tmp_path):
    for source in (folders[False], finetuned("classification")):
        folder = shutil.copytree(source, tmp_path / source.parent.name / "model")
        (folder / "task.json").unlink()  # as transformers saves it
        values = json.loads((folder / "config.json").read_text("utf-8"))
        values["id2label"]["1"] = values["id2label"]["0"]
        (folder / "config.json").write_text(json.dumps(values), "utf-8")
        with pytest.raises(InputError, match=r"model has labels of the same name: (\w+), \1"):
            roformer_tf.load(folder)


@pytest.mark.parametrize("crf", [False, True])
def test_load_predict_and_serve_give_the_same_tags(crf, folders, tmp_path):
    texts = [*TEXTS, "我们去公园学习，" * 9]
    (tmp_path / "in.txt").write_text("".join(f"{x}\n" for x in texts), encoding="utf-8")
    flags = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl")]
    assert main(["predict", "--model", str(folders[crf]), *flags]) == 0
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    predicted = [json.loads(line) for line in lines]
    loaded = roformer_tf.load(folders[crf])(texts)
    served = served_task(folders[crf])
    examples = [as_example([text], served.task) for text in texts]
    served_predictions = list(map(served.task.decoding.as_json, examples, served.predict(examples)))
    for text, line, item, other in zip(texts, predicted, loaded, served_predictions, strict=True):
        tags = [unit["label"] for unit in item["tags"]]
        assert is_legal(tags)
        assert line["tags"] == tags
        assert [unit["label"] for unit in other["tags"]] == tags
        assert other["entities"] == item["entities"]
        assert [list(x.values()) for x in item["entities"]] == line["entities"]
        for actual in item["entities"]:
            assert text[actual["start"] : actual["end"]] == actual["text"]


def test_a_text_in_windows_is_decoded_as_a_whole(folders, tmp_path):
    """Each unit gets its emissions from one window; the CRF then decodes across windows."""
    model, tokenizer, task = load_finetuned(folders[True])
    task = dataclasses.replace(task, max_length=8)
    (example,) = [task.labelling.for_prediction(Example((TEXTS[0] + TEXTS[2],), None, ""))]
    encoded = task.labelling.encode([example], tokenizer)
    assert len(encoded.token_ids) > 1
    units = np.zeros((7, len(TAGS)))
    for ids, first in zip(encoded.token_ids, encoded.first_units, strict=True):
        logits = np.asarray(model({"token_ids": ids[None]}), "float64")[0]
        units[first[first >= 0]] = logits[first >= 0]
    arrays = (
        np.asarray(x, "float64") for x in (model.crf.start, model.crf.transitions, model.crf.end)
    )
    tags, _ = enumerated(units, *arrays)
    (prediction,) = predict(model, tokenizer, task, [example])
    assert list(prediction.label) == tags


UNUSUAL = st.text(
    st.sampled_from("北京 \u3000\u200b①１Ａａ,，\u0301é𠀀😀\u2028\x1c\ufeff"), min_size=1
)


@given(UNUSUAL.filter(str.strip), st.randoms(use_true_random=False))
def test_positions_of_entities_are_those_of_the_original_text(text, rng):
    """Positions count code points of the original text, for any characters."""
    for task in (TASK, dataclasses.replace(TASK, spaced_units=True)):
        example = task.labelling.for_prediction(Example((text,), None, ""))
        units = len(example.units)
        scores = np.array([[rng.random() for _ in TAGS] for _ in range(units)]).reshape(units, 5)
        actual = task.decoding.as_json(example, task.decoding.predict(scores))
        for item in actual["entities"]:
            assert text[item["start"] : item["end"]] == item["text"]
        tags = [unit["label"] for unit in actual["tags"]]
        assert is_legal(tags) or not tags
        assert sum(tag[0] == "B" for tag in tags) == len(actual["entities"])
        if not task.spaced_units:
            starts = [i for i, tag in enumerate(tags) if tag[0] == "B"]
            assert [item["start"] for item in actual["entities"]] == starts


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow writes exports")
@pytest.mark.parametrize("crf", [False, True])
def test_an_exported_graph_predicts_the_same_tags(crf, folders, tmp_path, monkeypatch):
    """Predict with `load`, and with the code of its README, which does not use this package."""
    to = "onnxruntime" if crf and find_spec("onnxruntime") else "savedmodel"
    export(folders[crf], tmp_path / "out", to)
    want = [
        [unit["label"] for unit in item["tags"]] for item in roformer_tf.load(folders[crf])(TEXTS)
    ]
    if to == "onnxruntime":
        loaded = roformer_tf.load(tmp_path / "out")(TEXTS)
        assert [[unit["label"] for unit in item["tags"]] for item in loaded] == want
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, run, decode = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert ("a conditional random field" in card) == crf
    assert "roformer_tf" not in run + decode
    monkeypatch.chdir(tmp_path / "out")
    actual = {"inputs": load_finetuned(folders[crf])[1](TEXTS)}
    exec(run + decode, actual)
    assert actual["tags"] == want
    assert ("probabilities" in actual["answers"]) != crf


def test_a_checkpoint_without_a_task_uses_its_crf(folders, tmp_path):
    """The tensors show that there is a CRF; there is no task."""
    folder = shutil.copytree(folders[True], tmp_path / "model")
    (folder / "task.json").unlink()
    model, tokenizer, task = load_finetuned(folders[True])
    task = dataclasses.replace(task, scheme="")
    examples = [task.labelling.for_prediction(Example((text,), None, "")) for text in TEXTS]
    want = [
        [TAGS.index(tag) for tag in item.label]
        for item in predict(model, tokenizer, task, examples)
    ]
    actual = roformer_tf.load(folder)(TEXTS)
    assert [[int(x["label"][6:]) for x in item["tags"]] for item in actual] == want


def test_an_inconsistent_crf_is_refused(folders, tmp_path):
    """The CRF is in the task or in the weights, but not in both."""
    for crf in (False, True):
        folder = shutil.copytree(folders[crf], tmp_path / str(crf))
        dataclasses.replace(TASK, crf=not crf).save(folder)
        with pytest.raises(InputError, match="do not belong together"):
            load_finetuned(folder)
