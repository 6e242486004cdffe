"""Fixtures with checkpoints of every family, converted between layouts."""

from functools import cache
from itertools import pairwise

import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from roformer_tf.checkpoints.archives import Files
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert


@pytest.fixture(scope="session")
def converted(released, tmp_path_factory):
    """A function that converts a family's zip to our format, Hugging Face's, and back to TF1.

    It returns the paths: "start" (the released zip), "own", "huggingface" and "tf1" (a zip).
    """

    @cache
    def convert_family(family):
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

    return convert_family


@pytest.fixture(scope="session")
def tensors_in():
    """A function that returns every tensor of a checkpoint by its name in the file."""

    def read(path):
        if (path / "model.safetensors").exists():
            return load_file(path / "model.safetensors")
        with Files(path) as files:
            (index,) = files.folder.glob("*.index")
            reader = tf.train.load_checkpoint(str(index.with_suffix("")))
            return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    return read
