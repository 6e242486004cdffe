"""Labelled examples for fine-tuning with Keras' `compile` and `fit`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from roformer_tf.checkpoints.archives import LEXICAL_FILE
from roformer_tf.engines.choice import KERAS
from roformer_tf.errors import InputError, check_choice, check_type_and_number
from roformer_tf.files import remove
from roformer_tf.inference.opening import Finetuned
from roformer_tf.labelled.batches import RowBatches
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example, LongTexts
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.labelled.splits import split_examples
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.padding import SPECIALS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.fitting import epochs

if TYPE_CHECKING:
    from roformer_tf.models.pretrained import PretrainedModel


@dataclass(frozen=True)
class LabelledDataset:
    """Examples and their task.

        train, valid = LabelledDataset.from_file("reviews.tsv").split(valid=0.2)
        model.fit(train.batches(model.tokenizer), shuffle=False)
        valid.predict(model)

    A model for it has `task.outputs` logits. Raises InputError for other values than examples and
    a task: write data in memory to a file first, and read it with `from_file`.
    """

    examples: Sequence[Example]
    task: Task

    def __post_init__(self) -> None:
        # A generator would be used up before the training begins.
        is_list = isinstance(self.examples, Sequence)
        are_examples = is_list and all(isinstance(x, Example) for x in self.examples)
        if not (are_examples and isinstance(self.task, Task)):
            raise InputError(
                "LabelledDataset(examples, task) needs a list of Example and a Task. The usual way "
                "is LabelledDataset.from_file(path), which creates both."
            )

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        task: str | None = None,
        *,
        max_length: int = 512,
        long_texts: LongTexts = "head",
        columns: ColumnsConfig | None = None,
    ) -> "LabelledDataset":
        """Read a labelled file, as `roformer-tf finetune --train` does.

        task: its name, as for `--task`. Default: detected from the columns.
        max_length: maximum tokens of a sequence; `long_texts`: what happens to longer ones.
        columns: which columns hold texts and labels. Default: they are detected. Raises InputError
        for a file that cannot be read, where task or columns are unclear, and for invalid settings.
        """
        if task is not None:
            check_choice("task", task, TASKS)
        check_type_and_number("max_length", max_length, whole=True, at_least=SPECIALS + 1)
        check_choice("long_texts", long_texts, get_args(LongTexts))
        columns = columns or ColumnsConfig()
        if not isinstance(columns, ColumnsConfig):
            raise InputError(
                f"columns is {columns!r}, but must be a ColumnsConfig of "
                "roformer_tf.labelled.columns, such as ColumnsConfig(label_column='stars')."
            )
        layout = find_layout(path, columns, task, TASKS)
        examples = read_examples(path, layout, columns)
        learned = layout.task_of(examples, columns, long_texts, max_length=max_length)
        return cls(examples, learned)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.examples)

    def split(self, valid: float = 0.1, seed: int = 0) -> "tuple[LabelledDataset, LabelledDataset]":
        """Split into training examples and, of this fraction, validation examples.

        Equal texts stay together, and labels are as frequent in both. Raises InputError where one
        would be empty.
        """
        check_type_and_number("valid", valid, above=0, below=1, example="0.1")
        train, held_out, _ = split_examples(self.examples, type(self.task), (valid, 0.0), seed)
        return LabelledDataset(train, self.task), LabelledDataset(held_out, self.task)

    def batches(self, tokenizer: RoFormerTokenizer, batch_size: int = 32, seed: int = 0) -> Any:
        """Batches for `fit` and `evaluate`; each epoch has every sequence once, in another order.

        (inputs, targets, weights): `token_ids` and `segment_ids` (batch_size, T) int32, targets for
        the task's loss, weights float32, 0 where the last batch is filled up. So give a loss of
        Keras `reduction="mean_with_sample_weight"`, and metrics as `weighted_metrics`. Call `fit`
        with `shuffle=False`; otherwise it warns on TensorFlow that it does not shuffle.
        Raises InputError for a label that the task does not know, and for a task whose loss
        compares several sequences, such as multiple-choice and embedding.
        """
        if self.task.separate_texts or self.task.compares:
            raise InputError(f"{self.task.name} compares sequences: use roformer_tf.finetune.")
        check_type_and_number("batch_size", batch_size, whole=True, at_least=1)
        encoded = self.task.labelling.encode(self.examples, tokenizer)
        targets, weights = self.task.labelling.row_targets(encoded, self.examples)
        data = RowBatches(encoded, targets, weights)
        return epochs(data.batches(batch_size, seed), data.steps_per_epoch(batch_size))

    def predict(self, model: "PretrainedModel", batch_size: int = BATCH_SIZE) -> list[Prediction]:
        """The model's prediction for each example, in order, whatever its label.

        Raises InputError for a model without a tokenizer.
        """
        if model.tokenizer is None:
            raise InputError("the model has no tokenizer. Set model.tokenizer to the right one.")
        opened = Finetuned(model, model.tokenizer, self.task, KERAS, batch_size=batch_size)
        return opened.predict(self.examples)

    def save_model(self, model: "PretrainedModel", folder: str | Path) -> None:
        """Write model, tokenizer and task: a folder for `roformer-tf predict`, serve and export."""
        model.config = self.task.decoding.described_in(model.config)
        if model.tokenizer is not None:
            model.tokenizer = model.tokenizer.replaced(units=self.task.units)
        model.save_pretrained(folder, max_length=self.task.max_length)
        self.task.save(folder)
        remove(Path(folder) / LEXICAL_FILE)  # of a model that was in the folder before
