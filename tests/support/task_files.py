"""The task of a folder."""

from pathlib import Path

from roformer_tf.tasks.table import parse_task


def load_task(folder):
    return parse_task((Path(folder) / "task.json").read_bytes(), "task.json")
