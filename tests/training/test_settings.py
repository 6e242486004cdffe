import pytest

from roformer_tf.errors import InputError
from roformer_tf.training.settings import OptimizerConfig


def test_warmup_and_decay_longer_than_the_run_are_refused():
    with pytest.raises(
        InputError,
        match=r"--warmup and --decay-share are 0\.6 and 0\.5, together more",
    ):
        OptimizerConfig(schedule="wsd", warmup=0.6, decay_share=0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"clip_norm": -1},
        {"clip_norm": float("inf")},
        {"warmup": 1},
        {"warmup": -0.1},
        {"beta_2": 1.5},
        {"weight_decay": -0.1},
        {"weight_decay": float("inf")},
        {"muon_learning_rate_scale": 0},
        {"muon_learning_rate_scale": float("inf")},
    ],
)
def test_invalid_values_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        OptimizerConfig(**wrong)
