"""A checkpoint into another layout, every weight that it holds; read back and compared."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from roformer_tf.checkpoints import embedding_config, huggingface, tf1, whitening
from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.detection import (
    TASK_FILE,
    described,
    embedding_settings,
    is_called_gpt,
    transformers_class,
)
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.conversion.statistics import largest_difference
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, folder_beside
from roformer_tf.terminal import Progress
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_fits, find_tokenizer
from roformer_tf.tokenizers.vocabulary import guess_tokenization

logger = logging.getLogger(__name__)

CheckpointLayout = Literal["tf1", "huggingface", "own"]
Dtype = Literal["float16", "bfloat16", "float32"]

_OF_VECTORS = (embedding_config.FILE, whitening.FILE)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """How a checkpoint is written."""

    to: CheckpointLayout
    """tf1: as released, for bert4keras; huggingface: for transformers; own: the same folder."""
    dtype: Dtype | None = None
    """What the weights are rounded to; unset, they stay what they are."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """Write a checkpoint in another layout, and show the largest difference found afterwards."""

    source: Annotated[str, tyro.conf.Positional]
    """A released zip, its name, or a folder with a checkpoint."""
    target: Annotated[Path, tyro.conf.Positional]
    """What is written: a folder or, for tf1, a name that ends in .zip. It must not exist."""
    output: OutputConfig
    attention_type: Literal["bidirectional", "causal", "unilm"] | None = None
    """What a token sees, to be written down. Unset, it is what the config says, or "causal" where
    the name begins with chinese_roformer-gpt-char: a gpt model's own files do not say so."""
    ignore_unknown: bool = False
    """Leave out tensors that no RoFormer has, instead of refusing the checkpoint."""
    prefix: str | None = None
    """Which copy of the weights is meant where a file has several, by how its names begin, such as
    "ema."."""


class Difference(NamedTuple):
    """How far one weight is from itself."""

    value: float
    name: str


def convert(config: ConvertConfig) -> None:
    """Convert, and print what was measured."""
    check_target(config.target, config.output.to)
    mask: dict[str, Any] = {}
    if config.attention_type:
        mask = {"attention_type": config.attention_type}
    with OpenedSource(config.source) as source:
        checkpoint = source.checkpoint(
            ignore_unknown=config.ignore_unknown, prefix=config.prefix, **mask
        )
        checkpoint = described(checkpoint, source)
        tokenizer = find_tokenizer(source)
        if tokenizer is not None:
            check_fits(tokenizer, checkpoint.config.vocab_size, config.source)
        files = files_beside(checkpoint, source)
        found = convert_checkpoint(checkpoint, tokenizer, config.target, config.output, files)
        print_difference(found, config.target)
        for note in _notes(config, checkpoint, tokenizer, is_called_gpt(checkpoint, source)):
            logger.warning(note)


def print_difference(difference: Difference, target: Path) -> None:
    """Print what `convert_checkpoint` found."""
    found = f"{difference.value:.1e}, in {difference.name}" if difference.value else "0"
    print(f"{target} is written. Largest round-trip difference: {found}.")


def check_target(target: Path, to: CheckpointLayout) -> None:
    """Raise InputError for a target that cannot be written, is there, or is named wrongly."""
    check_writable(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(
            f"{target} exists, and nothing is overwritten. Remove it, or give another name."
        )
    if to != "tf1" and target.suffix == ".zip":
        raise InputError(
            f"{target} would be a folder. Leave .zip out, or convert --to tf1, which packs zips."
        )


def files_beside(checkpoint: Checkpoint, source: OpenedSource) -> dict[str, bytes]:
    """What says how a model answers, as files to put beside its weights.

    The task that it was fine-tuned for, and how it gives sentence vectors; none for one that was
    trained for neither and is no sim model. Raises InputError for bad ones.
    """
    held = {name: source.read(name) for name in (TASK_FILE, *_OF_VECTORS)}
    files = {name: content for name, content in held.items() if content is not None}
    settings = embedding_settings(checkpoint, source)
    if settings.pooling == "pooler":  # of a released sim model: it has no file that says so
        files.setdefault(embedding_config.FILE, settings.as_json().encode())
    return files


def convert_checkpoint(
    checkpoint: Checkpoint,
    tokenizer: RoFormerTokenizer | None,
    target: Path,
    output: OutputConfig,
    files: Mapping[str, bytes] | None = None,
) -> Difference:
    """Write all that a checkpoint holds, with its tokenizer; read it back and compare.

    files: what `files_beside` gives; with those of vectors a folder is one for
    sentence-transformers too, and the released layout has no place for any. Nothing stands
    under the target's name before it is whole. Raises InputError where something is there already,
    for a vocabulary that no file holds line by line, and for a form of positions or attention that
    the layout cannot say.
    """
    check_target(target, output.to)
    config, dtype = checkpoint.config, output.dtype
    kind = huggingface.model_type(config, checkpoint.arrays)
    if output.to == "huggingface" and kind == huggingface.FORM_TYPE:
        form = config.unusual_form(learned=True) or config.unusual_form() or "pooling 'mean'"
        raise InputError(
            f"{target} would be for transformers, which has no model with {form} and the rest of "
            "this one: it would leave out what it does not know. Convert --to own."
        )
    with Progress(total=len(checkpoint.arrays), desc=target.name, unit=" tensors") as bar:
        arrays = _watched(checkpoint.arrays, bar)
        if output.to == "tf1":
            tf1.write(target, config, arrays, _vocabulary(tokenizer, target), dtype)
        else:
            with folder_beside(target) as folder:
                architecture = transformers_class(checkpoint)
                ids = None if tokenizer is None else tokenizer.special_ids
                huggingface.write(folder, config, arrays, architecture, dtype, ids)
                if tokenizer is not None:
                    tokenizer.save_pretrained(
                        folder,
                        max_length=_max_length(config, files or {}),
                        causal=architecture == huggingface.CAUSAL,
                    )
                for name, content in (files or {}).items():
                    (folder / name).write_bytes(content)
                if tokenizer is not None and set(_OF_VECTORS) & set(files or {}):
                    save_modules(folder)
    with OpenedSource(target) as written:
        return compare(checkpoint.arrays, written.checkpoint().arrays)


def compare(first: LazyArrays, second: LazyArrays) -> Difference:
    """Find the weight that differs most between two checkpoints of the same weights."""
    assert first.shapes == second.shapes
    values = {name: largest_difference(first[name], second[name]) for name in first}
    name = max(values, key=values.__getitem__)
    return Difference(values[name], name)


def _notes(
    config: ConvertConfig,
    checkpoint: Checkpoint,
    tokenizer: RoFormerTokenizer | None,
    called_gpt: bool,
) -> Iterator[str]:
    """What the target lacks that one would expect of it."""
    if tokenizer is None:
        yield (
            f"{config.source} holds no vocab.txt, so {config.target} has no tokenizer. To have "
            "one, put the vocab.txt that belongs to the weights beside them and convert again."
        )
    masked = transformers_class(checkpoint) == "RoFormerForMaskedLM"
    if config.output.to != "tf1" and masked and called_gpt:
        yield (
            f"{config.source} is a gpt model by its name, which reads from left to right, but none "
            f"of its files says so: {config.target} is written as RoFormerForMaskedLM, which sees "
            "all tokens. For RoFormerForCausalLM convert with --attention-type causal."
        )


def _max_length(config: RoFormerConfig, files: Mapping[str, bytes]) -> int:
    """Most tokens of a text: what the model was fine-tuned for, or as many as it has positions."""
    limits = [config.max_position_embeddings]
    for name in sorted(files.keys() & {TASK_FILE, embedding_config.FILE}):
        try:
            limits.append(int(json.loads(files[name])["max_length"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(
                f"{name} is damaged: put back the file that the model came with."
            ) from None
    return min(limits)


def _vocabulary(tokenizer: RoFormerTokenizer | None, target: Path) -> bytes | None:
    """Content of a `vocab.txt`, all that the released layout holds of a tokenizer."""
    if tokenizer is None:
        return None
    guessed = guess_tokenization(tokenizer.vocabulary)
    if (tokenizer.tokenization, tokenizer.lower_case) != (guessed, True):
        logger.warning(
            "%s has no place for the tokenizer's settings: read it with tokenization=%r and "
            "lower_case=%r.",
            *(target, tokenizer.tokenization, tokenizer.lower_case),
        )
    return tokenizer.vocabulary_text().encode()


def _watched(arrays: LazyArrays, bar: Progress) -> LazyArrays:
    """The arrays; a progress bar moves with each that is read."""

    def read(name: str) -> np.ndarray:
        bar.update()
        return arrays[name]

    return LazyArrays(arrays.shapes, arrays.dtypes, read)
