"""The body of `similarity`: pairs of texts → the cosines of their vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, TextIO

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.inference.embed import TextEmbedder, VectorSettings
from roformer_tf.inference.prediction_files import STANDARD, check_output, opened_text, tsv_line
from roformer_tf.inference.text_files import TextFileConfig, check_not_blank, checked_texts, report
from roformer_tf.readers.records import CHUNK, chunks
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message

# Columns of a file of pairs.
PAIR = ("text_a", "text_b")
# The column of their cosines.
SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    r"""Print how similar texts are: the cosine of their vectors, from -1 to 1.

    For two texts one number; for more a matrix, with a line and a column for each. For a file of
    pairs a TSV with the columns text_a, text_b, score.

    Examples:
        roformer-tf similarity \
            --model chinese_roformer-sim-char-base '今天天气很好' '天气不错'
        roformer-tf similarity --model runs/vectors/model --input pairs.tsv \
            --output scores.tsv
    """

    model: Annotated[str, "MODEL"]
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run."""
    text: tuple[str, ...] = ()
    """Two texts, or more."""
    input: Annotated[str | None, "FILE"] = None
    """File of pairs: a .txt with two texts a line and a tab between, or a .tsv, .csv, .jsonl,
    .parquet or .xlsx with two columns of texts. Columns without names need --text-columns and
    --first-line. "-" is the standard input, read as a .txt."""
    output: Annotated[str, "FILE"] = STANDARD
    """File to write; "-" is the standard output."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        if bool(self.text) == (self.input is not None):
            raise InputError("give two texts or more, or --input with a file of pairs.")
        if len(self.text) == 1:
            raise InputError("one text cannot be compared. Give two or more.")
        check_not_blank("text", self.text)


def similarity(config: SimilarityConfig) -> None:
    """Write the cosines, and print on stderr how the vectors are made."""
    check_output(config.output, config.input)
    if config.input is None:
        embedder = _opened(config, config.text)
        vectors = embedder.embed(config.text)
        with opened_text(config.output) as out:
            _write_cosines(out, config.text, vectors @ vectors.T)
        return
    pairs = checked_texts(config.input, config.reading, PAIR, tuple)
    embedder = _opened(config, chain.from_iterable(pairs))
    with (
        opened_text(config.output) as out,
        Progress(desc=Message("similarity"), unit=Message("pairs"), total=len(pairs)) as bar,
    ):
        out.write(tsv_line((*PAIR, SCORE)))
        for chunk in chunks(pairs, CHUNK // 2):  # two texts each
            scores = cosines(embedder, chunk)
            for pair, cosine in zip(chunk, scores.tolist(), strict=True):
                out.write(tsv_line((*pair, f"{cosine:.6f}")))
            bar.update(len(chunk))


def cosines(embedder: TextEmbedder, pairs: Sequence[Sequence[str]]) -> np.ndarray:
    """The cosine of each pair of texts, (pairs,) float32. Equal texts are read once."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    index = {text: number for number, text in enumerate(texts)}
    vectors = embedder.embed(texts)
    # (pairs, D) each; the vectors have length 1, so their products are cosines.
    first, second = (vectors[[index[pair[side]] for pair in pairs]] for side in (0, 1))
    return np.einsum("nd,nd->n", first, second)


def _opened(config: SimilarityConfig, texts: Iterable[str]) -> TextEmbedder:
    embedder = config.vectors.open(config.model)
    report(*embedder.notes, embedder.cut_note(sum(map(embedder.is_cut, texts))))
    return embedder


def _write_cosines(out: TextIO, texts: Sequence[str], cosines: np.ndarray) -> None:
    """The cosine of two texts; for more texts a matrix with a header and a first column."""
    if len(texts) == len(PAIR):
        out.write(f"{cosines[0, 1]:.6f}\n")
        return
    out.write(tsv_line(("", *texts)))
    for text, row in zip(texts, cosines, strict=True):
        out.write(tsv_line((text, *(f"{x:.6f}" for x in row))))
