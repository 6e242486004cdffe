"""Losses of the same tokens in sequences of several lengths.

To measure the value of a longer context, only the length may differ. So each text is masked once,
and then read in windows of every length. A token is predicted once per length. Windows are
adjacent. The last one of a text begins earlier, so it is full, too; only tokens that no earlier
window has are evaluated in it:

    text      甲 乙 丙 丁 戊 己 庚        7 tokens
    windows   [甲 乙 丙] [丁 戊 己] [戊 己 庚]   of 3; in the last, 庚 alone is evaluated
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.objectives import MaskingConfig, ObjectiveName, make_objective
from roformer_tf.corpus.packing import Documents
from roformer_tf.errors import InputError
from roformer_tf.models.rows import silence_retracing_warnings
from roformer_tf.pretraining.evaluation import TokenMetrics
from roformer_tf.pretraining.initialization import PretrainedLM
from roformer_tf.terminal import Progress
from roformer_tf.tokenizers.padding import SPECIALS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

# Or one sequence, if it is longer. A causal model scores the vocabulary at every token: fewer fit.
TOKENS_PER_BATCH: Mapping[ObjectiveName, int] = {"masked": 8192, "causal": 2048}
RESAMPLES = 1000
# Spans of positions in the longest sequences with figures of their own.
MAX_SPANS = 16

# The word number of tokens that are no text, such as the [SEP] between two documents.
NO_WORD = 0

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


# Windows of texts


class WordedText(NamedTuple):
    """A text of T tokens without the special ones around it."""

    token_ids: npt.NDArray[np.integer]
    """(T,)"""
    words: npt.NDArray[np.integer]
    """(T,), from 1 on the number of each token's word in the text; 0 for a [SEP] within."""


class Window(NamedTuple):
    """The tokens of a text from `start` to `stop`."""

    start: int
    stop: int
    fresh: int
    """The first token that no earlier window has: evaluation begins with it."""


def windows(size: int, room: int) -> Iterator[Window]:
    """Cut a text of `size` tokens into windows of `room` tokens; each token is evaluated once.

    >>> [tuple(window) for window in windows(7, 3)]
    [(0, 3, 0), (3, 6, 3), (4, 7, 6)]
    >>> [tuple(window) for window in windows(2, 3)]
    [(0, 2, 0)]
    """
    for first in range(0, size, room):
        # The last window is moved to the left until it is full, or begins with the text.
        stop = min(first + room, size)
        yield Window(max(0, stop - room), stop, first)


def long_texts(
    documents: Iterable[Documents], least: int, sep_id: int, *, joined: bool = True
) -> Iterator[WordedText]:
    """Documents of at least `least` tokens; shorter ones are joined until they are as long.

    [SEP] separates joined documents. A rest that is too short is skipped; without `joined`, all
    short documents are.
    """
    waiting: list[WordedText] = []  # short documents to be joined
    for several in documents:
        for start, stop in zip(several.bounds[:-1], several.bounds[1:], strict=True):
            words = several.words[start:stop]
            # Words count from 1 in each text. A slice, because an empty document has no first word.
            text = WordedText(several.token_ids[start:stop], words - words[:1] + 1)
            if len(text.token_ids) >= least:
                yield text
            elif joined and len(text.token_ids):
                waiting.append(text)
                # n texts are joined by n - 1 [SEP]: one token less than this sum.
                if sum(len(short.token_ids) + 1 for short in waiting) > least:
                    yield _join(waiting, sep_id)
                    waiting = []


def _join(texts: list[WordedText], sep_id: int) -> WordedText:
    """The texts one after another, separated by [SEP], with rising word numbers."""
    ids: list[npt.NDArray[np.integer]] = []
    words: list[npt.NDArray[np.integer]] = []
    last = 0
    for text in texts:
        # Words of all texts have different numbers, so masking keeps them whole.
        ids += [text.token_ids, np.array([sep_id])]
        words += [text.words + last, np.array([NO_WORD])]
        last += int(text.words[-1])
    # Without the [SEP] after the last text.
    return WordedText(np.concatenate(ids[:-1]), np.concatenate(words[:-1]))


# Predictions and their losses


class PredictedText(NamedTuple):
    """A text of T tokens, some of which are predicted."""

    # (T,), the model's input.
    token_ids: npt.NDArray[np.integer]
    # (T,), the original tokens.
    labels: npt.NDArray[np.integer]
    # (T,).
    predicted: npt.NDArray[np.bool_]


class TokenLosses(NamedTuple):
    """The P predicted tokens, in the order of the text, at each length."""

    # By length (P,) float64, in nats.
    losses: Mapping[int, Floats]
    # By length (P,): whether the token has the highest score.
    hits: Mapping[int, npt.NDArray[np.bool_]]
    # (P,): the number of the longest sequence that each token is predicted in.
    windows: npt.NDArray[np.integer]
    # (P,): its position there; [CLS] has position 0.
    positions: npt.NDArray[np.integer]


def predicted_texts(
    texts: Sequence[WordedText],
    objective: ObjectiveName,
    tokenizer: RoFormerTokenizer,
    masking: MaskingConfig,
    seed: int,
) -> list[PredictedText]:
    """Mask words of each text; a causal model predicts every token that is no [SEP].

    Raises InputError if no word can be masked.
    """
    if objective == "causal":
        return [PredictedText(ids, ids, words != NO_WORD) for ids, words in texts]
    mask = make_objective("masked", tokenizer, masking)
    result = []
    for number, (ids, words) in enumerate(texts):
        # With room for [CLS] and [SEP], which are no words: as the sequences of training.
        row = np.pad(np.stack([ids, words != NO_WORD, words]), ((0, 0), (1, 1)))
        inputs, _, weights = mask(row[None], [(seed, 0, number)])
        predicted = np.zeros(len(ids), bool)
        predicted[inputs["masked_positions"][weights > 0] - 1] = True
        result.append(PredictedText(inputs["token_ids"][0, 1:-1], ids, predicted))
    if not any(text.predicted.any() for text in result):
        raise InputError("all words are too long to be masked. Give a higher --mask-rate.")
    return result


def token_losses(
    model: PretrainedLM,
    tokenizer: RoFormerTokenizer,
    objective: ObjectiveName,
    texts: Sequence[PredictedText],
    lengths: Sequence[int],
    name: str = "",
) -> TokenLosses:
    """Predict the same tokens in sequences of every length. `name` labels the progress bar."""
    losses, hits = {}, {}
    inputs = {length: make_sequences(texts, length, tokenizer, objective) for length in lengths}
    metrics = TokenMetrics(model)
    silence_retracing_warnings()  # TensorFlow traces the model again for each length
    total = sum(x["token_ids"].size for x in inputs.values())
    with Progress(
        total=total, desc=f"evaluate {name}".strip(), unit=Message("tokens"), unit_scale=True
    ) as bar:
        for length, arrays in inputs.items():
            size = max(1, TOKENS_PER_BATCH[objective] // length)
            outputs = []
            for start in range(0, len(arrays["labels"]), size):
                batch = {key: x[start : start + size] for key, x in arrays.items()}
                outputs.append(metrics.predict_on_batch(_padded(batch, size)))
                bar.update(batch["token_ids"].size)
            joined = {key: np.concatenate([x[key] for x in outputs]) for key in outputs[0]}
            # Indexing by it gives the slots row by row, which is the order of the text: (P,).
            used = joined["weights"] > 0
            losses[length] = -joined["log_likelihood"][used].astype("float64")
            hits[length] = joined["likeliest"][used] == joined["labels"][used]
    longest = inputs[max(lengths)]
    sequence, slot = np.nonzero(longest["weights"])
    if objective == "causal":  # a slot predicts the next token
        return TokenLosses(losses, hits, sequence, slot + 1)
    return TokenLosses(losses, hits, sequence, longest["masked_positions"][sequence, slot])


def make_sequences(
    texts: Sequence[PredictedText],
    length: int,
    tokenizer: RoFormerTokenizer,
    objective: ObjectiveName,
) -> dict[str, npt.NDArray[Any]]:
    """All texts in S sequences of one length, with P slots each: the input of `TokenMetrics`.

    The slots of weight 1 are the same tokens in the same order at any length.
    """
    spans = [(text, window) for text in texts for window in windows(len(text.labels), length - 2)]
    counts = [int(text.predicted[window.fresh : window.stop].sum()) for text, window in spans]
    slots = length if objective == "causal" else max(1, *counts)
    token_ids, sequence_ids = (np.zeros((len(spans), length), np.int32) for _ in range(2))
    positions, labels = (np.zeros((len(spans), slots), np.int32) for _ in range(2))
    weights = np.zeros((len(spans), slots), np.float32)
    for row, (text, window) in enumerate(spans):
        tokens = text.token_ids[window.start : window.stop]
        token_ids[row, : len(tokens) + SPECIALS] = [tokenizer.cls_id, *tokens, tokenizer.sep_id]
        sequence_ids[row, : len(tokens) + SPECIALS] = 1
        predicted = window.fresh + np.flatnonzero(text.predicted[window.fresh : window.stop])
        in_row = predicted - window.start + 1  # [CLS] has position 0
        # A causal model predicts a token in the slot before it.
        slot = in_row - 1 if objective == "causal" else np.arange(len(predicted))
        positions[row, slot] = in_row
        labels[row, slot] = text.labels[predicted]
        weights[row, slot] = 1
    inputs = {
        "token_ids": token_ids,
        "sequence_ids": sequence_ids,
        "labels": labels,
        "weights": weights,
    }
    return inputs if objective == "causal" else inputs | {"masked_positions": positions}


def _padded(batch: Mapping[str, npt.NDArray[Any]], size: int) -> dict[str, npt.NDArray[Any]]:
    """A batch of `size` sequences, the added ones of weight 0: only one shape is compiled."""
    missing = ((0, size - len(batch["labels"])), (0, 0))
    padded = {key: np.pad(x, missing, mode="edge") for key, x in batch.items()}
    return padded | {"weights": np.pad(batch["weights"], missing)}


def figures(tokens: TokenLosses) -> dict[str, Any]:
    """The report's figures: {"predictions", "by_length": {"512": …}, "by_position": […]}.

    Of each length `loss`, `perplexity`, `accuracy` and the loss' 95 % `interval`; of the longest
    sequences also by position, from 1 on.
    """
    # At every length the tokens are grouped by their window of the longest one. So the bootstrap
    # draws the same units for each length.
    counts = np.bincount(tokens.windows).astype("float64")
    by_length = {}
    for length, losses in tokens.losses.items():
        sums = np.bincount(tokens.windows, losses).astype("float64")
        by_length[str(length)] = {
            "loss": float(losses.mean()),
            "perplexity": float(np.exp(losses.mean())),
            "accuracy": float(tokens.hits[length].mean()),
            "interval": interval(sums[counts > 0], counts[counts > 0]),
        }
    longest, shortest = max(tokens.losses), min(tokens.losses)
    # A span is at least the shortest sequence: within it all tokens have as much context there.
    width = max(shortest, -(-longest // MAX_SPANS))
    spans = tokens.positions // width
    by_position = [
        {
            # Position 0 is [CLS], which is never predicted.
            "from": int(max(1, number * width)),
            "to": int(min((number + 1) * width, longest) - 1),
            "loss": float(tokens.losses[longest][spans == number].mean()),
            "accuracy": float(tokens.hits[longest][spans == number].mean()),
            "predictions": int((spans == number).sum()),
        }
        for number in np.unique(spans)
    ]
    predictions = len(tokens.positions)
    return {"predictions": predictions, "by_length": by_length, "by_position": by_position}


def interval(sums: Floats, counts: Floats) -> list[float] | None:
    """The 95 % interval of Σ sums / Σ counts by bootstrap over (S,) sequences; None for one."""
    if len(sums) < 2:
        return None
    # Whole sequences are drawn: tokens of one sequence are not independent.
    shares = np.full(len(sums), 1 / len(sums))
    # How often each sequence is among S that are drawn with replacement.
    drawn = np.random.default_rng(0).multinomial(len(sums), shares, RESAMPLES)  # (resamples, S)
    return np.quantile(drawn @ sums / (drawn @ counts), [0.025, 0.975]).tolist()
