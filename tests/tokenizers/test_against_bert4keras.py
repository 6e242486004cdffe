"""Tests of random Unicode text against bert4keras, which runs in a subprocess."""

import gzip
import json
import os
import random
import subprocess
import sys
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import pytest

from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

TESTS = Path(__file__).parents[1]
GOLDENS = TESTS / "fixtures" / "tokenizer"
SETTINGS = [("word", True), ("char", True), ("char", False)]  # tokenization, lower_case

pytestmark = pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_random_text_equals_bert4keras(count, tmp_path):
    texts = random_texts(count, seed=count)
    compared_spans = 0
    tokenizers = [RoFormerTokenizer(read_vocabulary(GOLDENS / s[0]), *s) for s in SETTINGS]
    rows = [random_ids(tokenizer, count) for tokenizer in tokenizers]
    actual = bert4keras_results(texts, rows, tmp_path)
    for tokenizer, setting_rows, results in zip(tokenizers, rows, actual, strict=True):
        for row, decoded in zip(setting_rows, results["rows"], strict=True):
            assert tokenizer.decode(row) == decoded, [tokenizer.tokens[i] for i in row]
        for text, (tokens, ids, decoded, rematch) in zip(texts, results["texts"], strict=True):
            assert tokenizer.tokenize(text) == tokens[1:-1], ascii(text)
            assert tokenizer.encode(text)[0] == ids
            assert tokenizer.decode(ids) == decoded
            # bert4keras counts in lower-cased text, and fails if normalization reorders marks.
            if rematch is not None and "İ" not in text:
                spans = [(positions[0], positions[-1] + 1) for positions in rematch[1:-1]]
                assert tokenizer.offsets(text) == spans, ascii(text)
                compared_spans += 1
    assert compared_spans > 0.9 * len(texts) * len(SETTINGS)


def random_ids(tokenizer, count):
    """Return ids that a model may generate but no text has, such as subwords at the start."""
    random_ = random.Random(count)
    kinds = ("", "##", "[", "'", "3", ".", "s", "，")  # the last five concern the joining of tokens
    candidates = [
        [i for i, token in enumerate(tokenizer.tokens) if token and token.startswith(kind)]
        for kind in kinds
    ]
    return [
        [random_.choice(random_.choice(candidates)) for _ in range(random_.randint(1, 12))]
        for _ in range(count)
    ]


def bert4keras_results(texts, rows, folder):
    """Return bert4keras' results for all settings; `rows` are ids to decode, for each setting."""
    jobs = [
        {
            "vocabulary": str(GOLDENS / tokenization / "vocab.txt"),
            "word": tokenization == "word",
            "lower_case": lower_case,
            "texts": texts,
            "rows": ids,
        }
        for (tokenization, lower_case), ids in zip(SETTINGS, rows, strict=True)
    ]
    output = folder / "results.json"
    run = subprocess.run(
        [sys.executable, TESTS / "support" / "bert4keras_tokenize.py", output],
        input=json.dumps(jobs),
        env=os.environ
        | {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert run.returncode == 0, run.stderr
    return json.loads(output.read_text(encoding="ascii"))


def random_texts(count, seed):
    """Return texts of a few parts; each part is from a Unicode block or category, or news."""
    random_ = random.Random(seed)
    kinds = kinds_of_characters()
    with gzip.open(GOLDENS / "word" / "cases.json.gz", "rt", encoding="utf-8") as file:
        sentences = [case["text"] for case in json.load(file)["single"] if case["kind"] == "real"]
    subwords = sorted(t.removeprefix("##") for t in read_vocabulary(GOLDENS / "word") if len(t) > 1)

    def run():
        kind = random_.randrange(len(kinds) + 12)
        if kind < len(kinds):
            return "".join(random_.choices(kinds[kind], k=random_.randint(1, 8)))
        if kind < len(kinds) + 4:
            sentence = random_.choice(sentences)
            start = random_.randrange(len(sentence))
            return sentence[start : start + random_.randint(1, 20)]
        if kind < len(kinds) + 8:
            return random_.choice(["", " "]).join(
                random_.choices(subwords, k=random_.randint(1, 4))
            )
        if kind < len(kinds) + 11:
            return random_.choice(
                ["[MASK]", "[UNK]", "##", "c++", "T恤", "ΑΣ Σ", "it's", "3. 14", "İ"]
            )
        return random_.choice("aé1") * random_.choice([1, 50, 199, 200, 201, 250])

    texts = ["".join(run() for _ in range(random_.randint(1, 8))) for _ in range(count)]
    return json.loads(json.dumps(texts))  # joins surrogate pairs for both tokenizers


def kinds_of_characters():
    """Return strings of characters to sample from."""
    everything = [chr(code) for code in range(0x110000)]
    by_category = {}
    for character in everything:
        by_category.setdefault(unicodedata.category(character), []).append(character)
    blocks = [
        (0x4E00, 0x9FFF), (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF),
        (0xF900, 0xFAFF), (0x2A700, 0x2EBEF), (0x2F800, 0x2FA1F), (0x3000, 0x30FF),
        (0x1100, 0x11FF), (0xAC00, 0xD7A3), (0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F),
        (0x370, 0x3FF), (0x400, 0x4FF), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF), (0x2000, 0x206F),
        (0, 0x1F), (0xD800, 0xDFFF), (0xE000, 0xF8FF), (0x1D160, 0x1D180), (0x3028, 0x3030),
    ]  # fmt: skip
    return [
        everything,
        *(everything[first : last + 1] for first, last in blocks),
        *(
            by_category[name]
            for name in ("Mn", "Mc", "Cf", "Zs", "Po", "Ps", "Sm", "Nd", "Lu", "Cn")
        ),
        "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029\ufffd\0",
    ]
