"""Our model and another library's on the same sentences, compared layer by layer.

The other library really runs, in a process of its own: bert4keras needs another Keras, and
neither may change what our process does.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from roformer_tf.checkpoints import huggingface, tf1
from roformer_tf.checkpoints.detection import (
    attention_type,
    is_language_model,
    parts,
    transformers_class,
)
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import CheckpointLayout, OutputConfig, convert_checkpoint
from roformer_tf.conversion.statistics import largest_difference
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.tokenizers.tokenizer import fitting_tokenizer

Peer = Literal["bert4keras", "transformers"]

BOUNDS = {"logits": 2e-5}
"""Largest difference allowed at a real token, by output …"""
BOUND = 1e-5
"""… and of every other one: rounding of float32 over some layers stays below."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "embedding_size",
    "norm_type",
)
SENTENCES: tuple[str | tuple[str, str], ...] = (
    "好。",
    "今天天气很好，我们去公园散步。",
    "北京是中华人民共和国的首都，也是全国的政治中心和文化中心。",
    "2021年3月，研究人员在 GitHub 上公布了模型的代码和权重，下载量很快超过了10000次。",
    "RoFormer 用旋转位置编码（RoPE）代替了 BERT 的绝对位置编码，使注意力只依赖相对距离。",
    ("如何学习游泳？", "怎样才能学会游泳？"),
    (
        "这部手机的电池能用多久？",
        "一般情况下可以用两天；如果经常看视频或者玩游戏，每天晚上都需要充一次电。",
    ),
    "清晨，薄雾还没有散去，集市上已经热闹起来。卖菜的农民把刚摘下来的黄瓜、西红柿和青椒整整齐齐地"
    "摆在地上，卖鱼的师傅一边称重一边和老顾客聊天。孩子们背着书包从人群中穿过，手里拿着热腾腾的"
    "包子。街角的茶馆里，几位老人围着一张旧木桌下棋，旁边的收音机正播放着当天的新闻：今年的粮食"
    "产量比去年增长了百分之五，新修的铁路将在十月份通车，从县城到省会只需要一个半小时。",
)
"""What is compared: short and long, Latin letters and digits, pairs; all but one are padded."""

_INSTALL = {
    "bert4keras": (
        ("bert4keras", "tf_keras"),
        "pip install tf-keras && pip install --no-deps bert4keras==0.11.5",
    ),
    "transformers": (("transformers", "torch"), "pip install torch 'transformers>=5'"),
}
"""What each library needs, and how it is installed (bert4keras declares an ancient Keras)."""


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Compare what we compute with what another library computes, layer by layer."""

    source: Annotated[str, tyro.conf.Positional]
    """What we read: a released zip, its name, or a folder with a checkpoint."""
    against: Peer
    """The library that is compared with."""
    reference: str | None = None
    """What it reads, if not the same; written for it in its own layout where need be."""
    attention_type: Literal["bidirectional", "causal", "unilm"] | None = None
    """What a token sees; unset, it is told from the checkpoint: its config, its name, its parts."""


def verify(config: VerifyConfig) -> None:
    """Print the largest difference of every output.

    Raises DifferenceError, which names the first layer beyond its bound, and InputError where the
    other library is missing or has no such model.
    """
    check_installed(config.against)
    with ExitStack() as opened:
        source = reference = opened.enter_context(OpenedSource(config.source))
        checkpoint = source.checkpoint()
        if config.reference is not None:
            reference = opened.enter_context(OpenedSource(config.reference))
            _check_same_sizes(checkpoint, reference.checkpoint(), source.name, reference.name)
        mask = config.attention_type or attention_type(checkpoint, source)
        if config.against == "transformers" and mask == "unilm":
            mask = "bidirectional"  # it has no other but the causal one
        inputs = encode(source, checkpoint)
        epsilon = checkpoint.config.layer_norm_eps
        theirs = their_outputs(config.against, reference, inputs, mask)
        ours = our_outputs(config.against, source, inputs, mask)
    rows, length = inputs["token_ids"].shape
    print(f"ours    {source.name}")
    print(f"theirs  {reference.name}, by {config.against} {metadata.version(config.against)}")
    print(f"input   {rows} rows of up to {length} tokens")
    print(f"both    attention {mask}, layer_norm_eps {epsilon:g}\n")
    print_differences(differences(ours, theirs, inputs["token_ids"]))


def check_installed(against: Peer) -> None:
    """Raise InputError, which says how to install it, where the other library is missing."""
    modules, command = _INSTALL[against]
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} cannot be found here. Install: {command}")


def encode(source: OpenedSource, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """The sentences as `token_ids` and `segment_ids` (8, T) int32.

    Raises InputError without a vocabulary that fits.
    """
    tokenizer = fitting_tokenizer(source, checkpoint.config.vocab_size)
    return tokenizer(SENTENCES, max_length=checkpoint.config.max_position_embeddings)


def our_outputs(
    against: Peer, source: OpenedSource, inputs: Mapping[str, np.ndarray], mask: str
) -> dict[str, np.ndarray]:
    """What our model gives: `embeddings`, `layer_0`, … (B, T, H), `logits`, `pooled` (B, H).

    The model is the one that has the heads which the other library knows. It computes on the
    processor: many a GPU rounds products of float32.
    """
    import keras

    model_class = _our_class(source.checkpoint(attention_type=mask), against)
    with keras.device("cpu:0"):
        model = model_class.from_source(source, attention_type=mask)
        held = model.parts()
        embeddings, *states = held["encoder"].hidden_states(inputs)
        found = {"embeddings": embeddings}
        found |= {f"layer_{i}": state for i, state in enumerate(states)}
        if "pooler" in held:
            found["pooled"] = model.pooler(states[-1])
        if "mlm" in held:
            found["logits"] = model.logits(states[-1])
        elif len(held) > 1:  # it classifies
            found["logits"] = model(inputs)
    return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}


def their_outputs(
    against: Peer, reference: OpenedSource, inputs: Mapping[str, np.ndarray], mask: str
) -> dict[str, np.ndarray]:
    """What the other library gives of the same names, as far as it has them.

    Raises InputError for a model that it does not know, and where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="roformer-tf-") as name, ExitStack() as opened:
        scratch = Path(name)
        checkpoint = reference.checkpoint(attention_type=mask)
        _check_known(against, checkpoint, reference.name)
        layout: CheckpointLayout = "tf1" if against == "bert4keras" else "huggingface"
        if checkpoint.layout != layout:
            convert_checkpoint(checkpoint, None, scratch / "checkpoint", OutputConfig(to=layout))
            reference = opened.enter_context(OpenedSource(scratch / "checkpoint"))
        np.savez(
            scratch / "inputs.npz",
            token_ids=inputs["token_ids"],
            segment_ids=inputs["segment_ids"],
        )
        _run(against, reference.folder, scratch, _options(against, checkpoint))
        with np.load(scratch / "outputs.npz") as file:
            return dict(file)


def differences(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], token_ids: np.ndarray
) -> dict[str, float]:
    """The largest difference of every output that both have, at real tokens alone."""
    real = token_ids != 0
    real[:, 0] = True
    return {
        name: largest_difference(
            *(x[real] if x.ndim == 3 else x for x in (ours[name], theirs[name]))
        )
        for name in ours
        if name in theirs
    }


def print_differences(found: Mapping[str, float]) -> None:
    """Print each difference beside its bound; raise DifferenceError if one is beyond it."""
    print(f"{'output':12} {'difference':>10} {'bound':>10}")
    for name, value in found.items():
        print(f"{name:12} {value:10.1e} {BOUNDS.get(name, BOUND):10.0e}")
    beyond = [name for name, value in found.items() if value > BOUNDS.get(name, BOUND)]
    if beyond:
        raise DifferenceError(
            f"{beyond[0]} is the first that differs: by {found[beyond[0]]:.1e}, where "
            f"{BOUNDS.get(beyond[0], BOUND):.0e} is allowed."
        )
    print("\nNo difference is beyond its bound.")


def _check_same_sizes(
    checkpoint: Checkpoint, other: Checkpoint, source: str, reference: str
) -> None:
    """Raise InputError where the two checkpoints are not of one architecture."""
    for key in _SIZES:
        ours, theirs = getattr(checkpoint.config, key), getattr(other.config, key)
        if ours != theirs:
            raise InputError(
                f"{source} has {key} {ours}, but {reference} {theirs}. "
                "Give two checkpoints of one architecture."
            )


def _check_known(against: Peer, checkpoint: Checkpoint, reference: str) -> None:
    """Raise InputError for a model that the other library would compute wrongly, or not at all."""
    config = checkpoint.config
    form = config.unusual_form(learned=True, value=against == "transformers")
    if form or (config.position_embedding_type == "learned" and config.is_v2):
        raise InputError(
            f"{reference} has {form or 'learned positions and the rest of a RoFormerV2'}, which "
            f"{against} does not know: it would compute another model."
        )
    if against == "transformers" and config.is_v2:
        raise InputError(
            f"{reference} is a RoFormerV2, which transformers does not know: it would compute "
            "nonsense without an error. Verify it --against bert4keras."
        )
    if against == "bert4keras" and config.rotary_base != 10_000:
        raise InputError(
            f"{reference} has rotary_base {config.rotary_base:g}, but bert4keras knows only "
            "10,000. Verify it --against transformers."
        )
    masked = config.attention_type != "bidirectional"
    if against == "bert4keras" and masked and not is_language_model(checkpoint):
        raise InputError(
            f"{reference} has no language model head, without which bert4keras has no "
            f"{config.attention_type} mask. Verify it with --attention-type bidirectional."
        )


def _our_class(checkpoint: Checkpoint, against: Peer) -> Any:
    """Our model with the heads that the other library knows."""
    from roformer_tf.models import heads
    from roformer_tf.models.encoder import RoFormerEncoder

    if against == "transformers":
        return getattr(heads, transformers_class(checkpoint), RoFormerEncoder)
    if "pooler" in parts(checkpoint) and not checkpoint.config.is_v2:
        return heads.RoFormerForSentenceSimilarity
    return heads.RoFormerForMaskedLM if is_language_model(checkpoint) else RoFormerEncoder


def _options(against: Peer, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the other library has to be told, for it does not see it in the files."""
    config = checkpoint.config
    if against == "transformers":
        causal = config.attention_type == "causal"
        name = transformers_class(checkpoint)
        if config.position_embedding_type == "learned":
            name = huggingface.bert_class(name)
        return {"class": name, "is_decoder": causal}
    learned = config.position_embedding_type == "learned"
    applications = {"bidirectional": "encoder", "causal": "lm", "unilm": "unilm"}
    activation = {"gelu_new": "gelu_tanh"}.get(config.hidden_act, config.hidden_act)
    return {
        "epsilon": config.layer_norm_eps,  # its own, 1e-7, shows where embeddings are small
        "model": "bert" if learned else "roformer_v2" if config.is_v2 else "roformer",
        "application": applications[str(config.attention_type)],
        "hidden_act": activation,
        "with_mlm": "linear" if is_language_model(checkpoint) else False,
        "with_pool": "linear" if "pooler" in parts(checkpoint) else False,
    }


def _run(against: Peer, folder: Path, scratch: Path, options: Mapping[str, Any]) -> None:
    """Run the other library's program, silently unless it fails: InputError with what it said."""
    files = [folder]
    if against == "bert4keras":
        (index,) = folder.glob("*.index")
        files = [index.with_suffix(""), folder / tf1.CONFIG]
    # By its path: a process of its own need not find the package that this one runs from.
    program = Path(__file__).parent / "peers" / f"{against}_states.py"
    files = [program, *files, scratch / "inputs.npz", scratch / "outputs.npz"]
    done = subprocess.run(
        [sys.executable, *files, json.dumps(options)],
        env=os.environ
        | {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise InputError(
            f"{against} failed (exit code {done.returncode}) with:\n{done.stderr[-2000:].strip()}"
        )
