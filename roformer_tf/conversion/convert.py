"""Write a checkpoint with all its weights in another layout; read it back and compare."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from roformer_tf.checkpoints import embedding_config, huggingface, tf1
from roformer_tf.checkpoints.archives import LEXICAL_FILE, TASK_FILE
from roformer_tf.checkpoints.arrays import LazyArrays, largest_difference
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource, embedding_settings
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, json_object, temporary_folder
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, find_tokenizer
from roformer_tf.tokenizers.vocabulary import guess_tokenization

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Layout and dtype of the checkpoint to write."""

    to: Literal["tf1", "huggingface", "own"]
    """tf1: the released layout, for bert4keras; huggingface: a folder for transformers; own: the
    same folder, also for models that transformers does not support."""
    dtype: Literal["float16", "bfloat16", "float32"] | None = None
    """Dtype to round the weights to. Default: as they are."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    r"""Write a checkpoint in another layout, read it back and print the largest difference.

    Examples:
        roformer-tf checkpoints convert chinese_roformer-base roformer-hf \
            --to huggingface
        roformer-tf checkpoints convert runs/mine/model mine.zip --to tf1
    """

    source: Annotated[str, "MODEL"]
    """A released zip, its name, or a folder with a checkpoint."""
    target: Annotated[Path, "DIR"]
    """The folder or, for tf1, the zip to write. It must not exist."""
    output: OutputConfig
    attention_type: Literal["bidirectional", "causal", "unilm"] | None = None
    """Attention type to record. Default: as in the config, or "causal" if the name starts with
    chinese_roformer-gpt-char, because the files of the released gpt models do not record it."""
    ignore_unknown: bool = False
    """Ignore tensors that no RoFormer has, instead of refusing the checkpoint."""
    prefix: str | None = None
    """Prefix of the names of the weights to read, such as "ema.", if a file has several copies."""


class Difference(NamedTuple):
    """The largest difference between two copies of a weight."""

    value: float
    name: str


class Stored(NamedTuple):
    """What is stored of a model."""

    checkpoint: Checkpoint
    tokenizer: RoFormerTokenizer | None
    """None without a vocabulary."""
    files: Mapping[str, bytes]
    """See `extra_files`."""


def read_stored(source: OpenedSource, **options: Any) -> Stored:
    """Everything that is stored of a model. Raises InputError for a vocabulary of another one.

    options: as of `OpenedSource.checkpoint`.
    """
    checkpoint = source.checkpoint(**options).described
    tokenizer = find_tokenizer(source, checkpoint.config)
    return Stored(checkpoint, tokenizer, extra_files(checkpoint, source))


def convert(config: ConvertConfig) -> None:
    """Convert, and print the largest difference and warnings."""
    check_target(config.target)
    options: dict[str, Any] = {"ignore_unknown": config.ignore_unknown, "prefix": config.prefix}
    if config.attention_type:
        options["attention_type"] = config.attention_type
    # The vocabulary is checked before anything is written.
    with OpenedSource(config.source) as source:
        stored = read_stored(source, **options)
        difference = convert_checkpoint(stored, config.target, config.output)
        print_difference(difference, config.target)
        if stored.tokenizer is None:
            logger.warning(
                "%s contains no vocab.txt, so %s has no tokenizer. To have one, put the vocab.txt "
                "of the weights into the same folder and convert again.",
                *(config.source, config.target),
            )
        masked = stored.checkpoint.transformers_class == "RoFormerForMaskedLM"
        if config.output.to != "tf1" and masked and stored.checkpoint.is_called_gpt:
            logger.warning(
                "%s has the name of a gpt model, which is causal, but its files do not record "
                "that: %s is written as RoFormerForMaskedLM, which attends to all tokens. For "
                "RoFormerForCausalLM convert with --attention-type causal.",
                *(config.source, config.target),
            )


def print_difference(difference: Difference, target: Path) -> None:
    """Print the result of `convert_checkpoint`."""
    shown = f"{difference.value:.1e}, in {difference.name}" if difference.value else "0"
    say("{target} is written. Largest round-trip difference: {shown}.", target=target, shown=shown)


def check_target(target: Path) -> None:
    """Raise InputError for a target that cannot be written, or that exists."""
    check_writable(target)
    # An empty folder is allowed: users create it first.
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(
            f"{target} exists, and nothing is overwritten. Remove it, or give another name."
        )


def extra_files(checkpoint: Checkpoint, source: OpenedSource) -> dict[str, bytes]:
    """Files of a model in addition to weights and tokenizer: its task, and settings of vectors.

    A model that was not fine-tuned has none, unless it is a sim model. Raises InputError for
    damaged ones.
    """
    names = TASK_FILE, LEXICAL_FILE, embedding_config.FILE
    files = {name: content for name in names if (content := source.read(name)) is not None}
    settings = embedding_settings(checkpoint, source)
    # A released sim model, or one of sentence-transformers, has no such file.
    if settings != EmbeddingConfig("mean", checkpoint.max_length):
        files.setdefault(embedding_config.FILE, settings.as_json().encode())
    return files


def convert_checkpoint(stored: Stored, target: Path, output: OutputConfig) -> Difference:
    """Write a checkpoint with its tokenizer and files; read it back and compare.

    With settings of vectors, the folder is also one for sentence-transformers. Of files and
    tokenizer, the released layout has the vocabulary alone. The target appears when it is complete.
    Raises InputError for a vocabulary that cannot be written line by line, and for a form of
    positions or attention that the layout cannot record.
    """
    checkpoint, tokenizer, files = stored
    config, dtype = checkpoint.config, output.dtype
    # transformers would load other architectures without an error and compute something else.
    part = huggingface.foreign_part(config, checkpoint.arrays)
    if output.to == "huggingface" and part:
        raise InputError(
            f"{target} cannot be written for transformers, which has no model with {part}: it "
            "would ignore that. Convert --to own."
        )
    if output.to == "tf1":
        vocabulary = None
        if tokenizer is not None:
            vocabulary = tokenizer.vocabulary_text().encode()
            _warn_of_settings(tokenizer, target)
        tf1.write(target, config, checkpoint.arrays, vocabulary, dtype)
    else:
        with temporary_folder(target) as folder:
            architecture = checkpoint.transformers_class
            if "token_classifier" in checkpoint.parts:
                # Heads of whole texts, such as that of multiple choice, have weights of this name.
                architecture = (config.unknown.get("architectures") or [architecture])[0]
            ids = None if tokenizer is None else tokenizer.special_ids
            huggingface.write(folder, config, checkpoint.arrays, architecture, dtype, ids)
            if tokenizer is not None:
                tokenizer.save_pretrained(
                    folder,
                    max_length=_max_length(checkpoint, files),
                    causal=architecture == huggingface.CAUSAL,
                )
            for name, content in files.items():
                (folder / name).write_bytes(content)
            if tokenizer is not None and embedding_config.FILE in files:
                save_modules(folder)
    # Read it back through the usual path: a wrong name or transpose shows as a difference.
    with OpenedSource(target) as written:
        copy = written.checkpoint()
        if lost := dict(files.items() - extra_files(copy, written).items()):
            logger.warning(
                "%s has the weights and the vocabulary, but not %s, without which it does not "
                "predict as before. --to own keeps everything.",
                *(target, ", ".join(sorted(lost))),
            )
        return compare(checkpoint.arrays, copy.arrays)


def _warn_of_settings(tokenizer: RoFormerTokenizer, target: Path) -> None:
    """Name the settings that are not those with which a vocabulary alone is read."""
    settings = []
    if not tokenizer.lower_case:
        settings.append("lower_case=False")
    if tokenizer.tokenization != guess_tokenization(tokenizer.vocabulary):
        settings.append(f"tokenization={tokenizer.tokenization!r}")
    if settings:
        logger.warning(
            "%s cannot record how its tokenizer splits text: open it with %s.",
            *(target, ", ".join(settings)),
        )


def compare(first: LazyArrays, second: LazyArrays) -> Difference:
    """The weight that differs most between two copies of a checkpoint."""
    # The writer has written all names of the table, so a difference is our mistake.
    assert first.shapes == second.shapes
    # Named tuples compare by their first field, the value.
    return max(Difference(largest_difference(first[name], second[name]), name) for name in first)


def _max_length(checkpoint: Checkpoint, files: Mapping[str, bytes]) -> int:
    """Maximum tokens of a text: that of fine-tuning, or of the checkpoint."""
    # transformers truncates to it: without a limit, long texts would fail there.
    limits = [
        int(json_object(files[name], name, "Put back the file of the model.")["max_length"])
        for name in files.keys() & {TASK_FILE, embedding_config.FILE}
    ]
    return min([checkpoint.max_length, *limits])
