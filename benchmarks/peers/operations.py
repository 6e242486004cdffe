"""A profile that TensorFlow wrote → milliseconds of each group of operations."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# An operation's, "path:kind"; or what an island compiled by XLA leaves, whose own are others.
EVENT = re.compile(r".*[^:]:_?[A-Z]\w+|ExecutorState::ProcessAsync::Start")

# Which operations are of a group: the first whose pattern is in "path:kind".
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
    """Time of each group in one step, of a profile of so many made one operation at a time."""
    totals: defaultdict[str, float] = defaultdict(float)
    for path in folder.rglob("*.xplane.pb"):
        for operation, time in operations(path):
            totals[group_of(operation)] += time
    return {group: time / steps for group, time in totals.items()}


def group_of(operation: str) -> str:
    """The group of an operation, "path:kind"."""
    actual = (name for name, pattern in GROUPS.items() if re.search(pattern, operation))
    return next(actual, "the rest")


def operations(path: Path) -> Iterator[tuple[str, float]]:
    """Every operation of the graph that ran, and its milliseconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            if line.name.startswith("tf_Compute"):  # tf.data's threads do not make the step wait
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    if EVENT.fullmatch(name):
                        yield name, event.duration_ps / 1e9
