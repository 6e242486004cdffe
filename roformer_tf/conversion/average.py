"""The mean of several models' weights, such as those of trainings with several seeds.

Trainings that started from the same weights often end in the same basin of the loss. The mean of
their weights is better than each of them, at the same cost of inference: a "model soup" (Wortsman
et al., 2022, arXiv 2203.05482). The mean of models that started from different weights is noise.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import (
    OutputConfig,
    Stored,
    check_target,
    convert_checkpoint,
    read_stored,
)
from roformer_tf.errors import InputError
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

TRAINING_KEYS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"}
"""Keys of a config that matter only for training: they may differ."""


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Write the mean of several models' weights, such as those of trainings with several seeds.

    The models must have the same architecture, vocabulary and, if fine-tuned, the same task. They
    should have started from the same weights.

    Examples:
        roformer-tf checkpoints average runs/a/model runs/b/model --output runs/mean
        roformer-tf checkpoints average first.zip second.zip --output mean
    """

    sources: Annotated[tuple[str, ...], "MODEL"]
    """Two or more models: released zips, their names, or folders with a checkpoint."""
    output: Annotated[Path, "DIR"]
    """The folder to write, in our own format. It must not exist."""


def average(config: AverageConfig) -> None:
    """Write the mean of the models."""
    if len(config.sources) < 2:
        raise InputError("a mean needs two or more models. Give another one.")
    check_target(config.output)
    # All sources stay open: arrays are read one by one while the mean is written.
    with ExitStack() as stack:
        opened = [stack.enter_context(OpenedSource(source)) for source in config.sources]
        first, *rest = map(read_stored, opened)
        for name, other in zip(config.sources[1:], rest, strict=True):
            if difference := _difference(first, other):
                raise InputError(f"{config.sources[0]} and {name} have different {difference}")
        mean = mean_of([stored.checkpoint for stored in (first, *rest)])
        convert_checkpoint(first._replace(checkpoint=mean), config.output, OutputConfig(to="own"))
    say(
        "{target} is written: the mean of {number} models.",
        target=config.output,
        number=len(config.sources),
    )


def mean_of(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """The mean of checkpoints with equal shapes, in their dtype; float32 if they have several.

    Each array is computed on access; sums are float64.
    """
    first = checkpoints[0]

    def mean(tensor: str) -> np.ndarray:
        # float64: the sum of several float32 or bfloat16 models must not lose digits.
        total = np.zeros(first.arrays.shapes[tensor])
        for checkpoint in checkpoints:
            total += checkpoint.arrays[tensor]
        return (total / len(checkpoints)).astype(dtypes[tensor])

    several = any(x.arrays.dtypes != first.arrays.dtypes for x in checkpoints)
    dtypes = dict.fromkeys(first.arrays.dtypes, np.dtype("f4")) if several else first.arrays.dtypes
    arrays = LazyArrays(first.arrays.shapes, dtypes, mean)
    return dataclasses.replace(first, arrays=arrays)


def _difference(first: Stored, other: Stored) -> str:
    """What two models differ in, and what to do; "" if they may be averaged."""
    ours, theirs = _inference_keys(first.checkpoint), _inference_keys(other.checkpoint)
    if differing := sorted(key for key in ours if ours[key] != theirs[key]):
        key = differing[0]
        return (
            f"architectures: {key} is {ours[key]!r} in the first and {theirs[key]!r} in the "
            "second. Give models with the same architecture."
        )
    # Equal configs can still have different heads.
    shapes, their_shapes = (x.checkpoint.arrays.shapes.items() for x in (first, other))
    # The symmetric difference of (name, shape): weights that are missing or of another shape.
    if missing := sorted(shapes ^ their_shapes):
        return f"weights, such as {missing[0][0]}. Give models that were trained for the same task."
    if _settings(first.tokenizer) != _settings(other.tokenizer):
        return (
            "vocabularies, so that their embeddings are of different tokens. Give models with the "
            "same vocab.txt."
        )
    if files := sorted(first.files.items() ^ other.files.items()):
        return (
            f"files {files[0][0]}, or one has none. Give models that were trained for the same "
            "task, with the same recipe; for lexical.npz, with --lexical-features no. Thresholds "
            "in task.json are chosen for the weights of one model: such models have no mean."
        )
    return ""


def _inference_keys(checkpoint: Checkpoint) -> dict[str, object]:
    """Keys of the config that affect predictions."""
    values = dataclasses.asdict(checkpoint.config)
    labels = values.pop("unknown").get("id2label")  # the other unknown keys are for other programs
    kept = {key: value for key, value in values.items() if key not in TRAINING_KEYS}
    return kept | {"id2label": labels}


def _settings(tokenizer: RoFormerTokenizer | None) -> object:
    return tokenizer and (tokenizer.vocabulary, tokenizer.tokenization, tokenizer.lower_case)
