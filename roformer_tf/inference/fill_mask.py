"""Text with masks → the tokens that a masked language model predicts for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from roformer_tf.engines.choice import KERAS, Choice, Engine, Precision
from roformer_tf.engines.network import EACH_TOKEN
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.inference.opening import OpenedModel, open_model
from roformer_tf.inference.text_files import report
from roformer_tf.models.rows import BATCH_SIZE, check_finite, run_rows
from roformer_tf.tasks.probabilities import softmax
from roformer_tf.terminal import show
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.top_k import top_k
from roformer_tf.translation import Message

# The mask token, in texts of this module alone; every tokenizer call takes it for plain text.
MASK = "[MASK]"


class Candidate(NamedTuple):
    """A token that the model predicts for a mask."""

    token: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class FillMaskConfig:
    r"""Fill the [MASK] of each text with the tokens that a model finds likeliest.

    Examples:
        roformer-tf fill-mask \
            --model chinese_roformer-base '今天[MASK]很好，可以去公园。'
        roformer-tf fill-mask --model runs/mine/model --top 10 '[MASK]天天气很好'
    """

    model: Annotated[str, "MODEL"]
    """A released zip or name, a folder with a checkpoint, or the model/ of a run."""
    text: tuple[str, ...]
    """Texts with one [MASK] or several; each is filled with one token."""
    top: int = 5
    """Tokens to print for each mask."""
    precision: Precision | None = None
    """bfloat16 and int8 are faster; probabilities change by some thousandths. Default: float32."""
    engine: Engine = "auto"
    """The engine, as of `predict`."""

    def __post_init__(self) -> None:
        check_numbers(self, "top", at_least=1)
        for text in self.text:
            _check(text)


def fill_mask(config: FillMaskConfig) -> None:
    """Print each text with its masks filled, and the likeliest tokens of each mask."""
    with open_model(config.model, config.engine, config.precision) as opened:
        check_fills_masks(opened)
        model = MaskedModel.of(opened)
    report(model.choice.note)
    for text, masks in zip(config.text, candidates(model, config.text, config.top), strict=True):
        show(filled(text, masks))
        for number, tokens in enumerate(masks, 1):
            label = f"  {MASK}" if len(masks) == 1 else f"  {MASK} {number}"
            show(f"{label} {' '.join(f'{token} {share:.1%}' for token, share in tokens)}")


class MaskedModel(NamedTuple):
    """A Keras model or a graph that scores the vocabulary at masks, and its tokenizer."""

    model: Any
    tokenizer: RoFormerTokenizer
    choice: Choice = KERAS
    batch_size: int = BATCH_SIZE

    @classmethod
    def of(cls, opened: OpenedModel) -> "MaskedModel":
        """Use an opened checkpoint as a masked language model, whatever it was trained for."""
        tokenizer, choice = opened.tokenizer, opened.choice()
        changes = {"attention_type": "bidirectional"}
        model = opened.model("masked", "RoFormerForMaskedLM", choice, changes)
        return cls(model, tokenizer, choice, opened.batch_size)


def candidates(
    masked: MaskedModel, texts: Sequence[str], top: int = 5
) -> list[list[list[Candidate]]]:
    """Give for each text, for each of its masks, the `top` likeliest tokens.

    Special tokens such as [UNK] are not candidates; probabilities are relative to all other tokens.
    Raises InputError for a text without a mask, and for logits that are not finite.
    """
    tokenizer = masked.tokenizer
    rows = [np.array(_encode(text, tokenizer), np.int32) for text in texts]
    positions = [np.flatnonzero(row == tokenizer.mask_id).astype(np.int32) for row in rows]
    logits = run_rows(masked.model, rows, None, masked.batch_size, positions)
    check_finite(logits)
    allowed = _allowed(tokenizer, logits[0].shape[1] if texts else 0)
    return [[_likeliest(scores, allowed, tokenizer, top) for scores in row] for row in logits]


def filled(text: str, masks: Sequence[Sequence[Candidate]], form: str = "［{}］") -> str:
    """Put the likeliest token of each mask into the text, marked by `form`."""
    parts = text.split(MASK)
    words = [form.format(tokens[0].token.removeprefix("##")) for tokens in masks]
    # One word after each part, except the last one.
    return "".join(part + word for part, word in zip(parts, [*words, ""], strict=True))


def _encode(text: str, tokenizer: RoFormerTokenizer) -> list[int]:
    """Token ids of a text, in which [MASK] is the mask token."""
    _check(text)
    ids = [tokenizer.cls_id]
    # The parts between masks are tokenized separately, since the tokenizer would split "[MASK]".
    for number, part in enumerate(text.split(MASK)):
        ids += [tokenizer.mask_id] if number else []
        ids += tokenizer.ids(part)
    return [*ids, tokenizer.sep_id]


def check_fills_masks(opened: OpenedModel) -> None:
    """Raise InputError for a model that was not trained to fill masks.

    Any checkpoint would print some tokens: from a head drawn at random, or of the next position.
    """
    parts = opened.checkpoint.parts
    if opened.is_masked_lm and not parts & {"classifier", *EACH_TOKEN}:
        return
    raise InputError(
        f"{opened.name} fills no masks, which needs a language model's head and bidirectional "
        f"attention: it holds {', '.join(sorted(parts))}, and its attention is "
        f"{opened.vector_attention}. Give a masked language model, such as "
        "chinese_roformer-char-base or what `roformer-tf pretrain` writes by default. If only its "
        'name, with "gpt", is wrong, put "attention_type": "bidirectional" into its config.'
    )


def _check(text: str) -> None:
    if MASK not in text:
        raise InputError(
            Message(
                "there is no {mask} in {text!r}. Put one where a token is missing.",
                mask=MASK,
                text=text,
            )
        )


def _allowed(tokenizer: RoFormerTokenizer, size: int) -> np.ndarray:
    """Which ids (V,) are ordinary tokens: not special, and not a gap in the vocabulary."""
    # The logits may have more columns than the vocabulary has tokens.
    tokens = [*tokenizer.tokens, *[None] * (size - tokenizer.vocab_size)]
    return np.array([x is not None and not (x[:1] == "[" and x[-1:] == "]") for x in tokens])


def _likeliest(
    logits: np.ndarray, allowed: np.ndarray, tokenizer: RoFormerTokenizer, top: int
) -> list[Candidate]:
    """The most probable of the allowed ids: softmax in float64."""
    # A sum of 50,000 exponentials in float32 would change the last digits that are printed.
    shares = softmax(np.where(allowed, logits, -np.inf), np.float64)
    # Ids that are not allowed have the probability 0: they must not fill up a large `top`.
    best = top_k(shares, min(top, int(allowed.sum())))
    return [Candidate(str(tokenizer.tokens[i]), float(shares[i])) for i in best]
