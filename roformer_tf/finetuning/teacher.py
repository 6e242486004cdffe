"""A teacher's vectors of the texts that paraphrases are trained on.

FOLDER/teacher.npz   those of a training, for continuing it after it was killed
"""

import dataclasses
from pathlib import Path

import numpy as np

from roformer_tf.files import file_beside
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.terminal import Progress

FILE = "teacher.npz"


def with_teacher(
    data: ParaphraseBatches, source: str, folder: Path, fingerprint: str
) -> ParaphraseBatches:
    """Have the vectors of rows learn the cosines that a model of any kind gives their first texts.

    Where the folder has its vectors of the same data they are read. Raises InputError for what is
    no source of vectors.
    """
    path = folder / FILE
    if path.is_file():
        with np.load(path) as known:
            if str(known["fingerprint"]) == fingerprint:
                return dataclasses.replace(data, teacher=known["vectors"])
    embedder = VectorSettings().open(source)
    print(f"the teacher is {source}: {embedder.described}")
    parts = []
    with Progress(total=len(data.spelled), desc="teacher", unit=" texts") as bar:
        for block in embedder.blocks(data.spelled):
            parts.append(block.vectors)
            bar.update(len(block.texts))
    vectors = np.concatenate(parts)
    with file_beside(path) as beside, beside.open("wb") as file:
        np.savez(file, vectors=vectors, fingerprint=fingerprint)
    return dataclasses.replace(data, teacher=vectors)
