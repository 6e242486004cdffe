"""A source → one opened model: configuration, arrays, tokenizer, task, engine and precision.

Every command that uses a model, and `roformer_tf.load`, starts here:

    with open_model("runs/reviews/model", engine="auto") as opened:
        finetuned = opened.finetuned()
    finetuned.predict(examples)

Opening reads nothing; each file is read once, when it is first needed. The modules of this folder
build what they need from the opened model: `embed` vectors, `fill_mask` a masked language model,
`generate` a generator. The engine and the precision of all of them are chosen by `choice`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.archives import LEXICAL_FILE, TASK_FILE, WEIGHT_FILES
from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.names import MULTIPLE_CHOICE
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.engines.choice import Choice, Engine, Precision, choose, unsupported_reason
from roformer_tf.engines.model import (
    GraphModel,
    exported_graph,
    graph_model,
    onnx_session,
    open_graph,
    share_onnx,
)
from roformer_tf.engines.network import Network
from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE, check_finite
from roformer_tf.startup import import_quickly
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.choices.multiple_choice import SummaryChoices
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.lexical import LexicalFeatures
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.table import parse_task, task_of_problem
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, fitting_tokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.models.pretrained import PretrainedModel

    Model = TypeVar("Model", bound=PretrainedModel)


@dataclass(frozen=True)
class Finetuned:
    """A fine-tuned model that predicts: a Keras model or a graph, and what belongs to it."""

    model: Any
    tokenizer: RoFormerTokenizer
    task: Task
    choice: Choice
    notes: tuple[str, ...] = ()
    """For the user: what was chosen without being asked for, and what int8 costs."""
    lexical: LexicalFeatures | None = None
    """TF-IDF that its predictions are combined with."""
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch."""

    def predict(
        self, examples: Sequence[Example], encoded: EncodedTexts | None = None
    ) -> list[Prediction]:
        """Predict each example, whatever its label; `encoded` if they are encoded already."""
        if encoded is None:
            encoded = self.task.labelling.encode(examples, self.tokenizer)
        # `encode` puts the second text of a pair into segment 1; such a model needs 0 there, too.
        if not self.tokenizer.segments:
            segments = list(map(np.zeros_like, encoded.segment_ids))
            encoded = dataclasses.replace(encoded, segment_ids=segments)
        predictions = predict_encoded(self.model, self.task, encoded, self.batch_size)
        if self.lexical is None:
            return predictions
        return self.lexical.combined(self.task, examples, predictions)

    def with_task(self, task: Task) -> "Finetuned":
        """The same model for a task of `Task.with_labels`."""
        # TF-IDF knows only the labels of training.
        return dataclasses.replace(self, task=task, lexical=None)


@dataclass(frozen=True)
class OpenedModel:
    """The files of a model, and how the user wants it to compute; `open_model` makes it."""

    files: OpenedSource
    engine: Engine = "auto"
    precision: Precision | None = None
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch of what is built from the files."""
    text_columns: tuple[str, ...] = ()
    """Columns of texts, for a model without a task.json. Default: one, called text."""
    threads: int | None = None
    """Of a graph. Default: one for each core."""
    shared: Path | None = None
    """The graph, if `share_weights` has written it."""

    @property
    def name(self) -> str:
        """The source as the user typed it."""
        return self.files.name

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The configuration and the arrays. Raises InputError as `OpenedSource.checkpoint`."""
        return self.files.checkpoint()

    @cached_property
    def tokenizer(self) -> RoFormerTokenizer:
        """Raises InputError without a vocabulary, and for one of another model."""
        if self.is_export:
            return RoFormerTokenizer.from_source(self.files)
        return fitting_tokenizer(self.files, self.checkpoint.config)

    @cached_property
    def task(self) -> Task | None:
        """The task in task.json, else that of a classifier from transformers; None without both."""
        content = self.files.read(TASK_FILE)
        if content is not None:
            return parse_task(content, f"{self.name}/{TASK_FILE}")
        # A model that was trained for vectors may still have the head of its pretraining.
        return None if self.is_export or self.has_embedding_file else self._classifier_task

    @property
    def has_task_file(self) -> bool:
        """Whether `finetune` or `export` wrote it: else its task does not know the columns."""
        return self.files.read(TASK_FILE) is not None

    @property
    def is_finetuned(self) -> bool:
        """Whether it predicts what its task says.

        A model that was fine-tuned for vectors is used like any other model with vectors.
        """
        return self.task is not None and not self.task.separate_texts

    @property
    def has_embedding_file(self) -> bool:
        """Whether it was trained for vectors: it has an embedding.json."""
        return self.files.read(embedding_config.FILE) is not None

    @property
    def generates(self) -> bool:
        """Whether it generates text: a causal or UniLM language model."""
        if self.is_export:
            return False
        checkpoint = self.checkpoint
        return checkpoint.attention_type != "bidirectional" and checkpoint.is_language_model

    @property
    def is_export(self) -> bool:
        """Whether `export` wrote it: a graph without the checkpoint that it was made from."""
        folder = self.files.path
        has_weights = any((folder / name).is_file() for name in WEIGHT_FILES)
        return exported_graph(folder) is not None and not has_weights

    @cached_property
    def scores_vocabulary(self) -> bool:
        """Whether it is a language model; a RoFormerV2, which needs no head, may not be one."""
        architectures = self.checkpoint.config.unknown.get("architectures") or ()
        # RoFormerV2 scores the vocabulary by its embeddings: no weight shows whether the model was
        # saved with that head. The class that transformers names does.
        is_bare = "RoFormerModel" in architectures and "mlm" not in self.checkpoint.parts
        return self.checkpoint.is_language_model and not is_bare

    @property
    def is_masked_lm(self) -> bool:
        """Whether nothing suggests that this language model was trained left to right."""
        return self.vector_attention == "bidirectional" and self.scores_vocabulary

    @property
    def _classifier_task(self) -> Task | None:
        """The task of a classifier that was trained in transformers; None without its head."""
        config, parts = self.checkpoint.config, self.checkpoint.parts
        length = self.checkpoint.max_length
        if "qa_outputs" in parts:
            return QuestionAnswering(
                text_columns=QuestionAnswering.labelling.column_names[0][:2],
                max_length=min(length, QuestionAnswering.labelling.default_max_length),
                long_texts="windows",
            )
        if not parts & {"classifier", "token_classifier"}:
            return None
        architectures = config.unknown.get("architectures") or ("RoFormerForTokenClassification",)
        if MULTIPLE_CHOICE in architectures:
            return SummaryChoices.of_config(config, length, self.name)
        # The names that transformers gives to labels without one.
        names = cast("Mapping[str, str]", config.unknown.get("id2label") or {})
        labels = tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(config.num_labels))
        if len(set(labels)) < len(labels):
            raise InputError(
                f"{self.name} has labels of the same name: {', '.join(labels)}. Give each a name "
                "of its own, in the id2label of its config.json."
            )
        if "token_classifier" in parts:
            # BERT's classes have a `classifier` for whole texts, on a pooler.
            if not architectures[0].endswith("ForTokenClassification"):
                raise InputError(
                    f"{self.name} was saved by transformers' {architectures[0]}, whose head is "
                    "not supported. Fine-tune its encoder: give it to `finetune --checkpoint`."
                )
            return Tagging(labels=labels, max_length=length, long_texts="windows", crf=config.crf)
        problem, texts = config.unknown.get("problem_type"), self.text_columns or ("text",)
        return task_of_problem(problem, labels, length, texts, self.name)

    def choice(self, *, lossy: bool = False) -> Choice:
        """The engine and the precision, by the one rule that all commands follow.

        lossy: whether bfloat16 may be taken unasked, as for labels; vectors and probabilities of
        tokens are float32 unless the user asks for less.
        """
        reason = unsupported_reason(self.checkpoint.config)
        chosen = choose(self.engine, self.precision, unsupported=reason, lossy=lossy)
        if chosen.engine == "keras":
            import_quickly("roformer_tf.models.heads")
        return chosen

    def keras_model(self, kind: "type[Model]", dtype: str, **changes: Any) -> "Model":
        """Build a Keras model of the arrays. changes: of the configuration."""
        config = self.checkpoint.config.replace(**changes)
        model = kind.from_arrays(config, self.checkpoint.arrays, self.files.path, dtype)
        model.tokenizer = self.tokenizer
        return model

    def network(self, part: Any, *, changes: Mapping[str, Any] = {}, **settings: Any) -> Network:
        """The network that a graph is written from; changes: of the configuration."""
        config = self.checkpoint.config.replace(**changes)
        return Network(config, self.checkpoint.arrays, part, source=self.name, **settings)

    def model(self, part: str, name: str, choice: Choice, changes: Mapping[str, Any]) -> Any:
        """A graph of a part of the network, or the Keras model of this name in `models.heads`.

        changes: of the configuration.
        """
        if choice.engine == "keras":
            from roformer_tf.models import heads

            return self.keras_model(getattr(heads, name), choice.precision, **changes)
        if self.shared is not None:
            # One of several server processes maps the graph that the first one has written.
            return onnx_session(self.shared, self.threads)
        network = self.network(part, changes=changes)
        return graph_model(network, choice.engine, choice.precision, self.threads)

    @property
    def vector_attention(self) -> str:
        """The attention mask for vectors."""
        # A released gpt model says nothing about its mask. Bidirectional vectors of one would be
        # those of another model, without an error.
        is_gpt = self.checkpoint.attention_type == "bidirectional" and self.checkpoint.is_called_gpt
        return "causal" if is_gpt else self.checkpoint.attention_type

    def vector_changes(self, pooling: Pooling) -> dict[str, Any]:
        """Changes of the configuration for a model that gives vectors."""
        return {"attention_type": self.vector_attention, "pooling": pooling}

    def finetuned(self) -> Finetuned:
        """The model that `finetune` or `export` wrote, or a classifier from transformers.

        Raises InputError for a model that was not fine-tuned, or whose files do not belong
        together. Also raised for an engine or a precision that it does not support.
        """
        if self.task is None:
            raise InputError(
                Message(
                    "{name} holds no fine-tuned model: there is no {file}. Give the model/ folder "
                    "of a run of `roformer-tf finetune`.",
                    name=self.name,
                    file=TASK_FILE,
                )
            )
        if self.is_export:
            model = self.exported()
            choice = Choice(model.engine, model.precision)
            return Finetuned(model, self.tokenizer, self.task, choice, batch_size=self.batch_size)
        # task.json and the weights may come from different runs, if a folder was put together by
        # hand: predictions would have wrong labels.
        config, task = self.checkpoint.config, self.task
        same = (config.crf, config.num_labels) == (task.crf, task.outputs)
        if self.has_task_file and not same:
            raise InputError(
                f"the files in {self.name} do not belong together: its task has {task.outputs} "
                f"labels, but its model {config.num_labels}. Put back the files that `finetune` "
                "wrote."
            )
        # Labels allow bfloat16: the likeliest one rarely changes.
        choice, tokenizer = self.choice(lossy=not task.separate_texts), self.tokenizer
        notes = [choice.note] if choice.note else []
        if self.precision == "int8":
            measured = f"roformer-tf evaluate {self.name} --precision int8 --data F"
            notes.append(f"int8 may change some answers: `{measured}` measures its accuracy.")
        # A regression of transformers has a problem_type, and that of a CrossEncoder no activation.
        activation = str(config.unknown.get("sentence_transformers"))
        is_number = "Identity" in activation or config.unknown.get("problem_type")
        if isinstance(task, Regression) and not (self.has_task_file or is_number):
            notes.append(
                f"{self.name} has one output, and its score is the logit. The CrossEncoder of "
                "sentence-transformers gives the sigmoid of it."
            )
        part = task.decoding.graph_part
        changes = {"attention_type": self.vector_attention} if part == "pooled" else {}
        model = self.model(part, task.objective.model_name, choice, changes)
        # Decoding needs weights that a graph does not hold: those of a random field.
        task = task.decoding.with_arrays(self.checkpoint.arrays)
        content = self.files.read(LEXICAL_FILE)
        lexical = None if content is None else LexicalFeatures.from_bytes(content, task, self.name)
        return Finetuned(model, tokenizer, task, choice, tuple(notes), lexical, self.batch_size)

    def exported(self) -> GraphModel:
        """The graph of an export, which runs in its own engine, and in its own precision.

        Raises InputError for another engine or precision, and for a graph that cannot be opened.
        """
        file = exported_graph(self.files.path)
        assert file is not None
        model = open_graph(file, self.threads)
        own_engine = self.engine in ("auto", model.engine)
        if not own_engine or self.precision not in (None, model.precision):
            asked = self.precision if own_engine else self.engine
            raise InputError(
                f"{self.name} is an export, for {model.engine} in {model.precision}, not {asked}. "
                "Give the model/ folder that it was exported from, or no engine and no precision."
            )
        return model


@contextmanager
def open_model(
    source: str | Path, engine: Engine = "auto", precision: Precision | None = None, **fields: Any
) -> Iterator[OpenedModel]:
    """Open a model: a registry name, a zip, or a folder; fine-tuned, exported or neither.

    A context, in which arrays can be read. fields: others of `OpenedModel`. Raises InputError for
    what is no source.
    """
    with OpenedSource(source) as files:
        yield OpenedModel(files, engine, precision, **fields)


def open_finetuned(
    source: str | Path, engine: Engine = "auto", precision: Precision | None = None, **fields: Any
) -> Finetuned:
    """`OpenedModel.finetuned` of a source that nothing else is read from; as `open_model`."""
    with open_model(source, engine, precision, **fields) as opened:
        return opened.finetuned()


def share_weights(folder: str | Path, choice: Choice, target: Path) -> Path | None:
    """Write the graph of a fine-tuned model into `target`, so that processes share its weights.

    None where they cannot: OpenVINO has its own layout in memory, an export its own file, and other
    models than fine-tuned ones are not shared.
    """
    with open_model(folder, choice.engine, choice.precision) as opened:
        if choice.engine != "onnx" or opened.is_export or not opened.is_finetuned:
            return None
        assert opened.task is not None
        return share_onnx(opened.network(opened.task.decoding.graph_part), choice.precision, target)


def predict_encoded(
    model: Any, task: Task, encoded: EncodedTexts, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """Predict each encoded example. `model` as in `Decoding.run`.

    Raises InputError for logits that are not finite.
    """
    logits = task.decoding.run(model, encoded, batch_size)
    check_finite(logits)  # else the likeliest label would be the first one
    if hasattr(model, "named_variables"):  # a graph shows no weights
        task = task.decoding.with_arrays(model.named_variables())
    return task.decoding.read_rows(logits, encoded)
