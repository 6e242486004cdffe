import keras
import pytest

from roformer_tf.training.optimizers import WarmupDecay


@pytest.mark.parametrize(
    ("step", "fraction"),
    [
        (0, 1 / 10),  # not 0 in the first step
        (1, 2 / 10),
        (8, 9 / 10),
        (9, 1.0),
        (10, 1.0),
        (11, 89 / 90),
        (55, 0.5),
        (98, 2 / 90),
        (99, 1 / 90),  # nor in the last
        (100, 0.0),
        (150, 0.0),
    ],
)
def test_the_learning_rate_rises_and_falls_linearly(step, fraction):
    schedule = WarmupDecay(3e-4, 10, 100)
    assert float(schedule(step)) == pytest.approx(3e-4 * fraction, rel=1e-6)


def test_without_warm_up_the_first_step_is_the_highest():
    rates = [float(WarmupDecay(1.0, 0, 4)(step)) for step in range(5)]
    assert rates == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_a_single_step_has_the_full_learning_rate():
    assert float(WarmupDecay(1.0, 0, 1)(0)) == 1
    assert float(WarmupDecay(1.0, 1, 1)(0)) == 1


def test_the_schedule_survives_serialization():
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(WarmupDecay(1.0, 2, 10))
    )
    assert [float(restored(s)) for s in range(11)] == [
        float(WarmupDecay(1.0, 2, 10)(s)) for s in range(11)
    ]
