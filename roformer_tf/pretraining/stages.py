"""Stages of a run: rows of one length, in batches of one size, for so many steps.

The paper (arXiv 2104.09864) pretrains its Chinese model in six of them, with rows of 512, 1536,
256, 128, 1536 and 512 tokens. Weights and optimizer go from one to the next as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roformer_tf.errors import InputError


@dataclass(frozen=True)
class Stage:
    """One stage, its steps counted from the beginning of the run."""

    length: int
    batch_size: int
    start: int
    """Steps before its first one."""
    stop: int
    """Steps when it is done."""
    learning_rate: float
    warmup: float
    accumulate: int

    @property
    def steps(self) -> int:
        """Its own."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """That it trains on, each as often as its turn comes."""
        return self.steps * self.batch_size


KEYS: dict[str, type] = {
    "length": int,
    "batch-size": int,
    "steps": int,
    "learning-rate": float,
    "warmup": float,
    "accumulate": int,
}
"""What a stage may have of its own, and how it is read."""


def make_stages(texts: Sequence[str], defaults: dict[str, Any]) -> list[Stage]:
    """Read stages such as "length=512 batch-size=64 steps=1000"; none is one of the defaults alone.

    `defaults` has a value for each of `KEYS`, with underscores. Raises InputError for a stage that
    cannot be read, or has no steps of its own.
    """
    stages = []
    start = 0
    for number, text in enumerate(texts or [""], start=1):
        given = _read(text, number)
        if texts and "steps" not in given:
            raise InputError(f"stage {number}, {text!r}, does not say for how many steps.")
        values = defaults | given
        stop = start + values.pop("steps")
        stages.append(Stage(start=start, stop=stop, **values))
        start = stop
    return stages


def rows_before(stages: Sequence[Stage], stage: Stage) -> int:
    """Rows of a stage's length that earlier ones have used: it goes on behind them."""
    return sum(s.rows for s in stages if s.length == stage.length and s.start < stage.start)


def _read(text: str, number: int) -> dict[str, Any]:
    """The values of one stage, under the names of `Stage` and "steps"."""
    values: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        key, _, value = word.partition("=")
        kind = KEYS.get(key.replace("_", "-"))
        if kind is None:
            raise InputError(
                f"stage {number} has {word!r}, but takes only {', '.join(KEYS)}, as in "
                "'length=512 batch-size=64 steps=1000'."
            )
        try:
            values[key.replace("-", "_")] = kind(value)
        except ValueError:
            raise InputError(f"stage {number}: {key} is {value!r}, which is no number.") from None
        if values[key.replace("-", "_")] < (0 if key == "warmup" else 1e-12):
            raise InputError(f"stage {number}: {key} is {value}, but must be above 0.")
    return values
