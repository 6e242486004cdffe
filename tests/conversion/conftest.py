"""Checkpoints of every family, converted from layout to layout."""

from functools import cache
from itertools import pairwise

import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from roformer_tf.checkpoints.archives import Files
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert


@pytest.fixture(scope="session")
def converted(released, tmp_path_factory):
    """converted("word") → its zip, taken through our own format and a Hugging Face folder.

    A dict of paths: "start", "own", "huggingface", and "tf1", a zip again.
    """

    @cache
    def walk(family):
        folder = tmp_path_factory.mktemp(family)
        start = released(family)
        paths = {
            "start": start,
            "own": folder / "own",
            "huggingface": folder / "huggingface",
            "tf1": folder / start.name,
        }
        for (_, source), (to, target) in pairwise(paths.items()):
            convert(ConvertConfig(source=str(source), target=target, output=OutputConfig(to=to)))
        return paths

    return walk


@pytest.fixture(scope="session")
def tensors_in():
    """tensors_in(path) → every tensor of a checkpoint, by its name in the file."""

    def read(path):
        if (path / "model.safetensors").exists():
            return load_file(path / "model.safetensors")
        with Files(path) as files:
            (index,) = files.folder.glob("*.index")
            reader = tf.train.load_checkpoint(str(index.with_suffix("")))
            return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    return read
