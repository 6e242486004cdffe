"""A cloze without training: the choice that a masked language model finds likeliest in the gap.

A choice of k tokens has the log-likelihood Σ log p(tᵢ | text, t₁ … tᵢ₋₁), with tᵢ … tₖ masked: the
pseudo-likelihood of Salazar et al. (2020), with the later tokens of the word hidden, too, as in
Kauf and Ivanova (2023). Else 马虎 would be easy to guess from 马 alone. From it the same sum
without any text is subtracted: frequent idioms, and those of one token, are likely everywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from benchmarks.suite.sets import GAP
from roformer_tf.inference.fill_mask import MaskedModel, check_fills_masks, mask_logits
from roformer_tf.inference.opening import open_model

# Ids of one sequence.
Ids: TypeAlias = tuple[int, ...]

# Tokens of the text on each side of the gap: texts of the set have about 110 words.
CONTEXT = 60
# Questions whose sequences are scored together; the logits of each are some megabytes.
AT_ONCE = 16


class Question(NamedTuple):
    """A text with a gap and its choices, as ids."""

    before: Ids
    after: Ids
    choices: Sequence[Ids]


def right_choices(checkpoint: str, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether the model's choice is right, for each row of `sets.read_cloze`.

    Raises InputError for a checkpoint that fills no masks.
    """
    with open_model(checkpoint, precision="float32") as opened:
        check_fills_masks(opened)
        model = MaskedModel.of(opened)
    questions = [_question(row, model) for row in rows]
    distinct = sorted({choice for question in questions for choice in question.choices})
    alone = _in_blocks(model, [Question((), (), [choice]) for choice in distinct])
    prior = {choice: scores[0] for choice, scores in zip(distinct, alone, strict=True)}
    right = []
    for row, question, scores in zip(rows, questions, _in_blocks(model, questions), strict=True):
        gains = scores - [prior[choice] for choice in question.choices]
        right.append(int(np.argmax(gains)) == int(row["label"]))
    return right


def _in_blocks(model: MaskedModel, questions: Sequence[Question]) -> Iterator[np.ndarray]:
    for start in range(0, len(questions), AT_ONCE):
        yield from log_likelihoods(model, questions[start : start + AT_ONCE])


def log_likelihoods(model: MaskedModel, questions: Sequence[Question]) -> list[np.ndarray]:
    """The log-likelihood of each choice of each question, (choices,) float64."""
    numbers: dict[Ids, int] = {}  # each different sequence is computed once
    terms = [
        [_terms(model, question, choice) for choice in question.choices] for question in questions
    ]
    for of_question in terms:
        for of_choice in of_question:
            for sequence, _ in of_choice:
                numbers.setdefault(sequence, len(numbers))
    logits = mask_logits(model.model, list(numbers), model.tokenizer.mask_id)
    # Of the first mask; the later ones are tokens that are still hidden.
    first = np.stack([of_masks[0] for of_masks in logits]).astype(np.float64)
    first -= np.logaddexp.reduce(first, axis=-1, keepdims=True)
    return [
        np.array([sum(first[numbers[x], token] for x, token in choice) for choice in of_question])
        for of_question in terms
    ]


def _terms(model: MaskedModel, question: Question, choice: Ids) -> list[tuple[Ids, int]]:
    """For each token of a choice the sequence that predicts it at its first mask."""
    cls, sep, mask = (getattr(model.tokenizer, f"{name}_id") for name in ("cls", "sep", "mask"))
    return [
        (
            (cls, *question.before, *choice[:i], *[mask] * (len(choice) - i), *question.after, sep),
            token,
        )
        for i, token in enumerate(choice)
    ]


def _question(row: Mapping[str, Any], model: MaskedModel) -> Question:
    """Only the first gap counts; the text near it is used."""

    def ids(text: str) -> Ids:
        return tuple(model.tokenizer.ids_and_words(text)[0])

    before, _, after = row["text"].partition(GAP)
    choices = [ids(choice) for choice in row["choices"]]
    return Question(ids(before)[-CONTEXT:], ids(after.replace(GAP, ""))[:CONTEXT], choices)
