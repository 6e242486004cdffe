"""The body of `predict`: rows of texts → rows of predictions, some thousands at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_needed, check_numbers
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.inference.prediction_files import (
    ERROR,
    STANDARD,
    WRITTEN,
    cell_names,
    cells,
    check_output,
    prediction_file,
    text_names,
)
from roformer_tf.inference.text_files import TextFileConfig, no_text, report
from roformer_tf.kernels.accelerators import device_in_words
from roformer_tf.labelled.examples import Example, SkippedRows
from roformer_tf.labelled.reading import open_texts_to_predict
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.readers.records import Row, chunks
from roformer_tf.readers.streams import is_stdin
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.tags.schemes import UNTYPED
from roformer_tf.terminal import Progress, printable
from roformer_tf.translation import Message, Translator, terminal_language

# Texts in memory at a time; within them, those of similar length form batches.
CHUNK = 4096
# Fewer texts, if they have as many characters together.
CHUNK_CHARACTERS = 500_000
# Column of how many tokens of an example were not read, because it is too long. It is written where
# a person reads the predictions: with the texts, and in .csv and .xlsx.
TOKENS_CUT = "tokens_cut"
SHOWN = 5  # labels that the summary counts


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    r"""Predict texts with a fine-tuned model: a row for each, in their order.

    The predictions are a TSV with a header: the label and the probability of every label, or a
    number, or tags. A row that is empty or cannot be read keeps its place, without a prediction and
    with the problem in the column `error`. Texts longer than the model reads are counted; with
    --with-text, and in .csv and .xlsx, the column `tokens_cut` marks them.

    Examples:
        roformer-tf predict runs/reviews/model --input new.xlsx \
            --output answers.xlsx
        roformer-tf predict runs/reviews/model --input new.txt \
            --output answers.jsonl --top-k 3
    """

    model: Annotated[str, "MODEL"]
    """The model/ folder of a run of `roformer-tf finetune`; --model itself may be omitted."""
    input: Annotated[str, "FILE"] = STANDARD
    """One text a line, or a .tsv, .csv, .jsonl, .parquet, .xlsx or .conll file with the columns of
    training, at a path or a URL; "-" is the standard input."""
    output: Annotated[str, "FILE"] = STANDARD
    """File to write: a TSV, or, by its name, .jsonl, .csv or .xlsx (both for Excel); "-" is the
    standard output."""
    with_text: bool = False
    """Write the text next to its prediction."""
    top_k: int | None = None
    """List so many labels, the likeliest first, each with its probability. Default: a column for
    every label, or the likeliest 5 if there are more than 20."""
    labels: Annotated[tuple[str, ...], "LABEL"] = ()
    """Labels to predict instead of those of training, for texts of one column. The model must be
    one of pairs that was fine-tuned on natural language inference, or one of entities with label
    prompts."""
    template: str | None = None
    """With --labels: the sentence that a text entails if it has the label, which is {} in it.
    Default: a Chinese one that the text is about the label."""
    strict: bool = False
    """Stop, with nothing written, if a row is empty or cannot be read; all such rows are named."""
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch; long texts form smaller batches."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware has it, and probabilities change by some thousandths;
    int8 is faster on any CPU, and its cost is printed. Default: bfloat16 where --engine auto finds
    an engine and a CPU with instructions for it, else float32."""
    engine: Engine = "auto"
    """Keras on its backend, or on a CPU ONNX Runtime or OpenVINO. Default: the fastest that is
    installed and supports the model."""
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size", "top_k", at_least=1)
        if not self.labels:
            check_needed(self, "--labels", "template")


def predict_file(config: PredictConfig) -> None:
    """Predict every row of the input in order, and report on stderr.

    Raises InputError, and leaves no file, where no row is good, or under `strict` one is bad.
    """
    check_output(config.output, config.input, only=WRITTEN)
    finetuned = open_finetuned(
        config.model,
        config.engine,
        config.precision,
        batch_size=config.batch_size,
        text_columns=config.reading.text_columns,
    )
    report(*finetuned.notes)
    if config.labels:
        finetuned = finetuned.with_task(finetuned.task.with_labels(config.labels, config.template))
    task = finetuned.task.decoding.with_top_k(config.top_k)
    to_predict = open_texts_to_predict(config.input, task, config.reading.columns())
    rows = _all_good(to_predict.examples, config) if config.strict else to_predict.examples
    parts = chunks(rows, CHUNK, CHUNK_CHARACTERS, _characters)
    first = next(parts, [])  # an unreadable input is reported before a line is written
    if not first and not is_stdin(config.input):
        raise no_text(config.input)
    report(to_predict.report)
    table = _Table(task, config)
    with (
        prediction_file(config.output, table.names, task) as out,
        Progress(desc=Message("predict"), unit=Message("texts")) as bar,
    ):
        # Examples of similar length share a batch within a chunk, while rows are written in their
        # order.
        for chunk in chain([first], parts):
            good = [row for row in chunk if isinstance(row, Example)]
            encoded = task.labelling.encode(good, finetuned.tokenizer)
            predictions = finetuned.predict(good, encoded)
            for row in table.rows_of(chunk, predictions, encoded.cut(table.limit).tolist()):
                out.write(row)
            bar.update(len(chunk))
        # Raised within the context, so that no file is left.
        if 0 < table.count == table.skipped.count():
            raise InputError(
                f"{_bad(table.count, table.skipped)}\nFix them, or give a file with the columns of "
                "training."
            )
    if table.skipped.count():
        report(_bad(table.count, table.skipped))
    device = device_in_words(finetuned.choice.engine == "keras")
    report(table.summary([*out.notes(), Message("device: {device}", device=device)]))


class _Table:
    """The rows to write, and counts of them.

    Columns: texts on demand, the task's own, the error, and the tokens that were cut.
    """

    def __init__(self, task: Task, config: PredictConfig) -> None:
        self.task = task
        self.limit = None if task.long_texts == "windows" else task.max_length
        """Tokens to which long texts are cut; None if they are read in windows."""
        by_name = config.output.lower().endswith((".csv", ".xlsx"))
        # A long question is cut, although its context is read in windows.
        several = len(task.text_columns) > 1
        self.marked = (several or self.limit is not None) and (config.with_text or by_name)
        ours = [*cell_names(task), *([TOKENS_CUT] if self.marked else [])]
        self.texts = text_names(task.text_columns, ours) if config.with_text else ()
        self.names = [*self.texts, *ours]
        self.count = 0
        self.cut = 0
        """Examples of which tokens were cut."""
        self.skipped = SkippedRows(config.input)
        self.kinds: Counter[str] = Counter()
        """Predictions of each label, or entities of each type."""

    def rows_of(
        self, chunk: Sequence[Example | Row], predictions: Sequence[Prediction], cuts: Sequence[int]
    ) -> Iterator[dict[str, Any]]:
        """The rows of a chunk, by column; predictions and cut tokens of the good ones."""
        self.count += len(chunk)
        if self.task.metrics.kinds:
            labels = [prediction.label for prediction in predictions]
            self.kinds.update(self.task.metrics.count_kinds(labels))
        # Bad rows keep their place between the good ones, which have been predicted together.
        predicted = iter(zip(predictions, cuts, strict=True))
        for row in chunk:
            if isinstance(row, Row):
                self.skipped.add(row)
                # In the order of the columns: files other than .jsonl are written from the values
                # alone.
                yield dict.fromkeys(self.names) | {ERROR: row.problem}
                continue
            prediction, cut = next(predicted)
            self.cut += cut > 0
            cells_of_texts = self.task.labelling.as_cells(row) if self.texts else ()
            texts = dict(zip(self.texts, cells_of_texts, strict=True))
            marks = {TOKENS_CUT: cut or None} if self.marked else {}
            yield texts | cells(row, prediction, self.task) | marks

    def summary(self, notes: Sequence[str]) -> str:
        """One line on the whole file."""
        good = self.count - self.skipped.count()
        facts: list[str] = [
            Message("{good:,} of {rows:,} texts predicted", good=good, rows=self.count)
        ]
        known = [(kind, count) for kind, count in self.kinds.most_common(SHOWN) if count]
        if known:
            counts = ", ".join(f"{printable(kind)}: {count:,}" for kind, count in known)
            if sum(map(bool, self.kinds.values())) > SHOWN:
                counts += ", …"
            # Tags such as parts of speech mark no entities: the task has no column of them.
            if UNTYPED in self.kinds and "O" not in self.task.labels:  # word segmentation
                facts.append(Message("words {count:,}", count=self.kinds[UNTYPED]))
            elif self.task.labelling.has_spans or "entities" in cell_names(self.task):
                facts.append(Message("entities {counts}", counts=counts))
            else:
                facts.append(Message("labels {counts}", counts=counts))
        if self.cut:
            where = Message("--with-text marks them")
            if self.marked:
                where = Message("column {column}", column=TOKENS_CUT)
            values = {"cut": self.cut, "length": self.task.max_length, "where": where}
            facts.append(Message("{cut:,} cut to fit {length} tokens ({where})", **values))
        _ = Translator(terminal_language())
        return _("; ").join(map(_, [*facts, *notes])) + _(".")


def _bad(count: int, skipped: SkippedRows) -> str:
    """Which of so many rows have no prediction, and why."""
    lines = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
    values = {"bad": skipped.count(), "rows": count, "lines": lines}
    return Message("rows without a prediction: {bad:,} of {rows:,}\n{lines}", **values)


def _all_good(rows: Iterable[Example | Row], config: PredictConfig) -> list[Example | Row]:
    """All rows, in memory. Raises InputError, naming them all, if some are bad."""
    skipped = SkippedRows(config.input)
    good = skipped.good(rows)
    if bad := skipped.count():
        raise InputError(f"{_bad(len(good) + bad, skipped)}\nFix them, or run without --strict.")
    return good


def _characters(row: Example | Row) -> int:
    return sum(map(len, row.texts)) if isinstance(row, Example) else 0
