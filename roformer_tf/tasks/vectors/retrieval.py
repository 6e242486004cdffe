"""Texts that belong together: the vector of each query is nearest to that of its document.

Examples are pairs, triples with a text that does not belong, or single texts. Of a single text, a
sentence belongs to the passage around it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.passages import Passages
from roformer_tf.labelled.text_sides import EncodedSides, Positives, SideBatches
from roformer_tf.readers.records import text_key
from roformer_tf.tasks import losses
from roformer_tf.tasks.base import Examples, Gold, Prediction, Predictions, part
from roformer_tf.tasks.metrics import ACCURACY, Function, Metric, mean
from roformer_tf.tasks.scoring import JsonObject, shortened
from roformer_tf.tasks.vectors import sentence_vectors
from roformer_tf.tasks.vectors.ranked_texts import RETRIEVAL, DifferentTexts, query_figures
from roformer_tf.tasks.vectors.sentence_vectors import NearAndFar
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Examples that a report shows with their nearest neighbours.
NEIGHBOURS_SHOWN = 5
# The meaning of the examples, to be printed.
NOTES = {
    "pairs": "pairs of texts that belong together; all others of a batch are negatives",
    "triples": "a text, one that belongs to it and one that does not; all others of a batch are "
    "negatives too",
    "texts": "texts without labels: a sentence belongs to the passage that it was taken from, and "
    "a text of one sentence to itself under other dropout",
}


class RetrievalLabelling(sentence_vectors.VectorLabelling):
    """Target () float32: 1, since all examples belong together."""

    def learned(self, training: Examples) -> dict[str, Any]:
        """The kind of examples. Raises InputError if all have the same document."""
        data = sentence_vectors.data_of(training)
        # Queries may repeat, documents may not all be one: then nothing is a negative.
        # A single text is cut into a sentence and its passage later, so here it is both.
        first = 0 if data == "texts" else 1
        if len({text_key([text]) for example in training for text in example.texts[first:]}) < 2:
            which = "text" if data == "texts" else "second text"
            raise InputError(
                f"the training examples have one and the same {which}: there is nothing to "
                "tell it from, so nothing can be learnt. Give examples of several."
            )
        return {"data": data}

    def notes(self, training: Examples) -> list[str]:
        """The meaning of the examples, and the loss."""
        return [f"{NOTES[self.task.data]}; loss {self.task.loss}"]

    def why_long_texts_fixed(self) -> str:
        """Documents may be read in windows; other texts lose their end."""
        if self.task.long_texts != "head-tail" and self.task.data != "texts":
            return ""
        return super().why_long_texts_fixed()

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedSides:
        """A sequence for each text; of a single text one for a sentence, one for its passage."""
        if self.task.data == "texts":
            return Passages(examples, tokenizer, self.task.max_length).evaluation_sides()
        return super().encode(examples, tokenizer)

    def evaluated_texts(self, examples: Examples, tokenizer: RoFormerTokenizer) -> list[str]:
        """The texts of the sequences; of single texts the sentences and their passages."""
        if self.task.data != "texts":
            return super().evaluated_texts(examples, tokenizer)
        # Sentences and passages exist only as tokens; [CLS] and [SEP] are not decoded.
        rows = self.encode(examples, tokenizer).token_ids
        return [tokenizer.decode(row[1:-1].tolist()) for row in rows]

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Examples in batches, where each is a negative of the others."""
        if self.task.data == "texts":
            return Passages(examples, tokenizer, self.task.max_length)
        encoded = self.encode(examples, tokenizer)
        return SideBatches(encoded, positives=Positives(encoded.numbers[:, :2]))


class RetrievalObjective(sentence_vectors.VectorObjective):
    """A softmax over the cosines of a batch."""

    vector_losses = ("softmax",)
    meaning = "the texts belong together, without scores"
    vector_loss = staticmethod(losses.in_batch_softmax)


class RetrievalDecoding(sentence_vectors.VectorDecoding):
    """The label of a prediction is the rank of an example's second text: `Retrieved`."""

    def read_scores(self, texts: DifferentTexts, scores: Iterable[np.ndarray]) -> list[Prediction]:
        """Ranks among all second and third texts of the set."""
        return [texts.retrieved(number, row) for number, row in enumerate(scores)]

    def shifted(self, prediction: Prediction, count: int, task: Any) -> Prediction:
        """The neighbours' numbers count the earlier examples, too."""
        # Sets are joined into one list, in which this set begins at `count`.
        near = tuple((count + other, side, x) for other, side, x in prediction.label.neighbours)
        return prediction._replace(label=prediction.label._replace(neighbours=near))


class RetrievalMetrics(sentence_vectors.VectorMetrics):
    """Recall, MRR and nDCG; of triples also how often the right text is nearer than the wrong."""

    all: ClassVar[tuple[Metric, ...]] = (*RETRIEVAL, ACCURACY)

    def usable(self) -> tuple[Metric, ...]:
        """Accuracy needs triples."""
        return (ACCURACY, *RETRIEVAL) if self.task.data == "triples" else RETRIEVAL

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """All of them; without triples nothing is ahead of a third text."""
        each = query_figures([[prediction.label.rank] for prediction in predictions])
        ahead = np.array([prediction.label.ahead for prediction in predictions])
        figures = {metric: partial(mean, each[metric.name]) for metric in RETRIEVAL}
        return {ACCURACY: partial(mean, ahead), **figures}

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether the second text has rank 1; of triples, whether it is nearer than the third."""
        return bool(prediction.label.ahead)

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """The rank of the second text."""
        return float(prediction.label.rank)

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """Mistakes, histograms, and some examples with their nearest neighbours."""
        # Evenly spaced over the set, since neighbouring examples may be alike.
        count = min(NEIGHBOURS_SHOWN, len(examples))
        some = np.linspace(0, len(examples) - 1, count).astype(int).tolist()
        shown = [self.shown(number, examples, predictions) for number in some]
        return super().details(examples, predictions) | {"neighbours": shown}

    def near_and_far(self, examples: Examples, predictions: Predictions) -> NearAndFar:
        """Far is a random other text for each example; NaN means that there is none."""
        far = [prediction.label.other for prediction in predictions]
        near = [float(prediction.scores[0]) for prediction in predictions]
        return near, [cosine for cosine in far if not np.isnan(cosine)]

    def shown(self, number: int, examples: Examples, predictions: Predictions) -> JsonObject:
        """An example, the cosine of its texts, and its nearest neighbours, too."""
        prediction = predictions[number]
        near = [
            # A single text is its own second text, so its texts are repeated.
            {"text": shortened((*examples[other].texts, *examples[other].texts)[side]), "cosine": x}
            for other, side, x in prediction.label.neighbours
        ]
        more = {"cosine": float(prediction.scores[0]), "neighbours": near}
        return super().shown(number, examples, predictions) | more

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """An example, the rank that its second text should have, and its predicted rank."""
        shown = super().describe(example, prediction)
        return shown | {"gold": "1", "predicted": str(prediction.label.rank)}


class Retrieval(sentence_vectors.SentenceVectors):
    """Texts that belong together."""

    labelling = part(RetrievalLabelling)
    objective = part(RetrievalObjective)
    decoding = part(RetrievalDecoding)
    metrics = part(RetrievalMetrics)
