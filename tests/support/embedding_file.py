"""embedding.json of a model's folder, read as the package does."""

from pathlib import Path

from roformer_tf.checkpoints.embedding_config import FILE, parse


def load(folder):
    """Its settings; None without the file."""
    path = Path(folder) / FILE
    return parse(path.read_bytes(), str(path)) if path.is_file() else None
