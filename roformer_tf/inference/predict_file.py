"""The body of `predict`: lines of texts → lines of answers, some thousands at a time."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TextIO, TypeAlias

from tqdm import tqdm

from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, file_beside, is_folder
from roformer_tf.inference.answers import (
    bad_cells,
    cell_names,
    cells,
    json_line,
    one_line,
    tsv_line,
)
from roformer_tf.inference.predict import InferencePrecision, load_finetuned, predict
from roformer_tf.inference.rows import BATCH_SIZE
from roformer_tf.labelled.columns import FirstLine
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import BadLine, stream_examples

STANDARD = "-"
CHUNK = 4096
"""Texts that are read before they are answered, those of like length together."""
CHUNK_CHARACTERS = 500_000
"""Or fewer, if they are as long as that together."""
SHOWN = 5  # bad lines that are told one by one

Chunk: TypeAlias = Sequence[Example | BadLine]


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Answer texts with a fine-tuned model: a line for each, in their order.

    The answers are a TSV with a header: the label as it was spelled in training and the
    probability of every label, or a number, or tags. A line that cannot be read is answered by
    what is wrong with it, in the column `error`.
    """

    model: str
    """The model/ folder of a run of `roformer-tf finetune`; --model itself may be left out."""
    input: str = STANDARD
    """One text a line, or a .tsv, .csv, .jsonl, .parquet, .xlsx or .conll file with the columns
    that the model was trained on, at a path or a URL; "-" is the standard input."""
    output: str = STANDARD
    """File to write, of JSON lines if its name ends in .jsonl; "-" is the standard output."""
    batch_size: int = BATCH_SIZE
    """Most texts that the model reads at once; of long ones it reads fewer."""
    precision: InferencePrecision = "float32"
    """bfloat16 is faster where the hardware has it; probabilities move by some thousandths."""
    encoding: str = "auto"
    """Of the input, such as utf-8 or gb18030; "auto" finds out."""
    first_line: FirstLine = "auto"
    """What the first line of a tsv, csv or xlsx is: a header or an example; "auto" finds out."""
    sheet: str | None = None
    """Sheet of an .xlsx input, by its name; unset, the first."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, but must be at least 1.")
        if is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")


@dataclass
class Tally:
    """What was read so far."""

    lines: int = 0
    bad: int = 0
    examples: list[BadLine] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk, and keep the first bad lines."""
        bad = [item for item in chunk if isinstance(item, BadLine)]
        self.lines += len(chunk)
        self.bad += len(bad)
        self.examples += bad[: SHOWN - len(self.examples)]

    def __str__(self) -> str:
        shown = [f"  {item.place} {item.problem}" for item in self.examples]
        what = f"{self.bad:,} of {self.lines:,} lines could not be read, the first of them:"
        return "\n".join([what, *shown])


def predict_file(config: PredictConfig) -> None:
    """Answer every line of the input, and tell of the bad ones on stderr.

    Raises InputError, and leaves no file, where no line is good.
    """
    if config.output != STANDARD:
        check_writable(config.output)
    model, tokenizer, task = load_finetuned(config.model, config.precision)
    line = json_line if config.output.endswith(".jsonl") else tsv_line

    def answers(chunk: Chunk) -> Iterator[str]:
        good = [item for item in chunk if isinstance(item, Example)]
        predictions = iter(predict(model, tokenizer, task, good, config.batch_size))
        for item in chunk:
            if isinstance(item, BadLine):
                yield line(bad_cells(item.problem, task), task)
            else:
                yield line(cells(item, next(predictions), task), task)

    examples = stream_examples(config.input, task, config.encoding, config.first_line, config.sheet)
    chunks = _chunks(examples)
    first = next(chunks, [])  # what is wrong with the whole input is said before a line is written
    tally = Tally()
    with _opened(config.output) as out, tqdm(unit=" texts", disable=None) as bar:
        if line is tsv_line:
            out.write("\t".join(map(one_line, cell_names(task))) + "\n")
        for chunk in chain([first], chunks):
            out.writelines(f"{answer}\n" for answer in answers(chunk))
            out.flush()
            tally.add(chunk)
            bar.update(len(chunk))
        if 0 < tally.lines == tally.bad:
            raise InputError(f"{tally}\nMend them, or give a file with the columns of training.")
    if tally.bad:
        print(tally, file=sys.stderr)


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


@contextmanager
def _opened(output: str) -> Iterator[TextIO]:
    """A file that is written whole or not at all, or the standard output, in UTF-8.

    A lone surrogate, which JSON may hold, becomes its escape.
    """
    text: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    if output == STANDARD:
        with (
            suppress(BrokenPipeError),  # as by `| head`: who reads has seen enough
            open(sys.stdout.fileno(), "w", closefd=False, **text) as out,
        ):
            yield out
        return
    try:
        with file_beside(output) as beside, beside.open("w", **text) as out:
            yield out
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}. Name another file.") from None
