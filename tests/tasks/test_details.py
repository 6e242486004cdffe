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
