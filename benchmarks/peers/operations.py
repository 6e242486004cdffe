"""Milliseconds of each group of operations in a TensorFlow profile."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# Matches an operation, "path:kind", or the event of an island compiled by XLA.
EVENT = re.compile(r".*[^:]:_?[A-Z]\w+|ExecutorState::ProcessAsync::Start")

# Patterns of the groups; an operation is in the first group whose pattern matches "path:kind".
GROUPS = {
    "optimizer and clipping": r"\b(adam_w|muon)/|ResourceApply",
    "islands compiled by XLA": r"^ExecutorState::ProcessAsync::Start$",
    "products of attention": r":.*BatchMatMul|:.*Einsum",
    "matrix products": r":.*MatMul",
    "random numbers": r":.*Random|dropout/GreaterEqual|:(Bitwise|RightShift|LeftShift)",
    "cross-entropy": r"CrossEntropy",
    "softmax": r":.*Softmax",
    "casts": r":Cast",
    "gather and scatter": r":.*(Gather|Scatter|UnsortedSegmentSum)",
    "transposes, slices, packs": r":.*(Transpose|Reverse|Slice|Pack|Concat|Split|Pad|Tile|Copy)",
    "element-wise and sums": r":(_Fused|_Mkl|Add|BiasAdd|Broadcast|Div|Erf|Exp|Max|Mean|Min|Mul|"
    r"Neg|Pow|Real|Rsqrt|Select|Sq|Sub|Sum|Tanh)",
}


def milliseconds(folder: Path, steps: int) -> dict[str, float]:
    """Return the time of each group in one step, from a profile of `steps` steps.

    The profile must have been recorded with one operation at a time.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for path in folder.rglob("*.xplane.pb"):
        for operation, time in operations(path):
            totals[group_of(operation)] += time
    return {group: time / steps for group, time in totals.items()}


def group_of(operation: str) -> str:
    """Return the group of an operation, "path:kind"."""
    actual = (name for name, pattern in GROUPS.items() if re.search(pattern, operation))
    return next(actual, "the rest")


def operations(path: Path) -> Iterator[tuple[str, float]]:
    """Yield every executed operation of the graph and its milliseconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            if line.name.startswith("tf_Compute"):  # without tf.data's threads, which run ahead
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    if EVENT.fullmatch(name):
                        yield name, event.duration_ps / 1e9
