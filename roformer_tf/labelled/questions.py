"""Questions about contexts: their answers in a file, their windows, and the targets of tokens.

    [CLS] question [SEP] window of the context [SEP]

A long context is read in windows that share about a quarter of their tokens.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.errors import check_number
from roformer_tf.labelled.batches import (
    Generators,
    LabelledBatch,
    TrainingData,
    first_weights,
    row_inputs,
)
from roformer_tf.labelled.cells import BadCellError, ellipsized, parsed
from roformer_tf.labelled.encoding import EncodedRow, EncodedTexts, joined, windows
from roformer_tf.labelled.examples import Example
from roformer_tf.tokenizers.padding import SPECIALS, Ints, padded
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# The reference answers of a question, each a text and its first character; () if it has none.
Answers: TypeAlias = tuple[tuple[str, int], ...]

# Targets of tokens: no possible answer, a possible one, a right one. Padding is 0, too.
IMPOSSIBLE, POSSIBLE, RIGHT = 0, 1, 2
_SPECIALS = SPECIALS + 1  # [CLS], and [SEP] after the question and after the context
SHORTEST = _SPECIALS + 2  # with a token of each
# Probability of a window of a long context that need not hold the answer.
ELSEWHERE = 0.25
SHOWN = 30  # characters of an answer in a message
NEVER = -1e30  # a logit whose probability is 0


@dataclass(frozen=True, kw_only=True)
class EncodedQuestions(EncodedTexts):
    """Questions and windows of their contexts as sequences."""

    contexts: list[str]
    """(examples,) the whole contexts."""
    spans: list[Ints]
    """For each row (T, 2) int32: first character of a token in the context, and the one after its
    last. -1 for tokens that are no part of the context."""
    cut_questions: Ints
    """(examples,) int32: tokens that a question lost."""

    def cut(self, limit: int | None) -> Ints:
        """(examples,) int32: only questions are cut, whatever the limit."""
        return self.cut_questions


def read_answers(value: Any, context: str) -> Answers:
    """The answers in a cell, each found in the context; () for a question without an answer.

    The cell is {"text": […], "answer_start": […]}, or a list of {"text", "answer_start"} or of
    texts. If an answer is not at its start, the nearest occurrence is used. Raises BadCellError if
    none of the answers is in the context.
    """
    listed = _listed(value)
    located = [_locate(text, start, context) for text, start in listed]
    answers = tuple(dict.fromkeys(answer for answer in located if answer is not None))
    if located and not answers:
        shown = ellipsized(listed[0][0], SHOWN)
        raise BadCellError(f"has an answer that is not in its context, such as {shown!r}")
    return answers


def _listed(value: Any) -> list[tuple[str, int]]:
    """Texts and starts of answers. Raises BadCellError for anything else."""
    value = parsed(value)
    if isinstance(value, dict) and isinstance(texts := value.get("text"), list):
        starts = value.get("answer_start") or [0] * len(texts)
        if isinstance(starts, list) and len(texts) == len(starts):
            # {"text": ["甲"], "answer_start": [3]} → [{"text": "甲", "answer_start": 3}]
            value = [{"text": x, "answer_start": y} for x, y in zip(texts, starts, strict=True)]
    if value is None:
        return []
    answers = []
    for item in value if isinstance(value, list) else [value]:
        text = item.get("text") if isinstance(item, dict) else item
        start = item.get("answer_start") if isinstance(item, dict) else 0
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise BadCellError(
                'has answers that are neither {"text": […], "answer_start": […]} nor a list'
            )
        if text.strip():
            answers.append((text, start or 0))
    return answers


def _locate(text: str, start: int, context: str) -> tuple[str, int] | None:
    """An answer without white space around it, at its occurrence nearest to `start`."""
    start += len(text) - len(text.lstrip())
    text = text.strip()
    # A look-ahead, so that occurrences may overlap.
    starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return (text, min(starts, key=lambda x: abs(x - start))) if starts else None


class TokenizedQuestions:
    """Questions and their whole contexts as tokens. Raises InputError as `encode_questions`."""

    def __init__(
        self, examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
    ) -> None:
        hint = "for a question and a token of its context"
        check_number("max_length", max_length, at_least=SHORTEST, hint=hint)
        self.tokenizer, self.max_length = tokenizer, max_length

        @cache  # a context has several questions
        def tokens_of(context: str) -> tuple[list[int], Ints]:
            offsets = np.array(tokenizer.offsets(context), np.int32)
            return tokenizer.ids(context), offsets.reshape(-1, 2)

        questions = [tokenizer.ids(example.texts[0]) for example in examples]
        # For each question the token ids of its context, and their characters (tokens, 2) int32.
        self.contexts = [tokens_of(example.texts[1]) for example in examples]
        whole = [len(x) + len(y) for x, (y, _) in zip(questions, self.contexts, strict=True)]
        # (questions,) int32: tokens of a row with the whole question and context.
        self.lengths = np.array(whole, np.int32) + _SPECIALS
        # A question has at most half of the room, so that its context has some in any case.
        most = (max_length - _SPECIALS) // 2
        self.questions = [x[:most] for x in questions]
        # (questions,) int32: tokens that a question lost.
        self.cut = np.array([len(x[most:]) for x in questions], np.int32)

    def room(self, number: int) -> int:
        """How many tokens of its context fit into a row of a question."""
        return self.max_length - _SPECIALS - len(self.questions[number])

    def row(self, number: int, first: int, last: int) -> EncodedRow:
        """The row of a question and the tokens [first, last) of its context."""
        return joined(self.tokenizer, self.questions[number], self.contexts[number][0][first:last])

    def spans(self, number: int, first: int, last: int) -> Ints:
        """The characters of the tokens of this row, as in `EncodedQuestions`."""
        # Before the context are [CLS], the question and [SEP], after it is another [SEP].
        before = len(self.questions[number]) + SPECIALS
        of_context = self.contexts[number][1][first:last]
        return np.pad(of_context, ((before, 1), (0, 0)), constant_values=-1)


def encode_questions(
    examples: Sequence[Example], tokenizer: RoFormerTokenizer, max_length: int
) -> EncodedQuestions:
    """Rows of at most `max_length` tokens; a question has at most half of them.

    Raises InputError for a `max_length` without room for a question and a context.
    """
    tokens = TokenizedQuestions(examples, tokenizer, max_length)
    rows, spans = list[list[EncodedRow]](), list[Ints]()
    for number, (ids, _) in enumerate(tokens.contexts):
        parts = windows(np.arange(len(ids) + 1), tokens.room(number))
        rows.append([tokens.row(number, *part) for part in parts])
        spans += [tokens.spans(number, *part) for part in parts]
    return EncodedQuestions.of_rows(
        rows,
        tokens.lengths,
        cut_questions=tokens.cut,
        contexts=[example.texts[1] for example in examples],
        spans=spans,
    )


def row_target(spans: Ints, answers: np.ndarray) -> np.ndarray:
    """Whether an answer may begin or end at the tokens of a row, and does: (T, 2) int8.

    answers (answers, 2): first character and the one after the last. [CLS] is right where the
    window has no whole answer.
    """
    target = np.full(spans.shape, IMPOSSIBLE, np.int8)
    inside = np.flatnonzero(spans[:, 0] >= 0)
    target[inside] = POSSIBLE
    target[0] = POSSIBLE
    if len(inside):
        begins, ends = spans[inside].T
        for start, end in answers.tolist():
            if begins[0] <= start and end <= ends[-1]:
                # An answer may begin or end within a token: its tokens are all that it touches.
                target[inside[np.argmax(ends > start)], 0] = RIGHT
                target[inside[np.flatnonzero(begins < end)[-1]], 1] = RIGHT
    if not (target == RIGHT).any():
        target[0] = RIGHT
    return target


def character_logits(windows: Iterable[tuple[np.ndarray, Ints]], characters: int) -> np.ndarray:
    """Logits of the tokens of a context → of its characters, less that of [CLS]: float32 (C, 2).

    windows: of each the logits (T, 2) and the characters (T, 2) of its tokens. An answer begins at
    the first character of a token and ends at the last one of a token; `NEVER` at all others. What
    several windows have is the highest, as in `best_span`.
    """
    logits = np.full((characters, 2), NEVER, np.float32)
    for of_tokens, spans in windows:
        inside = spans[:, 0] >= 0
        for column, indices in enumerate((spans[inside, 0], spans[inside, 1] - 1)):
            # Relative to "no answer", the logits of different windows are comparable.
            relative = (of_tokens[inside] - of_tokens[0])[:, column]
            # Unlike an assignment, `at` counts every value of an index that occurs several times.
            np.maximum.at(logits[:, column], indices, relative)
    return logits


def token_logits(logits: np.ndarray, spans: Ints) -> np.ndarray:
    """Logits of characters → of the tokens at `spans`, (T, 2) float32; 0 for all others.

    The probability of a token is that of its characters, so a teacher may have other tokens.
    """
    of_tokens = np.zeros(spans.shape, np.float32)
    inside = np.flatnonzero(spans[:, 0] >= 0)
    if len(inside):
        begins, ends = spans[inside].T
        # Each sum goes from the beginning of a token to that of the next one.
        of_tokens[inside] = np.logaddexp.reduceat(logits[: ends[-1]], begins, axis=0)
    return of_tokens


class QuestionBatches(TrainingData):
    """Questions with a window of their contexts, which is drawn anew in every epoch.

    A batch is as in `RowBatches`, with targets (B, T, 2) int8 as in `row_target`. A context
    that is too long for a row is read in a window that holds the answer, or, with the probability
    `ELSEWHERE`, in any: the model also has to see where there is no answer.

    answers: for each question (answers, 2) int32, characters.
    """

    def __init__(self, tokens: TokenizedQuestions, answers: Sequence[np.ndarray]) -> None:
        self.tokens, self.answers = tokens, answers
        # With a teacher: for each question (characters, 2) float32 as in `character_logits`, and
        # its weight. Targets are then (B, T, 5) float32: the usual ones, its logits, the weight.
        self.soft: Sequence[np.ndarray] = ()
        self.shares = np.zeros(len(answers))

    @cached_property
    def lengths(self) -> Ints:
        """(questions,) int32."""
        return np.minimum(self.tokens.lengths, self.tokens.max_length)

    def build(self, items: Ints, batch_size: int, generators: Generators) -> LabelledBatch:
        """A window for each question, padded to a common length."""
        rows, targets = [], []
        for item in items.tolist():
            window = self._window(item, generators(item))
            rows.append(self.tokens.row(item, *window))
            spans = self.tokens.spans(item, *window)
            target = row_target(spans, self.answers[item])
            if len(self.soft):
                share = np.full((len(target), 1), self.shares[item])
                logits = token_logits(self.soft[item], spans)
                target = np.hstack([target, logits, share]).astype(np.float32)
            targets.append(target)
        inputs = row_inputs(rows, batch_size)
        shape = (*inputs["token_ids"].shape, targets[0].shape[1])
        return inputs, padded(targets, shape), first_weights(len(items), batch_size)

    def _window(self, item: int, rng: np.random.Generator) -> tuple[int, int]:
        """Tokens [first, last) of a context."""
        count, room = len(self.tokens.contexts[item][0]), self.tokens.room(item)
        if count <= room:
            return 0, count
        low, high = 0, count - room
        answers = self.answers[item]
        if len(answers) and rng.random() >= ELSEWHERE:
            first, last = self.tokens_of(item, answers[rng.integers(len(answers))])
            if last - first <= room:
                # The first tokens from which a window holds the whole answer.
                low, high = max(low, last - room), min(high, first)
        first = int(rng.integers(low, high + 1))
        return first, first + room

    def tokens_of(self, item: int, answer: np.ndarray) -> tuple[int, int]:
        """Tokens [first, last) that an answer, two characters, touches."""
        begins, ends = self.tokens.contexts[item][1].T
        return int(np.argmax(ends > answer[0])), int(np.sum(begins < answer[1]))
