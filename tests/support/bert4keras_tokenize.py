"""Tokenize with bert4keras, in a separate process because it needs the old Keras.

Run with TF_KERAS=1 TF_USE_LEGACY_KERAS=1. Reads JSON from standard input, and writes JSON to the
file in the only argument, because libraries write to standard output:
in:  [{"vocabulary": path, "word": bool, "lower_case": bool, "texts": [text, …],
       "rows": [ids, …]}, …]
out: for each of these {"texts": …, "rows": …}: for each text [tokens, ids, decoded, rematch, or
null if it fails], where tokens include [CLS] and [SEP]; and the decoded text of each row of ids.
"""

import json
import sys
from functools import partial
from pathlib import Path

import jieba
from bert4keras.tokenizers import Tokenizer


def run(job):
    tokenizer = Tokenizer(
        job["vocabulary"],
        do_lower_case=job["lower_case"],
        pre_tokenize=partial(jieba.cut, HMM=False) if job["word"] else None,
    )
    return {
        "texts": [describe(tokenizer, text) for text in job["texts"]],
        "rows": [tokenizer.decode(row) for row in job["rows"]],
    }


def describe(tokenizer, text):
    tokens = tokenizer.tokenize(text)
    ids = tokenizer.tokens_to_ids(tokens)
    try:
        rematch = tokenizer.rematch(text, tokens)
    except ValueError:
        rematch = None
    return tokens, ids, tokenizer.decode(ids), rematch


if __name__ == "__main__":
    results = [run(job) for job in json.load(sys.stdin)]
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="ascii")
