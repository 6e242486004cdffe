"""Layer normalisation over the features (arXiv 1607.06450)."""

from collections.abc import Callable
from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor, fast, island, wide, with_gradient


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, training: bool | None = None
) -> Tensor:
    """x (…, H), gamma and beta (H,) → (…, H) in x's dtype, at least float32 inside.

    The fast form, in training, stores nothing but x.
    """
    gamma, beta = (ops.cast(weight, wide(x)) for weight in (gamma, beta))
    form = _fast if training and fast() else layer_norm_plainly
    return form(x, gamma, beta, epsilon)


def layer_norm_plainly(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """The plain form; Keras' own takes a quarter more time."""
    return ops.cast(_normalised(x, epsilon, _mean)[0] * gamma + beta, x.dtype)


def _fast(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    @with_gradient
    def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
        def gradients(upstream: Tensor) -> Any:
            return _to_x(x, upstream, gamma, epsilon), *_to_weights(x, upstream, epsilon)

        return _value(x, gamma, beta, epsilon), gradients

    return norm(x, gamma, beta)


@island
def _value(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    return ops.cast(_normalised(x, epsilon)[0] * gamma + beta, x.dtype)


@island
def _to_x(x: Tensor, upstream: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    # For y = γ x̂ + β, x̂ = r (x − mean x), g = γ · upstream: dx = r (g − mean g − x̂ mean(g x̂))
    normalised, rate = _normalised(x, epsilon)
    inner = ops.cast(upstream, wide(x)) * gamma
    along = normalised * _mean_by_product(inner * normalised)
    return ops.cast(rate * (inner - _mean_by_product(inner) - along), x.dtype)


@island
def _to_weights(x: Tensor, upstream: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    upstream = ops.cast(upstream, wide(x))
    # dγ = Σ upstream · x̂ and dβ = Σ upstream, over all vectors
    rows = tuple(range(len(x.shape) - 1))
    return ops.sum(upstream * _normalised(x, epsilon)[0], rows), ops.sum(upstream, rows)


def _mean(x: Tensor) -> Tensor:
    """Mean over the features, kept as an axis."""
    return ops.mean(x, axis=-1, keepdims=True)


def _mean_by_product(x: Tensor) -> Tensor:
    """The same for XLA, which sums rows one by one."""
    return ops.matmul(x, ops.full((x.shape[-1], 1), 1 / x.shape[-1], x.dtype))


def _normalised(
    x: Tensor, epsilon: float, mean: Callable[[Tensor], Tensor] = _mean_by_product
) -> tuple[Tensor, Tensor]:
    x = ops.cast(x, wide(x))
    # The variance of what is centred, not E x² − (E x)²: that loses digits where the mean is large.
    centred = x - mean(x)
    rate = ops.rsqrt(mean(centred * centred) + epsilon)
    return centred * rate, rate
