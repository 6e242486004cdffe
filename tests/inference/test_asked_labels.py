"""Tests of zero-shot labels, passed with the texts to load, predict and the service.

Predictions are compared with plain Keras calls for each text and the sentence of each label.
"""

import re

import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference.predictor import Predictor
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tasks.classification import Classification, Pair
from tests.inference.conftest import SIZES, TOKENIZER
from tests.support.random_model import save_random_models
from tests.support.service_app import create_task_app, served_task
from tests.support.wiring import assert_wired, post

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")

TEXTS = ["今天天气很好", "我们去公园学习，" * 3, "上海", "北京的公园"]
LABELS = ["天气", "学习", "公园"]
TASKS = {
    "nli": Pair(labels=("contradiction", "entailment", "neutral"), text_columns=("a", "b")),
    "中文": Pair(labels=("中立", "矛盾", "蕴涵"), text_columns=("a", "b")),
    "one": Classification(labels=("坏", "好")),
    "numbers": Pair(labels=("0", "1", "2"), text_columns=("a", "b")),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    return save_random_models(TASKS, folder, TOKENIZER, seed=2, **SIZES)


def reference(folder, template, column, texts=TEXTS):
    """Return scores (texts, labels) float64: a softmax of logits of unpadded sequences."""
    model = RoFormerForSequenceClassification.from_pretrained(folder)
    pairs = [(text, template.replace("{}", label)) for text in texts for label in LABELS]
    logits = [np.asarray(model(TOKENIZER([pair])), "float64")[0, column] for pair in pairs]
    odds = np.exp(np.reshape(logits, (len(texts), -1)))
    return odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.quick_cases("*-2-*{}*")
@pytest.mark.parametrize("template", [None, "北京{}的公园"])
@pytest.mark.parametrize(("name", "column"), [("nli", 1), ("中文", 2)])
def test_the_label_with_the_highest_entailment_is_predicted(folders, name, column, template):
    model = roformer_tf.load(folders[name])
    got = model(TEXTS, labels=LABELS, template=template)
    default = "这段话的内容是关于{}的。"
    want = reference(folders[name], template or default, column)
    assert [list(x["scores"]) for x in got] == [LABELS] * 4
    assert_wired(
        np.array([list(x["scores"].values()) for x in got]),
        want,
        {
            "another label's logit": reference(folders[name], template or default, 0),
            "another template": reference(folders[name], "好{}", column),
        },
        atol=1e-5,
    )
    assert [x["label"] for x in got] == [LABELS[i] for i in want.argmax(axis=1)]
    assert model(TEXTS[1], labels=LABELS, template=template) == got[1]


def test_load_predict_and_serve_give_the_same_scores(folders, tmp_path):
    template, texts = "北京{}的公园", [*TEXTS, "学" * 600]
    want = roformer_tf.load(folders["nli"], top=2)(texts, labels=LABELS, template=template)
    assert {len(x["scores"]) for x in want} == {2}
    (tmp_path / "a.txt").write_text("\n".join(texts), "utf-8")
    flags = ["--input", str(tmp_path / "a.txt"), "--output", str(tmp_path / "b.tsv")]
    flags += ["--labels", *LABELS, "--template", template, "--top-k", "2", "--with-text"]
    main(["predict", str(folders["nli"]), *flags])
    header, *rows = (tmp_path / "b.tsv").read_text("utf-8").splitlines()
    assert header.split("\t")[:3] == ["text", "label", "score"]
    assert [row.split("\t")[:3] for row in rows] == [
        [text, x["label"], str(x["scores"][x["label"]])]
        for text, x in zip(texts, want, strict=True)
    ]
    app = create_task_app(served_task(folders["nli"], top_k=2))
    body = {"texts": texts, "labels": LABELS, "template": template}
    pair = {"text": TEXTS[:2]}
    responses = post(app, ("/predict", body), ("/predict", pair))
    assert [x["scores"] for x in responses[0]["predictions"]] == [x["scores"] for x in want]
    assert responses[1]["predictions"][0]["label"] in TASKS["nli"].labels


@pytest.mark.parametrize(("name", "accepted"), [("nli", True), ("one", False), ("numbers", False)])
def test_the_description_has_labels_where_they_are_accepted(name, accepted, folders):
    client = testclient.TestClient(create_task_app(served_task(folders[name])))
    assert (
        "AskedRequest" in client.get("/openapi.json").json()["components"]["schemas"]
    ) == accepted


@pytest.mark.parametrize("name", ["one", "numbers"])
def test_models_without_entailment_refuse_labels(folders, name):
    message = "cannot be asked for other labels.*pairs.*entailment"
    with pytest.raises(InputError, match=message):
        roformer_tf.load(folders[name])("好", labels=LABELS)
    client = testclient.TestClient(create_task_app(served_task(folders[name])))
    response = client.post("/predict", json={"text": "好", "labels": LABELS})
    assert response.status_code == 422
    assert re.search(f"labels: .*{message}", response.json()["error"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": []}, r"labels is \[\], but must be a list"),
        ({"labels": "体育"}, "labels is '体育', but must be a list"),
        ({"labels": ["体育", " "]}, "must be a list of texts"),
        ({"labels": ["体育", "体育"]}, "give each label once"),
        ({"labels": ["体育"]}, "at least two"),
        ({"labels": LABELS, "template": "关于标签"}, r"needs one \{\}"),
        ({"labels": LABELS, "template": "{}{}"}, r"needs one \{\}"),
        ({"template": "关于{}"}, "template is for labels"),
    ],
)
def test_invalid_labels_and_templates_are_refused(folders, settings, message):
    with pytest.raises(InputError, match=message):
        roformer_tf.load(folders["nli"])("好", **settings)


def test_models_without_a_task_refuse_labels():
    with pytest.raises(InputError, match="cannot be asked"):
        Predictor(lambda texts: [{}], ("text",), (1,))("好", labels=LABELS)


def test_commands_refuse_with_exit_code_2(folders, tmp_path, capsys):
    output = tmp_path / "b.tsv"
    flags = ["predict", str(folders["one"]), "--input", __file__, "--output", str(output)]
    assert main([*flags, "--labels", *LABELS]) == 2
    assert "cannot be asked for other labels" in capsys.readouterr().err
    assert main([*flags, "--template", "{}"]) == 2
    assert "--template needs --labels." in capsys.readouterr().err
    assert not output.exists()
