"""Read embedding.json of a model's folder as the package does."""

from pathlib import Path

from roformer_tf.checkpoints.embedding_config import FILE, parse


def load(folder):
    """The settings in the file, or None without a file."""
    path = Path(folder) / FILE
    return parse(path.read_bytes(), str(path)) if path.is_file() else None
