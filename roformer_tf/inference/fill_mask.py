"""Text with masks → what a masked language model puts there."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro

from roformer_tf.checkpoints.detection import (
    attention_type,
    is_called_gpt,
    is_language_model,
    parts,
)
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.engines.choice import Choice, Engine, Precision
from roformer_tf.engines.model import graph_model
from roformer_tf.engines.network import Network
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import check_tokenizer
from roformer_tf.inference.engines import chosen_for, keras_precision
from roformer_tf.models.rows import batches, check_finite, runner
from roformer_tf.tasks.probabilities import softmax
from roformer_tf.tokenizers.padding import padded
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, find_tokenizer

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForMaskedLM

MASK = "[MASK]"
"""In a text, here alone, it is the mask token; every tokenizer call takes it for ordinary text."""


class Candidate(NamedTuple):
    """One token that may stand in a masked place."""

    token: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig:
    """Fill the [MASK] of each text with a model's likeliest tokens."""

    model: str
    """A released zip, a folder with a checkpoint, or the model/ of a run."""
    text: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Texts, each with one [MASK] or several; one token is put into each."""
    top: int = 5
    """Tokens to show for each mask."""
    precision: Precision = "float32"
    """bfloat16 and int8 are faster, and shares move by some thousandths."""
    engine: Engine = "auto"
    """What computes, as `predict` has it."""

    def __post_init__(self) -> None:
        if not self.text:
            raise InputError(f"give a text with a {MASK}, such as '今天天气很{MASK}。'")
        if self.top < 1:
            raise InputError(f"top is {self.top}, but must be at least 1.")
        for text in self.text:
            _check(text)


def fill_mask(config: FillMaskConfig) -> None:
    """Print each text with its masks filled, and the likeliest tokens of each mask."""
    model = load_masked_lm(config.model, config.engine, config.precision)
    if model.choice.said:
        print(f"{model.choice.said}.", file=sys.stderr)
    for text, masks in zip(config.text, candidates(model, config.text, config.top), strict=True):
        print(filled(text, masks))
        for number, tokens in enumerate(masks, 1):
            label = f"  {MASK}" if len(masks) == 1 else f"  {MASK} {number}"
            print(label, " ".join(f"{token} {share:.1%}" for token, share in tokens))


@dataclass(frozen=True)
class MaskedModel:
    """What scores the vocabulary at masks: a Keras model or a graph, and its tokenizer."""

    model: Any
    tokenizer: RoFormerTokenizer
    vocab_size: int
    choice: Choice = field(default_factory=lambda: Choice("keras", "float32"))

    @classmethod
    def of(cls, model: "RoFormerForMaskedLM") -> "MaskedModel":
        """Raises InputError for a model without a vocabulary that fits."""
        size = model.config.vocab_size
        return cls(model, check_tokenizer(model.tokenizer, size, "the model"), size)


def load_masked_lm(
    source: str | Path, engine: Engine = "auto", precision: Precision | None = "float32"
) -> MaskedModel:
    """Read a model that has learned to fill masks.

    Raises InputError for a checkpoint without a language model's head, which would be drawn at
    random, and for one that has learned to write what comes next: at a mask both would give an
    answer as any other.
    """
    with OpenedSource(source) as opened:
        checkpoint = opened.checkpoint()
        _check_fills_masks(checkpoint, opened)
        return masked_model(opened, checkpoint, chosen_for(checkpoint.config, engine, precision))


def masked_model(source: OpenedSource, checkpoint: Checkpoint, choice: Choice) -> MaskedModel:
    """What fills masks by the engine that was chosen.

    Raises InputError for a checkpoint without a vocabulary that fits.
    """
    size = checkpoint.config.vocab_size
    tokenizer = check_tokenizer(find_tokenizer(source), size, source.name)
    model: Any
    if choice.engine == "keras":
        from roformer_tf.models.heads import RoFormerForMaskedLM

        model = RoFormerForMaskedLM.from_source(source, dtype=keras_precision(choice))
    else:
        config = checkpoint.config.replace(attention_type="bidirectional")
        network = Network(config, checkpoint.arrays, "masked", source=source.name)
        model = graph_model(network, choice.engine, choice.precision)
    return MaskedModel(model, tokenizer, size, choice)


def candidates(model: Any, texts: Sequence[str], top: int = 5) -> list[list[list[Candidate]]]:
    """Give for each text, for each of its masks, the `top` likeliest tokens.

    Special tokens such as [UNK] are no candidates; probabilities are those among the rest.
    Raises InputError for a text without a mask, for a model without a vocabulary that fits, and
    for one whose logits are not finite.
    """
    masked: MaskedModel = model if isinstance(model, MaskedModel) else MaskedModel.of(model)
    tokenizer = masked.tokenizer
    rows = [_encode(text, tokenizer) for text in texts]
    logits = _logits(masked.model, rows, tokenizer.mask_id)
    check_finite(logits)
    allowed = _allowed(tokenizer, masked.vocab_size)
    return [[_likeliest(scores, allowed, tokenizer, top) for scores in row] for row in logits]


def filled(text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """Put the likeliest token of each mask into the text, in brackets that stand out."""
    pieces = text.split(MASK)
    words = [f"［{tokens[0].token.removeprefix('##')}］" for tokens in masks]
    return "".join(piece + word for piece, word in zip(pieces, [*words, ""], strict=True))


def _encode(text: str, tokenizer: RoFormerTokenizer) -> list[int]:
    """Token ids of a text, its literal masks being the mask token."""
    _check(text)
    ids = [tokenizer.cls_id]
    for number, piece in enumerate(text.split(MASK)):
        ids += [tokenizer.mask_id] if number else []
        ids += tokenizer.ids_and_words(piece)[0]
    return [*ids, tokenizer.sep_id]


def _logits(model: Any, rows: Sequence[Sequence[int]], mask_id: int) -> list[np.ndarray]:
    """For each row of ids the scores at its masks, (masks, V) float32."""
    ids = [np.array(row, np.int32) for row in rows]
    places = [np.flatnonzero(row == mask_id).astype(np.int32) for row in ids]
    logits: list[Any] = [None] * len(ids)
    with_model = runner(model)
    for chosen, shape in batches([len(row) for row in ids], with_model):
        most = max(len(places[row]) for row in chosen)
        inputs = {
            "token_ids": padded([ids[row] for row in chosen], shape),
            "segment_ids": np.zeros(shape, np.int32),
            "masked_positions": padded([places[row] for row in chosen], (shape[0], most)),
        }
        for row, scores in zip(chosen, with_model.run(inputs), strict=False):
            logits[row] = scores[: len(places[row])]
    return logits


def _check_fills_masks(checkpoint: Checkpoint, source: OpenedSource) -> None:
    """Raise InputError, with the reason, for a checkpoint whose answers would mean nothing."""
    held, attention = parts(checkpoint), attention_type(checkpoint, source)
    reason = ""
    if heads := sorted(held & {"classifier", "token_classifier"}):
        reason = (
            f"it was fine-tuned for labels, and holds {heads[0]} in place of what scores the "
            "vocabulary"
        )
    elif not is_language_model(checkpoint):
        reason = (
            f"it holds {', '.join(sorted(held))} alone, without the head that scores the "
            "vocabulary, which would be drawn at random"
        )
    elif attention == "unilm":
        reason = "it is a sim model, which has learned to write what comes next, not to fill a mask"
    elif attention == "causal" == checkpoint.config.attention_type:
        reason = (
            'its config.json has attention_type "causal": it reads from left to right and has '
            "learned to write what comes next, not to fill a mask"
        )
    elif attention == "causal" or is_called_gpt(checkpoint, source):
        reason = (
            "by its name it is a gpt model, which has learned to write what comes next, not to "
            'fill a mask (if it has not, put "attention_type": "bidirectional" into its config)'
        )
    if reason:
        raise InputError(
            f"{source.name} fills no masks: {reason}. Give a masked language model, such as "
            "chinese_roformer-char-base or what `roformer-tf pretrain` writes by default."
        )


def _check(text: str) -> None:
    if MASK not in text:
        raise InputError(f"there is no {MASK} in {text!r}. Put one where a token is to be guessed.")


def _allowed(tokenizer: RoFormerTokenizer, size: int) -> np.ndarray:
    """Which ids (V,) are tokens of text, none of them special and none a hole in the vocabulary."""
    allowed = np.zeros(size, bool)
    for number, token in enumerate(tokenizer.tokens):
        allowed[number] = token is not None and not (token[:1] == "[" and token[-1:] == "]")
    return allowed


def _likeliest(
    logits: np.ndarray, allowed: np.ndarray, tokenizer: RoFormerTokenizer, top: int
) -> list[Candidate]:
    """The most probable of the allowed ids: softmax in float64."""
    shares = softmax(np.where(allowed, logits, -np.inf), np.float64)
    best = np.argsort(-shares, kind="stable")[: min(top, int(allowed.sum()))]
    return [Candidate(str(tokenizer.tokens[i]), float(shares[i])) for i in best]
