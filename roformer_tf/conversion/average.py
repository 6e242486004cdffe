"""The mean of several checkpoints' weights, such as trainings of one recipe with several seeds.

Trainings that began with the same weights often end in one valley of the loss, and the mean of
their weights is better than each of them, for the price of one: a "model soup" (Wortsman et al.,
2022, arXiv 2203.05482). Of models that began apart, the mean is noise.
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
import tyro

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.detection import described
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import (
    OutputConfig,
    check_target,
    convert_checkpoint,
    files_beside,
)
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_fits, find_tokenizer

logger = logging.getLogger(__name__)

TRAINING_ALONE = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
}
"""Keys of a config that say how a model is trained, not what it answers: these may differ."""
UNRELATED = 1.0
"""Distance of two models, in parts of the first one's norm, from which the mean is hardly of use:
weights that have nothing in common are √2 apart, trainings of one start some tenths."""


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """Write the mean of several models' weights, such as of trainings with several seeds.

    The models have one architecture, one vocabulary and, if they are fine-tuned, one task; they
    should have begun with the same weights.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Two models or more: released zips, their names, or folders with a checkpoint."""
    output: Path
    """The folder to write, as models are saved here. It must not exist."""


def average(config: AverageConfig) -> None:
    """Read, compare, write the mean; print how far the models are from each other."""
    if len(config.sources) < 2:
        raise InputError("there is one model. Give two or more to take the mean of.")
    check_target(config.output, "own")
    with ExitStack() as stack:
        opened = [stack.enter_context(OpenedSource(source)) for source in config.sources]
        checkpoints = [described(source.checkpoint(), source) for source in opened]
        mean = average_checkpoints(checkpoints, config.sources)
        tokenizer = _common_tokenizer(opened)
        if tokenizer is not None:
            check_fits(tokenizer, mean.config.vocab_size, config.sources[0])
        files = _common_files(checkpoints, opened)
        far = [distance(checkpoints[0].arrays, other.arrays) for other in checkpoints[1:]]
        convert_checkpoint(mean, tokenizer, config.output, OutputConfig(to="own"), files)
    told = ", ".join(f"{value:.2f}" for value in far)
    print(
        f"{config.output} is written: the mean of {len(checkpoints)} models. From the first one, "
        f"in parts of its norm, the others are {told} away."
    )
    if max(far) > UNRELATED:
        logger.warning(
            "Models that began with the same weights are nearer to each other: the mean of others "
            "is noise. Evaluate it before you use it."
        )


def average_checkpoints(checkpoints: Sequence[Checkpoint], names: Sequence[str]) -> Checkpoint:
    """The mean of checkpoints by name, in the first one's dtypes.

    Each array is made when it is asked for; sums are float64. Raises InputError, with their names,
    where architectures or weights differ.
    """
    first = checkpoints[0]
    for name, other in zip(names[1:], checkpoints[1:], strict=True):
        _check_alike(names[0], first, name, other)

    def mean(tensor: str) -> np.ndarray:
        total = np.zeros(first.arrays.shapes[tensor])
        for checkpoint in checkpoints:
            total += checkpoint.arrays[tensor]
        return (total / len(checkpoints)).astype(first.arrays.dtypes[tensor])

    arrays = LazyArrays(first.arrays.shapes, first.arrays.dtypes, mean)
    return dataclasses.replace(first, arrays=arrays)


def distance(first: LazyArrays, second: LazyArrays) -> float:
    """Euclidean distance of all weights of two models of one architecture, by the first's norm."""
    apart = norm = 0.0
    for name in first:
        values = first[name].astype(np.float64)
        apart += float(((second[name] - values) ** 2).sum())
        norm += float((values**2).sum())
    return math.sqrt(apart / norm) if norm else math.inf


def _check_alike(name: str, first: Checkpoint, other_name: str, other: Checkpoint) -> None:
    ours, theirs = _what_counts(first), _what_counts(other)
    if differing := sorted(key for key in ours if ours[key] != theirs[key]):
        key = differing[0]
        raise InputError(
            f"{name} and {other_name} are of two architectures: {key} is {ours[key]!r} there and "
            f"{theirs[key]!r} here. Give models of one."
        )
    if lacking := sorted(first.arrays.shapes.items() ^ other.arrays.shapes.items()):
        raise InputError(
            f"{name} and {other_name} hold other weights, such as {lacking[0][0]}. Give models "
            "that were trained for one task."
        )


def _what_counts(checkpoint: Checkpoint) -> dict[str, object]:
    """Keys of the config that say what a model answers."""
    values = dataclasses.asdict(checkpoint.config)
    labels = values.pop("unknown").get("id2label")  # the rest of these is for other programs
    kept = {key: value for key, value in values.items() if key not in TRAINING_ALONE}
    return kept | {"id2label": labels}


def _common_tokenizer(opened: Sequence[OpenedSource]) -> RoFormerTokenizer | None:
    """The tokenizer of all sources. Raises InputError where they have several."""
    tokenizers = [find_tokenizer(source) for source in opened]
    first, *others = (
        tokenizer and (tokenizer.vocabulary, tokenizer.tokenization, tokenizer.lower_case)
        for tokenizer in tokenizers
    )
    for source, other in zip(opened[1:], others, strict=True):
        if other != first:
            raise InputError(
                f"{opened[0].name} and {source.name} read text by different vocabularies, so that "
                "their embeddings are of different tokens. Give models with one vocab.txt."
            )
    return tokenizers[0]


def _common_files(
    checkpoints: Sequence[Checkpoint], opened: Sequence[OpenedSource]
) -> dict[str, bytes]:
    """What stands beside the weights of all. Raises InputError where it differs."""
    found = [files_beside(*each) for each in zip(checkpoints, opened, strict=True)]
    for source, files in zip(opened[1:], found[1:], strict=True):
        for name in sorted(found[0].keys() | files.keys()):
            if _read(found[0].get(name)) != _read(files.get(name)):
                raise InputError(
                    f"{opened[0].name} and {source.name} do not answer alike: their {name} differ, "
                    "or one has none. Give models that were trained for one task, by one recipe."
                )
    return found[0]


def _read(content: bytes | None) -> object:
    """What a file says, however it is laid out; its bytes where it is no JSON."""
    try:
        return content and parse_json(content)
    except ValueError:
        return content
