from pathlib import Path

import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.pretraining.cost import (
    CostConfig,
    cost,
    costs,
    read_recipe,
    rendered,
)
from roformer_tf.pretraining.settings import PretrainConfig, step_flops

SHAPE = RoFormerConfig(100, 24, 2, 2, 48)
LINE = {
    "recipe": "base",
    "parameters": 124_099_664,
    "rows": 51_200_000,
    "tokens": 26_214_400_000,
    "flops": 989e12 * 86_400,
}


def settings(**changes):
    return PretrainConfig(rows="rows", output="run", **changes)


def cost_config(**changes):
    return CostConfig(recipe=(Path("base.yaml"),), **changes)


# --- The numbers ---------------------------------------------------------------------------------


def test_cost_is_computed_from_steps_rows_and_tokens():
    (total,) = costs("small", settings(length=102, batch_size=8, steps=50), SHAPE)
    assert (total["recipe"], total["rows"], total["tokens"]) == ("small", 400, 40_800)
    assert total["flops"] == 50 * step_flops(SHAPE, 102, 8, 15)


def test_stages_are_reported_separately_and_in_total():
    stages = ("length=102 batch-size=8 steps=50", "length=52 batch-size=4 steps=1000")
    total, first, second = costs("two", settings(stages=stages), SHAPE)
    assert [first["recipe"], second["recipe"]] == [
        "two, stage 1: 50 steps of 8 × 102",
        "two, stage 2: 1,000 steps of 4 × 52",
    ]
    assert (second["rows"], second["tokens"]) == (4000, 208_000)
    assert second["flops"] == 1000 * step_flops(SHAPE, 52, 4, 8)
    for key in ("rows", "tokens", "flops"):
        assert total[key] == first[key] + second[key]


def test_days_and_price_follow_from_flops_and_utilisation():
    """LINE is a day of one H100 at its peak; the devices reach half of it, three reach 4/5 each."""
    config = cost_config(utilisation=0.5, efficiency=0.8, devices=(1, 3), price=2)
    *_, row, _, _ = rendered([LINE], config)
    days = [2, 2 / (3 * 0.8)]
    money = [2 * 24 * 2, 2 * 24 * 2 / 0.8]
    assert [float(cell) for cell in row.split("|")[6:-1]] == pytest.approx(days + money, rel=0.01)
    assert "| 30 |" in "".join(rendered([LINE], cost_config(peak_flops=989e11)))


# --- The table -----------------------------------------------------------------------------------


def test_the_table_states_its_assumptions():
    config = cost_config()
    assert [*rendered([LINE], config)] == [
        "| recipe | parameters | sequences | tokens | FLOPs | days on 1 | on 8 | US$ on 1 | on 8 |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| base | 124.1 M | 5.12e7 | 2.62e10 | 8.54e19 | 3 | 0.42 | 218 | 242 |",
        "",
        "Estimates, not measurements: 33% of 989 TFLOP/s per device, 90% of that on each of "
        "several; 3 US$ an hour and device.",
    ]


def test_with_one_device_several_are_not_mentioned():
    config = cost_config(devices=(1,))
    assert "several" not in "".join(rendered([LINE], config))


# --- What is read --------------------------------------------------------------------------------


TINY = (
    '{"vocab_size": 70, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, '
    '"intermediate_size": 48}'
)


@pytest.fixture
def recipe(tmp_path):
    """A function that writes a recipe to a YAML file, next to the architecture tiny.json."""
    (tmp_path / "tiny.json").write_text(TINY)

    def write(text):
        (tmp_path / "mine.yaml").write_text(text.replace("tiny.json", str(tmp_path / "tiny.json")))
        return tmp_path / "mine.yaml"

    return write


def test_the_vocabulary_is_the_recipes_or_the_architectures(recipe, tmp_path):
    _, _, shape = read_recipe(recipe("architecture: tiny.json\n"), None)
    assert shape.vocab_size == 70
    with_size = "architecture: tiny.json\nvocab-size: 90\n"
    name, read, shape = read_recipe(recipe(with_size), None)
    assert (name, shape.vocab_size, shape.hidden_size) == ("mine", 90, 24)
    assert read.vocab_size == 90
    (tmp_path / "tiny.json").write_text(TINY.replace('"vocab_size": 70, ', ""))
    assert read_recipe(recipe(with_size), None)[2] == shape
    with pytest.raises(InputError, match="lacks 'vocab_size'"):
        read_recipe(recipe("architecture: tiny.json\n"), None)


def test_a_recipe_without_architecture_has_pretrains_default_size(recipe):
    _, _, shape = read_recipe(recipe("vocab-size: 90\n"), None)
    assert (shape.vocab_size, shape.hidden_size, shape.num_hidden_layers) == (90, 384, 6)


def test_a_recipe_that_continues_needs_its_architecture(recipe, tmp_path):
    for text in ("steps: 5\n", "init-from: x.zip\n"):
        with pytest.raises(InputError, match=r"mine\.yaml has no architecture.*--architecture"):
            read_recipe(recipe(text), None)
        name, _, shape = read_recipe(recipe(text), tmp_path / "tiny.json")
        assert (name, shape.vocab_size) == ("mine (tiny)", 70)


def test_an_architecture_that_no_recipe_needs_is_refused(recipe, tmp_path, capsys):
    path = recipe("architecture: tiny.json\n")
    other = tmp_path / "other.json"
    with pytest.raises(InputError, match=r"have an architecture.*Remove --architecture"):
        cost(CostConfig(recipe=(path,), architecture=other))
    # As in the guide, it is for the recipe that has none.
    cost(CostConfig(recipe=(path, Path("continue")), architecture=tmp_path / "tiny.json"))
    out = capsys.readouterr().out
    assert "| mine |" in out
    assert "| continue (tiny) |" in out


@pytest.mark.parametrize("text", ["vocab: x.txt\n", "corpus: [a, b]\nvocab: x.txt\n", "rows: x\n"])
def test_a_recipe_may_name_its_data(recipe, tmp_path, text):
    name, _, _ = read_recipe(recipe(text), tmp_path / "tiny.json")
    assert name == "mine (tiny)"


@pytest.mark.slow
def test_the_settings_of_a_run_are_a_recipe(pretrained):
    name, read, shape = read_recipe(pretrained / "settings.yaml", None)
    (total,) = costs(name, read, shape)
    assert (total["rows"], total["tokens"]) == (8 * 8, 8 * 8 * 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"utilisation": 0.0}, "utilisation is 0, but must be above 0"),
        ({"utilisation": 40.0}, "utilisation is 40, but must be above 0 and at most 1"),
        ({"efficiency": 1.5}, "efficiency is 1.5"),
        ({"peak_flops": 0.0}, "peak_flops is 0, but must be above 0"),
        ({"devices": (1, 0)}, r"devices is \(1, 0\)"),
        ({"devices": ()}, "devices is"),
        ({"price": -1.0}, "price is -1"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        cost_config(**changes)
