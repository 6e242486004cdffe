"""Any model → a function of texts that gives their vectors.

    >>> embedder = open_embedder("chinese_roformer-sim-char-base")
    >>> embedder.embed(["今天天气很好", "天气不错"])  # (2, 768) float32, of length 1

How vectors are made stands in a folder's embedding.json. A source without one gives those of its
pooler if it is a sim model, and else the mean of its hidden states.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roformer_tf.checkpoints.detection import (
    attention_type,
    check_pooling,
    embedding_settings,
    is_called_gpt,
)
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig, Pooling
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.checkpoints.whitening import Whitening, load_whitening
from roformer_tf.engines.choice import Choice, Engine, Precision, choose
from roformer_tf.engines.model import GraphModel, graph_model
from roformer_tf.engines.network import Network, unsupported
from roformer_tf.errors import InputError
from roformer_tf.inference.engines import keras_precision
from roformer_tf.labelled.encoding import windows
from roformer_tf.models.rows import BATCH_SIZE, run_rows
from roformer_tf.tokenizers.tokenizer import (
    SPECIALS,
    RoFormerTokenizer,
    check_length,
    find_tokenizer,
)

if TYPE_CHECKING:
    from roformer_tf.models.embedder import SentenceEmbedder

CHUNK = 8192
"""Texts that are held at a time, those of like length together."""
SHORTEST = 1e-12
"""A vector below it is not made one long."""
CHUNK_CHARACTERS = 1_000_000
"""Or fewer, if they are as long as that together."""
WORDS = {
    "pooler": "of its pooler",
    "mean": "the means of its hidden states",
    "cls": "its hidden states at the first token",
}
"""What the vectors of each pooling are."""


@dataclass(frozen=True, eq=False)
class VectorGraph:
    """A graph of an encoder and a pooling, as `models.embedder.SentenceEmbedder` is one of Keras.

    Call: {"token_ids", "segment_ids"} int32 (B, T) → vectors (B, D) float32 of length 1.
    """

    pooled: GraphModel
    """What the pooling makes of rows, (B, H)."""
    hidden_size: int
    dimensions: int | None = None
    whitening: Whitening | None = None

    @property
    def whole_size(self) -> int:
        """Numbers of a vector that is not cut."""
        return self.hidden_size if self.whitening is None else self.whitening.matrix.shape[1]

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.dimensions or self.whole_size

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.pooled.tokens

    @property
    def step(self) -> int:
        """What lengths are multiples of."""
        return self.pooled.step

    def __call__(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Answer rows."""
        vectors = self.pooled(rows)
        if self.whitening is not None:
            vectors = (vectors - self.whitening.mean) @ self.whitening.matrix
        vectors = vectors[:, : self.size]
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SHORTEST)


class Block(NamedTuple):
    """Some texts and their vectors."""

    texts: list[str]
    vectors: np.ndarray
    """(texts, D) float32."""
    cut: int
    """How many of the texts were too long to be read whole."""


@dataclass(frozen=True)
class TextEmbedder:
    """A model that gives vectors, and all that they depend on; `open_embedder` makes it."""

    source: str
    """What the user called it."""
    model: "SentenceEmbedder | VectorGraph"
    tokenizer: RoFormerTokenizer
    config: EmbeddingConfig
    fingerprint: str
    """Equal for those that give equal vectors, wherever their weights lie and in which layout: of
    the weights in float32, the vocabulary, and what says how vectors are made."""
    choice: Choice
    """By what they are computed."""

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.model.size

    @property
    def described(self) -> str:
        """What it gives, in words: "sim.zip: vectors of 768 numbers, of its pooler"."""
        more = ", whitened" if self.model.whitening is not None else ""
        cut = f" (of {self.model.whole_size})" if self.size < self.model.whole_size else ""
        return (
            f"{self.source}: vectors of {self.size} numbers{cut}, {WORDS[self.config.pooling]}"
            f"{more}; at most {self.config.max_length} tokens of a text are read"
        )

    def embed(self, texts: Iterable[str], batch_size: int = BATCH_SIZE) -> np.ndarray:
        """Vectors of texts in their order: (texts, D) float32 of length 1.

        Raises InputError as `blocks` does.
        """
        found = [block.vectors for block in self.blocks(texts, batch_size)]
        return np.concatenate(found) if found else np.zeros((0, self.size), np.float32)

    def blocks(self, texts: Iterable[str], batch_size: int = BATCH_SIZE) -> Iterator[Block]:
        """Texts in their order, some thousands at a time, with their vectors.

        Raises InputError for a vector that is none: not finite, or without a direction.
        """
        done = 0
        for block in self._blocks(self.model, texts, batch_size):
            self._check(block.vectors, block.texts, done)
            done += len(block.texts)
            yield block

    def raw_blocks(self, texts: Iterable[str], batch_size: int = BATCH_SIZE) -> Iterator[Block]:
        """The same with what the pooling gives, (N, H): neither whitened, cut nor made one long."""
        if isinstance(self.model, VectorGraph):
            return self._blocks(self.model.pooled, texts, batch_size)
        from roformer_tf.models.embedder import RawEmbedder

        return self._blocks(RawEmbedder(self.model), texts, batch_size)

    def passages(
        self, texts: Iterable[str], length: int | None = None, batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[Block, list[int]]]:
        """Texts with the vectors of all of their passages, and how many each text has.

        A text of more than `length` tokens, the model's `max_length` unless given, is read in
        windows that share about a quarter of their tokens with the next. Raises InputError as
        `blocks` does.
        """
        most = min(length or self.config.max_length, self.config.max_length)
        check_length(most)
        room = most - SPECIALS
        for chunk in chunks(texts):
            pieces = [_windows(self.tokenizer.ids(text), room) for text in chunk]
            vectors = self._vectors(self.model, list(chain.from_iterable(pieces)), batch_size)
            counts = list(map(len, pieces))
            owners = np.repeat(np.arange(len(chunk)), counts)
            self._check(vectors, [chunk[owner] for owner in owners], 0)
            yield Block(chunk, vectors, 0), counts

    def _blocks(self, model: Any, texts: Iterable[str], batch_size: int) -> Iterator[Block]:
        room = self.config.max_length - SPECIALS
        for chunk in chunks(texts):
            ids = [self.tokenizer.ids(text) for text in chunk]
            vectors = self._vectors(model, [one[:room] for one in ids], batch_size)
            yield Block(chunk, vectors, sum(len(one) > room for one in ids))

    def _vectors(self, model: Any, ids: list[list[int]], batch_size: int) -> np.ndarray:
        """What a model gives for rows of ids without special tokens: (rows, …)."""
        first, last = self.tokenizer.cls_id, self.tokenizer.sep_id
        return np.stack(run_rows(model, [[first, *one, last] for one in ids], None, batch_size))

    def _check(self, vectors: np.ndarray, texts: Sequence[str], done: int) -> None:
        """Raise InputError, with its text, for a vector that is none; `done` texts came before."""
        wrong = ~(np.linalg.norm(vectors, axis=1) > 0.5)  # of NaN, too
        if wrong.any():
            number = int(wrong.argmax())
            finite = np.isfinite(vectors[number]).all()
            raise InputError(
                f"the vector of text {done + number + 1:,}, {texts[number][:40]!r}, is "
                f"{'zero' if finite else 'not finite'}: the weights of {self.source} are damaged, "
                "or its training has diverged. Give another model."
            )


def open_embedder(
    source: str | Path,
    pooling: Pooling | None = None,
    dimensions: int | None = None,
    precision: Precision = "float32",
    max_length: int | None = None,
    whitened: bool = True,
    engine: Engine = "auto",
) -> TextEmbedder:
    """Open any model for its vectors: a name, a zip, or a folder, fine-tuned or not.

    pooling, max_length: unset, what its embedding.json says. dimensions: cut vectors to so many
    numbers. whitened: if the folder keeps what that needs. Raises InputError where there is no
    model, a damaged one, or one without its vocabulary, for a pooling that it has no weights for,
    and for more dimensions than it has.
    """
    with OpenedSource(source) as opened:
        checkpoint = opened.checkpoint()
        return embedder_from(
            opened, checkpoint, pooling, dimensions, precision, max_length, whitened, engine
        )


def embedder_from(
    source: OpenedSource,
    checkpoint: Checkpoint,
    pooling: Pooling | None = None,
    dimensions: int | None = None,
    precision: Precision = "float32",
    max_length: int | None = None,
    whitened: bool = True,
    engine: Engine = "auto",
) -> TextEmbedder:
    """What `open_embedder` gives, from a source that is open."""
    config = embedding_settings(checkpoint, source)
    if pooling is not None:
        check_pooling(pooling, checkpoint, f"--pooling {pooling} of {source.name}")
        config = replace(config, pooling=pooling)
    if max_length is not None:
        config = replace(config, max_length=max_length)
    attention = attention_of(checkpoint, source)
    white = load_whitening(checkpoint, source, config.pooling) if whitened else None
    check_dimensions(dimensions, checkpoint.config.hidden_size, white, source.name)
    found = find_tokenizer(source)
    tokenizer = check_tokenizer(found, checkpoint.config.vocab_size, source.name)
    choice = choose(engine, precision, unsupported=unsupported(checkpoint.config))
    model: SentenceEmbedder | VectorGraph
    if choice.engine == "keras":
        from roformer_tf.models.embedder import load_embedder

        taken = keras_precision(choice)
        model = load_embedder(
            checkpoint, source.path, config.pooling, attention, dimensions, white, taken
        )
    else:
        network = dataclasses.replace(
            vector_network(checkpoint, config.pooling, attention, source.name), part="pooled"
        )
        pooled = graph_model(network, choice.engine, choice.precision)
        model = VectorGraph(pooled, checkpoint.config.hidden_size, dimensions, white)
    mark = fingerprint(checkpoint, tokenizer, config, attention, model.size, white)
    return TextEmbedder(source.name, model, tokenizer, config, mark, choice)


def attention_of(checkpoint: Checkpoint, source: OpenedSource) -> str:
    """The mask by which a model's vectors are made."""
    attention = attention_type(checkpoint, source)
    if attention == "bidirectional" and is_called_gpt(checkpoint, source):
        return "causal"
    return attention


def vector_network(
    checkpoint: Checkpoint, pooling: Pooling, attention: str, source: str
) -> Network:
    """The network that gives vectors of length 1, neither whitened nor cut."""
    config = checkpoint.config.replace(attention_type=attention)
    return Network(config, checkpoint.arrays, "vectors", pooling=pooling, source=source)


def check_dimensions(
    dimensions: int | None, hidden_size: int, white: Whitening | None, name: str
) -> None:
    """Raise InputError for more numbers than a vector has."""
    whole = hidden_size if white is None else white.matrix.shape[1]
    if dimensions is not None and not 1 <= dimensions <= whole:
        raise InputError(
            f"dimensions is {dimensions}, but the vectors of {name} have {whole:,} numbers: give 1 "
            f"to {whole}."
        )


def check_tokenizer(
    tokenizer: RoFormerTokenizer | None, vocab_size: int, name: str
) -> RoFormerTokenizer:
    """The tokenizer that came with a model. Raises InputError where none did, or another's."""
    if tokenizer is None:
        raise InputError(f"{name} has no vocab.txt: put the one there that belongs to it.")
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{name}: its vocabulary has {tokenizer.vocab_size:,} ids, but its model only "
            f"{vocab_size:,} embeddings. Put the vocab.txt there that belongs to it."
        )
    return tokenizer


def fingerprint(
    checkpoint: Checkpoint,
    tokenizer: RoFormerTokenizer,
    config: EmbeddingConfig,
    attention: str,
    size: int,
    white: Whitening | None,
) -> str:
    """128 bits of all that decides on vectors, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    needed = ("encoder", "pooler") if config.pooling == "pooler" else ("encoder",)
    arrays = checkpoint.arrays.of_parts(*needed)
    tensors = chain(
        ((name, arrays[name]) for name in sorted(arrays)),
        () if white is None else (("mean", white.mean), ("matrix", white.matrix)),
    )
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor, np.float32).data)
    model = checkpoint.config
    settings = {
        "vocabulary": tokenizer.tokens,
        "tokenization": tokenizer.tokenization,
        "lower_case": tokenizer.lower_case,
        # of a single text, whose segments are all 0, UniLM's mask hides nothing
        "causal": attention == "causal",
        "size": size,
        **{key: getattr(model, key) for key in ARCHITECTURE},
        **model.chosen_forms(),
        **{key: x for key, x in asdict(config).items() if key != "dimensions"},
    }
    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()


ARCHITECTURE = (
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "rotary_base",
    "norm_type",
)
"""What of a model's config its weights do not tell, and what they compute depends on."""


def _windows(ids: list[int], room: int) -> list[list[int]]:
    """The ids in pieces of at most `room`."""
    if len(ids) <= room:
        return [ids]
    return [ids[first:last] for first, last in windows(np.arange(len(ids) + 1), room)]


def chunks(
    texts: Iterable[str], size: int = CHUNK, characters: int = CHUNK_CHARACTERS
) -> Iterator[list[str]]:
    """Lists of so many texts, or of as many as have so many characters together."""
    chunk: list[str] = []
    total = 0
    for text in texts:
        chunk.append(text)
        total += len(text)
        if len(chunk) == size or total >= characters:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
