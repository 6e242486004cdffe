"""Chinese text of any size: the demo's sentences, mixed anew so that no document is a copy."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from pretrain.demo.corpus import write_corpus

SENTENCES = 12
"""Sentences of a document, on average."""

_END = re.compile(r"(?<=[。！？!?\n])")


def write_mixed(path: Path, megabytes: float, seed: int = 0) -> Path:
    """Write so many megabytes of documents, one `{"text": …}` a line.

    Every sentence of the demo's text stands once before any is repeated, in an order of its own
    each time; 9.4 MB are there, so in larger files the words repeat and the documents do not.
    """
    random = np.random.default_rng(seed)
    left = megabytes * 1e6
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while left > 0:
            order = random.permutation(len(sentences())).tolist()
            for begin in range(0, len(order), SENTENCES):
                text = "".join(sentences()[i] for i in order[begin : begin + SENTENCES])
                left -= len(text.encode())
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                if left <= 0:
                    break
    return path


@cache
def sentences() -> list[str]:
    """Every sentence of the demo's text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.jsonl"
        write_corpus(path)
        texts = [json.loads(line)["text"] for line in path.open(encoding="utf-8")]
    return [part for text in texts for part in _END.split(text) if part.strip()]
