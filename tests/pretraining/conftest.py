"""Fixtures for tests of evaluations."""

import keras
import pytest


@pytest.fixture
def check_autotune_off(monkeypatch):
    """Check that every dataset predicted by `TokenMetrics` has autotuning off on TensorFlow.

    See `training/fitting.py` for the reason.
    """
    from roformer_tf.pretraining.evaluation import TokenMetrics

    arguments, predict = [], TokenMetrics.predict

    def recording_predict(self, rows, **settings):
        arguments.append(rows)
        return predict(self, rows, **settings)

    monkeypatch.setattr(TokenMetrics, "predict", recording_predict)
    yield
    assert arguments
    if keras.backend.backend() == "tensorflow":
        assert not any(rows.options().autotune.enabled for rows in arguments)
