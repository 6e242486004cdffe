"""The body of `embed`: a file of texts → a file of their vectors."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from roformer_tf.checkpoints import huggingface
from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.checkpoints.whitening import FILE as WHITENING
from roformer_tf.checkpoints.whitening import whitening_of
from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import check_writable, is_folder
from roformer_tf.inference.embed import TextEmbedder, open_embedder
from roformer_tf.inference.text_files import TextFileConfig, checked_texts
from roformer_tf.inference.vector_files import vector_file
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.terminal import Progress

FORMATS = (".npy", ".parquet")
LEARNT_FROM = 100_000
"""Texts that whitening is learnt from, at most: so many tell thousands of directions."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Write a vector for each text of a file: float32, of length 1, in their order.

    Their products are cosines. An empty row stops it before anything is written.
    """

    model: str
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run. --model itself
    may be left out."""
    input: str = "-"
    """One text a line, or a .tsv, .csv, .jsonl, .parquet or .xlsx file, at a path or a URL; "-" is
    the standard input."""
    output: str | None = None
    """File to write: .npy, a matrix with a row for each text, or .parquet, the columns text and
    vector."""
    pooling: Pooling | None = None
    """What a vector is made of: the pooler of a sim model, the mean of all tokens, or the first
    token. Unset, what the model was trained for, and for others the pooler of a sim model or the
    mean; it is said."""
    dimensions: int | None = None
    """Cut vectors to so many numbers, for a model that was trained for it, or is whitened."""
    whiten: str | None = None
    """File of texts to learn whitening from (some thousands, like those that will be compared):
    the model's folder keeps it, and from then on its vectors are whitened."""
    max_length: int | None = None
    """Most tokens of a text that are read; unset, what the model was trained for."""
    batch_size: int = BATCH_SIZE
    """Most texts that the model reads at once; of long ones it reads fewer."""
    precision: Precision = "float32"
    """bfloat16 is faster where the hardware has it, cosines move by some thousandths; int8 on any
    processor, by some hundredths."""
    engine: Engine = "auto"
    """What computes: Keras on its backend, or on a processor ONNX Runtime or OpenVINO; auto, the
    fastest that is installed and knows the model."""
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size", at_least=1)
        if self.output is None and self.whiten is None:
            raise InputError("give --output, a .npy or .parquet file to write.")
        if self.output is not None:
            if is_folder(self.output):
                raise InputError(f"--output {self.output} is a folder. Name a file.")
            if not self.output.lower().endswith(FORMATS):
                raise InputError(
                    f"--output {self.output} is of no kind that is written: its name has to end in "
                    f"{' or '.join(FORMATS)}."
                )


def embed_file(config: EmbedConfig) -> None:
    """Learn whitening if asked to, then write the vectors, and tell on stderr what was done.

    Raises InputError, and leaves no file, where a row holds no text.
    """
    if config.output is not None:
        check_writable(config.output)
    if config.whiten is not None:
        _learn_whitening(config, config.whiten)
    if config.output is None:
        return
    with checked_texts(config.input, config.reading) as texts:
        embedder = open_embedder(
            config.model,
            config.pooling,
            config.dimensions,
            config.precision,
            config.max_length,
            engine=config.engine,
        )
        said = embedder.choice.said
        _say(
            texts.said, f"{embedder.described}.", f"{said}." * bool(said), _untrained_cut(embedder)
        )
        began, cut = time.perf_counter(), 0
        with (
            vector_file(config.output, embedder) as out,
            Progress(desc="embed", unit=" texts", total=len(texts)) as bar,
        ):
            for block in embedder.blocks(texts.texts(), config.batch_size):
                out.write(block.texts, block.vectors)
                bar.update(len(block.texts))
                cut += block.cut
        _say(_summary(len(texts), cut, embedder, time.perf_counter() - began))


def _learn_whitening(config: EmbedConfig, path: str) -> None:
    """Write whitening into the model's folder, and how its vectors are made from now on.

    Raises InputError for what is no folder of ours or Hugging Face's.
    """
    folder = Path(config.model)
    if not (folder / huggingface.CONFIG).is_file():
        raise InputError(
            f"{config.model} is no folder that could keep the whitening. Make it one: `roformer-tf "
            f"checkpoints convert {config.model} FOLDER --to own`, and give that as --model."
        )
    check_writable(folder / WHITENING)
    with checked_texts(path, config.reading) as texts:
        embedder = open_embedder(
            config.model,
            config.pooling,
            max_length=config.max_length,
            whitened=False,
            engine=config.engine,
        )
        with Progress(desc="whiten", unit=" texts", total=min(len(texts), LEARNT_FROM)) as bar:

            def vectors() -> Iterator[np.ndarray]:
                first = islice(texts.texts(), LEARNT_FROM)
                for block in embedder.raw_blocks(first, config.batch_size):
                    yield block.vectors
                    bar.update(len(block.texts))

            found = whitening_of(vectors(), embedder.config.pooling, config.dimensions)
    found.save(folder)
    embedder.config.save(folder)
    save_modules(folder)
    _say(
        f"{folder} keeps what was learnt from {min(len(texts), LEARNT_FROM):,} texts: its vectors "
        f"are whitened from now on (until its {WHITENING} is removed)."
    )


def _untrained_cut(embedder: TextEmbedder) -> str:
    """A warning of vectors that are cut where nothing made their first numbers the weightiest."""
    trained = embedder.config.dimensions or ()
    known = embedder.model.whitening is not None or embedder.size in trained
    if embedder.size == embedder.model.whole_size or known:
        return ""
    advice = (
        f"It was trained for {', '.join(map(str, trained))}."
        if trained
        else (
            "Nothing was done that they might be: train with --dimensions, or whiten with --whiten."
        )
    )
    return f"{embedder.source} was not trained to have its vectors cut to {embedder.size}. {advice}"


def _summary(rows: int, cut: int, embedder: TextEmbedder, seconds: float) -> str:
    """What was done, in one line."""
    facts = [f"{rows:,} texts in {seconds:.1f} s, {rows / max(seconds, 1e-9):,.0f} a second"]
    if cut:
        facts.append(f"{cut:,} longer than {embedder.config.max_length} tokens and cut")
    return f"{'; '.join(facts)}."


def _say(*lines: str) -> None:
    """Print what there is to say, on stderr."""
    for line in filter(None, lines):
        print(line, file=sys.stderr)
