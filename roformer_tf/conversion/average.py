"""The mean of several models' weights, such as those of trainings with several seeds.

Trainings that started from the same weights often end in the same basin of the loss. The mean of
their weights is better than each of them, at the same cost of inference: a "model soup" (Wortsman
et al., 2022, arXiv 2203.05482). The mean of models that started from different weights is noise.
"""

import dataclasses
import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.detection import described
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import (
    OutputConfig,
    check_target,
    convert_checkpoint,
    extra_files,
)
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_fits, find_tokenizer

logger = logging.getLogger(__name__)

TRAINING_KEYS = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
}
"""Keys of a config that matter only for training: they may differ."""
UNRELATED = 1.0
"""Distance of two models, relative to the norm of the first, from which the mean is useless. The
distance of independent weights is √2, that of trainings from the same weights some tenths."""


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
    """Write the mean of the models, and print the distances between them."""
    if len(config.sources) < 2:
        raise InputError("a mean needs two or more models. Give another one.")
    check_target(config.output, "own")
    # All sources stay open: arrays are read one by one while the mean is written.
    with ExitStack() as stack:
        opened = [stack.enter_context(OpenedSource(source)) for source in config.sources]
        checkpoints = [described(source.checkpoint(), source) for source in opened]
        mean = average_checkpoints(checkpoints, config.sources)
        tokenizer = _common_tokenizer(opened)
        if tokenizer is not None:
            check_fits(tokenizer, mean.config.vocab_size, config.sources[0])
        files = _common_files(checkpoints, opened)
        distances = [distance(checkpoints[0].arrays, other.arrays) for other in checkpoints[1:]]
        convert_checkpoint(mean, tokenizer, config.output, OutputConfig(to="own"), files)
    shown = ", ".join(f"{value:.2f}" for value in distances)
    print(
        f"{config.output} is written: the mean of {len(checkpoints)} models. Distances from the "
        f"first one, relative to its norm: {shown}."
    )
    # Only a warning: a distance is a hint, not a proof.
    if max(distances) > UNRELATED:
        logger.warning(
            "The distances are large for models that started from the same weights; otherwise the "
            "mean is noise. Evaluate it before you use it."
        )


def average_checkpoints(checkpoints: Sequence[Checkpoint], names: Sequence[str]) -> Checkpoint:
    """The mean of checkpoints, in the dtypes of the first.

    Each array is computed on access; sums are float64. Raises InputError, with the names, if
    architectures or weights differ.
    """
    first = checkpoints[0]
    for name, other in zip(names[1:], checkpoints[1:], strict=True):
        _check_equal(names[0], first, name, other)

    def mean(tensor: str) -> np.ndarray:
        # float64: the sum of several float32 or bfloat16 models must not lose digits.
        total = np.zeros(first.arrays.shapes[tensor])
        for checkpoint in checkpoints:
            total += checkpoint.arrays[tensor]
        return (total / len(checkpoints)).astype(first.arrays.dtypes[tensor])

    arrays = LazyArrays(first.arrays.shapes, first.arrays.dtypes, mean)
    return dataclasses.replace(first, arrays=arrays)


def distance(first: LazyArrays, second: LazyArrays) -> float:
    """Euclidean distance of all weights of two models, relative to the norm of the first."""
    squares = norm = 0.0
    for name in first:
        values = first[name].astype(np.float64)
        # Relative to the norm, so that the figure does not depend on the size of the model.
        squares += float(((second[name] - values) ** 2).sum())
        norm += float((values**2).sum())
    return math.sqrt(squares / norm) if norm else math.inf


def _check_equal(name: str, first: Checkpoint, other_name: str, other: Checkpoint) -> None:
    ours, theirs = _inference_keys(first), _inference_keys(other)
    if differing := sorted(key for key in ours if ours[key] != theirs[key]):
        key = differing[0]
        raise InputError(
            f"{name} and {other_name} have different architectures: {key} is {ours[key]!r} in the "
            f"first and {theirs[key]!r} in the second. Give models with the same architecture."
        )
    # Equal configs can still have different heads.
    if missing := sorted(first.arrays.shapes.items() ^ other.arrays.shapes.items()):
        raise InputError(
            f"{name} and {other_name} have different weights, such as {missing[0][0]}. Give models "
            "that were trained for the same task."
        )


def _inference_keys(checkpoint: Checkpoint) -> dict[str, object]:
    """Keys of the config that affect predictions."""
    values = dataclasses.asdict(checkpoint.config)
    labels = values.pop("unknown").get("id2label")  # the other unknown keys are for other programs
    kept = {key: value for key, value in values.items() if key not in TRAINING_KEYS}
    return kept | {"id2label": labels}


def _common_tokenizer(opened: Sequence[OpenedSource]) -> RoFormerTokenizer | None:
    """The tokenizer of all sources. Raises InputError if they differ."""
    tokenizers = [find_tokenizer(source) for source in opened]
    settings = [
        tokenizer and (tokenizer.vocabulary, tokenizer.tokenization, tokenizer.lower_case)
        for tokenizer in tokenizers
    ]
    # The first source is compared with itself, which is harmless.
    for source, theirs in zip(opened, settings, strict=True):
        if theirs != settings[0]:
            raise InputError(
                f"{opened[0].name} and {source.name} have different vocabularies, so that their "
                "embeddings are of different tokens. Give models with the same vocab.txt."
            )
    return tokenizers[0]


def _common_files(
    checkpoints: Sequence[Checkpoint], opened: Sequence[OpenedSource]
) -> dict[str, bytes]:
    """The extra files of all sources. Raises InputError if they differ."""
    files = [extra_files(*each) for each in zip(checkpoints, opened, strict=True)]
    for source, theirs in zip(opened, files, strict=True):
        for name in sorted(files[0].keys() | theirs.keys()):
            if _parsed(files[0].get(name)) != _parsed(theirs.get(name)):
                raise InputError(
                    f"{opened[0].name} and {source.name} have different files {name}, or one has "
                    "none. Give models that were trained for the same task, with the same recipe."
                )
    return files[0]


def _parsed(content: bytes | None) -> object:
    """The values in a JSON file, whose layout may differ; the bytes of any other file."""
    try:
        return content and parse_json(content)
    except ValueError:
        return content
