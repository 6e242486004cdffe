"""Flags and settings that had another name are read, with a line that names the new one."""

import pytest
import yaml

from roformer_tf import cli
from roformer_tf.errors import InputError
from roformer_tf.flags import RENAMED, flag_types, new_keys, with_new_names, yaml_flags

NEEDED = ["--rows", "rows", "--output", "run"]
VALUES = {
    "weights": ("news", "3", "wiki", "1"),
    "keep": "7",
    "patience": "7",
    "temperature": "2",
    "spike": "1.5",
}
"""Of old flags that take no number below 1."""


@pytest.fixture
def pretrain(monkeypatch, capsys):
    """pretrain(*words) → exit code, the settings that it would run with, what stands on stderr."""
    from roformer_tf.pretraining import command

    def seen(config: command.PretrainConfig) -> None:
        got.append(config)

    def run(*words, needed=NEEDED):
        got.clear()
        code = cli.main(["pretrain", *map(str, words), *needed])
        return code, got[0] if got else None, capsys.readouterr().err

    got = []
    monkeypatch.setattr(command, "pretrain", seen)
    return run


def typed(flag):
    value = VALUES.get(flag, "0.15" if flag == "random-share" else "0.25")
    return [f"--{flag}", *([value] if isinstance(value, str) else value)]


def recipe(folder, text):
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return folder / "recipe.yaml"


# The table


@pytest.mark.parametrize("command", RENAMED)
def test_new_names_are_flags_and_old_ones_are_not(command):
    known = flag_types(cli.load_settings(command))
    assert set(RENAMED[command].values()) <= known.keys()
    assert RENAMED[command].keys().isdisjoint(known)


def test_patience_is_early_stopping_everywhere():
    having = [name for name in cli.COMMANDS if "patience" in flag_types(cli.load_settings(name))]
    assert having == ["finetune"]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_flag_is_a_word_that_alone_means_nothing(name):
    vague = {"rate", "weights", "keep", "decay", "spike", "share", "temperature"}
    allowed = {
        "checkpoints vocabulary": {"keep"},  # FILE: the tokens to keep
        "generate": {"temperature"},  # of sampling, the field's word for it
    }
    assert vague & flag_types(cli.load_settings(name)).keys() == allowed.get(name, set())


# Typed


@pytest.mark.parametrize("old", RENAMED["pretrain"])
def test_an_old_flag_sets_what_it_set_and_the_new_one_is_named(pretrain, old):
    new = RENAMED["pretrain"][old]
    code, settings, err = pretrain(*typed(old))
    assert code == 0
    assert err == f"roformer-tf pretrain: --{old} is now --{new}.\n"
    words = [f"--{new}", *typed(old)[1:]]
    assert pretrain(*words) == (0, settings, "")
    assert pretrain()[1] != settings


def test_several_old_flags_are_told_in_one_line(pretrain):
    code, settings, err = pretrain("--mask_share=0.5", "--keep", 5, "--learning-rate", "1e-3")
    assert (code, settings.masking.mask_replace_rate, settings.keep_checkpoints) == (0, 0.5, 5)
    assert err == (
        "roformer-tf pretrain: --mask-share is now --mask-replace-rate, "
        "--keep is now --keep-checkpoints.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "0.2", "--mask-rate", "0.2"],
        ["--mask_rate=0.3", "--rate", "0.2"],
    ],
)
def test_an_old_and_a_new_flag_together_are_refused(pretrain, words):
    code, settings, err = pretrain(*words)
    assert (code, settings) == (2, None)
    assert err == "roformer-tf pretrain: --rate is the old name of --mask-rate: give one of them.\n"


def test_a_flag_of_the_same_name_is_left_to_other_commands():
    words = ["--patience", "2", "x"]
    assert with_new_names(words, RENAMED.get("finetune", {}), "finetune") == words


def test_only_flags_are_renamed_not_their_values(capsys):
    words = ["--corpus", "rate", "--config=rate", "weights"]
    assert with_new_names(words, RENAMED["pretrain"], "pretrain") == words
    assert capsys.readouterr().err == ""


# In a YAML file


@pytest.mark.parametrize("key", ["mask-share", "mask_share"])
def test_an_old_key_of_a_yaml_is_read_and_the_new_one_is_named(pretrain, tmp_path, key):
    file = recipe(tmp_path, f"{key}: 0.5\nseed: 3\nweights: {{news: 3}}\n")
    code, settings, err = pretrain("--config", file)
    assert (code, settings.masking.mask_replace_rate, settings.seed) == (0, 0.5, 3)
    assert settings.mixing.corpus_weights == {"news": 3.0}
    assert err == f"{file}: {key} is now mask-replace-rate, weights is now corpus-weights.\n"


@pytest.mark.parametrize("by_hand", ["--mask-rate", "--rate"])
def test_what_is_typed_wins_under_either_name(pretrain, tmp_path, by_hand):
    for key in ("rate", "mask-rate"):
        code, settings, _ = pretrain(by_hand, 0.3, "--config", recipe(tmp_path, f"{key}: 0.2\n"))
        assert (code, settings.masking.mask_rate) == (0, 0.3)


def test_a_yaml_with_both_names_is_refused_with_its_lines(pretrain, tmp_path):
    file = recipe(tmp_path, "rate: 0.2\nseed: 3\nmask-rate: 0.2\n")
    code, settings, err = pretrain("--config", file)
    assert (code, settings) == (2, None)
    assert f"{file}, line 3: mask-rate stands in line 1 already, as rate. Leave one." in err


def test_an_unknown_key_is_not_answered_by_old_names(tmp_path):
    settings = cli.load_settings("pretrain")
    with pytest.raises(
        InputError, match=r"unknown key 'mask-rat'\. Did you mean mask-rate\?"
    ) as no:
        yaml_flags(recipe(tmp_path, "mask-rat: 0.2\n"), settings, RENAMED["pretrain"])
    known = str(no.value).partition("Known keys: ")[2].rstrip(".").split(", ")
    assert {*known} == flag_types(settings).keys()


def test_a_price_is_asked_by_an_old_recipe(tmp_path, capsys):
    file = recipe(tmp_path, "rate: 0.3\nvocab-size: 1000\nsteps: 10\n")
    assert cli.main(["cost", str(file)]) == 0
    said = capsys.readouterr()
    assert said.err == f"{file}: rate is now mask-rate.\n"
    recipe(tmp_path, "mask-rate: 0.3\nvocab-size: 1000\nsteps: 10\n")
    assert cli.main(["cost", str(file)]) == 0
    assert capsys.readouterr() == (said.out, "")


# In a run's settings.yaml


def test_old_settings_are_known_by_the_names_of_now():
    old = {"rate": 0.2, "matrix_rate": 3.0, "seed": 1}
    assert new_keys(old, RENAMED["pretrain"], "x") == (
        {"mask_rate": 0.2, "muon_learning_rate_scale": 3.0, "seed": 1},
        {"rate": "mask_rate", "matrix_rate": "muon_learning_rate_scale"},
    )
    assert new_keys(old, {}, "x") == (old, {})
    with pytest.raises(InputError, match="x has mask_rate, and rate, its old name"):
        new_keys(old | {"mask_rate": 0.2}, RENAMED["pretrain"], "x")


def test_the_settings_of_an_old_run_are_a_recipe(pretrain, request):
    file = request.path.parent / "fixtures" / "before" / "run" / "settings.yaml"
    recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert RENAMED["pretrain"].keys() <= {key.replace("_", "-") for key in recorded}
    code, settings, err = pretrain("--config", file, needed=())
    assert (code, settings.corpus, settings.length) == (0, ("corpus.txt",), 32)
    assert settings.masking.mask_rate == recorded["rate"]
    assert settings.stepping.max_skipped == recorded["patience"]
    assert err.startswith(f"{file}: matrix_rate is now muon-learning-rate-scale, decay is now ")
    assert err.count(" is now ") == len(RENAMED["pretrain"])
    assert err.count("\n") == 1
