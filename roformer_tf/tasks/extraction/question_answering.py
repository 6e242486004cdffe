"""A question and a context: the answer is a span of the context.

The span with the highest sum of two logits, those of its first and its last token, is predicted
(BERT, arXiv 1810.04805, sections 4.2 and 4.3). [CLS] stands for "no answer in this window".
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.cells import find_cell, read_text
from roformer_tf.labelled.column_names import QUESTIONS
from roformer_tf.labelled.encoding import EncodedTexts, Rows, in_no_window, rows_of
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.questions import (
    EncodedQuestions,
    QuestionBatches,
    TokenizedQuestions,
    character_logits,
    encode_questions,
    read_answers,
    row_target,
)
from roformer_tf.readers.records import Row, text_key
from roformer_tf.tasks import keras_ops as ops
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, Task, part
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.extraction.answer_scoring import (
    AnswerMetrics,
    answer_f1,
    kind_of_answers,
    text_of,
)
from roformer_tf.tasks.labelling import Labelling, teacher_weights
from roformer_tf.tasks.losses import FAR_BELOW, Tensor, mixed, softmax_distillation, span_losses
from roformer_tf.tasks.objective import TrainingObjective
from roformer_tf.tasks.probabilities import best_threshold, shortest
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

# Fraction of the training answers that are at most as long as a predicted one may be.
ANSWERS_KEPT = 0.99


class BestSpan(NamedTuple):
    """The best span of the windows of a context."""

    start: int
    """Its first character; 0 and an `end` of 0 if no span is possible."""
    end: int
    """The character after its last."""
    margin: float
    """Its score: the sum of its logits, minus that of [CLS] in its window."""
    total: float
    """Logarithm of the sum of exp(score) over all possible spans."""


def best_span(windows: Sequence[tuple[np.ndarray, np.ndarray]], max_answer: int | None) -> BestSpan:
    """Find the best span of all windows, of at most `max_answer` characters; None for any length.

    windows: of each the logits (T, 2) and the characters (T, 2) of its tokens, as in
    `EncodedQuestions.spans`.
    """
    best, totals = BestSpan(0, 0, -np.inf, -np.inf), []
    for logits, spans in windows:
        inside = np.flatnonzero(spans[:, 0] >= 0)
        if not len(inside):
            continue
        # Windows are compared by how much more probable a span is than no answer in its window.
        relative = logits.astype(np.float64) - logits[0]
        begins, ends = spans[inside].T
        # The score of "no answer" is 0 here: that of [CLS] relative to itself.
        scores = relative[inside, 0][:, None] + relative[inside, 1]  # (first, last)
        allowed = np.triu(np.ones(scores.shape, np.bool_))
        if max_answer is not None:
            longest = ends - begins[:, None]
            # A single token is always allowed.
            allowed &= (longest <= max_answer) | np.eye(len(inside), dtype=np.bool_)
        scores = np.where(allowed, scores, -np.inf)
        first, last = divmod(int(np.argmax(scores)), len(inside))
        highest = scores[first, last]
        # Log-sum-exp over all spans of the window; of impossible ones exp(−∞) is 0.
        totals.append(highest + np.log(np.exp(scores - highest).sum()))
        if highest > best.margin:
            best = BestSpan(int(begins[first]), int(ends[last]), float(highest), 0.0)
    return best._replace(total=float(np.logaddexp.reduce(totals))) if totals else best


class QuestionLabelling(Labelling):
    """The reference answers of a question. Target (answers, 2) int32: first character, end."""

    task: "QuestionAnswering"
    text_counts: ClassVar[tuple[int, ...]] = (2,)
    default_max_length: ClassVar[int] = 128
    fixed_long_texts: ClassVar[str] = "all of the context is read, in windows."
    span_name: ClassVar[str] = Message("answers")
    column_names: ClassVar[tuple[tuple[str, ...], ...]] = QUESTIONS

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """The question, its context and its answers."""
        question, context = (read_text(row.cells, column) for column in texts)
        answers = None
        if label is not None:
            answers = read_answers(find_cell(row.cells, label), context)
        return Example((question, context), answers, row.source_line)

    def labels_in(self, label: Label) -> set[str]:
        """Whether there is an answer."""
        return {kind_of_answers(label)}

    def split_keys(self, example: Example) -> Sequence[bytes]:
        """Questions about the same context stay together."""
        return [text_key([example.texts[1]])]

    def learned(self, training: Examples) -> dict[str, Any]:
        """How long answers are, and whether a question may have none."""
        lengths = [len(text) for example in training for text, _ in example.label]
        if not lengths:
            raise InputError(
                "no training question has an answer: nothing can be learnt. Give some that have."
            )
        # `inverted_cdf` returns a length that occurs, not a mean of two.
        longest = np.quantile(lengths, ANSWERS_KEPT, method="inverted_cdf")
        return {
            "long_texts": "windows",
            "max_answer_length": int(longest),
            "unanswerable": any(not example.label for example in training),
        }

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedQuestions:
        """The question with each window of its context."""
        return encode_questions(examples, tokenizer, self.task.max_length)

    def in_no_window(self, examples: Examples, tokenizer: RoFormerTokenizer) -> dict[str, int]:
        """Count the answers that are in no window of a prediction; training draws its own."""
        encoded = self.encode(examples, tokenizer)
        characters = [spans[spans[:, 0] >= 0] for spans in encoded.spans]
        return in_no_window(encoded, characters, [self.target(example) for example in examples])

    def target(self, example: Example) -> np.ndarray:
        """(answers, 2) int32."""
        spans = [(start, start + len(text)) for text, start in example.label]
        return np.array(spans, np.int32).reshape(-1, 2)

    def in_rows(self, encoded: EncodedTexts, arrays: Sequence[np.ndarray]) -> tuple[Rows, Rows]:
        """(T, 2) int8 for each window, as in `row_target`."""
        assert isinstance(encoded, EncodedQuestions)
        rows = zip(encoded.spans, encoded.example.tolist(), strict=True)
        return [row_target(spans, arrays[number]) for spans, number in rows], encoded.row_weights

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """A window for each question, drawn anew in every epoch.

        It shows a part of an answer that is longer than any window.
        """
        tokens = TokenizedQuestions(examples, tokenizer, self.task.max_length)
        return QuestionBatches(tokens, [self.target(example) for example in examples])

    def with_soft_targets(
        self, data: Any, logits: Sequence[np.ndarray], labelled: int
    ) -> TrainingData:
        """The data with a teacher's logits of characters: each window has those of its tokens."""
        taught: QuestionBatches = copy.copy(data)
        taught.soft = logits
        taught.shares = teacher_weights(np.arange(len(logits)), labelled)
        return taught


class QuestionObjective(TrainingObjective):
    """Cross-entropy of the first and the last token of the answer."""

    model_name: ClassVar[str] = "RoFormerForQuestionAnswering"
    losses = staticmethod(span_losses)
    soft_losses = staticmethod(softmax_distillation)
    # Measured on CMRC 2018 with our small checkpoint, which has no dropout (docs/LOG.md).
    epochs: ClassVar[int] = 12
    dropout: ClassVar[float | None] = 0.1
    refused_settings: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("label_smoothing", "focal", "class_weights", "r_drop"),
        "is for labels, which answers do not have.",
    )

    def taught_losses(self, targets: Tensor, logits: Tensor, *settings: Any) -> Tensor:
        """The cross-entropy, and the divergences from a teacher over the possible tokens.

        targets (B, T, 5): the usual ones, the teacher's logits, and its weight. Both losses are
        means of the first and the last token.
        """
        hard, both = targets[..., :2], (targets[..., 2:4], logits)
        # Impossible tokens are finite in both, so their part of the divergence is 0 and not NaN.
        teacher, student = (  # (B, 2, T)
            ops.transpose(ops.where(hard > 0, x, FAR_BELOW), (0, 2, 1)) for x in both
        )
        soft = ops.mean(self.soft_losses(teacher, student), axis=-1)
        return mixed(span_losses(hard, logits), soft, targets[:, 0, 4])


class AnswerDecoding(Decoding):
    """Logits of tokens → the best span, as ((text, start),), or () for no answer.

    Scores (2,): the probability of the span, and that of no answer.
    """

    task: "QuestionAnswering"
    graph_part: ClassVar[NetworkPart] = "qa_outputs"
    activation = None

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """The best span of all windows of each example, unless "no answer" is too probable."""
        assert isinstance(encoded, EncodedQuestions)
        predictions = []
        for number, rows in enumerate(rows_of(encoded)):
            windows = [(row_logits[row], encoded.spans[row]) for row in rows]
            best = best_span(windows, self.task.max_answer_length)
            # Without unanswerable questions in training, "no answer" is no possible prediction.
            # A softmax over all spans of all windows and "no answer", whose score is 0: `rest` is
            # the logarithm of its denominator.
            rest = np.logaddexp(best.total, 0) if self.task.unanswerable else best.total
            nothing = -rest if self.task.unanswerable else -np.inf
            scores = np.exp([best.margin - rest, nothing]) if best.end else np.array([0.0, 1.0])
            span = encoded.contexts[number][best.start : best.end], best.start
            label = (span,) if best.end else ()
            soft = character_logits(windows, len(encoded.contexts[number]))
            predictions.append(self.reread(Prediction(label, scores.astype(np.float32), soft)))
        return predictions

    def soft_targets(self, prediction: Prediction) -> np.ndarray:
        """The logits of the characters, as in `character_logits`."""
        assert prediction.soft is not None
        return prediction.soft

    def reread(self, prediction: Prediction) -> Prediction:
        """No answer where that is as probable as the threshold."""
        threshold = self.task.no_answer_threshold
        nothing = threshold is not None and prediction.scores[1] >= threshold
        return prediction._replace(label=()) if nothing else prediction

    def with_choices(self, gold: Gold, predictions: Predictions) -> "QuestionAnswering":
        """The threshold of "no answer" with the highest F1 on these examples."""
        if not (self.task.unanswerable and gold):
            return self.task
        nothing = np.array([prediction.scores[1] for prediction in predictions], np.float64)
        # F1 of each example if its best span is the prediction, and if "no answer" is.
        answers = [text_of(prediction.label) for prediction in predictions]
        f1 = np.array([answer_f1(*pair) for pair in zip(answers, gold, strict=True)])
        none = np.array([not answers for answers in gold], np.float64)
        # Questions with a lower probability are answered. With a threshold of 0 none is: that is
        # halfway from −x to the lowest probability x.
        threshold = best_threshold(nothing, f1 - none, -nothing.min(), 1.0)
        return dataclasses.replace(self.task, no_answer_threshold=threshold)

    def outside_labels(self) -> tuple[str, ...]:
        """What the two logits are."""
        return ("start", "end")

    def gold_cell(self, example: Example) -> Any:
        """The texts of the references, each once."""
        return list(dict.fromkeys(text for text, _ in example.label))

    def cell_names(self) -> list[str]:
        """answer, start, score."""
        return ["answer", "start", "score"]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """answer, its first character and its probability; "" and no start if there is none."""
        answer, start = prediction.label[0] if prediction.label else ("", None)
        score = prediction.scores[0 if prediction.label else 1]
        return {"answer": answer, "start": start, "score": shortest(score)}


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """A question and a context, whose span is the answer."""

    name: ClassVar[str] = "question-answering"
    title: ClassVar[str] = "抽取式问答 · Extractive question answering"
    pipeline_tag: ClassVar[str] = "question-answering"
    labelling = part(QuestionLabelling)
    objective = part(QuestionObjective)
    decoding = part(AnswerDecoding)
    metrics = part(AnswerMetrics)

    max_answer_length: int | None = None
    """Characters of the longest answer that is predicted, except for a single token."""
    unanswerable: bool = False
    """Whether a question may have no answer in its context."""
    no_answer_threshold: float | None = None
    """There is no answer if the probability of that is at least this high; None: always one."""

    # Logits of a token: of the first and of the last one of an answer.
    outputs = 2
