"""Chinese text of any size: the demo's sentences, shuffled so that no document is a copy."""

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

# Average number of sentences in a document.
SENTENCES = 12

_END = re.compile(r"(?<=[。！？!?\n])")


def write_mixed(path: Path, megabytes: float, seed: int = 0, patterns: Sequence[str] = ()) -> Path:
    """Write documents of `megabytes` in total, one `{"text": …}` a line.

    All sentences of the demo's text are written in random order before any is repeated, and each
    repetition has a new order. The demo has 9.4 MB, so larger files repeat sentences but no
    documents. Sentences of the files matching `patterns` are mixed in.
    """
    pool = [*sentences(), *_sentences_of(patterns)]
    remaining = megabytes * 1e6
    with (
        temporary_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for text in _mixed(pool, seed):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            remaining -= len(text.encode())
            if remaining <= 0:
                break
    return path


def _mixed(pool: Sequence[str], seed: int) -> Iterator[str]:
    """Yield documents without end; each pass over the sentences has a new random order."""
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(pool)).tolist()
        for begin in range(0, len(order), SENTENCES):
            yield "".join(pool[i] for i in order[begin : begin + SENTENCES])


def _sentences_of(patterns: Sequence[str]) -> list[str]:
    """Return the sentences of the documents in these files."""
    config = CorpusConfig(tuple(patterns))
    texts = read_documents(find_files(patterns), config, CorpusReport()) if patterns else []
    return _cut(texts)


@cache
def sentences() -> list[str]:
    """Return every sentence of the demo's text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.jsonl"
        write_corpus(path)
        texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    return _cut(texts)


def _cut(texts: Iterable[str]) -> list[str]:
    return [part for text in texts for part in _END.split(text) if part.strip()]
