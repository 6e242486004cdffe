"""What tests of evaluations share."""

import keras
import pytest


@pytest.fixture
def untuned(monkeypatch):
    """Whatever `TokenMetrics` is to predict has no tuner on TensorFlow (`runs/feeding.py`)."""
    from roformer_tf.pretraining.evaluation import TokenMetrics

    given, predict = [], TokenMetrics.predict

    def keep(self, rows, **how):
        given.append(rows)
        return predict(self, rows, **how)

    monkeypatch.setattr(TokenMetrics, "predict", keep)
    yield
    assert given
    if keras.backend.backend() == "tensorflow":
        assert not any(rows.options().autotune.enabled for rows in given)
