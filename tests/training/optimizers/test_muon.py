import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.training.optimizers import as_matrix, make_optimizer, orthogonal
from roformer_tf.training.settings import OptimizerConfig

LONG = 10**9  # steps, so that the learning rate of the first ones is the peak


def numpy(variable):
    return keras.ops.convert_to_numpy(variable).astype("float64")


@pytest.fixture(scope="module")
def model():
    """A model with every kind of weight, including a projection of the embeddings."""
    return RoFormerForMaskedLM(
        RoFormerConfig(
            vocab_size=20,
            hidden_size=8,
            embedding_size=4,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )


@pytest.mark.parametrize("shape", [(6, 6), (5, 12), (12, 5)])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_orthogonal_keeps_singular_vectors_and_equalizes_singular_values(shape, dtype, bound):
    rng = np.random.default_rng(0)
    u, _ = np.linalg.qr(rng.normal(size=(shape[0], min(shape))))
    v, _ = np.linalg.qr(rng.normal(size=(shape[1], min(shape))))
    lengths = np.geomspace(3.0, 0.1, min(shape))
    matrix = ((u * lengths) @ v.T).astype("float32")
    got = keras.ops.convert_to_numpy(orthogonal(keras.ops.convert_to_tensor(matrix), dtype))
    assert got.dtype == np.float32
    singular_values = u.T @ got.astype("float64") @ v
    assert np.abs(singular_values - np.diag(np.diag(singular_values))).max() < bound
    assert (np.diag(singular_values) > 0.65).all()
    assert (np.diag(singular_values) < 1.25).all()


def test_as_matrix_flattens_the_axis_of_heads(model):
    kernels = {
        name.rsplit("/", 2)[1]: np.random.default_rng(0).normal(size=v.shape)
        for name, v in model.named_variables().items()
        if "/attention/" in name and name.endswith("kernel")
    }
    x = np.random.default_rng(1).normal(size=(3, 8))
    for name in ("query", "key", "value"):
        heads = np.einsum("bd,dnh->bnh", x, kernels[name])
        product = x @ keras.ops.convert_to_numpy(as_matrix(kernels[name]))
        assert np.abs(product - heads.reshape(3, 8)).max() < 1e-6
    outputs = np.einsum("bnh,nhd->bd", x.reshape(3, 2, 4), kernels["attention_output"])
    product = x @ keras.ops.convert_to_numpy(as_matrix(kernels["attention_output"]))
    assert np.abs(product - outputs).max() < 1e-6
    assert as_matrix(np.zeros((8, 16))).shape == (8, 16)


def test_muon_updates_kernels_and_adamw_the_rest(model):
    rng = np.random.default_rng(0)
    variables = model.trainable_variables
    names = {id(v): name for name, v in model.named_variables().items()}
    start = [0.1 * rng.normal(size=v.shape).astype("float32") for v in variables]
    gradients = [[1e-3 * rng.normal(size=v.shape) for v in variables] for _ in range(3)]
    after = {}
    for algorithm in ("adamw", "muon"):
        for v, value in zip(variables, start, strict=True):
            v.assign(value)
        own = {"muon_learning_rate_scale": 3.0} if algorithm == "muon" else {}
        config = OptimizerConfig(algorithm, learning_rate=0.01, warmup=0.0, weight_decay=0.5, **own)
        optimizer = make_optimizer(config, variables, LONG)
        for step in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in step])
        after[algorithm] = [numpy(v) for v in variables]
    slots = {v.path.rsplit("_", 1)[1] for v in optimizer.variables if "kernel" in v.path}
    assert slots == {"momentum"}
    for i, v in enumerate(variables):
        if v.name != "kernel":
            assert np.array_equal(after["muon"][i], after["adamw"][i]), names[id(v)]
            continue
        weight, momentum = start[i].astype("float64"), 0.0
        for step in gradients:
            momentum = 0.95 * momentum + step[i]
            nesterov = numpy(as_matrix((step[i] + 0.95 * momentum).astype("float32")))
            x = nesterov / np.linalg.norm(nesterov)
            for _ in range(5):  # Newton–Schulz: a x + b (x xᵀ) x + c (x xᵀ)² x
                square = x @ x.T
                x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
            scale = 0.01 * 3.0 * 0.2 * max(nesterov.shape) ** 0.5
            weight = weight * (1 - 0.01 * 3.0 * 0.5) - scale * x.reshape(v.shape)
        assert np.abs(after["muon"][i] - weight).max() < 1e-4, names[id(v)]
