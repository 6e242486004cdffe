"""Checkpoints read whole, and copies of the recorded ones that a test may break."""

import dataclasses

import pytest

from roformer_tf.checkpoints.sources import opened_checkpoint


@pytest.fixture
def read():
    """read(source, …) → the checkpoint, all its arrays in a dictionary."""

    def read_all(source, **options):
        with opened_checkpoint(source, **options) as checkpoint:
            return dataclasses.replace(checkpoint, arrays=dict(checkpoint.arrays))

    return read_all
