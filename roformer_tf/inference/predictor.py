"""A model, whatever it is for → a function of texts, which answers with dictionaries.

    >>> classify = roformer_tf.load("runs/reviews/model")
    >>> classify(["很好", "太差了"])
    [{"label": "好", "scores": {"坏": 0.02, "好": 0.98}}, {"label": "坏", "scores": {…}}]

what the model is                      what an answer holds
classification, pair, ranking          `label`, and `scores` by label
several labels                         `labels`, and `scores` by label
a number                               `score`
tagging                                `tags`, and `entities`: start, end, label, text
a masked language model                `filled`, and for each [MASK] `scores` by token
a sim model; an encoder; a gpt model   `vector` (H,) float32 of length 1
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.detection import (
    TASK_FILE,
    attention_type,
    is_called_gpt,
    is_language_model,
    parts,
)
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import Choice, Engine, Precision
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import TextEmbedder, check_tokenizer, embedder_from
from roformer_tf.inference.engines import (
    chosen_for,
    classifier_graph,
    int8_cost,
    keras_precision,
    open_finetuned,
)
from roformer_tf.inference.fill_mask import (
    MASK,
    Candidate,
    MaskedModel,
    candidates,
    masked_model,
)
from roformer_tf.inference.predict import predict
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE, runner
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.probabilities import shortest
from roformer_tf.tasks.table import load_task, task_of_problem
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, find_tokenizer

logger = logging.getLogger(__name__)

Answer: TypeAlias = dict[str, Any]
Texts: TypeAlias = tuple[str, ...]
"""The texts of one example: one, a pair, or A, B and C."""

NAMES = {"probabilities": "scores", "value": "score"}
"""What a service's answer calls otherwise: one name for whatever a model weighs its answer by."""
TOKENS = 5  # for each mask
SHOWN = 3  # bad texts that an error tells one by one


@dataclass(frozen=True)
class Predictor:
    """A loaded model as a function of texts; `load` makes it."""

    answer: Callable[[Sequence[Texts]], list[Answer]]
    """Examples, each of as many texts as it takes → an answer to each."""
    text_columns: Texts
    """Names of the texts of an example, as training had them."""
    text_counts: tuple[int, ...]
    """How many texts an example may have."""

    def __call__(self, texts: str | Texts | Iterable[str | Sequence[str]]) -> Any:
        """Answer each of several texts, in their order: a list of dictionaries.

        A pair or a triple is a tuple. One text by itself, or one tuple, gives one dictionary.
        Raises InputError, naming the first of them, for what is no text, a blank one, and an
        example that has more or fewer texts than the model takes.
        """
        alone = isinstance(texts, str | tuple)
        answers = self.answer(self._examples([texts] if alone else texts, alone))
        return answers[0] if alone else answers

    def _examples(self, texts: Any, alone: bool) -> list[Texts]:
        """What was asked, each as a tuple of texts."""
        unordered = isinstance(texts, bytes | Mapping | Set) or hasattr(texts, "columns")
        if unordered or not isinstance(texts, Iterable):
            raise InputError(
                f"the texts are {_shown(texts)}, but must be one text or a list of texts. Give "
                f"{self._example}, or several of them in a list."
            )
        found = [(one,) if isinstance(one, str) else one for one in texts]
        problems = [(number, self._problem(one)) for number, one in enumerate(found)]
        wrong = [(number, problem) for number, problem in problems if problem]
        if wrong:
            told = [f"the text {x}" if alone else f"text {n} {x}" for n, x in wrong[:SHOWN]]
            more = f"; and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else ""
            raise InputError(
                f"{'; '.join(told)}{more}. An example is {self._example}: correct what is none, or "
                "leave it out."
            )
        return [tuple(one) for one in found]

    def _problem(self, example: Any) -> str:
        """What is wrong with an example; "" if nothing."""
        if not isinstance(example, tuple | list | np.ndarray):
            return f"is {_shown(example)}"
        if len(example) not in self.text_counts:
            return f"is {_shown(example[0] if len(example) == 1 else tuple(example))}"
        for text in example:
            if not isinstance(text, str):
                return f"holds {_shown(text)}"
        return "" if all(map(str.strip, example)) else "is blank"

    @property
    def _example(self) -> str:
        """What one example is, as it is typed: a str, or ("text_a", "text_b")."""
        names = ", ".join(f'"{name}"' for name in self.text_columns)
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
    """Open any model as a function of texts: `load(source)(texts)` → a list of dictionaries.

    source: the `model/` of a run, an export to onnx or int8, the name of a released checkpoint,
    its zip or folder, or a folder that transformers wrote. What was fine-tuned answers as
    `predict` and `serve` do. A masked language model fills the `[MASK]`s of a text, a sim model
    gives vectors; so does, by the mean of its hidden states, what has neither, and that is said.
    engine: what computes, "keras", "onnx" or "openvino"; by itself, on a processor the fastest that
    is installed and knows the model. precision: of weights and products; by itself bfloat16 where
    that engine multiplies it, which is said, and float32 for vectors and for `[MASK]`; an export
    keeps its own.
    batch_size: most texts that the model reads at once. top: tokens to give for each `[MASK]`, 5
    unless it is said; or labels to give scores of, the likeliest first: all unless it is said, but
    of more than 20 the likeliest 5.
    Raises InputError where there is no model, a damaged one, or one without its vocabulary.
    """
    for name, value in (("batch_size", batch_size), ("top", top)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}, but must be at least 1.")
    if is_finetuned(source):
        found = open_finetuned(source, engine, precision, lossy=True)
        _tell(source, found.choice)
        if precision == "int8":
            logger.warning("%s", int8_cost(source))
        task = found.task.decoding.with_top_k(top if found.task.decoding.lists_labels else None)
        counts = (len(task.text_columns),)
        predictor = _of_task(found.model, found.tokenizer, task, counts, batch_size)
        return _warm(found.model, predictor)
    with OpenedSource(source) as opened:
        return _open_checkpoint(opened, engine, precision, batch_size, top)


def is_finetuned(source: str | Path) -> bool:
    """Whether a folder answers as its task has it: `finetune` wrote it, or `export`.

    One that was trained for vectors is a model like any other that gives them.
    """
    return (Path(source) / TASK_FILE).is_file() and not load_task(source).texts_apart


def _tell(source: str | Path, choice: Choice) -> None:
    """Say what the user did not ask for."""
    if choice.said:
        logger.warning("%s: %s.", source, choice.said)


def _open_checkpoint(
    source: OpenedSource,
    engine: Engine,
    precision: Precision | None,
    batch_size: int,
    top: int | None,
) -> Predictor:
    """Open what `finetune` did not write, for what its config and its parts speak for."""
    exact: Precision = precision or "float32"  # of vectors, and of tokens' probabilities
    if source.is_zip and source.read(TASK_FILE) is not None:
        raise InputError(f"{source.name} holds a fine-tuned model: unpack it, and give the folder.")
    checkpoint = source.checkpoint()
    held = parts(checkpoint)
    if source.read(embedding_config.FILE) is not None:
        embedder = embedder_from(source, checkpoint, precision=exact, engine=engine)
        return _of_vectors(embedder, batch_size)
    if held & {"classifier", "token_classifier"}:
        task = _task_of(checkpoint.config, "token_classifier" in held)
        task = task.decoding.with_top_k(top if task.decoding.lists_labels else None)
        counts = (
            (1,) if task.labelling.has_units else (1, 2)
        )  # nothing tells which of them it was trained on
        vocab_size = checkpoint.config.vocab_size
        tokenizer = check_tokenizer(find_tokenizer(source), vocab_size, source.name)
        choice = chosen_for(checkpoint.config, engine, precision, lossy=True)
        _tell(source.name, choice)
        model: Any
        if choice.engine == "keras":
            model = task.objective.model_class().from_source(source, dtype=keras_precision(choice))
        else:
            model, task = classifier_graph(checkpoint, task, choice, source.name)
        return _warm(model, _of_task(model, tokenizer, task, counts, batch_size))
    attention = attention_type(checkpoint, source)
    reads_both_ways = attention == "bidirectional" and not is_called_gpt(checkpoint, source)
    if reads_both_ways and _scores_vocabulary(checkpoint):
        choice = chosen_for(checkpoint.config, engine, exact)
        _tell(source.name, choice)
        masked = masked_model(source, checkpoint, choice)
        return _warm(masked.model, _of_masks(masked, top or TOKENS), MASK)
    embedder = embedder_from(source, checkpoint, precision=exact, engine=engine)
    if embedder.config.pooling == "mean":
        writes = _scores_vocabulary(checkpoint)
        kind = "a model that writes from left to right" if writes else "an encoder without a head"
        logger.warning(
            "%s is %s: it answers with vectors, the means of its hidden states. Fine-tune it for "
            "other answers.",
            source.name,
            kind,
        )
    return _of_vectors(embedder, batch_size)


def _scores_vocabulary(checkpoint: Checkpoint) -> bool:
    """Whether it is a language model; a RoFormerV2, which needs no head, says where it is none."""
    bare = "RoFormerModel" in (checkpoint.config.unknown.get("architectures") or ())
    return is_language_model(checkpoint) and not (bare and "mlm" not in parts(checkpoint))


def _task_of(config: RoFormerConfig, of_tokens: bool) -> Task:
    """What a classifier that was trained elsewhere answers, as its config has it."""
    names = cast("Mapping[str, str]", config.unknown.get("id2label") or {})
    labels = tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(config.num_labels))
    length = config.max_position_embeddings
    if of_tokens:
        return Tagging(labels=labels, max_length=length, long_texts="windows", crf=config.crf)
    return task_of_problem(config.unknown.get("problem_type"), labels, length)


def _of_task(
    model: Any,
    tokenizer: RoFormerTokenizer,
    task: Task,
    text_counts: tuple[int, ...],
    batch_size: int,
) -> Predictor:
    """Answers of a task, as a service gives them, under the names of `NAMES`."""

    def answer(texts: Sequence[Texts]) -> list[Answer]:
        examples = [
            task.labelling.for_prediction(Example(one, None, f"text {number}"))
            for number, one in enumerate(texts)
        ]
        predictions = predict(model, tokenizer, task, examples, batch_size)
        found = map(task.decoding.as_json, examples, predictions)
        return [{NAMES.get(key, key): _plain(x) for key, x in one.items()} for one in found]

    return Predictor(answer, task.text_columns, text_counts)


def _of_masks(model: MaskedModel, top: int) -> Predictor:
    """The likeliest tokens of each mask, and the text with the likeliest of all."""

    def answer(texts: Sequence[Texts]) -> list[Answer]:
        found = candidates(model, [text for (text,) in texts], top)
        return [
            {
                "filled": _filled(text, masks),
                "scores": [{x.token: shortest(x.probability) for x in mask} for mask in masks],
            }
            for (text,), masks in zip(texts, found, strict=True)
        ]

    return Predictor(answer, ("text",), (1,))


def _filled(text: str, masks: Sequence[Sequence[Candidate]]) -> str:
    """The likeliest token in the place of each mask."""
    words = [mask[0].token.removeprefix("##") for mask in masks]
    return "".join(chain.from_iterable(zip_longest(text.split(MASK), words, fillvalue="")))


def _of_vectors(embedder: TextEmbedder, batch_size: int) -> Predictor:
    """A vector of each text."""

    def answer(texts: Sequence[Texts]) -> list[Answer]:
        vectors = embedder.embed((text for (text,) in texts), batch_size)
        return [{"vector": vector} for vector in vectors]

    return _warm(embedder.model, Predictor(answer, ("text",), (1,)))


def _warm(model: Any, predictor: Predictor, with_mask: str = "") -> Predictor:
    """Have a model answer before anyone asks.

    Two answers, which differ in rows and length: TensorFlow's plan for the second serves for all.
    Where every shape is compiled, these two would not be those that are asked for.
    """
    if not runner(model).compiled:
        for count in (1, 2):
            text = "好" * 20 * count + with_mask * count
            predictor.answer([(text,) * predictor.text_counts[0]] * count)
    return predictor


def _plain(value: Any) -> Any:
    """A tuple as the list that it is in JSON."""
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    """What stands in the place of a text, cut to what an error has room for."""
    spelled = repr(value)
    return spelled if len(spelled) <= 60 else f"{spelled[:59]}…"
