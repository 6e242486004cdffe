import keras
import numpy as np

from roformer_tf.training.optimizers import make_optimizer
from roformer_tf.training.settings import OptimizerConfig


def numpy(variable):
    return keras.ops.convert_to_numpy(variable).astype("float64")


def variable(value):
    return keras.Variable(np.array(value, "float32"), name="kernel")


def lamb_steps(weights, gradients, rates, *, decay, beta_2):
    """LAMB in float64 (You et al., algorithm 2); the last weight has no decay and no ratio."""
    weights = [w.astype("float64") for w in weights]
    m, v = [0 * w for w in weights], [0 * w for w in weights]
    for t, rate in enumerate(rates, 1):
        for i, gradient in enumerate(gradients):
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = beta_2 * v[i] + (1 - beta_2) * gradient**2
            r = m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - beta_2**t)) + 1e-6)
            if i < len(gradients) - 1:
                r = r + decay * weights[i]
                lengths = np.linalg.norm(weights[i]), np.linalg.norm(r)
                r = r * (lengths[0] / lengths[1] if all(lengths) else 1)
            weights[i] = weights[i] - rate * r
    return weights


def test_lamb_equals_the_paper_but_not_keras():
    rng = np.random.default_rng(0)
    shapes = [(3, 4), (2, 2, 3), (5,)]
    start = [rng.normal(size=shape).astype("float32") for shape in shapes]
    start[1][:] = 0  # a zero weight has the trust ratio 1 in its first step
    gradients = [(1e-3 * rng.normal(size=w.shape)).astype("float32") for w in start]
    variables = [variable(w) for w in start[:2]] + [keras.Variable(start[2], name="gamma")]
    config = OptimizerConfig(
        "lamb", learning_rate=0.1, warmup=0.25, weight_decay=0.3, clip_norm=1e9
    )
    optimizer = make_optimizer(config, variables, steps=8)
    for _ in range(4):
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    rates = [0.05, 0.1, 0.1, 0.1 * 5 / 6]
    want = lamb_steps(start, gradients, rates, decay=0.3, beta_2=0.98)
    for got, expected in zip(variables, want, strict=True):
        assert np.abs(numpy(got) - expected).max() < 2e-6
    keras_lamb = keras.optimizers.Lamb(0.1, beta_2=0.98, epsilon=1e-6, weight_decay=0.3)
    other = [variable(start[0])]
    keras_lamb.build(other)
    keras_lamb.apply([keras.ops.convert_to_tensor(gradients[0])], other)
    once = lamb_steps(start, gradients, [0.1], decay=0.3, beta_2=0.98)[0]
    assert np.abs(numpy(other[0]) - once).max() > 1e-3
