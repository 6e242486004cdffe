"""Fixtures for tests of engines."""

from importlib.util import find_spec

import numpy as np
import pytest

from roformer_tf.engines.choice import MODULES

ENGINES = [
    pytest.param(
        engine,
        marks=pytest.mark.skipif(
            not all(map(find_spec, MODULES[engine])), reason=f"needs the packages of {engine}"
        ),
    )
    for engine in ("onnx", "openvino")
]


@pytest.fixture(params=ENGINES)
def engine(request):
    """Each engine that runs graphs, if it is installed."""
    return request.param


@pytest.fixture(scope="session")
def random_inputs():
    """Return a function: random_inputs(batch, length, vocabulary) → int32 inputs.

    Some sequences end in padding, and the last is empty unless it is the only one.
    """

    def random(batch, length, vocabulary):
        rng = np.random.default_rng([batch, length])
        ids = rng.integers(1, vocabulary, (batch, length), "int32")
        segments = np.broadcast_to(np.arange(length) > length // 2, ids.shape).astype("int32")
        if batch > 1:
            ids[-1] = 0  # an empty sequence
            for row in range(1, batch - 1):
                ids[row, rng.integers(1, length + 1) :] = 0
        return {"token_ids": ids, "segment_ids": segments}

    return random
