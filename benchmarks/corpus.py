"""Chinese text of any size: the demo's sentences, mixed anew so that no document is a copy."""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from pretrain.demo.corpus import write_corpus
from roformer_tf.corpus.documents import CorpusConfig, CorpusReport, find_files, read_documents
from roformer_tf.files import temporary_file

# Sentences of a document, on average.
SENTENCES = 12

_END = re.compile(r"(?<=[。！？!?\n])")


def write_mixed(path: Path, megabytes: float, seed: int = 0, patterns: Sequence[str] = ()) -> Path:
    """Write so many megabytes of documents, one `{"text": …}` a line.

    Every sentence of the demo's text is written once before any is repeated, in a new order
    each time; 9.4 MB are there, so in larger files the words repeat and the documents do not.
    Sentences of the files that `patterns` name come among them.
    """
    known = [*sentences(), *_sentences_of(patterns)]
    left = megabytes * 1e6
    with (
        temporary_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for text in _mixed(known, seed):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            left -= len(text.encode())
            if left <= 0:
                break
    return path


def _mixed(known: Sequence[str], seed: int) -> Iterator[str]:
    """Documents without end: every sentence once, in a new order, before any is repeated."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(known)).tolist()
        for begin in range(0, len(order), SENTENCES):
            yield "".join(known[i] for i in order[begin : begin + SENTENCES])


def _sentences_of(patterns: Sequence[str]) -> list[str]:
    """The sentences of the files' documents."""
    config = CorpusConfig(tuple(patterns))
    texts = read_documents(find_files(patterns), config, CorpusReport()) if patterns else []
    return _cut(texts)


@cache
def sentences() -> list[str]:
    """Every sentence of the demo's text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.jsonl"
        write_corpus(path)
        texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    return _cut(texts)


def _cut(texts: Iterable[str]) -> list[str]:
    return [part for text in texts for part in _END.split(text) if part.strip()]
