"""Names and values of flags, on the command line and in YAML files."""

from contextlib import suppress

import pytest

from roformer_tf import cli
from roformer_tf.corpus.batches import MixingConfig
from roformer_tf.corpus.objectives import MaskingConfig
from roformer_tf.errors import InputError
from roformer_tf.flags import flag_types, parsed, yaml_values


def test_patience_is_early_stopping_everywhere():
    commands = [name for name in cli.COMMANDS if "patience" in flag_types(cli.load_settings(name))]
    assert commands == ["finetune"]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_takes_a_language(name):
    settings = cli.load_settings(name)
    with suppress(InputError):  # other flags are missing
        parsed(settings, ["--language", "zh"])
    with pytest.raises(InputError, match=r"--?language is french, but must be"):
        parsed(settings, ["--language", "french"])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_flag_has_a_vague_name(name):
    vague = {"rate", "weights", "keep", "decay", "spike", "share", "temperature"}
    allowed = {
        "generate": {"temperature"},  # the standard term of sampling
    }
    assert vague & flag_types(cli.load_settings(name)).keys() == allowed.get(name, set())


def test_an_unknown_key_is_reported_with_the_nearest_and_all_known_keys(tmp_path):
    (tmp_path / "recipe.yaml").write_text("mask-rat: 0.2\n", encoding="utf-8")
    settings = cli.load_settings("pretrain")
    with pytest.raises(
        InputError, match=r"unknown key 'mask-rat'\. Did you mean mask-rate\?"
    ) as error:
        yaml_values(tmp_path / "recipe.yaml", settings)
    known = str(error.value).partition("Known keys: ")[2].rstrip(".").split(", ")
    assert {*known} == flag_types(settings).keys()


@pytest.mark.parametrize("second", ["mask-rate", "mask_rate"])
def test_a_repeated_key_is_reported(second, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"mask-rate: 0.2\nseed: 1\n{second}: 0.3\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml has two keys 'mask-rate'\. Remove"):
        yaml_values(path, cli.load_settings("pretrain"))


TEXT = "corpus: [a]\nvocab-size: 99\n"


@pytest.mark.parametrize(
    ("file", "typed", "read"),
    [
        (TEXT, "--rows b", {"corpus": (), "rows": "b"}),
        ("corpus: [a]\nvocab: v\n", "--rows b", {"corpus": (), "rows": "b", "vocab": None}),
        ("rows: a\n", "--corpus b --vocab-size 9", {"corpus": ("b",), "rows": None}),
        (TEXT, "--vocab v", {"vocab": "v", "vocab_size": None}),
        ("corpus: [a]\nvocab: v\n", "--vocab-size 9", {"vocab": None, "vocab_size": 9}),
        ("corpus: [a]\nvocab: v\n", "--init-from m", {"vocab": None, "init_from": "m"}),
        (
            "rows: a\ninit-from: m\nextend-vocab: w\n",
            "--architecture base",
            {"init_from": None, "extend_vocab": None, "architecture": "base"},
        ),
    ],
)
def test_a_typed_flag_replaces_alternatives_in_the_file(file, typed, read, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(file, encoding="utf-8")
    words = ["--config", str(path), "--output", "run", *typed.split()]
    settings = parsed(cli.load_settings("pretrain"), words)
    assert {name: getattr(settings, name) for name in read} == read


def test_the_two_sources_of_a_vocabulary_replace_each_other_in_prepare(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("corpus: [a]\noutput: rows\nvocab: v\n", encoding="utf-8")
    settings = parsed(cli.load_settings("prepare"), ["--config", str(path), "--vocab-size", "9"])
    assert (settings.vocab, settings.vocab_size) == (None, 9)


def test_weights_and_temperature_of_corpora_replace_each_other(tmp_path):
    path = tmp_path / "settings.yaml"
    for file, typed, read in [
        ("corpus-temperature: 3\n", "--corpus-weights news 2", ({"news": 2.0}, 1.0)),
        ("corpus-weights: {news: 2}\n", "--corpus-temperature 3", ({}, 3.0)),
    ]:
        path.write_text(f"rows: a\noutput: run\n{file}", encoding="utf-8")
        words = ["--config", str(path), *typed.split()]
        mixing = parsed(cli.load_settings("pretrain"), words).mixing
        assert (mixing.corpus_weights, mixing.corpus_temperature) == read


@pytest.mark.parametrize(
    ("words", "rate"),
    [(["0.2"], 0.2), (["0.3", "0.15"], (0.3, 0.15)), (["0.3", "0.15", "0.1"], None), (["x"], None)],
)
def test_a_flag_may_take_one_number_or_two(words, rate, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"mask-rate: [{', '.join(words)}]\n", encoding="utf-8")
    for arguments in (["--mask-rate", *words], ["--config", str(settings)]):
        if rate is None:
            with pytest.raises(
                InputError, match=r"--mask-rate is .*, but must be a number or two numbers\."
            ):
                parsed(MaskingConfig, arguments)
        else:
            assert parsed(MaskingConfig, arguments).mask_rate == rate


@pytest.mark.parametrize("words", ["x 1 y", "x", "x 1 y z"])
def test_a_name_without_a_number_is_reported(words):
    message = rf"--corpus-weights is {words}, but must be names, each with a number, such as news 3"
    with pytest.raises(InputError, match=message):
        parsed(MixingConfig, ["--corpus-weights", *words.split()])
