"""The settings of a fine-tuning: the flags of `finetune`."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from roformer_tf.errors import MAX_SEED, InputError, check_number, check_numbers
from roformer_tf.export.formats import Format
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import LongTexts
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import TaskName
from roformer_tf.training.optimizers.settings import FinetuneOptimizerConfig
from roformer_tf.training.settings import Precision
from roformer_tf.translation import AskedLanguage


@dataclass(frozen=True)
class VectorConfig:
    """What sentence vectors are trained by, for the task that makes them."""

    loss: Literal["auto", "softmax", "cosent", "classifier"] = "auto"
    """For vectors: "softmax" over the cosines of a batch, times 20, where texts belong together;
    "cosent" where pairs have scores; "classifier" for RoFormer-Sim's supervised form, which tells
    the score by [a, b, |a - b|]; "auto" is the first or second, as the data are."""
    hard_negatives: int = 0
    """For vectors: texts that are held against each example, besides those of its batch: the ones
    that the model takes for the nearest, though they do not belong to it."""
    dimensions: tuple[int, ...] = ()
    """For vectors: lengths to which they may be cut afterwards, such as 64 128 256; the whole one
    is always trained too."""
    teacher: str | None = None
    """For paraphrases: a model whose cosines of the texts their vectors are trained to have, as in
    RoFormer-Sim's second stage, in place of the softmax over a batch."""
    pieces: int = 1
    """For vectors: pieces in which a batch is encoded, one after the other and twice: batches
    larger than memory. The gradient is that of the whole batch."""

    def __post_init__(self) -> None:
        check_numbers(self, "hard_negatives", at_least=0)
        check_numbers(self, "pieces", at_least=1)
        for size in self.dimensions:
            check_number("a number of --dimensions", size, at_least=1)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Fine-tune a checkpoint on labelled texts, and report on what came out.

    Killed, the same command continues where the last checkpoint stands.
    """

    checkpoint: str
    """Released zip or name, folder with a checkpoint, or the model/ of a run."""
    train: str
    """Labelled examples: tsv, csv, jsonl, parquet, xlsx or CoNLL, at a path or a URL; all but
    parquet and xlsx may be compressed, as gz, xz or zst."""
    output: str
    """Folder of the run: `model/`, the report, metrics, checkpoints."""
    valid: str | None = None
    """Examples that choose the best epoch; unset, a part of --train."""
    test: str | None = None
    """Examples that the report judges by; unset, a part of --train, unless --valid is given."""
    valid_share: float = 0.1
    """Share of --train that becomes the validation set."""
    test_share: float = 0.1
    """Share of --train that becomes the test set; 0 for none."""
    task: TaskName | None = None
    """What is learnt; unset, it is guessed from the data, and said."""
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    max_length: int | Literal["auto"] = "auto"
    """Most tokens of a row; "auto" is where hardly a training text is longer."""
    long_texts: LongTexts = "head"
    """Longer texts are cut, cut in the middle, or read in overlapping windows."""
    pooling: Literal["cls", "mean", "pooler"] | None = None
    """What a prediction is computed from. Default: the first token ("mean" for ranking); for
    vectors, what the checkpoint was trained with: a sim model's pooler, else the mean."""
    crf: bool = False
    """For tagging: learn as well what labels score behind each other (a conditional random field),
    at --crf-learning-rate."""
    from_scratch: bool = False
    """Take only the checkpoint's architecture and vocabulary, for comparison."""
    epochs: int | Literal["auto"] = "auto"
    """Passes over the training examples; "auto" is 3, but 2 or 1 of many examples at a high
    learning rate, as small models have it: they would learn them by heart."""
    batch_size: int = 32
    """Examples a batch."""
    optimizer: FinetuneOptimizerConfig = dataclasses.field(default_factory=FinetuneOptimizerConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    vectors: VectorConfig = dataclasses.field(default_factory=VectorConfig)
    dropout: float | None = None
    """Dropout rate on hidden states and attention; unset, what the checkpoint says."""
    precision: Precision = "auto"
    """Keras dtype policy; "auto" takes bfloat16 products where the device is fast at them."""
    metric: str | None = None
    """Figure on the validation set that the best weights are kept by; unset, the task's usual."""
    patience: int = 0
    """Stop after so many epochs without a better figure; 0, never early."""
    seed: int = 0
    """Seed of the split, the new head, the order of the examples and dropout."""
    seeds: int = 1
    """Trainings with seeds of their own; the report gives mean and deviation."""
    folds: int = 0
    """Cross-validation: so many trainings, each judged on the part it has not seen."""
    sweep: bool = False
    """Try half, two times and four times the learning rate too, and keep the best; where none is
    given, around that of the model's size."""
    baseline: bool = True
    """Fit a simple baseline (TF-IDF) on the same examples, to compare with."""
    language: AskedLanguage = "auto"
    """Of the report and the model card; "auto" is Chinese where most letters of the texts are."""
    export: tuple[Format, ...] = ()
    """Formats to write under OUTPUT/export/ when done."""
    save_every: int = 500
    """Steps between two checkpoints, beside those at the end of an epoch."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""

    def __post_init__(self) -> None:
        check_numbers(self, "epochs", "batch_size", "seeds", "save_every", "log_every", at_least=1)
        check_numbers(self, "patience", "folds", at_least=0)
        check_numbers(self, "valid_share", "test_share", at_least=0, below=1)
        # A run with several seeds takes the next ones, too.
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED - self.seeds)
        if not (self.valid_share or self.valid or self.folds):
            raise InputError(
                "valid_share is 0, but something must choose the best weights. Give --valid, or a "
                "share above 0."
            )
        if self.folds == 1:
            raise InputError("folds is 1, but cross-validation needs at least 2.")
        if self.folds and (self.valid or self.seeds > 1 or self.sweep):
            raise InputError(
                "--folds makes validation sets of its own: leave --valid, --seeds and --sweep out."
            )
        if self.max_length != "auto" and self.max_length < 3:
            raise InputError(
                f"max_length is {self.max_length}, but a row holds at least [CLS], one token and "
                "[SEP]. Give 3 or more, such as 256."
            )
