"""Any model → a function of texts that gives their vectors.

    >>> embedder = VectorSettings().open("chinese_roformer-sim-char-base")
    >>> embedder.embed(["今天天气很好", "天气不错"])  # (2, 768) float32, of length 1

How vectors are made is written in a folder's embedding.json. Without one, a sim model uses its
pooler, and any other model the mean of its hidden states.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig, Pooling
from roformer_tf.checkpoints.sources import check_pooling, embedding_settings
from roformer_tf.engines.choice import KERAS, Choice, Engine, Precision
from roformer_tf.errors import DamagedError, InputError, check_number, check_numbers
from roformer_tf.inference.opening import OpenedModel, open_model
from roformer_tf.labelled.encoding import windows
from roformer_tf.models.rows import BATCH_SIZE, run_rows
from roformer_tf.readers.records import chunks
from roformer_tf.tasks.vectors.ranked_texts import unit
from roformer_tf.tokenizers.padding import SPECIALS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForSentenceSimilarity

# The vectors of each pooling, in words.
DESCRIPTIONS = {
    "pooler": Message("of its pooler"),
    "mean": Message("the means of its hidden states"),
    "cls": Message("its hidden states at the first token"),
}
# Keys of a configuration that change vectors and that the shapes of the weights do not show.
ARCHITECTURE = ("num_attention_heads", "hidden_act", "layer_norm_eps", "rotary_base", "norm_type")


class Block(NamedTuple):
    """Some texts and their vectors."""

    texts: list[Any]
    vectors: np.ndarray
    """(texts, D) float32."""
    cut: int
    """How many of the texts were longer than the model reads."""
    lengths: list[int]
    """How many tokens of each text were read, special tokens included."""


@dataclass(frozen=True)
class TextEmbedder:
    """A model that gives vectors, with everything they depend on; see `VectorSettings.open`."""

    source: str
    """The source as the user typed it."""
    pooled: Any
    """A graph or a Keras model: {"token_ids", "segment_ids"} int32 (B, T) → (B, H)."""
    hidden_size: int
    dimensions: int | None
    """Numbers of a vector that are kept, the first ones; None: all."""
    tokenizer: RoFormerTokenizer
    config: EmbeddingConfig
    fingerprint: str
    """Equal for models with equal vectors, wherever and in whichever layout their weights are: a
    hash of the weights in float32, the vocabulary and the settings of the vectors."""
    choice: Choice
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch."""

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.dimensions or self.hidden_size

    @property
    def described(self) -> str:
        """In words: "sim.zip: vectors of 768 numbers, of its pooler"."""
        cut = f" (of {self.hidden_size})" if self.size < self.hidden_size else ""
        return Message(
            "{source}: vectors of {size} numbers{cut}, {pooling}; at most {length} tokens of a "
            "text are read",
            source=self.source,
            size=self.size,
            cut=cut,
            pooling=DESCRIPTIONS[self.config.pooling],
            length=self.config.max_length,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What to print before vectors are computed: `described`, the precision, and a warning."""
        notes = Message("{report}.", report=self.described), self.choice.note
        trained = self.config.dimensions or ()
        if self.size in (self.hidden_size, *trained):
            return notes
        advice = "Train with --dimensions."
        if trained:
            advice = f"It was trained for {', '.join(map(str, trained))}."
        untrained = f"{self.source} was not trained for vectors cut to {self.size}. {advice}"
        return (*notes, untrained)

    def is_cut(self, text: str) -> bool:
        """Whether a text is longer than the model reads."""
        return len(self.tokenizer.ids(text)) > self.config.max_length - SPECIALS

    def cut_note(self, cut: int) -> str:
        """For the user: so many texts were cut; "" for none."""
        length = self.config.max_length
        note = Message("{cut:,} longer than {length} tokens and cut.", cut=cut, length=length)
        return note if cut else ""

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        """Vectors of texts, in their order: (texts, D) float32 of length 1.

        Raises InputError as `blocks` does.
        """
        vectors = [block.vectors for block in self.blocks(texts)]
        return np.concatenate(vectors) if vectors else np.zeros((0, self.size), np.float32)

    def blocks(self, texts: Iterable[str | list[int]]) -> Iterator[Block]:
        """Texts in their order, some thousands at a time, with their vectors.

        A text may be a list of its token ids, without special tokens.
        Raises InputError for a vector that is not finite, or zero.
        """
        room, done = self.config.max_length - SPECIALS, 0
        for chunk in chunks(texts):
            ids = [x if isinstance(x, list) else self.tokenizer.ids(x) for x in chunk]
            rows = [row[:room] for row in ids]
            vectors = self._vectors(rows)
            self._check(vectors, chunk, done)
            done += len(chunk)
            cut = sum(len(row) > room for row in ids)
            yield Block(chunk, vectors, cut, [len(row) + SPECIALS for row in rows])

    def passages(self, texts: Sequence[str], length: int) -> list[np.ndarray]:
        """For each text the vectors of all of its passages, (passages, D).

        A text of more than `length` tokens is read in windows that overlap by about a quarter.
        Raises InputError as `blocks` does.
        """
        rows, owners = [], list[int]()
        for number, ids in enumerate(map(self.tokenizer.ids, texts)):
            # Each token is a unit of its own: a window may begin and end at any token.
            spans = windows(np.arange(len(ids) + 1), length - SPECIALS)
            rows += [ids[first:last] for first, last in spans]
            owners += [number] * len(spans)
        # The passages of all texts share batches, and are then separated again.
        vectors = self._vectors(rows)
        self._check(vectors, [texts[owner] for owner in owners], 0)
        # Owners [0, 0, 1, 2, 2] → cuts before rows 2 and 3, where the next text begins.
        return np.split(vectors, np.searchsorted(owners, np.arange(1, len(texts))))

    def finished(self, vectors: np.ndarray) -> np.ndarray:
        """Pooled hidden states (N, H) → vectors (N, D) of length 1."""
        return unit(vectors[:, : self.size])

    def _vectors(self, ids: list[list[int]]) -> np.ndarray:
        """The vectors of rows of ids without special tokens: (rows, D)."""
        first, last = self.tokenizer.cls_id, self.tokenizer.sep_id
        # Special tokens are added here, so that each passage of a text has its own.
        rows = [[first, *row, last] for row in ids]
        return self.finished(np.stack(run_rows(self.pooled, rows, None, self.batch_size)))

    def _check(self, vectors: np.ndarray, texts: Sequence[Any], done: int) -> None:
        """Raise DamagedError, with its text, for a bad vector; `done` texts came before."""
        # Vectors have length 1, except zero ones; a comparison with NaN is false.
        bad = ~(np.linalg.norm(vectors, axis=1) > 0.5)
        if bad.any():
            number = int(bad.argmax())
            finite = np.isfinite(vectors[number]).all()
            raise DamagedError(
                f"the vector of text {done + number + 1:,}, {texts[number][:40]!r}, is "
                f"{'zero' if finite else 'not finite'}: the weights of {self.source} are damaged, "
                "or its training has diverged. Give another model."
            )


@dataclass(frozen=True, kw_only=True)
class VectorSettings:
    """How a command computes vectors."""

    pooling: Pooling | None = None
    """How a vector is pooled: by the pooler of a sim model, the mean of all tokens, or the first
    token. Default: as in training, else the pooler of a sim model, or the mean."""
    dimensions: int | None = None
    """Cut vectors to so many numbers, for a model that was trained for it."""
    max_length: int | None = None
    """Maximum number of tokens of a text. Default: as in training."""
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch; long texts form smaller batches."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware has it, and cosines change by some thousandths; int8 is
    faster on any CPU, and they change by some hundredths. Default: float32, or that of an
    export."""
    engine: Engine = "auto"
    """Keras on its backend, or on a CPU ONNX Runtime or OpenVINO. Default: the fastest that is
    installed and supports the model."""

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size", at_least=1)

    def open(self, source: str | Path, threads: int | None = None) -> TextEmbedder:
        """Open a model with these settings; threads: of a graph, as of `OpenedModel`."""
        fields = {"batch_size": self.batch_size, "threads": threads}
        with open_model(source, self.engine, self.precision, **fields) as opened:
            return embedder_from(opened, self)


def embedder_from(opened: OpenedModel, settings: VectorSettings) -> TextEmbedder:
    """Use any model for its vectors, fine-tuned or not.

    settings: those that are None are read from its embedding.json. Raises InputError for a damaged
    model, and for one without a vocabulary, the weights of the pooling, or so many dimensions.
    """
    if opened.is_export:
        return _of_export(opened, settings)
    pooling, dimensions, max_length = settings.pooling, settings.dimensions, settings.max_length
    checkpoint, files = opened.checkpoint, opened.files
    config = embedding_settings(checkpoint, files)
    if pooling is not None:
        check_pooling(pooling, checkpoint, f"--pooling {pooling} of {opened.name}")
        config = replace(config, pooling=pooling)
    if max_length is not None:
        config = replace(config, max_length=max_length)
    hidden = checkpoint.config.hidden_size
    hint = f"the size of the vectors of {opened.name}"
    check_number("dimensions", dimensions, at_least=1, at_most=hidden, hint=hint)
    tokenizer, choice = opened.tokenizer, opened.choice()
    changes = opened.vector_changes(config.pooling)
    pooled = opened.model("pooled", "RoFormerForSentenceEmbedding", choice, changes)
    mark = fingerprint(opened, config, dimensions or hidden)
    return TextEmbedder(
        opened.name, pooled, hidden, dimensions, tokenizer, config, mark, choice, opened.batch_size
    )


def _of_export(opened: OpenedModel, settings: VectorSettings) -> TextEmbedder:
    """Use an export for its vectors. Raises InputError for settings that are not its own."""
    content, name = opened.files.read(embedding_config.FILE), opened.name
    file = f"{name}: its {embedding_config.FILE}"
    config = None if content is None else embedding_config.parse(content, file)
    if config is None or config.fingerprint is None:
        raise InputError(
            f"{name} is an export without vectors, or of an older version. Give the model/ folder "
            "that it was exported from, or export that again."
        )
    pooled, tokenizer = opened.exported(), opened.tokenizer
    ids = np.array([[tokenizer.cls_id, tokenizer.sep_id]], np.int32)
    # The size of the vectors is read from the vector of an empty text.
    size = pooled({"token_ids": ids, "segment_ids": np.zeros_like(ids)}).shape[1]
    own = {"pooling": config.pooling, "dimensions": size, "max_length": config.max_length}
    for key, value in own.items():
        if (asked := getattr(settings, key)) not in (None, value):
            raise InputError(
                f"{name} is an export, with {key} {value}, not {asked}. Give the model/ folder "
                "that it was exported from."
            )
    choice, mark = Choice(pooled.engine, pooled.precision), config.fingerprint
    batch_size = opened.batch_size
    return TextEmbedder(name, pooled, size, None, tokenizer, config, mark, choice, batch_size)


def fingerprint(opened: OpenedModel, config: EmbeddingConfig, size: int) -> str:
    """A hash of 128 bits, in hexadecimal, of everything that vectors depend on."""
    checkpoint, tokenizer = opened.checkpoint, opened.tokenizer
    digest = hashlib.blake2b(digest_size=16)
    # Only the parts that the pooling uses: a head that is trained later changes no vector.
    parts = ("encoder", "pooler") if config.pooling == "pooler" else ("encoder",)
    arrays = checkpoint.arrays.of_parts(*parts)
    # In float32, so that a checkpoint has one fingerprint whatever its dtype and layout.
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name], np.float32).data)
    settings = {
        "vocabulary": tokenizer.tokens,
        "tokenization": tokenizer.tokenization,
        "lower_case": tokenizer.lower_case,
        # UniLM's mask hides nothing of a single text, whose segments are all 0
        "causal": opened.vector_attention == "causal",
        "size": size,
        **{key: getattr(checkpoint.config, key) for key in ARCHITECTURE},
        **checkpoint.config.chosen_forms(),
        "pooling": config.pooling,
        "max_length": config.max_length,
    }
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()


def embedder_of(
    model: "RoFormerForSentenceSimilarity", name: str, settings: EmbeddingConfig, batch_size: int
) -> TextEmbedder:
    """A sim model's own vectors, in the precision that it generates in."""
    from roformer_tf.models.heads import SentenceEmbedder

    vectors = SentenceEmbedder(model.encoder, model.pooler, settings.pooling)
    # Without a fingerprint, because no index is ever compared with these vectors.
    size, tokenizer = model.config.hidden_size, model.own_tokenizer
    return TextEmbedder(name, vectors, size, None, tokenizer, settings, "", KERAS, batch_size)
