"""The initial model of `pretrain`: a checkpoint, or a new one that predicts by frequency."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig, dropout_changes
from roformer_tf.conversion.change_vocabulary import add_words
from roformer_tf.corpus.objectives import ObjectiveName, predicted_ids
from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.pretraining.settings import InitializationConfig, PretrainConfig, read_architecture
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_fits

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PretrainedLM: TypeAlias = RoFormerForMaskedLM | RoFormerForCausalLM

# The class of each objective.
MODELS: dict[ObjectiveName, type[PretrainedLM]] = {
    "masked": RoFormerForMaskedLM,
    "causal": RoFormerForCausalLM,
}


# Fraction of the random embeddings that is added to those from neighbours, so that no two tokens
# have the same.
RANDOM_SHARE = 0.3

# Maximum number of sequences in which the tokens are counted.
COUNTED_ROWS = 5000


def new_model(
    architecture: RoFormerConfig,
    tokenizer: RoFormerTokenizer,
    rows: PreparedRows,
    dtype: str = "float32",
    embeddings: str = "random",
    objective: ObjectiveName = "masked",
) -> PretrainedLM:
    """A new model for a vocabulary, which predicts by frequency from its first step on.

    Its weights are random, with two exceptions. The output bias has the frequencies; otherwise the
    first hundreds of steps would learn nothing else (RoFormerV2 has no bias). With
    `embeddings="neighbours"`, the word embeddings are the corpus' neighbour vectors, with the
    length of random ones.
    """
    config = architecture.replace(vocab_size=tokenizer.vocab_size)
    model = MODELS[objective](config, dtype=dtype)
    if model.mlm.bias is not None:
        predicted = predicted_ids(objective, tokenizer)
        model.mlm.bias.assign(log_frequencies(rows, tokenizer.vocab_size, predicted))
    if embeddings == "neighbours":
        layer = model.encoder.embeddings.word
        words = layer.embeddings
        # The length of a vector with this standard deviation in each dimension.
        length = layer.embeddings_initializer.stddev * math.sqrt(config.embedding_size)
        vectors = length * neighbour_vectors(rows, *words.shape)
        words.assign(vectors + RANDOM_SHARE * keras.ops.convert_to_numpy(words))
    return model


def log_frequencies(rows: PreparedRows, vocab_size: int, predicted: np.ndarray) -> np.ndarray:
    """Logarithm of each token's frequency, (V,), counted in some thousands of sequences.

    Tokens outside of `predicted` (ids,) count as if they did not occur.
    """
    sample = [rows[i] for i in range(0, len(rows), -(-len(rows) // COUNTED_ROWS))]
    counts = np.bincount(np.stack(sample)[:, TOKEN].ravel(), minlength=vocab_size)
    smoothed = np.full(vocab_size, 0.5)  # a token that was not counted may still occur
    smoothed[predicted] += counts[predicted]
    return np.log(smoothed / smoothed.sum())


def new_architecture(config: InitializationConfig, positions: int) -> RoFormerConfig:
    """The architecture of a new model for sequences of up to `positions` tokens."""
    # A file needs no vocab_size: `new_model` replaces it by that of the data.
    architecture = read_architecture(config.architecture, vocab_size=1)
    check_sees_both_sides(architecture.attention_type, config.objective, config.architecture)
    longest = max(positions, architecture.max_position_embeddings)
    return architecture.replace(max_position_embeddings=longest, **_changes(config))


def read_checkpoint(
    config: PretrainConfig, positions: int
) -> tuple[PretrainedLM, RoFormerTokenizer]:
    """The model of --init-from, with the words of --extend-vocab, and the run's tokenizer.

    `positions`: length of the longest sequence. Raises InputError for a checkpoint that cannot be
    read, has another vocabulary or too few learned positions, for masked words in a causal model,
    and for words that cannot be tokens.
    """
    assert config.init_from is not None
    kind, settings = MODELS[config.objective], (config.tokenization, config.lower_case)
    vocabulary = config.rows or config.vocab
    with OpenedSource(config.init_from) as source:
        check_sees_both_sides(source.checkpoint().attention_type, config.objective, source.name)
        if config.extend_vocab:
            checkpoint = source.checkpoint(**_changes(config)).described
            tokenizer = RoFormerTokenizer.from_source(source, *settings)
            check_fits(tokenizer, checkpoint.config.vocab_size, config.init_from)
            checkpoint, tokenizer, *_ = add_words(checkpoint, tokenizer, Path(config.extend_vocab))
            arrays = checkpoint.arrays
            model = kind.from_arrays(checkpoint.config, arrays, source.path, config.precision)
            model.tokenizer = tokenizer
        else:
            model = kind.from_source(source, dtype=config.precision, **_changes(config))
            if vocabulary is None:
                tokenizer = RoFormerTokenizer.from_source(source, *settings)
    # The ids of --rows, or of --vocab, must be the checkpoint's: `_check_vocabulary` compares them.
    if vocabulary is not None:
        tokenizer = RoFormerTokenizer.from_pretrained(vocabulary, *settings)
    known = model.config
    known.check_length(positions, "the length of the longest row")
    _check_vocabulary(model, tokenizer, config.init_from)
    # `check_length` has refused a learned table that is too short. Other positions have no limit.
    if positions > (most := known.max_position_embeddings):
        scales = known.use_logn_attn or known.rope_parameters  # both begin at the trained length
        trained = known.trained_length or (most if scales else 0)
        model.config = known.replace(max_position_embeddings=positions, trained_length=trained)
    return model, tokenizer


def _changes(config: InitializationConfig) -> dict[str, Any]:
    """Keys of the architecture that the settings replace."""
    changes: dict[str, Any] = dropout_changes(config.dropout)
    if config.attention_dropout is not None:
        changes["attention_probs_dropout_prob"] = config.attention_dropout
    if config.objective == "causal":  # any other mask would show the model the token to predict
        changes["attention_type"] = "causal"
    return changes


def check_sees_both_sides(
    attention_type: str | None, objective: ObjectiveName, source: str | None
) -> None:
    """Raise InputError for masked words in a model that attends only to the text before them."""
    if objective == "masked" and attention_type == "causal":
        raise InputError(
            f"{source} is a causal model (attention_type), but masked words are predicted from "
            "both sides. Give --objective causal, or another model."
        )


def _check_vocabulary(model: PretrainedLM, tokenizer: RoFormerTokenizer, source: str) -> None:
    """Raise InputError unless the checkpoint has the vocabulary of the prepared sequences."""
    own = model.tokenizer
    if own is None:
        check_fits(tokenizer, model.config.vocab_size, source)
    elif own.vocabulary != tokenizer.vocabulary:
        raise InputError(
            f"the vocabulary ({len(tokenizer.vocabulary):,} tokens) does not fit {source}, whose "
            f"own, with the words of --extend-vocab, has {len(own.vocabulary):,} and other ids. "
            "Give --corpus without --vocab, or rows that were prepared with that vocabulary."
        )


# Word vectors from counts of neighbours


# Maximum number of tokens that are counted, in sequences evenly spread over the corpus.
COUNTED_TOKENS = 20_000_000


def neighbour_vectors(
    rows: PreparedRows, vocab_size: int, size: int, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Vectors (V, size) of all tokens, similar for tokens with similar neighbours.

    Half of them have the length 1. Those of rare tokens, about which less is known, are shorter;
    that of a token that does not occur is 0. All dimensions have the same importance.
    """
    from sklearn.utils.extmath import randomized_svd

    information = positive_information(neighbour_counts(rows, vocab_size))
    rank = min(size, vocab_size)
    left, strength, _ = randomized_svd(information, rank, n_iter=4, random_state=seed)
    # A random rotation: otherwise the first dimensions would have most of the information.
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    # The factorization U · √Σ of the information matrix (Levy and Goldberg 2014).
    vectors = left * np.sqrt(strength) @ rotation[:rank]
    known = information.getnnz(axis=1) > 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    limit = np.median(lengths[known]) if known.any() else 1.0
    return np.where(known[:, None], vectors / np.maximum(lengths, limit), 0).astype(np.float32)


def neighbour_counts(rows: PreparedRows, vocab_size: int) -> "csr_matrix":
    """How often a token (row) is directly before another (column) in a document: (V, V)."""
    from scipy.sparse import coo_matrix

    spread = -(-len(rows) * rows.length // COUNTED_TOKENS)
    sample = np.stack([rows[i] for i in range(0, len(rows), spread)])
    tokens, documents = sample[:, TOKEN], sample[:, DOCUMENT]
    together = (documents[:, :-1] == documents[:, 1:]) & (documents[:, 1:] != 0)
    before, after = tokens[:, :-1][together], tokens[:, 1:][together]
    # `tocsr` adds the ones of equal pairs.
    ones = np.ones(len(before), np.float32)
    return coo_matrix((ones, (before, after)), (vocab_size, vocab_size)).tocsr()


def positive_information(counts: "csr_matrix") -> "csr_matrix":
    """Positive pointwise mutual information of each token with its right and left neighbours.

    counts (V, V) → max(0, ln p(x, y) / (p(x) p(y))), (V, 2V) float32: right ones, then left ones.
    """
    from scipy.sparse import csr_matrix, hstack

    pairs = counts.tocoo()
    first, second = (np.asarray(counts.sum(axis), np.float64).ravel() for axis in (1, 0))
    # (pairs,): how often each pair would occur if neighbours were independent.
    expected = first[pairs.row] * second[pairs.col] / max(first.sum(), 1.0)
    values = np.maximum(np.log(pairs.data / expected), 0).astype(np.float32)
    right = csr_matrix((values, (pairs.row, pairs.col)), shape=counts.shape)
    # Pairs that are no more frequent than by chance take no memory.
    right.eliminate_zeros()
    return hstack([right, right.T]).tocsr()
