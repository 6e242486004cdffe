"""Every flag of every command has a row in a table, and changes the outcome that the row names."""

import dataclasses
import shlex
from collections import defaultdict
from functools import cache, partial

import keras
import numpy as np
import pytest

from roformer_tf import cli
from roformer_tf.flags import flag_types, parsed
from tests.every_flag.row import tables
from tests.every_flag.training import PARAPHRASES

TABLES = tables()
CASES = [
    pytest.param(
        command,
        base if row.base is None else row.base,
        row,
        id=f"{command} {row.with_flags}",
        marks=[pytest.mark.slow] if row.slow else [],
    )
    for command, (base, rows) in TABLES.items()
    for row in rows
]
SETTINGS = {name: cli.load_settings(name) for name in cli.COMMANDS}
SETTINGS["evaluate (corpus)"] = cli.load_settings("evaluate", ["--corpus"])


def _equal(first, other):
    if isinstance(first, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(first, other)
    return type(first) is type(other) and first == other


@pytest.mark.parametrize(("command", "base", "row"), CASES)
def test_a_flag_changes_the_outcome(command, base, row, outcome):
    without = outcome(command, f"{base} {row.without}")
    with_flag = outcome(command, f"{base} {row.with_flags}")
    assert without["exit"] == row.exits[0], without["stderr"]
    assert with_flag["exit"] == row.exits[1], with_flag["stderr"]
    before, after = without.get(row.part), with_flag.get(row.part)
    assert not _equal(before, after), f"{row.part}: {before}; {sorted(with_flag)}"
    if row.check is not None:
        assert row.check(before, after), f"{before} → {after}"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "base", "row"), CASES)
def test_a_row_would_fail_if_its_flag_were_ignored(command, base, row, outcome):
    """Running the same command twice gives equal outcomes, or the check refuses them."""
    words = f"{base} {row.without}"
    first, again = (outcome(command, x).get(row.part) for x in (words, f"{words} "))
    assert _equal(first, again) or not row.check(first, again)


def _values(settings):
    """Flag → value, including nested settings."""
    actual = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            actual |= _values(value)
        else:
            actual[field.name.replace("_", "-")] = value
    return actual


def _defaults(settings):
    """Flag → default, for the flags that have one."""
    actual = {}
    for field in dataclasses.fields(settings):
        if field.default is not dataclasses.MISSING:
            actual[field.name.replace("_", "-")] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
            nested = dataclasses.is_dataclass(value)
            actual |= _values(value) if nested else {field.name.replace("_", "-"): value}
    return actual


class _Names(defaultdict):
    def __missing__(self, name):
        return "1" if name == "port" else name


def _set_by(command, words, monkeypatch):
    """Flag → value, as the command's parser reads the words."""
    for part in SETTINGS[command].__mro__:  # combinations of values are tested elsewhere
        if "__post_init__" in vars(part):
            monkeypatch.setattr(part, "__post_init__", lambda self: None)
    return _values(parsed(SETTINGS[command], shlex.split(words.format_map(_Names()))))


@pytest.mark.parametrize("command", SETTINGS)
def test_every_flag_has_a_row(command, monkeypatch):
    defaults, covered = _defaults(SETTINGS[command]), set()
    rows = [
        (base if row.base is None else row.base, row)
        for name, (base, rows) in TABLES.items()
        if command == (name if name in SETTINGS else name.partition(" (")[0])
        for row in rows
    ]
    values_of = cache(partial(_set_by, command, monkeypatch=monkeypatch))  # many rows share a base
    for row_base, row in rows:
        before = values_of(f"{row_base} {row.without}")
        after = values_of(f"{row_base} {row.with_flags}")
        changed = {flag for flag in after if after[flag] != before[flag]}
        assert len(changed) == 1, f"{row.with_flags} changes {sorted(changed)}"
        (flag,) = changed
        assert flag not in defaults or after[flag] != defaults[flag], f"{flag} is at its default"
        covered.add(flag)
    assert covered == flag_types(SETTINGS[command]).keys()


def test_the_seed_determines_weights_that_a_checkpoint_lacks(outcome):
    losses = []
    for before in (5, 6):
        keras.utils.set_random_seed(before)
        losses.append(outcome("finetune (steps)", PARAPHRASES + " " * before)["run/metrics.jsonl"])
    assert losses[0] == losses[1]
