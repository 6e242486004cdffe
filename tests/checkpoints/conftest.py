"""A fixture that reads whole checkpoints."""

import dataclasses

import pytest

from roformer_tf.checkpoints.sources import OpenedSource


@pytest.fixture
def read():
    """A function that reads a checkpoint with all its arrays in a dictionary."""

    def read_all(source, **options):
        with OpenedSource(source) as opened_source:
            checkpoint = opened_source.checkpoint(**options)
            return dataclasses.replace(checkpoint, arrays=dict(checkpoint.arrays))

    return read_all
