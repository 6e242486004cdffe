import numpy as np
import pytest

from roformer_tf.tasks.scoring import calibration


def test_calibration_error_is_the_mean_gap_of_confidence_and_accuracy():
    confidence = np.array([0.75] * 8 + [0.55] * 2)  # the last two are underconfident
    right = np.array([True] * 5 + [False] * 3 + [True] * 2)
    actual = calibration(confidence, right)
    assert actual["ece"] == pytest.approx(0.8 * (0.75 - 5 / 8) + 0.2 * (1 - 0.55))
    assert [(item["from"], item["count"], item["right"]) for item in actual["bins"]] == [
        (0.5, 2, 1),
        (0.7, 8, 5 / 8),
    ]


@pytest.mark.parametrize("examples", [20, 60, 200, 2000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_error_of_perfect_probabilities_is_rarely_above_chance(examples, dtype):
    above = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        probabilities = rng.uniform(0.5, 1, examples).astype(dtype)
        actual = calibration(probabilities, rng.random(examples) < probabilities)
        above.append(actual["ece"] > actual["chance"])
    assert 0.01 < np.mean(above) < 0.09


def test_the_error_of_overconfident_probabilities_is_above_chance():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        actual = calibration(rng.uniform(0.9, 1, 100), rng.random(100) < 0.7)
        assert actual["ece"] > 2 * actual["chance"]


def test_a_probability_that_is_rounded_above_one_is_no_error():
    actual = calibration(np.full(3, 1.0000001, np.float32), np.array([True, True, False]))
    assert actual["chance"] < 1e-6 < actual["ece"]
