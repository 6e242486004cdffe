"""A source → config, arrays and the files of a tokenizer. It is opened once and passed on.

A source is the name of our own or of a released checkpoint, a released `.zip`, a folder with
`bert_config.json`, or a folder with `config.json`, which is Hugging Face's layout and ours. A zip
of such a folder is a source, too, as is a model of the Hugging Face hub: `owner/name[@revision]`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints import archives, embedding_config, hub, huggingface, tf1
from roformer_tf.checkpoints.archives import Files
from roformer_tf.checkpoints.arrays import DTYPES, LazyArrays, is_finite
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig, Pooling
from roformer_tf.checkpoints.names import (
    IGNORED,
    LABELLED_PARTS,
    TIED,
    Weight,
    complete_config,
    table,
)
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError, check_type_and_number
from roformer_tf.translation import Translator

logger = logging.getLogger(__name__)

_WORD_EMBEDDINGS = re.compile(
    r"(?P<prefix>|.*?[./])((roformer|bert)[./])?embeddings[./]word_embeddings(\.weight)?"
)
"""The one tensor that every model has. What precedes its usual name is a prefix of all names."""
_AVERAGE = "ExponentialMovingAverage"
"""The suffix that TensorFlow appends to the name of a moving average."""
_BARE = re.compile(r"(embeddings|encoder|pooler)/")
GPT = "chinese_roformer-gpt-char"
"""Prefix of the released GPT models, whose configs do not record that they are causal."""


@dataclass(frozen=True)
class Checkpoint:
    """An architecture and its weights."""

    config: RoFormerConfig
    arrays: LazyArrays
    """Under our names, in our shapes; each is read from the file on access."""
    layout: str
    """The layout of the file: "tf1" or "huggingface"."""
    ignored: tuple[str, ...]
    """Names of the file's tensors that are no weights of a RoFormer and are ignored."""
    max_length: int
    """Tokens to which a text is cut by default: its tokenizer's limit, or its positions."""
    source_names: frozenset[str]
    """Names of its file or folder, which show what the released configs do not record."""

    # What kind of model it is: inferred from its config, its name and its weights.

    @cached_property
    def parts(self) -> set[str]:
        """The parts of a model that it has, such as "encoder", "mlm", "pooler"."""
        return {name.split("/")[0] for name in self.arrays}

    @property
    def is_language_model(self) -> bool:
        """Whether it has a language model's head, or is a RoFormerV2, whose head has no weights."""
        # RoFormerV2's logits are products with the word embeddings, which need equal sizes.
        tied = self.config.is_v2 and self.config.embedding_size == self.config.hidden_size
        return tied or "mlm" in self.parts

    @property
    def attention_type(self) -> str:
        """The mask that it was trained with: "causal", "unilm" or "bidirectional".

        The config has priority. Without an entry there, a language model is "causal" if it is named
        like the released GPT models. It is "unilm" if it also has a pooler, as only the released
        sim models have.
        """
        if self.config.attention_type is not None:
            return self.config.attention_type
        is_gpt = any(name.casefold().startswith(GPT) for name in self.source_names)
        if is_gpt and "mlm" in self.parts:
            return "causal"
        return "unilm" if {"pooler", "mlm"} <= self.parts else "bidirectional"

    @property
    def is_called_gpt(self) -> bool:
        """Whether it has "gpt" in its name, but no attention type in its config.

        It may be causal, so commands warn.
        """
        missing = self.config.attention_type is None
        return missing and any("gpt" in name.casefold() for name in self.source_names)

    @property
    def described(self) -> Checkpoint:
        """The checkpoint, with "causal" in its config if only its name showed it."""
        if self.attention_type != "causal":
            return self
        return replace(self, config=self.config.replace(attention_type="causal"))

    @property
    def transformers_class(self) -> str:
        """The class of transformers that loads most of its parts."""
        if "token_classifier" in self.parts:
            return "RoFormerForTokenClassification"
        if "qa_outputs" in self.parts:
            return "RoFormerForQuestionAnswering"
        # transformers classifies by the first token only
        if "classifier" in self.parts and self.config.pooling == "cls":
            return "RoFormerForSequenceClassification"
        if not self.is_language_model:
            return "RoFormerModel"
        causal = self.config.attention_type == "causal"
        return "RoFormerForCausalLM" if causal else "RoFormerForMaskedLM"


class OpenedSource(Files):
    """A source, located and opened once, whose files are read on demand; a context manager.

    Arrays can be read within the context, until which an unpacked zip is kept. `read` returns other
    files, such as `vocab.txt`. Raises InputError for what is no source, and if a released
    checkpoint cannot be downloaded.
    """

    def __init__(self, source: str | Path) -> None:
        super().__init__(hub.locate(source))
        self.name = str(source)
        """The user's name for it, for messages; `path` is its location."""
        self._warned = False

    @property
    def names(self) -> frozenset[str]:
        """The name of its file or folder, and the name of the target if it is a link."""
        return frozenset({self.path.name, self.path.resolve().name})  # the first is empty for "."

    def checkpoint(
        self,
        *,
        ignore_unknown: bool = False,
        check_finite: bool = True,
        prefix: str | None = None,
        **overrides: Any,
    ) -> Checkpoint:
        """The config and the arrays, which can be read until the source is closed.

        Raises InputError if there is no checkpoint, if it is damaged (for an array: on access), and
        if config and tensors disagree.

        Args:
            ignore_unknown: whether to ignore tensors that are not in the table of names, with a
                warning, instead of raising InputError.
            check_finite: whether reading an array with NaN or infinity raises InputError.
            prefix: which of several copies of the weights to read, such as moving averages. If
                all names have the same prefix, it is removed and logged without this argument.
            overrides: keys of the config to replace.
        """
        weights = _weights(self.folder)
        if weights.suffix == ".index":
            layout, file = "tf1", self.folder / archives.BERT_CONFIG
            tensors = with_bert(self._plain(tf1.read_tensors(weights.with_suffix("")), prefix))
        else:
            layout, file = "huggingface", self.folder / archives.CONFIG
            tensors = huggingface.read_tensors(weights)
            tensors = huggingface.as_roformer(self._plain(tensors, prefix))
        values = self.read_object(file.name)
        config = RoFormerConfig.from_dict(values, str(file))
        kind = config.unknown.get("model_type")
        # Their tensors may have the same names, but their positions differ.
        if layout == "huggingface" and kind not in huggingface.MODEL_TYPES:
            raise InputError(
                f"{file}: its model_type is {kind!r}, which is not supported. Give a RoFormer or a "
                "BERT."
            )
        # Without a model_type, only this table distinguishes a BERT from a RoFormer.
        if kind is None and {tf1.BERT_POSITIONS, huggingface.BERT_POSITIONS} & tensors.keys():
            config = self._bert_config(config)
        config = config.replace(**overrides)
        # After the overrides, which may change what the tensors are compared with.
        config = complete_config(config, tensors.shapes, layout, self.folder)
        if config.is_v2 and (values | overrides).get("hidden_act") is None:
            config = config.replace(hidden_act="relu")  # the default in PaddleNLP's RoFormerV2
        if overrides.get("crf") and not config.crf:
            raise InputError(f"{self.name} has no weights of a random field. Omit crf=True.")
        return _in_our_names(tensors, config, layout, self, ignore_unknown, check_finite)

    def _plain(self, tensors: LazyArrays, wanted: str | None) -> LazyArrays:
        """The tensors of one copy of the weights, without its prefix."""
        prefix, names = plain_names(tensors, wanted, self.folder)
        if prefix and not self._warned:
            self._warned = True  # once, even if the checkpoint is read twice
            logger.warning("%s: %r is removed from the names of its tensors.", self.name, prefix)
        return tensors.renamed(names)

    def _bert_config(self, config: RoFormerConfig) -> RoFormerConfig:
        """The config of a checkpoint with a table of positions, which its config does not record.

        The checkpoint is a BERT, unless its name contains "roformer": a RoFormer that was
        initialized from a BERT can still have the table.
        """
        if any("roformer" in name.casefold() for name in self.names):
            logger.warning(
                "%s contains a table of learned positions. It is ignored, because the name is that "
                'of a RoFormer. For a BERT give position_embedding_type="learned".',
                self.path,
            )
            return config
        return config.replace(position_embedding_type="learned")


def _weights(folder: Path) -> Path:
    """The file in a folder that contains its weights, or their index."""
    # Both layouts are collected, so that a folder with one of each is refused as ambiguous.
    files = sorted(folder.glob("*.index")) if (folder / archives.BERT_CONFIG).is_file() else []
    if (folder / archives.CONFIG).is_file():
        candidates = [folder / name for name in archives.WEIGHT_FILES]
        files += [file for file in candidates if file.is_file()][:1]
    if not files:
        raise InputError(f"{folder} contains no checkpoint. {_what_is_missing(folder)}")
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{folder} contains several checkpoints: {names}. Keep one of them.")
    return files[0]


def _what_is_missing(folder: Path) -> str:
    if (folder / "model" / archives.CONFIG).is_file():
        return f"It is the folder of a training run: its model is in {folder / 'model'}."
    # Of TensorFlow 2, Flax, Paddle, and LoRA alone.
    for pattern in ("tf_model.h5", "flax_model.msgpack", "*.pdparams", "adapter_model.*"):
        for file in folder.glob(pattern):
            return (
                f"{file.name} cannot be read: open it in the library that wrote it, and save the "
                f"whole model as {archives.WEIGHTS}."
            )
    return (
        f"A checkpoint is {archives.BERT_CONFIG} with a TF1 checkpoint's .index and .data files, "
        f"or {archives.CONFIG} with {archives.WEIGHTS}."
    )


def _in_our_names(
    tensors: LazyArrays,
    config: RoFormerConfig,
    layout: str,
    opened: OpenedSource,
    ignore_unknown: bool,
    check_finite: bool,
) -> Checkpoint:
    """Map the tensors of a file to our names; refuse unknown names and other shapes."""
    source = opened.folder
    # Three kinds of tensors: those of the table, those that are no weights, and mistakes.
    rows = {row.name_in(layout): row for row in table(config)}
    _check_unknown([name for name in tensors if name not in rows], source, ignore_unknown)
    _check_tied(tensors, source)
    _check_tensors(tensors, rows, layout, source)
    # No weight shows the number of heads, only this table, which is computed here.
    size = tensors.shapes.get(huggingface.POSITIONS, (config.head_size,))[-1]
    if size != config.head_size:
        raise InputError(
            f"{source}: num_attention_heads {config.num_attention_heads} in its config gives heads "
            f"of {config.head_size} dimensions, but {huggingface.POSITIONS} has {size}. Give the "
            "config that belongs to the weights."
        )
    existing = {row.name: (name, row) for name, row in rows.items() if name in tensors}
    if not existing:
        raise InputError(f"{source} contains no weights of a RoFormer. Give another model.")
    is_scaled = layout == "huggingface" and huggingface.has_scaled_head(config, existing)
    scaled = huggingface.SCALED_HEAD if is_scaled else ()

    def read(ours: str) -> np.ndarray:
        name, row = existing[ours]
        tensor = tensors[name]
        # Checked on access, because reading all weights first would take twice as long.
        if check_finite and not is_finite(tensor):
            wrong = int((~np.isfinite(tensor)).sum())
            raise InputError(
                f"{source}: {wrong:,} of the {tensor.size:,} numbers of the tensor {name} are "
                "not finite. The weights are damaged, or their training has diverged. Give "
                "another model."
            )
        array = row.from_file(tensor, layout, config.rotary_style)
        return huggingface.unscale_head_array(array, ours, config) if ours in scaled else array

    arrays = LazyArrays(
        {ours: row.shape for ours, (_, row) in existing.items()},
        {ours: tensors.dtypes[name] for ours, (name, _) in existing.items()},
        read,
    )
    ignored = tuple(sorted(tensors.shapes.keys() - rows.keys()))
    positions = config.max_position_embeddings
    limit = opened.read_object(archives.TOKENIZER_CONFIG).get("model_max_length") or positions
    name = f"model_max_length in {archives.TOKENIZER_CONFIG} of {source}"
    check_type_and_number(name, limit, at_least=1)
    max_length = min(limit, positions)  # the limit 1e30 is transformers' "none"
    return Checkpoint(config, arrays, layout, ignored, max_length, opened.names)


def _check_tensors(tensors: LazyArrays, rows: dict[str, Weight], layout: str, source: Path) -> None:
    """Refuse tensors of another shape than the config requires, or of a dtype without numbers."""
    for name, row in rows.items():
        if name not in tensors:
            continue
        if tensors.shapes[name] != row.shape_in(layout):
            advice = "Give the config that belongs to the weights."
            if row.part in LABELLED_PARTS:
                advice = (
                    "Give the num_labels of the weights. For a new head, load RoFormerEncoder, "
                    "save it with save_pretrained, and load its folder with your num_labels."
                )
            raise InputError(
                f"{source}: {name} has the shape {tensors.shapes[name]}, but its config requires "
                f"{row.shape_in(layout)}. {advice}"
            )
        # Numbers of integers and of float8 need scales, which are elsewhere.
        if tensors.dtypes[name] not in (np.float64, *DTYPES.values()):
            raise InputError(
                f"{source}: {name} has the dtype {tensors.dtypes[name]}, which is not supported. "
                f"Save the model as one of {', '.join(DTYPES)}."
            )


def _check_unknown(names: list[str], source: Path, ignore_unknown: bool) -> None:
    """Refuse tensors without a row, or warn of them, except those that are no weights."""
    unknown = sorted(name for name in names if not IGNORED.fullmatch(name))
    if unknown and not ignore_unknown:
        shown = Translator("en").listing(unknown)
        raise InputError(
            f"{source} contains tensors that no RoFormer of its config has ({len(unknown)}): "
            f"{shown}. Give the config that belongs to the weights, or ignore them with "
            "ignore_unknown (a command's --ignore-unknown)."
        )
    if unknown:
        logger.warning("Ignored, because no RoFormer has them: %s.", ", ".join(unknown))


def _check_tied(tensors: LazyArrays, source: Path) -> None:
    """Refuse a second copy of a weight that differs from the first."""
    for second, first in TIED.items():
        if second in tensors and not (
            # NaN is an error of its own, which names the tensor.
            first in tensors and np.array_equal(tensors[first], tensors[second], equal_nan=True)
        ):
            raise InputError(
                f"{source} has a separate decoder ({second} is not {first}), but here the "
                "decoder is always the word embeddings. Give a model with tied weights."
            )


def plain_names(
    names: Iterable[str], wanted: str | None, source: object
) -> tuple[str, dict[str, str]]:
    """The prefix of a model's tensors, and a mapping: name without it → name in the file.

    Of several copies of the weights only the one with the prefix `wanted` is used. Raises
    InputError if a file has several and `wanted` is None, if it has no such copy, and if two
    tensors would have the same name.
    """
    # x/ExponentialMovingAverage → ExponentialMovingAverage/x: averages have a prefix like other
    # copies.
    ordered = {average_first(name): name for name in names}
    matches = filter(None, map(_WORD_EMBEDDINGS.fullmatch, ordered))
    # A prefix of one tensor alone is a mistake, which is reported by its name, and no copy.
    copies = [x for x in matches if sum(name.startswith(x["prefix"]) for name in ordered) > 1]
    prefixes = sorted({each["prefix"] for each in copies})
    if wanted is None and len(prefixes) > 1:
        raise InputError(
            f"{source} contains the weights {len(prefixes)} times, under names that begin with "
            f"{', '.join(map(repr, prefixes))}. Choose one, such as prefix={prefixes[-1]!r} (a "
            f"command's --prefix {prefixes[-1]})."
        )
    if wanted is not None and wanted not in prefixes:
        known = ", ".join(map(repr, prefixes)) or "none"
        raise InputError(f"{source} has no weights under the prefix {wanted!r}. It has: {known}.")
    prefix = wanted if wanted is not None else next(iter(prefixes), "")
    plain: dict[str, str] = {}
    for name, in_file in ordered.items():
        # With the prefixes "model." and "model.ema.", a name belongs to the longest one that fits.
        owner = max((x for x in prefixes if name.startswith(x)), key=len, default=None)
        # Names without any prefix, such as global_step, belong to every copy.
        if owner not in (prefix, None):
            continue
        ours = name.removeprefix(prefix) if owner == prefix else name
        if ours in plain:
            raise InputError(
                f"{source} contains {plain[ours]} and {in_file}, which both would be {ours}. "
                "Remove one of them."
            )
        plain[ours] = in_file
    return prefix, plain


def with_bert(tensors: LazyArrays) -> LazyArrays:
    """Tensors of a TF1 checkpoint, with `bert/` added if all names lack it."""
    if "embeddings/word_embeddings" not in tensors:
        return tensors
    return tensors.renamed(
        {f"bert/{name}" if _BARE.match(name) else name: name for name in tensors}
    )


def average_first(name: str) -> str:
    """The name of a moving average, with TensorFlow's suffix turned into a prefix."""
    plain = name.removesuffix(f"/{_AVERAGE}")
    return name if plain == name else f"{_AVERAGE}/{plain}"


def embedding_settings(checkpoint: Checkpoint, source: OpenedSource) -> EmbeddingConfig:
    """How the model computes sentence vectors, by its embedding.json.

    Without that file, a sim model uses its pooler, and any other model the mean, or the first token
    if sentence-transformers has trained it for that. Raises InputError for a damaged file, for a
    pooling for which the checkpoint has no weights, and for modules that are not supported.
    """
    content = source.read(embedding_config.FILE)
    if content is None:
        is_sim = checkpoint.attention_type == "unilm" and {"pooler", "mlm"} <= checkpoint.parts
        limit = source.read_object(archives.TRANSFORMER_SETTINGS).get("max_seq_length")
        length = min(limit or checkpoint.max_length, checkpoint.config.max_position_embeddings)
        return EmbeddingConfig("pooler" if is_sim else _pooling(source), length)
    name = f"{source.name}: its {embedding_config.FILE}"
    config = embedding_config.parse(content, name)
    check_pooling(config.pooling, checkpoint, name)
    return config


def _pooling(source: OpenedSource) -> Pooling:
    """The pooling of a model of sentence-transformers; for other models the mean."""
    settings = source.read_object(archives.POOLING)
    # Older versions have a key for each: pooling_mode_cls_token, pooling_mode_max_tokens, …
    modes: list[Any] = [x.split("_")[2] for x, on in settings.items() if "mode_" in x and on]
    modes = modes or [settings.get("pooling_mode", "mean")]
    modules = source.read(archives.MODULES) or b""
    if b".Pooling" in modules and source.read(archives.POOLING) is None:
        raise InputError(f"{source.name} has no {archives.POOLING}. Download the complete model.")
    library = source.read_object(archives.PROMPTS)
    # Each of these changes the vectors, which would differ from those of the library.
    changes = any(library.get(key) is not None for key in ("default_prompt_name", "truncate_dim"))
    if b".Dense" in modules or changes or modes not in (["mean"], ["cls"]):
        raise InputError(
            f"{source.name} is a model of sentence-transformers with a Dense module, a default "
            "prompt, a truncate_dim, or another pooling than mean or cls. Use that library; or, "
            f"for the means of its encoder, remove {archives.MODULES}, {archives.POOLING} and "
            f"{archives.PROMPTS}."
        )
    return modes[0]


def check_pooling(pooling: Pooling, checkpoint: Checkpoint, name: str) -> None:
    """Raise InputError for the pooling "pooler", set in `name`, if the checkpoint has no pooler."""
    if pooling == "pooler" and "pooler" not in checkpoint.parts:
        raise InputError(
            f"{name} asks for a pooler, but the model has none. Give --pooling mean or cls, or a "
            "model with one, such as a sim model."
        )
