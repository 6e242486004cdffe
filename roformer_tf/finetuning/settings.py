"""The settings of a fine-tuning run: the flags of `finetune`."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from roformer_tf.checkpoints.registry import MINI
from roformer_tf.errors import MAX_SEED, InputError, check_needed, check_numbers
from roformer_tf.export.formats import Format
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import LongTexts
from roformer_tf.tasks.lexical import Wanted
from roformer_tf.tasks.losses import LossConfig, VectorConfig
from roformer_tf.tasks.table import TaskName
from roformer_tf.training.settings import FinetuneOptimizerConfig, Precision
from roformer_tf.translation import AskedLanguage


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    r"""Fine-tune a checkpoint on labelled texts, and write a report.

    If the process is killed, the same command resumes from the last checkpoint.

    Examples:
        roformer-tf finetune --train examples/reviews.csv --output runs/reviews
        roformer-tf finetune --checkpoint runs/mine/model --train train.tsv \
            --valid valid.tsv --test test.tsv --epochs 5 --output runs/pairs
    """

    checkpoint: Annotated[str, "MODEL"] = MINI
    """Released zip or name, owner/name of Hugging Face or modelscope:owner/name, folder with a
    checkpoint, or the model/ of a run. Default: our own small checkpoint, which comes with this
    package."""
    train: Annotated[str, "FILE"]
    """Labelled examples: tsv, csv, json, parquet, arrow, xlsx, CoNLL or brat, as a path or a URL.
    Text files except brat's may be compressed with gz, xz or zst."""
    output: Annotated[str, "DIR"]
    """Folder of the run: `model/`, the report, metrics, checkpoints."""
    valid: Annotated[str | None, "FILE"] = None
    """Validation set, which selects the best epoch. Default: a part of --train."""
    test: Annotated[str | None, "FILE"] = None
    """Test set, for the figures of the report. Default: a part of --train, or none if --valid is
    given."""
    valid_share: float = 0.1
    """Fraction of --train that becomes the validation set."""
    test_share: float = 0.1
    """Fraction of --train that becomes the test set, without --valid and --test; 0 for none."""
    task: TaskName | None = None
    """The task; spans: entities that may be nested. Default: detected from the data, and
    printed."""
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    label_names: Annotated[tuple[str, ...], "NAME"] = ()
    """Names of the labels for everything that shows them, in the order of the labels in the data:
    for 0 and 1 such as `bad good`."""
    max_length: int | Literal["auto"] = "auto"
    """Maximum number of tokens of a sequence. "auto": hardly any training text is longer."""
    long_texts: LongTexts = "head"
    """Longer texts lose their end ("head") or middle ("head-tail"), or are read in overlapping
    "windows"."""
    pooling: Literal["cls", "mean", "pooler"] | None = None
    """What a prediction is computed from. Default: the first token ("mean" for ranking); for
    vectors, what the checkpoint was trained with: a sim model's pooler, otherwise the mean."""
    method: Literal["auto", "full", "vectors", "cloze"] = "auto"
    """For classification: "full" trains all weights; "vectors" keeps the encoder as it is, and
    fits a logistic regression to its vectors of all examples of --train. "auto", with at most 64
    examples of each label and no setting of the training: what is better on the validation set, or
    without --valid in a cross-validation; with fewer than 8 it is "vectors". Otherwise "full".
    "cloze" has the checkpoint's head for masks fill the names of the labels into --pattern, and
    trains all weights."""
    pattern: Annotated[str, "TEXT"] = ""
    """For --method cloze: a sentence with one {text} and one {label}."""
    crf: bool = False
    """For tagging: also learn scores for each pair of successive labels (a conditional random
    field), at --crf-learning-rate."""
    label_prompts: bool = False
    """For spans: read a text once for each label, with the name of the label before it. Such a
    model can be asked for labels that training did not have. It reads a text as often as there are
    labels, and cannot be exported."""
    from_scratch: bool = False
    """Use only the architecture and vocabulary of the checkpoint, for comparison."""
    adapt: Literal["auto", "yes", "no"] = "no"
    """First train the checkpoint for some minutes to fill masks in the texts of --train and
    --unlabelled. "auto" fine-tunes with and without, and keeps what is better on the validation
    set."""
    unlabelled: Annotated[tuple[str, ...], "FILE"] = ()
    """Files of further texts for --adapt or --teacher, in the formats of `predict`. The teacher's
    probabilities are their only targets."""
    epochs: int | Literal["auto"] = "auto"
    """Passes over the training examples. "auto" is 3, for tags 6, for answers to questions 12. Up
    to 10 with a few hundred examples; 2 or 1 with many at a high learning rate, as small models
    have it: more would overfit."""
    batch_size: int = 32
    """Examples per batch."""
    optimizer: FinetuneOptimizerConfig = dataclasses.field(default_factory=FinetuneOptimizerConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    vectors: VectorConfig = dataclasses.field(default_factory=VectorConfig)
    dropout: float | None = None
    """Dropout rate on hidden states and attention. Default: the checkpoint's; 0.1 for answers to
    questions."""
    precision: Precision = "auto"
    """Keras dtype policy. "auto": bfloat16 matrix products if the device is faster with them."""
    metric: str | None = None
    """Metric on the validation set that selects the best weights. Default: the first of the task
    that the data can give."""
    patience: int = 0
    """Stop after this number of epochs without a better value of the metric; 0: never early."""
    seed: int = 0
    """Seed of the split, the new head, the order of the examples and dropout."""
    seeds: int = 1
    """Number of trainings, each with another seed; the report has mean and standard deviation."""
    folds: int = 0
    """Cross-validation: this number of trainings, each validated on the part that it did not
    see."""
    sweep: bool = False
    """Also train with half, two times and four times the learning rate, and keep the best. With
    "auto", around the default rate for the model's size."""
    baseline: bool = True
    """Fit a simple baseline (TF-IDF) on the same examples, for comparison."""
    compare_without_teacher: bool = False
    """Also train without --teacher and --unlabelled, with the same settings and number of epochs,
    and compare both in the report. The saved model is always that with the teacher."""
    lexical_features: Wanted = "auto"
    """Combine the model's predictions with those of TF-IDF, by a weight that is chosen on the
    validation set; such a model cannot be exported. "auto": if that is better there beyond
    chance, and not with --export or --no-baseline."""
    language: AskedLanguage = "auto"
    """Language of the report and the model card, and of messages. "auto": Chinese if most letters
    of the texts are Chinese; for messages, that of the locale."""
    first_stage: Annotated[str | None, "MODEL"] = None
    """For reranking: a model of sentence vectors, such as that of `search`. Its hybrid search is
    what the reranker orders. Default: BM25 alone."""
    keep_useless: bool = False
    """For reranking: write the model even if it does not improve the order of the search on the
    validation set."""
    export: tuple[Format, ...] = ()
    """Formats to write under OUTPUT/export/ at the end."""
    save_every: int = 500
    """Steps between two checkpoints; there is also one after each epoch."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""

    def __post_init__(self) -> None:
        check_numbers(self, "epochs", "batch_size", "seeds", "save_every", "log_every", at_least=1)
        check_numbers(self, "patience", "folds", at_least=0)
        check_numbers(self, "valid_share", "test_share", at_least=0, below=1)
        # A run with several seeds uses the following numbers, too.
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED - self.seeds)
        # [CLS], one token and [SEP]; a saved model has a table of all positions.
        check_numbers(self, "max_length", at_least=3, at_most=100_000, example="256")
        if self.batch_size % self.vectors.micro_batches:
            raise InputError(
                f"a batch of {self.batch_size} cannot be divided into {self.vectors.micro_batches} "
                "micro-batches of one size. Give a --batch-size that is a multiple of "
                "--micro-batches."
            )
        if not (self.valid_share or self.valid or self.folds):
            raise InputError(
                "valid_share is 0, but the best weights need a validation set. Give --valid, or a "
                "fraction above 0."
            )
        marks = self.pattern.count("{text}") == self.pattern.count("{label}") == 1
        if (self.method == "cloze") != bool(self.pattern) or (self.pattern and not marks):
            raise InputError(
                f"method is {self.method} and --pattern {self.pattern!r}, but --method cloze needs "
                "a sentence with one {text} and one {label}, such as --pattern "
                "'这是一条{label}新闻。{text}'. Give both or neither."
            )
        if self.lexical_features == "yes" and self.export:
            raise InputError(
                "a model with lexical features cannot be exported. Remove --export, or give "
                "--lexical-features no."
            )
        if self.adapt == "no" and not self.loss.teacher:
            check_needed(self, "--adapt yes, --adapt auto or --teacher", "unlabelled")
        if not self.loss.teacher:
            check_needed(self, "--teacher", "compare_without_teacher")
        if not self.crf:
            check_needed(self.optimizer, "--crf", "crf_learning_rate")
        if self.adapt != "no" and self.from_scratch:
            raise InputError(
                "--from-scratch uses no weights of the checkpoint, so there is nothing to adapt. "
                "Remove --adapt or --from-scratch."
            )
        if self.adapt == "auto" and self.folds:
            raise InputError(
                "--adapt auto needs a validation set that no training sees. Give --adapt yes or "
                "no, or remove --folds."
            )
        if self.folds and (self.valid or self.seeds > 1 or self.sweep):
            raise InputError(
                "--folds creates validation sets. Remove --valid, --seeds and --sweep."
            )
