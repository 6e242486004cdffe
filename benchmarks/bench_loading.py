"""Loading a base-size checkpoint from its zip, beside only reading the zip's bytes.

    python benchmarks/bench_loading.py

Makes L12 H768 with 50,000 words and random weights in the released layout, deflated (about half a
minute), and measures in fresh processes, imports excluded: every member of the zip through
zipfile; from_pretrained; and how far memory rises during from_pretrained, beside the model's
size plus its largest tensor (Linux alone tells). The process of the last has loaded a tiny
checkpoint before, so that what is measured is the checkpoint, and not TensorFlow's own start.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from roformer_tf.checkpoints import tf1
from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

BASE = {
    "vocab_size": 50_000,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
TINY = dict.fromkeys(BASE, 12) | {"vocab_size": 100, "num_attention_heads": 2}
ROUNDS = 3
TIME_BOUND = 3
"""Times as long as reading the bytes that loading may take."""


def make(path: Path, sizes: dict[str, int]) -> dict[str, int]:
    """Write a checkpoint with random weights; give the bytes of all its tensors and of the largest.

    Made-up words, as many as the config says, are its vocabulary.
    """
    config = RoFormerConfig(**sizes)
    rows = {row.name: row for row in table(config) if row.part in ("encoder", "mlm")}
    random = np.random.default_rng(0)
    arrays = LazyArrays(
        {name: row.shape for name, row in rows.items()},
        {name: np.dtype("float32") for name in rows},
        lambda name: 0.02 * random.standard_normal(rows[name].shape, "float32"),
    )
    words = [f"{chr(0x4E00 + i // 100)}{chr(0x4E00 + i % 100)}" for i in range(sizes["vocab_size"])]
    tokens = [*SPECIAL_TOKENS, *words[len(SPECIAL_TOKENS) :]]
    folder = path.with_suffix("")
    tf1.write(folder, config, arrays, "".join(f"{token}\n" for token in tokens).encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    size = [4 * int(np.prod(shape)) for shape in arrays.shapes.values()]
    return {"model": sum(size), "largest": max(size)}


def seconds_to_read(path: Path) -> float:
    """Read and inflate every member of a zip, in pieces that are dropped."""
    began = time.perf_counter()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                while member.read(1 << 20):
                    pass
    return time.perf_counter() - began


def seconds_to_load(path: Path) -> float:
    """Load a masked language model."""
    from roformer_tf.models.heads import RoFormerForMaskedLM

    began = time.perf_counter()
    RoFormerForMaskedLM.from_pretrained(path)
    return time.perf_counter() - began


def memory_to_load(path: Path) -> int:
    """Bytes by which the memory of the process has been higher while it loaded than before."""
    seconds_to_load(path.with_name("tiny.zip"))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    seconds_to_load(path)
    return memory("VmHWM") - before


def memory(key: str) -> int:
    """A figure in bytes of what Linux knows of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith(f"{key}:"))


def apart(function: str, path: Path) -> float:
    """Call a function of this file in a process of its own."""
    command = [sys.executable, __file__, function, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Make the checkpoints and print each figure with its bound."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "base.zip"
        make(path.with_name("tiny.zip"), TINY)
        size = make(path, BASE)
        print(
            f"{os.cpu_count()} cores, {size['model'] / 1e6:.0f} MB of weights, the largest tensor "
            f"{size['largest'] / 1e6:.0f} MB, a zip of {path.stat().st_size / 1e6:.0f} MB"
        )
        for _ in range(ROUNDS):
            read, load = (apart(f, path) for f in ("seconds_to_read", "seconds_to_load"))
            ratio = f"{load / read:.2f} × (bound {TIME_BOUND})"
            print(f"read {read:5.2f} s   load {load:5.2f} s   {ratio}")
        if sys.platform == "linux":
            bound = size["model"] + size["largest"]
            rise = apart("memory_to_load", path)
            print(f"memory rises by {rise / 1e6:.0f} MB (bound {bound / 1e6:.0f})")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
    else:
        main()
