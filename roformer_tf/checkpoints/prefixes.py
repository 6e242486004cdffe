"""Names of tensors in a file → names without what wrappers put before all of them.

`module.` is PyTorch's DataParallel, `_orig_mod.` torch.compile, `model.` many a training script. A
file may hold the weights several times, such as their moving averages under `ema.`.
"""

import re
from collections.abc import Iterable

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.errors import InputError

WORDS = re.compile(
    r"(?P<prefix>|.*?[./])((roformer|bert)[./])?embeddings[./]word_embeddings(\.weight)?"
)
"""The one tensor that every model has."""
AVERAGE = "ExponentialMovingAverage"
"""What TensorFlow puts behind the name of a moving average."""
_BARE = re.compile(r"(embeddings|encoder|pooler)/")


def plain_names(
    names: Iterable[str], wanted: str | None, source: object
) -> tuple[str, dict[str, str]]:
    """The prefix of a model's tensors, and their names without it → those in the file.

    Of several copies of the weights only the one under the prefix `wanted` is given. Raises
    InputError where a file has several and none was chosen, or not the chosen one, and where two
    tensors would have one name.
    """
    ordered = {average_first(name): name for name in names}
    found = sorted({match["prefix"] for match in map(WORDS.fullmatch, ordered) if match})
    if wanted is None and len(found) > 1:
        raise InputError(
            f"{source} holds the weights {len(found)} times, under names that begin with "
            f"{', '.join(map(repr, found))}. Say which is meant, such as prefix={found[-1]!r} (a "
            f"command's --prefix {found[-1]})."
        )
    if wanted is not None and wanted not in found:
        there = ", ".join(map(repr, found)) or "none"
        raise InputError(f"{source} has no weights under the prefix {wanted!r}. It has: {there}.")
    prefix = wanted if wanted is not None else next(iter(found), "")
    plain: dict[str, str] = {}
    for name, in_file in ordered.items():
        # "model." and "model.ema.": a name belongs to the longest prefix that it begins with.
        owner = max((x for x in found if name.startswith(x)), key=len, default=None)
        if owner not in (prefix, None):
            continue
        ours = name.removeprefix(prefix) if owner == prefix else name
        if ours in plain:
            raise InputError(
                f"{source} holds {plain[ours]} and {in_file}, which both would be {ours}. Remove "
                "one of them."
            )
        plain[ours] = in_file
    return prefix, plain


def with_bert(tensors: LazyArrays) -> LazyArrays:
    """Tensors of a TF1 checkpoint, with `bert/` where all lack it."""
    if "embeddings/word_embeddings" not in tensors:
        return tensors
    return tensors.renamed(
        {f"bert/{name}" if _BARE.match(name) else name: name for name in tensors}
    )


def average_first(name: str) -> str:
    """A moving average's name, with TensorFlow's word for it at the beginning."""
    plain = name.removesuffix(f"/{AVERAGE}")
    return name if plain == name else f"{AVERAGE}/{plain}"
