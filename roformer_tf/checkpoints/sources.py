"""A source → config, arrays and a tokenizer's files: opened once, and passed to its readers.

A source is the name of a released checkpoint, a released `.zip`, an unpacked folder with
`bert_config.json`, a Hugging Face folder, or one of ours, which has the same layout; zips of these
folders, too.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints import huggingface, registry, tf1
from roformer_tf.checkpoints.archives import Files
from roformer_tf.checkpoints.arrays import LazyArrays, is_finite
from roformer_tf.checkpoints.names import IGNORED, TIED, complete_config, table
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError

logger = logging.getLogger(__name__)

_WORD_EMBEDDINGS = re.compile(
    r"(?P<prefix>|.*?[./])((roformer|bert)[./])?embeddings[./]word_embeddings(\.weight)?"
)
"""The one tensor that every model has."""
_AVERAGE = "ExponentialMovingAverage"
"""The suffix that TensorFlow gives the name of a moving average."""
_BARE = re.compile(r"(embeddings|encoder|pooler)/")


@dataclass(frozen=True)
class Checkpoint:
    """An architecture and its weights; it knows no model."""

    config: RoFormerConfig
    arrays: LazyArrays
    """Under our names, in our shapes; each is read from the file on access."""
    layout: str
    """What the file is: "tf1" or "huggingface"."""
    ignored: tuple[str, ...]
    """Names of the file's tensors that are no weights of a RoFormer, and are left aside."""


class OpenedSource(Files):
    """A source, located and opened once; what it holds is read when it is asked for.

    A context, within which arrays can be read; a zip lies unpacked so long, if it had to be. Files
    beside the weights are given by `read`: a tokenizer's, as `vocab.txt`. Raises InputError for
    what is no source, and where the name of a released checkpoint cannot be had.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(registry.locate(source))
        self.name = str(source)
        """The user's name for it, for messages; `path` is its location."""
        self._said = False

    @property
    def names(self) -> set[str]:
        """What its file or folder is called, and what that is a link to."""
        return {self.path.name, self.path.resolve().name}  # of which "." has the second alone

    def checkpoint(
        self,
        *,
        ignore_unknown: bool = False,
        check_finite: bool = True,
        prefix: str | None = None,
        **overrides: Any,
    ) -> Checkpoint:
        """Give the config and the arrays, which can be read until the source is closed.

        `overrides` replace keys of the config. Raises InputError where there is no checkpoint,
        where it is damaged (of an array: when that is read), where config and tensors disagree,
        and for tensors that the table of names does not hold; `ignore_unknown` leaves these aside
        with a warning. Reading an array that is not finite raises InputError too, unless
        `check_finite` is False. A prefix that the names of all tensors share is removed and logged;
        of several copies of the weights, such as moving averages, `prefix` says which is meant, and
        InputError is raised without it.
        """
        weights = _weights(self.folder)
        if weights.suffix == ".index":
            layout, file = "tf1", self.folder / tf1.CONFIG
            tensors = with_bert(self._plain(tf1.read_tensors(weights.with_suffix("")), prefix))
        else:
            layout, file = "huggingface", self.folder / huggingface.CONFIG
            tensors = huggingface.read_tensors(weights)
            tensors = huggingface.as_roformer(self._plain(tensors, prefix))
        config = RoFormerConfig.from_file(file)
        if layout == "tf1" and tf1.BERT_POSITIONS in tensors:
            config = self._of_bert(config)
        config = config.replace(**overrides)
        config = complete_config(config, tensors.shapes, layout, self.folder)
        return _in_our_names(tensors, config, layout, self.folder, ignore_unknown, check_finite)

    def _plain(self, tensors: LazyArrays, wanted: str | None) -> LazyArrays:
        """The tensors of one copy of the weights, without its prefix."""
        prefix, names = plain_names(tensors, wanted, self.folder)
        if prefix and not self._said:
            self._said = True  # a source may be read twice
            logger.warning("%s: %r is removed from the names of its tensors.", self.name, prefix)
        return tensors.renamed(names)

    def _of_bert(self, config: RoFormerConfig) -> RoFormerConfig:
        """The config of a TF1 checkpoint with a table of positions: no file of a BERT says so.

        A RoFormer that began as a BERT may still have the table; its name tells.
        """
        if any("roformer" in name.casefold() for name in self.names):
            logger.warning(
                "%s holds a table of learned positions, which a RoFormer, as its name says it is, "
                'leaves aside. For a BERT give position_embedding_type="learned".',
                self.path,
            )
            return config
        return config.replace(position_embedding_type="learned")


def _weights(folder: Path) -> Path:
    """The one file of a folder that its weights are in, or their index."""
    found = sorted(folder.glob("*.index")) if (folder / tf1.CONFIG).is_file() else []
    if (folder / huggingface.CONFIG).is_file():
        files = [folder / name for name in huggingface.WEIGHT_FILES]
        found += [file for file in files if file.is_file()][:1]
    if not found:
        raise InputError(f"{folder} holds no checkpoint. {_what_is_missing(folder)}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder} holds several checkpoints: {names}. Leave one of them there.")
    return found[0]


def _what_is_missing(folder: Path) -> str:
    if (folder / "model" / huggingface.CONFIG).is_file():
        return f"It is a run's folder: its model is in {folder / 'model'}."
    return (
        f"A checkpoint is {tf1.CONFIG} with a TF1 checkpoint's .index and .data files, "
        f"or {huggingface.CONFIG} with {huggingface.WEIGHTS}."
    )


def _in_our_names(
    tensors: LazyArrays,
    config: RoFormerConfig,
    layout: str,
    source: Path,
    ignore_unknown: bool,
    check_finite: bool,
) -> Checkpoint:
    """Give each tensor of a file its place in the table; refuse what has none or another shape."""
    rows = {row.name_in(layout): row for row in table(config)}
    _check_strangers([name for name in tensors if name not in rows], source, ignore_unknown)
    _check_tied(tensors, source)
    for name, row in rows.items():
        if name in tensors and tensors.shapes[name] != row.shape_in(layout):
            raise InputError(
                f"{source}: {name} has the shape {tensors.shapes[name]}, but its config asks for "
                f"{row.shape_in(layout)}. Give the config that belongs to the weights."
            )
    held = {row.name: (name, row) for name, row in rows.items() if name in tensors}
    is_scaled = layout == "huggingface" and huggingface.has_scaled_head(config, held)
    scaled = huggingface.SCALED_HEAD if is_scaled else ()

    def read(ours: str) -> np.ndarray:
        name, row = held[ours]
        tensor = tensors[name]
        if check_finite and not is_finite(tensor):
            wrong = int((~np.isfinite(tensor)).sum())
            raise InputError(
                f"{source}: the tensor {name} is not finite: {wrong:,} of its {tensor.size:,} "
                "numbers are NaN or infinite. The weights are damaged, or their training has "
                "diverged. Give another model."
            )
        array = row.from_file(tensor, layout, config.rotary_style)
        return huggingface.unscale_head_array(array, ours, config) if ours in scaled else array

    arrays = LazyArrays(
        {ours: row.shape for ours, (_, row) in held.items()},
        {ours: tensors.dtypes[name] for ours, (name, _) in held.items()},
        read,
    )
    return Checkpoint(config, arrays, layout, tuple(sorted(tensors.shapes.keys() - rows.keys())))


def _check_strangers(names: list[str], source: Path, ignore_unknown: bool) -> None:
    """Refuse tensors without a row, or warn of them, unless their names carry no weight."""
    strange = sorted(name for name in names if not IGNORED.fullmatch(name))
    if not strange:
        return
    if not ignore_unknown:
        raise InputError(
            f"{source} holds {len(strange)} tensors that no RoFormer of its config has: "
            f"{_listed(strange)}. Give the config that belongs to the weights, or leave them aside "
            "with ignore_unknown (a command's --ignore-unknown)."
        )
    logger.warning("Left aside, for no RoFormer has them: %s.", ", ".join(strange))


def _check_tied(tensors: LazyArrays, source: Path) -> None:
    """Refuse a second copy of a weight that is not equal to the first."""
    for second, first in TIED.items():
        if second in tensors and not (
            first in tensors and np.array_equal(tensors[first], tensors[second])
        ):
            raise InputError(
                f"{source} has a decoder of its own ({second} is not {first}), but here the "
                "decoder is always the word embeddings. Give a model with tied weights."
            )


def _listed(names: list[str], most: int = 10) -> str:
    """The names, or the first of many."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def plain_names(
    names: Iterable[str], wanted: str | None, source: object
) -> tuple[str, dict[str, str]]:
    """The prefix of a model's tensors, and their names without it → those in the file.

    Of several copies of the weights only the one under the prefix `wanted` is used. Raises
    InputError where a file has several and none was chosen, or not the chosen one, and where two
    tensors would have one name.
    """
    ordered = {average_first(name): name for name in names}
    matches = map(_WORD_EMBEDDINGS.fullmatch, ordered)
    prefixes = sorted({match["prefix"] for match in matches if match})
    if wanted is None and len(prefixes) > 1:
        raise InputError(
            f"{source} holds the weights {len(prefixes)} times, under names that begin with "
            f"{', '.join(map(repr, prefixes))}. Choose one, such as prefix={prefixes[-1]!r} (a "
            f"command's --prefix {prefixes[-1]})."
        )
    if wanted is not None and wanted not in prefixes:
        known = ", ".join(map(repr, prefixes)) or "none"
        raise InputError(f"{source} has no weights under the prefix {wanted!r}. It has: {known}.")
    prefix = wanted if wanted is not None else next(iter(prefixes), "")
    plain: dict[str, str] = {}
    for name, in_file in ordered.items():
        # "model." and "model.ema.": a name belongs to the longest prefix that it begins with.
        owner = max((x for x in prefixes if name.startswith(x)), key=len, default=None)
        if owner not in (prefix, None):
            continue
        ours = name.removeprefix(prefix) if owner == prefix else name
        if ours in plain:
            raise InputError(
                f"{source} holds {plain[ours]} and {in_file}, which both would be {ours}. Remove "
                "one of them."
            )
        plain[ours] = in_file
    return prefix, plain


def with_bert(tensors: LazyArrays) -> LazyArrays:
    """Tensors of a TF1 checkpoint, with `bert/` where all lack it."""
    if "embeddings/word_embeddings" not in tensors:
        return tensors
    return tensors.renamed(
        {f"bert/{name}" if _BARE.match(name) else name: name for name in tensors}
    )


def average_first(name: str) -> str:
    """The name of a moving average, with TensorFlow's suffix as a prefix."""
    plain = name.removesuffix(f"/{_AVERAGE}")
    return name if plain == name else f"{_AVERAGE}/{plain}"
