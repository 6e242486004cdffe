import re

import pytest
import yaml

from roformer_tf.pretraining.training_loop import model_card

SETTINGS = {
    "output": "/home/me/runs/news",
    "corpus": ["/home/me/secret/a|b.txt", "wiki.jsonl", "C:\\texts\\c.txt"],
    "init_from": "/home/me/runs/first/model",
    "architecture": None,
    "objective": "masked",
    "length": 64,
    "batch_size": 32,
}


def test_the_card_has_figures_but_no_folders():
    line = {"step": 2000, "held_out_loss": 4.70366, "held_out_accuracy": 0.29401}
    card = model_card(SETTINGS, 2000, line)
    _, front, rest = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "language": "zh",
        "library_name": "roformer-tf",
        "pipeline_tag": "fill-mask",
        "tags": ["roformer", "keras"],
    }
    assert "# news\n" in rest
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", rest, flags=re.M))
    assert rows["步数 · steps"] == "2,000"
    assert rows["init_from"] == "first"
    assert rows["语料 · corpus"] == "a\\|b.txt, wiki.jsonl, c.txt"
    assert rows["验证集损失 · held-out loss (nats)"] == "4.7037"
    assert rows["验证集准确率 · held-out accuracy"] == "29.4%"
    assert "architecture" not in rows
    assert "/home" not in card


@pytest.mark.parametrize(
    ("objective", "tag"), [("causal", "text-generation"), ("unilm", None), (None, None)]
)
def test_objectives_unknown_to_the_hub_have_no_pipeline_tag(objective, tag):
    card = model_card({"objective": objective}, 3, {})
    assert yaml.safe_load(card.split("---\n")[1]).get("pipeline_tag") == tag
    assert "held-out loss" not in card
