"""What tests of evaluations share."""

import keras
import pytest


@pytest.fixture
def untuned(monkeypatch):
    """Whatever `TokenMetrics` is to predict has no tuner on TensorFlow (`runs/feeding.py`)."""
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
