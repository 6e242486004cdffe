"""Fixtures for tests of evaluations."""

import keras
import pytest


@pytest.fixture
def untuned(monkeypatch):
    """Check that every dataset predicted by `TokenMetrics` has autotuning off on TensorFlow.

    See `training/feeding.py` for the reason.
    """
    from roformer_tf.pretraining.evaluation import TokenMetrics

    arguments, predict = [], TokenMetrics.predict

    def keep(self, rows, **how):
        arguments.append(rows)
        return predict(self, rows, **how)

    monkeypatch.setattr(TokenMetrics, "predict", keep)
    yield
    assert arguments
    if keras.backend.backend() == "tensorflow":
        assert not any(rows.options().autotune.enabled for rows in arguments)
