"""Checkpoints with random weights, written in the layout of every peer."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints import huggingface, tf1
from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.names import table
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.config import RoFormerConfig
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "vocab_size": 50_000,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
    },
    "base": {
        "vocab_size": 50_000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "embedder": {
        "vocab_size": 8_000,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "tiny": {
        "vocab_size": 500,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
}
LONGEST = 4096


def make_checkpoint(folder: Path, size: str) -> Path:
    """Write one model as `own/` (Hugging Face's layout), `tf1/` (bert4keras') and `tf1.zip`.

    Its vocabulary consists of artificial two-character words.
    """
    config = RoFormerConfig(**SIZES[size], max_position_embeddings=LONGEST)
    rows = {row.name: row for row in table(config) if row.part in ("encoder", "mlm")}
    arrays = LazyArrays(
        {name: row.shape for name, row in rows.items()},
        {name: np.dtype("float32") for name in rows},
        lambda name: initial(name, rows[name].shape),
    )
    words = [f"{chr(0x4E00 + i // 100)}{chr(0x4E00 + i % 100)}" for i in range(config.vocab_size)]
    tokens = [*SPECIAL_TOKENS, *words[len(SPECIAL_TOKENS) :]]
    tf1.write(folder / "tf1", config, arrays, "".join(f"{token}\n" for token in tokens).encode())
    huggingface.write(folder / "own", config, arrays, "RoFormerForMaskedLM")
    RoFormerTokenizer.from_pretrained(folder / "tf1").save_pretrained(folder / "own")
    with zipfile.ZipFile(folder / "tf1.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((folder / "tf1").iterdir()):
            archive.write(file, f"tf1/{file.name}")
    return folder


def make_embedder(folder: Path, characters: str) -> Path:
    """Write an embedding model for us and for sentence-transformers.

    It uses mean pooling; its vocabulary is the given characters.
    """
    # Without white space: the vocabulary file has one token a line.
    tokens = [*SPECIAL_TOKENS, *dict.fromkeys("".join(characters.split()))]
    shape = SIZES["embedder"] | {"vocab_size": len(tokens)}
    config = RoFormerConfig(**shape, max_position_embeddings=512)
    rows = {row.name: row for row in table(config) if row.part == "encoder"}
    arrays = {name: initial(name, row.shape) for name, row in rows.items()}
    huggingface.write(folder, config, arrays, "RoFormerModel")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    RoFormerTokenizer(vocabulary, "char").save_pretrained(folder)
    EmbeddingConfig("mean", 512).save(folder)
    save_modules(folder)
    return folder


def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an initial weight: ones for norms, zeros for biases, else normal with std 0.02.

    It depends on the name only, so every layout contains the same values.
    """
    if name.endswith("gamma"):
        return np.ones(shape, "float32")
    if name.endswith(("beta", "bias")):
        return np.zeros(shape, "float32")
    random = np.random.default_rng(list(name.encode()))
    return 0.02 * random.standard_normal(shape, "float32")
