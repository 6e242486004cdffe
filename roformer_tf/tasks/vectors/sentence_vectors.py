"""What all tasks of sentence vectors share: similar texts have similar vectors.

Each text is encoded separately, and its "logits" are its vector (H,) float32 from the pooling.
`scored_pairs` has pairs with a score; `retrieval` has texts that belong together.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource, embedding_settings
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, read_label, read_texts, to_number
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.text_sides import EncodedSides, encode_separately
from roformer_tf.readers.records import Row, text_key
from roformer_tf.tasks import losses
from roformer_tf.tasks.base import Examples, Prediction, Predictions, Task
from roformer_tf.tasks.decoding import NumberDecoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.losses import Tensor
from roformer_tf.tasks.objective import OF_LABELS, TrainingObjective
from roformer_tf.tasks.scoring import JsonObject, Metrics, histograms
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts, scores_of, unit
from roformer_tf.translation import either

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# What examples are: pairs with a score or 0/1; two texts that belong together; two such texts and a
# third that does not; single texts.
Data = Literal["scores", "pairs", "triples", "texts"]
Loss = Literal["softmax", "cosent", "classifier"]
# Cosines of texts that should be near, and of other texts.
NearAndFar: TypeAlias = tuple[list[float], list[float]]

# The label of texts that belong together.
BELONGS = "belongs"
SAME_TEXT = "has the same text twice, from which nothing can be learnt"


class VectorLabelling(Labelling):
    """Reads all kinds of data; `data_of` infers the kind from the examples."""

    text_counts: ClassVar[tuple[int, ...]] = (1, 2, 3)
    label_optional: ClassVar[bool] = True
    min_labels: ClassVar[int] = 0
    fixed_long_texts: ClassVar[str] = "the end of a long text is cut."
    default_max_length: ClassVar[int] = 512

    def read_row(self, row: Row, texts: Sequence[str], label: str | None, sep: str) -> Example:
        """The example in a row; a cell with a list of texts makes it a group.

        Its label is the number of texts that belong to the first; those of a third column do not.
        """
        if not any(isinstance(row.cells.get(column), list) for column in texts):
            return super().read_row(row, texts, label, sep)
        group = [read_texts(row.cells, column) for column in texts]
        if not all(group):
            raise BadCellError(f"has no text in {texts[group.index(())]!r}")
        # Of three columns the last has texts that do not belong; otherwise all belong to the first.
        matching = len(group[1]) if len(group) == 3 else len([*chain(*group)]) - 1
        if not matching:
            raise BadCellError("has a single text, to which no other belongs")
        return Example(tuple(chain(*group)), matching, row.source_line)

    def read_label(self, value: Any, sep: str) -> Label:
        """A finite number; of three texts B or C, the one nearer to A; None in predictions.tsv."""
        # "B" and "C" are no numbers, so a label is one or the other.
        name, number = read_label(value), to_number(value, as_shown=True)
        if name == BELONGS:
            return None
        if number is None and name.upper() not in ("B", "C"):
            raise BadCellError(
                f"has the label {name!r}, but pairs have a number, and of three texts B or C is "
                "nearer to A"
            )
        return name.upper() if number is None else number

    def check(self, example: Example) -> None:
        """Refuse texts that belong together and are equal."""
        # Of a group those that belong to the first; else two. A single text differs from "".
        count = 1 + (example.label if isinstance(example.label, int) else 1)
        texts = (*_by_nearness(example), "")[:count]
        if not isinstance(example.label, float) and len({text_key([x]) for x in texts}) < 2:
            raise BadCellError(SAME_TEXT)

    def complete(self, examples: list[Example]) -> list[Example]:
        """Texts that belong together get the label BELONGS; the second of a triple is the nearer.

        Raises InputError for a label that does not suit the number of texts.
        """
        # A group of n texts becomes up to n − 1 pairs with its first text, or triples.
        examples = [pair for example in examples for pair in _of_group(example)]
        for example in examples:
            _check_label(example)
        return [
            example
            if isinstance(example.label, float)
            else example._replace(texts=_by_nearness(example), label=BELONGS)
            for example in examples
        ]

    def target(self, example: Example) -> np.ndarray:
        """() float32: the score, or 1 for texts that belong together.

        Raises InputError for another kind of example than those of training.
        """
        kind = data_of([example])
        # Pairs and triples suit each other. But a single text has no second one that is right.
        if kind != self.task.data and not {"scores", "texts"}.isdisjoint((kind, self.task.data)):
            what = {"scores": "a score", "texts": "a single text"}.get(kind, "matching texts")
            raise InputError(
                f"{example.source_line} has {what}, unlike the first training example. Give "
                "examples of one kind."
            )
        return np.array(example.label if kind == "scores" else 1.0, np.float32)

    def split_keys(self, example: Example) -> Sequence[bytes]:
        """A key for each text: no text is in two sets."""
        return [text_key([text]) for text in example.texts]

    def encode(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> EncodedSides:
        """A sequence for each text; a long document may have several passages."""
        passages = self.task.long_texts == "windows"
        return encode_separately(examples, tokenizer, self.task.max_length, passages)

    def evaluated_texts(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> list[str]:
        """The texts of the sequences from `encode`, all texts of an example in a row."""
        return [text for example in examples for text in example.texts]


class VectorObjective(TrainingObjective):
    """An encoder and a pooling; a loss compares the vectors of a batch."""

    model_name: ClassVar[str] = "RoFormerForSentenceEmbedding"
    poolings: ClassVar[tuple[str, ...]] = ("pooler", "mean", "cls")
    # The names of all fields. `vars` needs an instance.
    vector_settings: ClassVar[tuple[str, ...]] = tuple(vars(losses.VectorConfig()))
    refused_settings: ClassVar[Mapping[str, str]] = OF_LABELS
    reads_head: ClassVar[bool] = True
    vector_losses: ClassVar[tuple[Loss, ...]]
    """The losses of the task, the default first."""
    meaning: ClassVar[str]
    """What the examples are, in an error: "the pairs have scores"."""
    vector_loss: ClassVar[Callable[..., Tensor]]
    """The loss of targets, vectors (B, S, H) and weights (B,): a scalar."""

    def choose_pooling(self, checkpoint: Checkpoint, source: OpenedSource) -> str:
        """The pooling of its training; without one, a sim model's pooler, or the mean."""
        return embedding_settings(checkpoint, source).pooling

    def with_vector_settings(self, config: losses.VectorConfig, teacher: str | None) -> Any:
        """The task with a loss, and lengths to which vectors may be cut.

        Raises InputError for settings that do not suit its data.
        """
        known = self.vector_losses
        loss = known[0] if config.loss == "auto" else config.loss
        if loss not in known:
            raise InputError(f"loss is {loss}, but {self.meaning}. Give --loss {either(known)}.")
        if config.hard_negatives and self.task.data in ("scores", "texts"):
            raise InputError(
                "hard_negatives are for two texts that belong together. Remove --hard-negatives."
            )
        dimensions = tuple(sorted(set(config.dimensions)))
        return dataclasses.replace(self.task, loss=loss, dimensions=dimensions)

    def batch_loss(self, targets: Tensor, outputs: Any, weights: Tensor, inputs: Any) -> Tensor:
        """Mean `vector_loss` of the whole vectors and of those cut to `dimensions`.

        These are Matryoshka embeddings (arXiv 2205.13147).
        """
        # The last size is the whole vector: without `dimensions` it is the only one.
        sizes = self.task.sizes(outputs.shape[-1])
        each = [self.vector_loss(targets, outputs[..., :size], weights) for size in sizes]
        return sum(each[1:], each[0]) / len(each)


class VectorDecoding(NumberDecoding):
    """Vectors of sequences → cosines. Scores (1,): the cosine of the first two texts."""

    graph_part = "pooled"
    score_columns = ("cosine",)

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """From the cosines of each example's first text with all second and third texts."""
        if not len(row_logits):
            return []
        assert isinstance(encoded, EncodedSides)
        # Every document once, however many examples have it; the scores are computed one example
        # at a time, as (N, documents) may not fit into memory.
        texts = DifferentTexts(encoded)
        return self.read_scores(texts, scores_of(unit(row_logits), encoded, texts))

    def read_scores(self, texts: DifferentTexts, scores: Iterable[np.ndarray]) -> list[Prediction]:
        """Predictions from the scores of each example's first text with all `texts` of the set.

        scores: for each example (documents,) float32: cosines, or the scores of a lexical search.
        """
        raise NotImplementedError

    def config_values(self) -> dict[str, Any]:
        """Nothing: vectors have no labels."""
        return {}

    def save_files(self, folder: Any, config: RoFormerConfig) -> None:
        """embedding.json, and the files that sentence-transformers reads."""
        sizes = self.task.sizes(config.hidden_size)
        # The lengths at which sentence-transformers may truncate vectors.
        cuts = tuple(sizes) if len(sizes) > 1 else None
        pooling: Any = config.pooling
        EmbeddingConfig(pooling, self.task.max_length, cuts).save(folder)
        save_modules(folder)


class VectorMetrics(Metrics):
    """A report on vectors shows figures, and the cosines of near and of other texts."""

    sureness_kind: ClassVar[Any] = "distance"

    def near_and_far(self, examples: Examples, predictions: Predictions) -> NearAndFar:
        """Cosines of texts that should be near, and of other texts."""
        raise NotImplementedError

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Mistakes, and histograms of cosines."""
        cosines = histograms(*self.near_and_far(examples, predictions))
        return super().details(examples, predictions) | {"cosines": cosines}

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """Only the texts that have a column."""
        texts = example.texts[: len(self.task.text_columns)]
        return super().describe(example._replace(texts=texts), prediction)


@dataclass(frozen=True, kw_only=True)
class SentenceVectors(Task):
    """The settings of all tasks of vectors."""

    name: ClassVar[str] = "embedding"
    title: ClassVar[str] = "句向量 · Sentence vectors"
    separate_texts: ClassVar[bool] = True
    pipeline_tag: ClassVar[str] = "sentence-similarity"

    data: Data = "pairs"
    levels: tuple[float, ...] = ()
    """The scores in the training set, if they are few; two scores mean no and yes."""
    loss: Loss = "softmax"
    dimensions: tuple[int, ...] = ()
    """Lengths to which vectors may be cut, in addition to the whole length."""
    threshold: float | None = 0.5
    """The cosine above which the prediction is yes, if there are two scores; None: unknown."""

    outputs = 0  # there is no classifier

    def sizes(self, whole: int) -> list[int]:
        """The trained lengths of vectors; the last one is the whole length."""
        return [*(size for size in self.dimensions if size < whole), whole]


def data_of(examples: Examples) -> Data:
    """The kind of examples, from the first one: all examples of a file are of one kind."""
    if isinstance(examples[0].label, float):
        return "scores"
    # By the number of texts; a label of BELONGS says nothing about it. Paraphrases may have more.
    kinds: dict[int, Data] = {1: "texts", 2: "pairs"}
    return kinds.get(len(examples[0].texts), "triples")


def _check_label(example: Example) -> None:
    """Raise InputError for a label that does not suit the number of texts."""
    count, label, problem = len(example.texts), example.label, ""
    if count == 1 and label is not None:
        problem = "of one text; scores are of pairs: give none, or two columns of texts"
    if count == 2 and label in ("B", "C"):
        problem = "of two texts; it is a number: how near the two are"
    if count == 3 and isinstance(label, float):
        problem = "of three texts; it is B or C, the one nearer to A, or none if B is"
    if problem:
        raise InputError(f"{example.source_line} has the label {label} {problem}.")


def _of_group(example: Example) -> list[Example]:
    """Pairs of a group's first text with each that belongs to it; equal texts are skipped.

    If other texts do not belong to it, triples in which each text occurs.
    """
    if not isinstance(example.label, int):
        return [example]
    first, *rest = example.texts
    own = text_key([first])
    matches = {key: x for x in rest[: example.label] if (key := text_key([x])) != own}
    sides = [x for x in ([*matches.values()], rest[example.label :]) if x]
    # (a, b, c, x) with the label 2 → (a, b, x), (a, c, x): the shorter list is repeated.
    texts = [(first, *(x[i % len(x)] for x in sides)) for i in range(max(map(len, sides)))]
    return [example._replace(texts=row, label=None) for row in texts]


def _by_nearness(example: Example) -> tuple[str, ...]:
    """The texts of a triple in the order of its label: the nearer one is second."""
    if example.label != "C":
        return example.texts
    first, far, near = example.texts
    return first, near, far
