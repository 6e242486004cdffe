"""Any model → a function of texts that returns dictionaries.

    >>> classify = roformer_tf.load("runs/reviews/model")
    >>> classify(["很好", "太差了"])
    [{"label": "好", "scores": {"坏": 0.02, "好": 0.98}}, {"label": "坏", "scores": {…}}]

model                                  a prediction holds
classification, pair, ranking          `label`, and `scores` by label
several labels                         `labels`, and `scores` by label
multiple choice                        `label`, an index, and `scores` in the order of the choices
a number                               `score`
question answering                     `answer`, its `start` and `score`
tagging                                `tags`, and `entities`: start, end, label, text
entities, also nested                  `spans`: start, end, label, text, score
a masked language model                `filled`, and for each [MASK] `scores` by token
a sim model; an encoder; a gpt model   `vector` (H,) float32 of length 1

A model of natural language inference, and one of entities with label prompts, also predict labels
that are named in the call:

    >>> roformer_tf.load("runs/nli/model")("国足今晚出战", labels=["体育", "财经"])
    {"label": "体育", "scores": {"体育": 0.9, "财经": 0.1}}
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, TypeAlias

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_type_and_number
from roformer_tf.inference.embed import TextEmbedder, VectorSettings, embedder_from
from roformer_tf.inference.fill_mask import MASK, MaskedModel, candidates, filled
from roformer_tf.inference.opening import Finetuned, OpenedModel, open_model
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE, runner
from roformer_tf.tasks.base import FIXED_LABELS
from roformer_tf.tasks.probabilities import shortest

logger = logging.getLogger(__name__)

Prediction: TypeAlias = dict[str, Any]
# The texts of one example: one, a pair, or A, B and C.
Texts: TypeAlias = tuple[str, ...]

TOP_TOKENS = 5  # of each [MASK]


@dataclass(frozen=True)
class Predictor:
    """A loaded model as a function of texts; `load` makes it."""

    predict: Callable[[Sequence[Texts]], list[Prediction]]
    """Examples, each a tuple of its texts → the prediction of each."""
    text_columns: Texts
    """Names of the texts of an example, as in training."""
    text_counts: tuple[int, ...]
    """How many texts an example may have."""
    lists_texts: bool = False
    """Whether the last one is a list of texts, of any length."""
    asked: "Callable[[Sequence[str], str | None], Predictor] | None" = None
    """Labels and a template → the model that predicts them; None for models without labels."""

    def __call__(
        self,
        texts: str | Texts | Iterable[str | Sequence[str]],
        *,
        labels: Sequence[str] | None = None,
        template: str | None = None,
    ) -> Any:
        """Predict each of several texts, in their order: a list of dictionaries.

        A pair or a triple is a tuple. A single text, or a single tuple, gives one dictionary.
        labels: to predict instead of those of training. Of a model of natural language inference
        one is chosen for each text; template: the sentence that the text entails if it has the
        label, which is {} in it (default: 这段话的内容是关于{}的。).
        A model of entities with label prompts finds all entities of these labels.
        Raises InputError for the first example that is blank, not a text, or has more or fewer
        texts than the model takes; and for labels that a model cannot be asked for.
        """
        if labels is not None:
            if self.asked is None:
                raise InputError(FIXED_LABELS)
            return self.asked(labels, template)(texts)
        if template is not None:
            raise InputError("template is for labels. Give labels, too.")
        is_single = isinstance(texts, str | tuple)
        predictions = self.predict(self._examples([texts] if is_single else texts, is_single))
        return predictions[0] if is_single else predictions

    def _examples(self, texts: Any, is_single: bool) -> list[Texts]:
        """The argument of a call as a list of tuples of texts."""
        listed = _listed(texts)
        if not isinstance(listed, tuple):
            raise InputError(
                f"the texts are {shortened(texts)}, but must be one text or a list of texts. Give "
                f"{self._example}, or several of them in a list."
            )
        examples = [(text,) if isinstance(text, str) else _listed(text) for text in listed]
        for number, example in enumerate(examples):
            if problem := self._problem(example):
                name = "the text" if is_single else f"text {number}"
                raise InputError(f"{name} {problem}. An example is {self._example}.")
        if self.lists_texts:
            # ("text", ["a", "b"]) → ("text", "a", "b"), as tasks with lists of texts take it.
            examples = [(*rest, *_listed(last)) for *rest, last in examples]
        return examples

    def _problem(self, example: Any) -> str:
        """What is wrong with an example; "" if nothing."""
        if not isinstance(example, tuple):
            return f"is {shortened(example)}"
        if len(example) not in self.text_counts:
            return f"is {shortened(example[0] if len(example) == 1 else example)}"
        texts = list(example)
        if self.lists_texts:
            listed = _listed(texts.pop())
            if not isinstance(listed, tuple) or not listed:
                return f"holds {shortened(listed)} instead of a list of texts"
            texts += listed
        for text in texts:
            if not isinstance(text, str):
                return f"holds {shortened(text)}"
        return "" if all(map(str.strip, texts)) else "is blank"

    @property
    def _example(self) -> str:
        """An example as it is typed: a str, or ("text_a", "text_b")."""
        names = ", ".join(f'"{name}"' for name in self.text_columns)
        if self.lists_texts:
            return f'a tuple of a text and a list of texts, ("{self.text_columns[0]}", ["…", "…"])'
        if len(self.text_columns) > 1:
            return f"a tuple of {len(self.text_columns)} texts, ({names})"
        return "a str" + (", or a tuple of two for a pair" if 2 in self.text_counts else "")


def load(
    source: str | Path,
    *,
    precision: Precision | None = None,
    engine: Engine = "auto",
    batch_size: int = BATCH_SIZE,
    top: int | None = None,
) -> Predictor:
    """Open any model as a function of texts: `load(source)(texts)` → a dictionary for each.

    source: the `model/` of a run, its export, or a folder that transformers wrote;
    a released checkpoint by its name, zip or folder; or `owner/name[@revision]`, a model of Hugging
    Face, or `modelscope:owner/name[@revision]`. A fine-tuned model predicts as
    `predict` and `serve` do. A masked language model fills the `[MASK]`s of a text, a sim model
    gives vectors; any other model gives the mean of its hidden states, with a warning.
    engine: "keras", "onnx" or "openvino"; default: on a CPU, the fastest that is installed and
    supports the model. precision: of weights and products; default: bfloat16 for labels where that
    engine has instructions for it, with a warning; float32 for vectors and for `[MASK]`. An export
    keeps its own. batch_size: the largest number of texts in a batch. top: how many tokens to give
    for each `[MASK]` (default 5), or of how many labels to give scores, the likeliest first
    (default: all, or 5 if there are more than 20).
    Raises InputError where there is no model, a damaged one, or one without its vocabulary, and for
    `top` of a model that lists neither tokens nor labels.
    """
    for name, value in (("batch_size", batch_size), ("top", top)):
        if value is not None:
            check_type_and_number(name, value, whole=True, at_least=1)
    with open_model(source, engine, precision, batch_size=batch_size) as opened:
        if opened.is_finetuned:
            return _of_task(opened, top)
        is_for_vectors = opened.has_embedding_file
        if not is_for_vectors and opened.is_masked_lm:
            return _of_masks(opened, top or TOP_TOKENS)
        if top is not None:
            raise InputError(f"top is {top}, but {opened.name} gives vectors. Omit top.")
        embedder = embedder_from(opened, VectorSettings())
        if not is_for_vectors and embedder.config.pooling == "mean":
            is_lm = opened.scores_vocabulary
            kind = "a causal language model" if is_lm else "an encoder without a head"
            logger.warning(
                "%s is %s: it gives vectors, the means of its hidden states. Fine-tune it for "
                "other predictions.",
                opened.name,
                kind,
            )
        return _of_vectors(embedder)


def _of_task(opened: OpenedModel, top: int | None) -> Predictor:
    """Predictions of a task, as the service gives them."""
    finetuned = opened.finetuned()
    _warn(opened, finetuned.notes)
    task = finetuned.task.decoding.with_top_k(top)
    finetuned = dataclasses.replace(finetuned, task=task)
    counts: tuple[int, ...] = (len(task.text_columns),)
    if counts == (1,) and not (opened.has_task_file or task.labelling.has_units):
        counts = (1, 2)  # a head trained elsewhere does not say whether it takes a pair
    return _warm(finetuned.model, _predictor(finetuned, counts), task.labelling.sample)


def _predictor(finetuned: Finetuned, text_counts: tuple[int, ...]) -> Predictor:
    """A model of a task as a function of texts."""
    task = finetuned.task

    def asked(labels: Sequence[str], template: str | None) -> Predictor:
        return _predictor(finetuned.with_task(task.with_labels(labels, template)), (1,))

    def predict(texts: Sequence[Texts]) -> list[Prediction]:
        examples = [
            task.labelling.for_prediction(Example(example, None, f"text {number}"))
            for number, example in enumerate(texts)
        ]
        predictions = finetuned.predict(examples)
        return list(map(task.decoding.as_json, examples, predictions))

    return Predictor(predict, task.text_columns, text_counts, task.labelling.lists_texts, asked)


def _of_masks(opened: OpenedModel, top: int) -> Predictor:
    """The likeliest tokens of each mask, and the text with the likeliest of all."""
    model = MaskedModel.of(opened)
    _warn(opened, [model.choice.note])

    def predict(examples: Sequence[Texts]) -> list[Prediction]:
        texts = [text for (text,) in examples]
        return [
            {
                "filled": filled(text, masks, "{}"),
                "scores": [{x.token: shortest(x.probability) for x in mask} for mask in masks],
            }
            for text, masks in zip(texts, candidates(model, texts, top), strict=True)
        ]

    return _warm(model.model, Predictor(predict, ("text",), (1,)))


def _of_vectors(embedder: TextEmbedder) -> Predictor:
    """A vector of each text."""

    def predict(texts: Sequence[Texts]) -> list[Prediction]:
        return [{"vector": vector} for vector in embedder.embed(text for (text,) in texts)]

    return _warm(embedder.pooled, Predictor(predict, ("text",), (1,)))


def _warn(opened: OpenedModel, notes: Iterable[str]) -> None:
    """Log what was chosen without being asked for."""
    for note in filter(None, notes):
        logger.warning("%s: %s", opened.name, note)


def _warm(
    model: Any, predictor: Predictor, sample: Callable[[str], Texts] = lambda text: (text,)
) -> Predictor:
    """Predict two samples before the first call, so that this is not the slow one.

    sample: an example of this text. The two batches differ in size and length: TensorFlow's trace
    of the second serves all shapes.
    """
    # XLA compiles every shape separately, so there a warm-up would not help.
    if not runner(model).compiled:
        for count in (1, 2):
            text = ("好" * 10 + MASK) * count  # only a masked language model needs the mask
            predictor.predict([sample(text)] * count)
    return predictor


def _listed(value: Any) -> Any:
    """A list, an array or a column of a data frame as a tuple; any other value as it is."""
    # Iterating a dictionary or a data frame gives its keys, whose predictions would be wrong
    # without an error; a set has no order.
    if isinstance(value, str | bytes | Mapping | Set) or hasattr(value, "columns"):
        return value
    is_list = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
    return tuple(value) if is_list else value
