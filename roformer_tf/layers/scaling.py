"""Beyond the trained length: slower angles (linear, dynamic NTK, YaRN) and sharper scores (log-n).

`rope_parameters` has the keys of transformers 5, with the same formulas.

Axes: B batch, N heads, T queries, S keys, R rotated dimensions of a head.
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
    """Angle per position for each pair, (R/2,) float64, and a factor for cos and sin.

    parameters: checked `rope_parameters`, or None. trained_length: the length in training, if it is
    not in the parameters. length: tokens of the sequence, which can be a tensor; only dynamic NTK
    uses it. Raises InputError if a trained length is needed and missing.
    """
    # θ_m = base^(−2m/R) in float64, because positions multiply its rounding error.
    exponents = np.arange(0, features, 2, dtype="float64") / max(features, 1)  # (R/2,)
    if parameters is None:
        return base**-exponents, 1.0
    kind, factor = parameters["rope_type"], parameters["factor"]
    if kind == "linear":  # position interpolation (arXiv 2306.15595)
        return base**-exponents / factor, 1.0
    trained = parameters.get("original_max_position_embeddings") or trained_length
    if not trained:
        raise InputError(
            f"rope_parameters of rope_type {kind!r} begin at the trained length, which is not "
            "known. Add original_max_position_embeddings to them, or give trained_length."
        )
    if kind == "dynamic":
        return _stretched(base, features, factor, trained, length) ** -exponents, 1.0
    return _yarn(base**-exponents, base, features, factor, trained, parameters)


def _stretched(base: float, features: int, factor: float, trained: int, length: Any) -> Any:
    """The base of "NTK-aware" scaling, which grows with the length of the sequence.

    base · (factor · T / L − (factor − 1))^(R / (R − 2)) for T tokens beyond the trained L. With
    R = 2, the one angle does not depend on the base.
    """
    if not isinstance(length, int | None):
        length = ops.cast(length, "float64")
        longer = ops.maximum(length / trained, 1.0)
    else:
        # Up to the trained length the factor is 1, and with it the base unchanged.
        longer = max((length or 0) / trained, 1.0)
    return base * (factor * longer - (factor - 1)) ** (features / max(features - 2, 1))


def _yarn(
    plain: np.ndarray,
    base: float,
    features: int,
    factor: float,
    trained: int,
    parameters: Mapping[str, Any],
) -> tuple[np.ndarray, float]:
    """YaRN (arXiv 2309.00071): slow pairs are interpolated, fast pairs are not, with a ramp."""

    def pair(turns: float) -> float:
        """The index of the pair (a fraction) with this number of turns in the trained length."""
        return features * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    low, high = pair(fast), pair(slow)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, features - 1)
    width = high - low or 0.001  # avoids a division by 0
    slowed = np.clip((np.arange(features // 2) - low) / width, 0, 1)
    return plain * (1 - slowed) + plain / factor * slowed, _yarn_attention(factor, parameters)


def _yarn_attention(factor: float, parameters: Mapping[str, Any]) -> float:
    """YaRN's factor of cos and sin, which sharpens the softmax over more keys."""

    def sharper(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    above, below = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return sharper(above) / sharper(below) if above and below else sharper(1.0)


def sharpened(query: Tensor, mask: Tensor | None, keys: Any, trained_length: int) -> Tensor:
    """Queries (B, T, N, H), multiplied by `log_n` of the number of keys that a mask allows.

    mask: (T, S), (B, T, S) or (B, 1 or N, T, S) bool, S or 1 columns, or None: all S keys.
    """
    if mask is None:
        return query * ops.cast(log_n(ops.convert_to_tensor(keys), trained_length), query.dtype)
    seen = ops.sum(ops.cast(mask, "int32"), axis=-1)
    # A mask may have one column for all keys, such as that of padded queries.
    factor = log_n(seen * (keys // ops.shape(mask)[-1]), trained_length)
    if len(mask.shape) == 4:
        factor = ops.swapaxes(factor, 1, 2)[..., None]  # (B, T, 1 or N, 1)
    else:
        factor = factor[..., None, None]  # ([B,] T, 1, 1)
    return query * ops.cast(factor, query.dtype)


def log_n(seen: Tensor, trained_length: int) -> Tensor:
    """The factor of a query that attends to n keys: max(1, log n / log L), L the trained length.

    seen (…) int → (…) float32. It keeps the entropy of the attention weights beyond L what it is at
    L. Up to L it is 1.
    """
    seen = ops.cast(ops.maximum(seen, 1), "float32")
    return ops.maximum(ops.log(seen) / math.log(trained_length), 1.0)
