"""Beyond the trained length: slower angles (linear, dynamic NTK, YaRN) and sharper scores (log-n).

`rope_parameters` has the keys of transformers 5, and the formulas are those it reads them by.

Axes: B batch, N heads, T queries, S keys, R features of a head that are rotated.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor


def frequencies(
    features: int,
    base: float,
    parameters: Mapping[str, Any] | None = None,
    trained_length: int = 0,
    length: Any = None,
) -> tuple[Tensor, float]:
    """Angles per position of all pairs, (R/2,) float64, and what to multiply cos and sin by.

    parameters: checked `rope_parameters`, or None; trained_length: what counts as trained where
    they do not say; length: tokens of the row, which dynamic NTK alone asks for, and which may be
    a tensor. Raises InputError where they need a trained length and have none.
    """
    # θ_m = base^(−2m/R), made in float64: the position multiplies what rounding left wrong.
    exponents = np.arange(0, features, 2, dtype="float64") / max(features, 1)  # (R/2,)
    if parameters is None:
        return base**-exponents, 1.0
    kind, factor = parameters["rope_type"], parameters["factor"]
    if kind == "linear":  # positions are pressed together (arXiv 2306.15595)
        return base**-exponents / factor, 1.0
    trained = parameters.get("original_max_position_embeddings") or trained_length
    if not trained:
        raise InputError(
            f"rope_parameters of rope_type {kind!r} begin at the trained length, which is not "
            "known. Give original_max_position_embeddings among them, or trained_length."
        )
    if kind == "dynamic":
        return _stretched(base, features, factor, trained, length) ** -exponents, 1.0
    return _yarn(base**-exponents, base, features, factor, trained, parameters)


def _stretched(base: float, features: int, factor: float, trained: int, length: Any) -> Any:
    """The base that "NTK-aware" scaling gives a row: the longer the row, the larger.

    base · (factor · T / L − (factor − 1))^(R / (R − 2)) for T tokens beyond the trained L.
    """
    if not isinstance(length, int | None):
        length = ops.cast(length, "float64")
        longer = ops.maximum(length / trained, 1.0)
    else:
        longer = max((length or 0) / trained, 1.0)
    return base * (factor * longer - (factor - 1)) ** (features / (features - 2))


def _yarn(
    plain: np.ndarray,
    base: float,
    features: int,
    factor: float,
    trained: int,
    parameters: Mapping[str, Any],
) -> tuple[np.ndarray, float]:
    """YaRN (arXiv 2309.00071): fast pairs stay, slow ones are slowed, those between are mixed."""

    def pair(turns: float) -> float:
        """The pair, counted as a fraction, that makes so many turns within the trained length."""
        return features * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    low, high = pair(fast), pair(slow)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    width = high - low or 0.001  # no step is infinitely steep
    slowed = np.clip((np.arange(features // 2) - low) / width, 0, 1)
    return plain * (1 - slowed) + plain / factor * slowed, _yarn_attention(factor, parameters)


def _yarn_attention(factor: float, parameters: Mapping[str, Any]) -> float:
    """What YaRN multiplies cos and sin by: scores of more keys are made sharper."""

    def sharper(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    above, below = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return sharper(above) / sharper(below) if above and below else sharper(1.0)


def sharpened(query: Tensor, mask: Tensor | None, keys: Any, trained_length: int) -> Tensor:
    """Queries (B, T, N, H) times `log_n` of how many of S keys a mask shows them.

    mask: (T, S), (B, T, S) or (B, 1 or N, T, S) bool, or None: all.
    """
    if mask is None:
        return query * ops.cast(log_n(ops.convert_to_tensor(keys), trained_length), query.dtype)
    factor = log_n(ops.sum(ops.cast(mask, "int32"), axis=-1), trained_length)
    if len(mask.shape) == 4:
        factor = ops.swapaxes(factor, 1, 2)[..., None]  # (B, T, 1 or N, 1)
    else:
        factor = factor[..., None, None]  # ([B,] T, 1, 1)
    return query * ops.cast(factor, query.dtype)


def log_n(seen: Tensor, trained_length: int) -> Tensor:
    """What a query is multiplied by for the number n of keys that it sees: max(1, log n / log L).

    seen (…) int, for the trained length L → (…) float32. So the entropy of its weights stays what
    it was at L, however many keys share them; up to L nothing changes.
    """
    seen = ops.cast(ops.maximum(seen, 1), "float32")
    return ops.maximum(ops.log(seen) / math.log(trained_length), 1.0)
