"""The body of `predict`: lines of texts → lines of answers, some thousands at a time."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, is_folder
from roformer_tf.inference.answer_files import STANDARD, answer_file, check_format
from roformer_tf.inference.answers import bad_cells, cell_names, cells, text_names
from roformer_tf.inference.engines import int8_cost, open_finetuned
from roformer_tf.inference.predict import predict_encoded
from roformer_tf.kernels.devices import device_in_words
from roformer_tf.labelled.columns import FirstLine
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import ColumnsConfig, open_unanswered
from roformer_tf.labelled.skipped import BadLine, SkippedRows
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.readers.streams import is_stdin
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.terminal import Progress

CHUNK = 4096
"""Texts that are read before they are answered, those of like length together."""
CHUNK_CHARACTERS = 500_000
"""Or fewer, if they are as long as that together."""
TOKENS_CUT = "tokens_cut"
"""Column of how many tokens of a text, or of a pair, were too many to be read.

It is for people's eyes: where the text stands beside its answer, and in .csv and .xlsx."""
SHOWN = 5  # labels whose answers are counted in the summary

Chunk: TypeAlias = Sequence[Example | BadLine]


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Answer texts with a fine-tuned model: a line for each, in their order.

    The answers are a TSV with a header: the label as it was spelled in training and the
    probability of every label, or a number, or tags. A row that is empty or cannot be read has a
    line, too: without an answer, and with what is wrong in the column `error`. How many tokens were
    cut off a text longer than the model reads is said, and stands, where people look (--with-text,
    .csv, .xlsx), in the column `tokens_cut`.
    """

    model: str
    """The model/ folder of a run of `roformer-tf finetune`; --model itself may be left out."""
    input: str = STANDARD
    """One text a line, or a .tsv, .csv, .jsonl, .parquet, .xlsx or .conll file with the columns
    that the model was trained on, at a path or a URL; "-" is the standard input."""
    output: str = STANDARD
    """File to write: a TSV, or, by its name, .jsonl, .csv or .xlsx, both as Excel opens them; "-"
    is the standard output."""
    with_text: bool = False
    """Write the text beside its answer."""
    top_k: int | None = None
    """List so many labels, the likeliest first, each with its probability; unset, every label has a
    column, or of more than 20 the likeliest 5 are listed."""
    text_columns: tuple[str, ...] = ()
    """Columns of the texts in the input, by name or by number from 1, where they are not called as
    in training."""
    strict: bool = False
    """Stop, with nothing written, if a row is empty or cannot be read; all such rows are named."""
    batch_size: int = BATCH_SIZE
    """Most texts that the model reads at once; of long ones it reads fewer."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware has it, and probabilities move by some thousandths;
    int8 is faster on any processor, and what it costs is said. Unset, bfloat16 where --engine auto
    finds one that multiplies it on this processor, else float32."""
    engine: Engine = "auto"
    """What computes: Keras on its backend, or on a processor ONNX Runtime or OpenVINO; auto, the
    fastest that is installed and knows the model."""
    encoding: str = "auto"
    """Of the input, such as utf-8 or gb18030; "auto" finds out."""
    first_line: FirstLine = "auto"
    """What the first line of a tsv, csv or xlsx is: a header or an example; "auto" finds out."""
    sheet: str | None = None
    """Sheet of an .xlsx input, by its name; unset, the first that is not hidden, nor empty."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, but must be at least 1.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}, but must be at least 1.")
        if is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")


class Tally:
    """What was read and answered so far."""

    def __init__(self, source: str, task: Task, marked: bool = False) -> None:
        self.task, self.marked = task, marked
        self.rows = 0
        self.cut = 0
        """Texts that are longer than the model reads."""
        self.skipped = SkippedRows("stdin" if is_stdin(source) else source)
        self.kinds: Counter[str] = Counter()
        """How often each label is answered, or entities of each type are found."""

    def add(self, chunk: Chunk, predictions: Sequence[Prediction], cut: Sequence[int]) -> None:
        """Count a chunk."""
        self.rows += len(chunk)
        self.cut += sum(map(bool, cut))
        for item in chunk:
            if isinstance(item, BadLine):
                self.skipped.add(item)
        if self.task.metrics.kinds:
            self.kinds.update(self.task.metrics.count_kinds([one.label for one in predictions]))

    def bad(self) -> str:
        """Which rows have no answer, and why."""
        bad = self.skipped.rows
        rows = "1 row has" if bad == 1 else f"{bad:,} of {self.rows:,} rows have"
        return "\n".join(
            [f"{rows} no answer:", *(f"  {line}" for line in self.skipped.lines(with_blank=True))]
        )

    def summary(self, notes: Sequence[str]) -> str:
        """What was done, in one line."""
        good = self.rows - self.skipped.rows
        facts = [f"{good:,} of {self.rows:,} texts answered"]
        known = [(kind, count) for kind, count in self.kinds.most_common(SHOWN) if count]
        if known:
            name = "entity" if self.task.labelling.has_units else "label"
            more = ", …" * (sum(map(bool, self.kinds.values())) > SHOWN)
            facts.append(", ".join(f"{name} {kind}: {count:,}" for kind, count in known) + more)
        if self.cut:
            length = self.task.max_length
            where = f"column {TOKENS_CUT}" if self.marked else "--with-text marks them"
            facts.append(f"{self.cut:,} longer than {length} tokens and cut ({where})")
        return "; ".join([*facts, *notes, f"device: {device_in_words()}"]) + "."


def predict_file(config: PredictConfig) -> None:
    """Answer every row of the input in order, and tell on stderr what was done.

    Raises InputError, and leaves no file, where no row is good, or under `strict` one is bad.
    """
    if config.output != STANDARD:
        check_format(config.output)
        check_writable(config.output)
    opened = open_finetuned(config.model, config.engine, config.precision, lossy=True)
    if opened.choice.said:
        print(f"{opened.choice.said}.", file=sys.stderr)
    if config.precision == "int8":
        print(int8_cost(config.model), file=sys.stderr)
    model, tokenizer = opened.model, opened.tokenizer
    task = opened.task.decoding.with_top_k(config.top_k)
    columns = ColumnsConfig(
        text_columns=config.text_columns,
        first_line=config.first_line,
        encoding=config.encoding,
        sheet=config.sheet,
    )
    unanswered = open_unanswered(config.input, task, columns)
    rows = _all_good(unanswered.examples, config, task) if config.strict else unanswered.examples
    chunks = _chunks(rows)
    first = next(chunks, [])  # what is wrong with the whole input is said before a line is written
    if unanswered.said:
        print(unanswered.said, file=sys.stderr)
    marked = config.with_text or config.output.lower().endswith((".csv", ".xlsx"))
    tally = Tally(config.input, task, marked)
    table = _Table(task, config.with_text, marked)
    with (
        answer_file(config.output, table.names, task) as out,
        Progress(desc="predict", unit=" texts") as bar,
    ):
        for chunk in chain([first], chunks):
            good = [item for item in chunk if isinstance(item, Example)]
            encoded = task.labelling.encode(good, tokenizer)
            predictions = predict_encoded(model, task, encoded, config.batch_size)
            cut = [max(0, n - task.max_length) * table.cuts for n in encoded.lengths.tolist()]
            answers = iter(zip(predictions, cut, strict=True))
            for item in chunk:
                out.write(
                    table.bad_row(item)
                    if isinstance(item, BadLine)
                    else table.row(item, *next(answers))
                )
            out.flush()
            tally.add(chunk, predictions, cut)
            bar.update(len(chunk))
        if 0 < tally.rows == tally.skipped.rows:
            raise InputError(
                f"{tally.bad()}\nMend them, or give a file with the columns of training."
            )
    if tally.skipped.rows:
        print(tally.bad(), file=sys.stderr)
    print(tally.summary(out.notes()), file=sys.stderr)


class _Table:
    """The columns of the answers: texts on demand, the task's own, the error, and what was cut."""

    def __init__(self, task: Task, with_text: bool, marked: bool) -> None:
        self.task = task
        self.cuts = task.long_texts != "windows" and not task.labelling.fixed_long_texts
        """Whether the task cuts texts: else it reads all of them, and there is nothing to mark."""
        self.marked = marked and self.cuts
        ours = [*cell_names(task), *[TOKENS_CUT] * self.marked]
        several = len(task.text_columns) > 1
        texts = [
            f"text{name * several}" if name.isdecimal() else name for name in task.text_columns
        ]
        self.texts = text_names(texts, ours) if with_text else ()
        self.names = [*self.texts, *ours]

    def row(self, example: Example, prediction: Prediction, cut: int) -> dict[str, Any]:
        """An answer by column."""
        texts = dict(zip(self.texts, example.texts, strict=bool(self.texts)))
        found = texts | cells(example, prediction, self.task)
        return found | ({TOKENS_CUT: cut or None} if self.marked else {})

    def bad_row(self, line: BadLine) -> dict[str, Any]:
        """No answer, by column, and the reason."""
        return dict.fromkeys(self.names) | bad_cells(line.problem, self.task)


def _all_good(
    rows: Iterable[Example | BadLine], config: PredictConfig, task: Task
) -> list[Example | BadLine]:
    """All rows, in memory. Raises InputError, naming them all, if some are bad."""
    found = list(rows)
    tally = Tally(config.input, task)
    tally.add(found, [], [])
    if tally.skipped.rows:
        raise InputError(f"{tally.bad()}\nMend them, or run without --strict.")
    return found


def _chunks(items: Iterable[Example | BadLine]) -> Iterator[Chunk]:
    """Lists of CHUNK items, or of as many as have CHUNK_CHARACTERS together."""
    chunk: list[Example | BadLine] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += sum(map(len, item.texts)) if isinstance(item, Example) else 0
        if len(chunk) == CHUNK or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
