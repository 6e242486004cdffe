"""Sentence vectors: texts that belong together are near each other, by the cosine."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from roformer_tf.checkpoints.detection import embedding_settings
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.cells import BadCellError, read_label, to_number
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import GROUP, Example, Label
from roformer_tf.labelled.passages import PassageBatches, Passages
from roformer_tf.labelled.splits import number_strata
from roformer_tf.labelled.text_sides import (
    EncodedSides,
    SideBatches,
    encode_separately,
    fitting_rows,
)
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.classification import ROC_AUC
from roformer_tf.tasks.details import MISTAKES, JsonObject, histograms, shortened
from roformer_tf.tasks.different_texts import (
    DifferentTexts,
    belonging,
    best_sides,
    scores_of,
    unit,
)
from roformer_tf.tasks.metrics import ACCURACY, Figures, Measure, Metric, correlation, mean, roc_auc
from roformer_tf.tasks.metrics import ranks as value_ranks
from roformer_tf.tasks.probabilities import shortest
from roformer_tf.tasks.regression import PEARSON, SAME_LABELS, SPEARMAN
from roformer_tf.tasks.retrieval import METRICS, RECALLS, retrieval_measure
from roformer_tf.tasks.thresholds import best_threshold
from roformer_tf.tasks.vector_losses import cosent_each, softmax_each
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.kernels.forms import Tensor
    from roformer_tf.models.pretrained import PretrainedModel

Data = Literal["scores", "pairs", "triples", "texts"]
"""What examples are: pairs with a score or 0/1; two texts that belong together; such two and a
third that does not; single texts."""
Loss = Literal["softmax", "cosent", "classifier"]

BELONGS = "belongs"
"""The label of texts that belong together."""
MOST_CLASSES = 50
NEIGHBOURS_SHOWN = 5
"""Examples that a report shows with their nearest neighbours."""
LOSS_CHUNK = 64
"""Examples among which a loss is told apart where it is judged and not trained by."""
TWO_LEVELS = 2


@dataclass(frozen=True, kw_only=True)
class Embedding(Task):
    """Texts, each in a row of its own, whose vectors' cosines say how near they are.

    A row's "logits" are its vector (H,) float32, as the pooling gives it. Answers: of pairs with
    scores the cosine; where texts belong together, `Retrieved`. Scores (1,): the cosine of the
    first two texts.
    """

    name: ClassVar[str] = "embedding"
    title: ClassVar[str] = "句向量 · Sentence vectors"
    metrics: ClassVar[tuple[Metric, ...]] = (*METRICS, ROC_AUC, ACCURACY, SPEARMAN, PEARSON)
    text_counts: ClassVar[tuple[int, ...]] = (1, 2, 3)
    pipeline_tag: ClassVar[str] = "sentence-similarity"
    pooling: ClassVar[str] = "mean"
    poolings: ClassVar[tuple[str, ...]] = ("pooler", "mean", "cls")
    released: ClassVar[str] = "chinese_roformer-sim-char-base"
    label_optional: ClassVar[bool] = True
    texts_apart: ClassVar[bool] = True
    longest: ClassVar[int] = 512
    vector_settings: ClassVar[tuple[str, ...]] = ("loss", "hard_negatives", "dimensions", "pieces")
    refused_loss_settings: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("label_smoothing", "focal", "class_weights", "r_drop", "fgm"),
        "is about labels of single texts, but vectors are compared with each other.",
    )
    chosen_fields: ClassVar[tuple[str, ...]] = ("threshold",)
    sureness_kind: ClassVar[Any] = "distance"

    data: Data = "pairs"
    levels: tuple[float, ...] = ()
    """The scores of training, if they are few; two of them are a no and a yes."""
    loss: Loss = "softmax"
    dimensions: tuple[int, ...] = ()
    """Lengths to which vectors may be cut, besides the whole one."""
    threshold: float = 0.5
    """The cosine above which two texts are answered to be the same, where scores are two."""

    # Rows of a file → examples → a task

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """A finite number; of three texts B or C, the one nearer to A."""
        name, found = read_label(value), to_number(value)
        if found is None and name.upper() not in ("B", "C"):
            raise BadCellError(
                f"has the label {name!r}, but pairs have a number, and of three texts B or C is "
                "nearer to A"
            )
        return name.upper() if found is None else found

    @classmethod
    def check(cls, example: Example) -> None:
        """Refuse texts that belong together and are the same."""
        if example.label == GROUP:
            if len({text_key([text]) for text in example.texts}) < 2:
                raise BadCellError("has the same text twice, from which nothing can be learnt")
            return
        first, second, *_ = (*_by_nearness(example), "")
        if not isinstance(example.label, float) and text_key([first]) == text_key([second]):
            raise BadCellError("has the same text twice, from which nothing can be learnt")

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """Texts that belong together, told so; of triples in the order that the label means.

        Raises InputError for a label that does not go with the number of texts.
        """
        examples = [pair for example in examples for pair in _of_group(example)]
        for example in examples:
            of_three = len(example.texts) == 3
            if len(example.texts) == 1 and example.label is not None:
                raise InputError(
                    f"{example.place}: a single text has the label {example.label}, but scores are "
                    "of pairs. Give two columns of texts, or texts without labels."
                )
            if of_three and isinstance(example.label, float):
                raise InputError(
                    f"{example.place}: three texts have the label {example.label:g}, but it is B "
                    "or C, the one nearer to A, or there is none and the second text is nearer."
                )
            if not of_three and example.label in ("B", "C"):
                raise InputError(
                    f"{example.place}: a pair has the label {example.label}, but it is a number: "
                    "how near the two are."
                )
        return [
            one
            if isinstance(one.label, float)
            else one._replace(texts=_by_nearness(one), label=BELONGS)
            for one in examples
        ]

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """None: any number may be met that training does not have."""
        return set()

    @classmethod
    def strata(cls, examples: Sequence[Example]) -> list[Any]:
        """Tenths of the scores, if there are any."""
        if examples and isinstance(examples[0].label, float):
            return number_strata([example.label for example in examples])
        return [0] * len(examples)

    @classmethod
    def split_keys(cls, example: Example) -> Sequence[bytes]:
        """Each of the texts: no text is in two sets."""
        return [text_key([text]) for text in example.texts]

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """What kind of examples they are. Raises InputError where nothing can be learnt of them."""
        if settings.pop("crf", False):
            raise InputError("crf is about labels that follow each other: leave --crf out.")
        data = _data_of(training)
        if data != "scores":
            place = 0 if data == "texts" else 1
            texts = {text_key([text]) for one in training for text in one.texts[place:]}
            if len(texts) < 2:
                which = "text" if data == "texts" else "second text"
                raise InputError(
                    f"the training examples have one and the same {which}: there is nothing to "
                    "tell it from, so nothing can be learnt. Give examples of several."
                )
            return cls(data=data, **settings)
        levels = sorted({float(example.label) for example in training})
        if len(levels) < 2:
            raise InputError(
                f"all training pairs have the same score, {levels[0]:g}: nothing can be learnt. "
                "Give pairs of several; texts that belong together need no scores at all."
            )
        if len({text_key([text]) for one in training for text in one.texts}) < 3:
            raise InputError("all training pairs are of the same texts: nothing can be learnt.")
        few = tuple(levels) if len(levels) <= MOST_CLASSES else ()
        return cls(data=data, levels=few, loss="cosent", **settings)

    def why_long_texts_fixed(self) -> str:
        """Documents may be read in windows; of other texts the end is cut."""
        if self.long_texts != "head-tail" and self.data in ("pairs", "triples"):
            return ""
        return "the end of a long text is cut."

    def with_vector_settings(  # type: ignore[override]
        self, *, loss: str = "auto", dimensions: Sequence[int] = (), hard_negatives: int = 0
    ) -> "Self":
        """The task with a loss, and lengths to which vectors may be cut.

        Raises InputError for what does not go with the data.
        """
        chosen: Any = self.loss if loss == "auto" else loss
        scored = self.data == "scores"
        if scored != (chosen != "softmax"):
            kind = "pairs have scores" if scored else "texts belong together, without scores"
            fits = "cosent or classifier" if scored else "softmax"
            raise InputError(f"loss is {chosen}, but the {kind}. Give --loss {fits}.")
        if chosen == "classifier" and not self.levels:
            raise InputError(
                f"loss is classifier, but the pairs have more than {MOST_CLASSES} different "
                "scores, and each would be a class. Give --loss cosent."
            )
        if chosen == "classifier" and dimensions:
            raise InputError(
                "dimensions cannot be trained with --loss classifier, which reads whole vectors. "
                "Give --loss cosent, or leave --dimensions out."
            )
        if hard_negatives and self.data not in ("pairs", "triples"):
            why = {
                "scores": "pairs with low scores are negatives already",
                "texts": "of texts without labels nobody knows what belongs to what",
            }
            raise InputError(
                f"hard_negatives are for texts that belong together: {why[self.data]}. "
                "Leave --hard-negatives out."
            )
        return dataclasses.replace(self, loss=chosen, dimensions=tuple(sorted(set(dimensions))))

    def for_judging(self, examples: Sequence[Example]) -> "Self":
        """By their own kind: a model that was trained on one kind may be judged by another."""
        data = _data_of(examples)
        if data == self.data:
            return self
        levels = {float(example.label) for example in examples} if data == "scores" else set()
        few = tuple(sorted(levels)) if len(levels) <= MOST_CLASSES else ()
        return dataclasses.replace(self, data=data, levels=few)

    def remarks(self, training: Sequence[Example]) -> list[str]:
        """What the examples are taken for, and what they are trained by."""
        kinds = {
            "scores": f"pairs with {len(self.levels) or 'many'} different scores",
            "pairs": "pairs of texts that belong together; all others of a batch are negatives",
            "triples": "a text, one that belongs to it and one that does not; all others of a "
            "batch are negatives too",
            "texts": "texts without labels: a sentence belongs to the passage that it was taken "
            "from, and a text of one sentence to itself under other dropout",
        }
        return [f"{kinds[self.data]}; loss {self.loss}"]

    # Examples → rows → a loss

    def encode(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """A row for each text; of single texts one for a sentence, and one for its passage."""
        if self.data == "texts":
            return Passages.of(examples, tokenizer, self.max_length).evaluation_sides()
        passages = self.long_texts == "windows"
        return encode_separately(examples, tokenizer, self.max_length, passages)

    def target(self, example: Example) -> np.ndarray:
        """() float32: the score, 1 for what belongs together."""
        return np.array(1.0 if example.label == BELONGS else example.label, np.float32)

    def training_data(
        self, examples: Sequence[Example], tokenizer: RoFormerTokenizer
    ) -> TrainingData:
        """Examples in batches whose sides are encoded apart."""
        if self.data == "texts":
            return PassageBatches(Passages.of(examples, tokenizer, self.max_length))
        encoded = encode_separately(
            examples, tokenizer, self.max_length, passages=self.long_texts == "windows"
        )
        if self.data == "scores":
            scores = np.array([self.target(example) for example in examples], np.float32)
            if self.loss == "classifier":
                return SideBatches(
                    encoded, targets=np.searchsorted(self.levels, scores).astype(np.int32)
                )
            return SideBatches(encoded, targets=scores)
        return SideBatches(encoded, positives=belonging(encoded), rows=fitting_rows(encoded))

    @property
    def pair_classes(self) -> int:
        """One for each of the scores, if a classifier tells them."""
        return len(self.levels) if self.loss == "classifier" else 0

    def batch_loss(
        self,
        targets: "Tensor",
        outputs: Any,
        weights: "Tensor",
        inputs: Any = None,
        classifier: Any = None,
    ) -> "Tensor":
        """The loss that `loss` names, of the whole vectors and of those cut."""
        from roformer_tf.tasks import vector_losses as losses

        if self.loss == "classifier":
            logits = classifier(losses.classifier_features(outputs))
            return losses.classes(targets, logits, weights)
        loss = losses.in_batch_softmax if self.loss == "softmax" else losses.cosent
        whole = outputs.shape[-1]
        sizes = [*(x for x in self.dimensions if x < whole), whole]
        return losses.over_cuts(loss, sizes, targets, outputs, weights)

    def example_losses(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts, examples: Sequence[Example]
    ) -> np.ndarray:
        """By the cosines of whole vectors, each example among as many as a batch may have."""
        assert isinstance(encoded, EncodedSides)
        sides, numbers = best_sides(unit(row_logits), encoded), encoded.numbers
        together = belonging(encoded) if self.data != "scores" else None
        scores = np.array([self.target(example) for example in examples], np.float64)
        parts = []
        for begin in range(0, len(sides), LOSS_CHUNK):
            some = slice(begin, begin + LOSS_CHUNK)
            if together is None:
                parts.append(cosent_each(sides[some], scores[some]))
                continue
            candidates = numbers[some, 1:].T.ravel()
            wanted = together.targets(numbers[some, 0], candidates)
            parts.append(softmax_each(sides[some], wanted))
        return np.concatenate(parts)

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """An encoder and a pooling."""
        from roformer_tf.models.sentence_embedding import RoFormerForSentenceEmbedding

        return RoFormerForSentenceEmbedding

    @classmethod
    def source_class(cls) -> "type[PretrainedModel]":
        """The same: a checkpoint's pooler is trained on."""
        return cls.model_class()

    @classmethod
    def choose_pooling(cls, checkpoint: "Checkpoint", source: "OpenedSource") -> str:
        """As it was trained for; else a sim model's pooler, or the mean."""
        return embedding_settings(checkpoint, source).pooling

    def config_values(self) -> dict[str, Any]:
        """Nothing: there are no labels."""
        return {}

    @property
    def outputs(self) -> int:
        """None of a classifier's."""
        return 0

    # Vectors → answers

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """Cosines; where texts belong together, ranks among all the second texts of the set."""
        if not len(row_logits):
            return []
        assert isinstance(encoded, EncodedSides)
        texts = DifferentTexts.of(encoded)
        return self.read_scores(texts, scores_of(unit(row_logits), encoded, texts))

    def read_scores(self, texts: DifferentTexts, scores: Iterable[np.ndarray]) -> list[Prediction]:
        """Answers by what each example's first text scores with all the set's `texts`.

        scores: for each example (documents,) float32, cosines or whatever a search goes by.
        """
        if self.data == "scores":
            own = [row[places[0]] for row, places in zip(scores, texts.places, strict=True)]
            return [Prediction(float(one), np.array([one], np.float32)) for one in own]
        return [texts.retrieved(number, row) for number, row in enumerate(scores)]

    def judged_texts(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> list[str]:
        """The texts that rows of `encode` are of, those of an example side by side."""
        if self.data != "texts":
            return [text for example in examples for text in example.texts]
        rows = self.encode(examples, tokenizer).token_ids  # one for each text
        return [tokenizer.decode(row[1:-1].tolist()) for row in rows]

    def behind(self, prediction: Prediction, before: int) -> Prediction:
        """Its neighbours are among the later examples."""
        if self.data == "scores":
            return prediction
        near = tuple((before + other, side, x) for other, side, x in prediction.label.neighbours)
        return prediction._replace(label=prediction.label._replace(neighbours=near))

    def answer(self, logits: np.ndarray) -> Prediction:
        """Of the vectors of a pair side by side, their cosine."""
        raise NotImplementedError("vectors are read together, by read_rows")

    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """Of scores their correlations with the cosines; of 0 and 1 how well these tell them apart.

        Where texts belong together, how far ahead they stand.
        """
        if self.data != "scores":
            return self._retrieval(predictions)
        numbers = np.array(gold, np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        alike = numbers > self._middle
        right = (cosines > self.threshold) == alike

        def measure(weights: np.ndarray) -> Figures:
            of_ranks = value_ranks(numbers, weights), value_ranks(cosines, weights)
            figures = {
                ROC_AUC.name: roc_auc(alike, cosines, weights),
                ACCURACY.name: mean(right, weights),
                SPEARMAN.name: correlation(*of_ranks, weights),
                PEARSON.name: correlation(numbers, cosines, weights),
            }
            return {metric.name: figures[metric.name] for metric in self.usable_metrics()}

        return measure

    def _retrieval(self, predictions: Sequence[Prediction]) -> Measure:
        found = retrieval_measure([[prediction.label.rank] for prediction in predictions])
        if self.data != "triples":
            return found
        ahead = np.array([prediction.label.ahead for prediction in predictions])
        return lambda weights: {ACCURACY.name: mean(ahead, weights), **found(weights)}

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Each example is right or wrong, and found among the first or not."""
        shares = {metric.name for metric in (ACCURACY, *RECALLS)}
        return {metric.name: len(gold) for metric in self.usable_metrics() if metric.name in shares}

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """Scores that are all the same tell nothing apart."""
        same = self.data == "scores" and len(set(gold)) == 1
        names = (ROC_AUC.name, SPEARMAN.name, PEARSON.name)
        return dict.fromkeys(names, SAME_LABELS) if same else {}

    @property
    def _is_binary(self) -> bool:
        """Whether scores are a no and a yes."""
        return len(self.levels) == TWO_LEVELS

    @property
    def _middle(self) -> float:
        """What is above it is a yes."""
        return sum(self.levels) / len(self.levels) if self.levels else 0.0

    def usable_metrics(self) -> tuple[Metric, ...]:
        """Those of the kind of data."""
        if self.data in ("pairs", "texts"):
            return METRICS
        if self.data == "triples":
            return (ACCURACY, *METRICS)
        scores = (SPEARMAN, PEARSON)
        return (ROC_AUC, ACCURACY, *scores) if self._is_binary else scores

    def with_choices(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> "Self":
        """The threshold that is right most often."""
        if self.data != "scores" or not self._is_binary:
            return self
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        alike = np.array(gold, np.float64) > self._middle
        return dataclasses.replace(self, threshold=best_threshold(cosines, alike))

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Found first, ahead of what does not belong, or on the right side of the threshold."""
        if self.data in ("pairs", "texts"):
            return bool(prediction.label.rank == 1)
        if self.data == "triples":
            return bool(prediction.label.ahead)
        if self._is_binary:
            return bool((prediction.label > self.threshold) == (label > self._middle))
        return False

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """By how many ranks a text is missed, or the cosine beyond the threshold."""
        if self.data != "scores":
            return float(prediction.label.rank)
        return abs(prediction.label - self.threshold)

    def mistakes(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[JsonObject]:
        """The worst misses: of scores, where cosines put a pair farthest from its place."""
        if self.data != "scores":
            found = [
                (self.sureness(example.label, answer), number)
                for number, (example, answer) in enumerate(zip(examples, predictions, strict=True))
                if not self.is_right(example.label, answer)
            ]
            worst = sorted(found, key=lambda one: -one[0])[:MISTAKES]
            return [
                {"sureness": off, **self._shown(number, examples, predictions)}
                for off, number in worst
            ]
        if self._is_binary:
            return super().mistakes(examples, predictions)
        gold = np.array([example.label for example in examples], np.float64)
        cosines = np.array([prediction.label for prediction in predictions], np.float64)
        once = np.ones((1, len(gold)))
        apart = np.abs(value_ranks(gold, once) - value_ranks(cosines, once))[0] / len(gold)
        order = np.argsort(-apart, kind="stable")[:MISTAKES].tolist()
        return [
            {"place": examples[i].place, "sureness": float(apart[i])}
            | self.describe(examples[i], predictions[i])
            for i in order
        ]

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """Misses, some examples with their neighbours, and the cosines of near and of far texts."""
        near, far = self._near_and_far(examples, predictions)
        found = {
            "mistakes": self.mistakes(examples, predictions),
            "cosines": histograms(near, far),
        }
        if self.data == "scores":
            return found
        count = min(NEIGHBOURS_SHOWN, len(examples))
        some = np.linspace(0, len(examples) - 1, count).astype(int)
        shown = [self._shown(number, examples, predictions) for number in some.tolist()]
        return found | {"neighbours": shown}

    def _near_and_far(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> tuple[list[float], list[float]]:
        """Cosines of texts that belong together, or score above the middle, and of others."""
        own = [float(answer.scores[0]) for answer in predictions]
        if self.data != "scores":
            return own, [x for one in predictions if (x := one.label.other) == x]
        gold = np.array([example.label for example in examples], np.float64)
        middle = self._middle if self.levels else float(np.median(gold))
        alike = gold > middle
        return list(np.compress(alike, own)), list(np.compress(~alike, own))

    def _shown(
        self, number: int, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> JsonObject:
        """An example with its texts, the rank of the second, and its nearest neighbours."""
        example, answer = examples[number], predictions[number]
        near = [
            {"text": shortened((*examples[other].texts, *examples[other].texts)[side]), "cosine": x}
            for other, side, x in answer.label.neighbours  # of a single text, itself once more
        ]
        shown = self.describe(example, answer) | {"cosine": float(answer.scores[0])}
        return {"place": example.place} | shown | {"neighbours": near}

    def describe_labels(self, gold: Sequence[Label]) -> JsonObject:
        """Where a set's scores lie; nothing of texts that belong together."""
        if self.data != "scores":
            return {"labels": {}, "numbers": {}}
        x = np.array(gold, np.float64)
        figures = {"lowest": x.min(), "mean": x.mean(), "highest": x.max(), "deviation": x.std()}
        return {"labels": {}, "numbers": {name: float(value) for name, value in figures.items()}}

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """With the score as a text, or the rank."""
        seen = example._replace(texts=example.texts[: len(self.text_columns)])
        shown = super().describe(seen, prediction)
        if self.data == "scores":
            return shown
        return shown | {"gold": "1", "predicted": str(prediction.label.rank)}

    # Answers → what is written of them

    def cell_names(self) -> list[str]:
        """cosine."""
        return ["cosine"]

    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """Of the first two texts."""
        return [shortest(prediction.scores[0])]

    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """cosine."""
        return {"cosine": shortest(prediction.scores[0])}

    def save_beside(self, folder: str | Path, config: "RoFormerConfig") -> None:
        """embedding.json, and what sentence-transformers reads."""
        whole = config.hidden_size
        cuts = tuple(x for x in self.dimensions if x < whole)
        pooling: Any = config.pooling
        EmbeddingConfig(pooling, self.max_length, (*cuts, whole) if cuts else None).save(folder)
        save_modules(folder)


def _of_group(example: Example) -> list[Example]:
    """A group's first text with each of the others that is another one, as pairs."""
    if example.label != GROUP:
        return [example]
    first, *others = example.texts
    different = {text_key([text]): text for text in others}
    different.pop(text_key([first]), None)
    return [example._replace(texts=(first, text), label=None) for text in different.values()]


def _by_nearness(example: Example) -> tuple[str, ...]:
    """A triple's texts with the nearer one second, as the label says."""
    if example.label != "C":
        return example.texts
    first, far, near = example.texts
    return first, near, far


def _data_of(examples: Sequence[Example]) -> Data:
    """What kind of examples they are, by the first: all of a file are alike."""
    if isinstance(examples[0].label, float):
        return "scores"
    kinds: dict[int, Data] = {1: "texts", 2: "pairs", 3: "triples"}
    return kinds[len(examples[0].texts)]
