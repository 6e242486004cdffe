"""Describe a checkpoint: its architecture, its vocabulary, and every tensor with its values."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Annotated

from roformer_tf.checkpoints.arrays import is_finite, statistics
from roformer_tf.checkpoints.names import IGNORED
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.terminal import until_pipe_closes
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import has_vocabulary


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Print the contents of a checkpoint, and which tensors would not be loaded.

    Examples:
        roformer-tf checkpoints inspect chinese_roformer-base
        roformer-tf checkpoints inspect downloaded.zip --ignore-unknown
    """

    source: Annotated[str, "MODEL"]
    """A released zip, its name, or a folder with a checkpoint."""
    ignore_unknown: bool = False
    """List tensors that no RoFormer has, instead of refusing the checkpoint."""
    prefix: str | None = None
    """Prefix of the names of the weights to read, such as "ema.", if a file has several copies."""


def inspect(config: InspectConfig) -> None:
    """Print the description line by line."""
    # Damaged weights are shown, not refused: this command is for finding them.
    with OpenedSource(config.source) as source:
        checkpoint = source.checkpoint(
            ignore_unknown=config.ignore_unknown, check_finite=False, prefix=config.prefix
        )
        tokenizer = RoFormerTokenizer.from_source(source) if has_vocabulary(source) else None
        with until_pipe_closes():
            for line in describe(checkpoint, tokenizer):
                print(line, flush=True)


def describe(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer | None) -> Iterator[str]:
    """The lines that `inspect` prints; tensors are read one at a time.

    Of each tensor: name, shape, dtype, min, max, mean and deviation.
    """
    config, sizes = checkpoint.config, _sizes(checkpoint)
    level = f"{tokenizer.tokenization}-level, " if tokenizer else ""
    kind = "RoFormerV2" if config.is_v2 else "RoFormer"
    yield f"family      {kind}, {level}with {', '.join(sizes)}"
    yield f"layout      {checkpoint.layout}"
    yield (
        f"size        {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"embeddings {config.embedding_size}"
    )
    yield f"attention   {config.attention_type or _NOT_RECORDED[checkpoint.attention_type]}"
    each = ", ".join(f"{part} {count:,}" for part, count in sizes.items())
    yield f"parameters  {sizes.total():,} ({each})"
    yield f"vocabulary  {_vocabulary(checkpoint, tokenizer)}"
    yield ""
    shapes = {name: str(list(shape)) for name, shape in checkpoint.arrays.shapes.items()}
    # The widths are known before any tensor is read, so that lines are printed immediately.
    name_width, shape_width = max(map(len, shapes)), max(map(len, shapes.values()))
    columns = "{:{}}  {:{}}  {:8}" + "  {:>10}" * 4
    heading = ("min", "max", "mean", "deviation")
    yield columns.format("tensor", name_width, "shape", shape_width, "dtype", *heading)
    wrong = []
    for name, shape in shapes.items():
        array = checkpoint.arrays[name]
        values = (f"{value:.4g}" for value in statistics(array))
        if not is_finite(array):
            wrong.append(name)
        dtype = str(checkpoint.arrays.dtypes[name])
        yield columns.format(name, name_width, shape, shape_width, dtype, *values)
    needless = [name for name in checkpoint.ignored if IGNORED.fullmatch(name)]
    unknown = [name for name in checkpoint.ignored if name not in needless]
    for title, names in (
        ("not finite, so that other commands refuse the checkpoint", wrong),
        ("not loaded, because no model needs them", needless),
        ("not loaded, because no RoFormer has them", unknown),
    ):
        if names:
            yield f"\n{title}:"
            yield from (f"  {name}" for name in names)


_NOT_RECORDED = {
    "causal": "causal, by its name: not recorded",
    "unilm": "unilm, because it has a pooler and a language model's head: not recorded",
    "bidirectional": "not recorded: the model class decides",
}


def _sizes(checkpoint: Checkpoint) -> Counter[str]:
    """Number of parameters of each part of the model."""
    sizes: Counter[str] = Counter()
    for name, shape in checkpoint.arrays.shapes.items():
        # Shapes come from the file's index: nothing is read.
        sizes[name.split("/")[0]] += prod(shape)
    return sizes


def _vocabulary(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer | None) -> str:
    embeddings = f"{checkpoint.config.vocab_size:,} embeddings"
    if tokenizer is None:
        return f"{embeddings}; there is no vocab.txt"
    case = "lower-cased" if tokenizer.lower_case else "cased"
    return f"{tokenizer.vocab_size:,} tokens, {tokenizer.tokenization}-level, {case}; {embeddings}"
