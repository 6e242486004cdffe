"""The check of numbers that all settings share."""

import math
from dataclasses import dataclass

import pytest

from roformer_tf.errors import MAX_SEED, InputError, check_number, check_numbers


@dataclass(frozen=True)
class Settings:
    """Settings like those of a command."""

    steps: int = 1
    rate: float = 0.5


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0, {"at_least": 1}, "x is 0, but must be at least 1."),
        (1.0, {"above": 0, "below": 1}, "x is 1, but must be above 0 and below 1."),
        (0.0, {"above": 0, "at_most": 1}, "x is 0, but must be above 0 and at most 1."),
        (-1, {"at_least": 0, "hint": "such as 3"}, "x is -1, but must be at least 0, such as 3."),
        (math.nan, {"at_least": 0}, "x is nan, but must be a finite number."),
        (math.inf, {"at_least": 0}, "x is inf, but must be a finite number."),
        (2**32, {"at_most": MAX_SEED}, "x is 4294967296, but must be at most 4294967295."),
    ],
)
def test_a_number_outside_of_its_range_is_refused(value, bounds, message):
    with pytest.raises(InputError) as refused:
        check_number("x", value, **bounds)
    assert str(refused.value) == message


@pytest.mark.parametrize("value", [1, 1.0, None, "auto", MAX_SEED])
def test_other_values_are_accepted(value):
    check_number("x", value, at_least=1, at_most=MAX_SEED)


def test_fields_of_settings_are_named():
    check_numbers(Settings(), "steps", "rate", above=0)
    with pytest.raises(InputError, match=r"^rate is -0\.5, but must be above 0\.$"):
        check_numbers(Settings(rate=-0.5), "steps", "rate", above=0)
