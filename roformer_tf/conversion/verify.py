"""Compare our model with another library's on the same sentences, layer by layer.

The other library runs in a separate process: bert4keras needs another Keras, and no library may
change the behaviour of our process.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from roformer_tf.checkpoints import huggingface
from roformer_tf.checkpoints.arrays import largest_difference
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import OutputConfig, Stored, convert_checkpoint
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import fitting_tokenizer

Library = Literal["bert4keras", "transformers"]

BOUNDS = {"logits": 2e-5}
"""Maximum difference at a token that is no padding, by output."""
BOUND = 1e-5
"""The same for all other outputs. The rounding errors of float32 over some layers are smaller."""
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
"""Inputs of the comparison: short and long, Latin letters and digits, pairs. The longest one is the
only one without padding."""

_INSTALL = {
    "bert4keras": (
        ("bert4keras", "tf_keras"),
        "pip install tf-keras && pip install --no-deps bert4keras==0.11.5",
    ),
    "transformers": (("transformers", "torch"), "pip install torch 'transformers>=5'"),
}
"""Modules that each library needs, and how to install it. (bert4keras requires a very old Keras in
its metadata, hence --no-deps.)"""


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Compare our outputs with those of another library, layer by layer.

    Examples:
        roformer-tf checkpoints verify chinese_roformer-base --against bert4keras
        roformer-tf checkpoints verify mine.zip --against transformers
    """

    source: Annotated[str, "MODEL"]
    """A released zip, its name, or a folder with a checkpoint. It is converted for the library if
    necessary."""
    against: Library
    """The library to compare with."""
    attention_type: Literal["bidirectional", "causal", "unilm"] | None = None
    """Attention type of both. Default: by the checkpoint's config, name or parts."""


def verify(config: VerifyConfig) -> None:
    """Print the largest difference of every output.

    Raises DifferenceError, which names the first layer with a too large difference, and InputError
    if the other library is missing or has no such model.
    """
    check_installed(config.against)
    with OpenedSource(config.source) as source:
        checkpoint = source.checkpoint()
        mask = config.attention_type or checkpoint.attention_type
        if config.against == "transformers" and mask == "unilm":
            mask = "bidirectional"  # transformers has only this mask and the causal one
        # The other library runs first: it is the one that can be missing or fail.
        inputs = encode(source, checkpoint)
        theirs = their_outputs(config.against, source, inputs, mask)
        ours = our_outputs(config.against, source, inputs, mask)
    rows, length = inputs["token_ids"].shape
    say(
        "{model}, compared with {library} {version}: {rows} sequences of up to {length} tokens, "
        "attention {mask}, layer_norm_eps {epsilon:g}",
        model=source.name,
        library=config.against,
        version=metadata.version(config.against),
        rows=rows,
        length=length,
        mask=mask,
        epsilon=checkpoint.config.layer_norm_eps,
    )
    print_differences(differences(ours, theirs, inputs["token_ids"]))


def check_installed(against: Library) -> None:
    """Raise InputError, with the command to install it, if the other library is missing."""
    modules, command = _INSTALL[against]
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InputError(f"not installed: {' and '.join(missing)}. Run: {command}")


def encode(source: OpenedSource, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """The sentences as `token_ids` and `segment_ids` (8, T) int32.

    Raises InputError without a vocabulary that fits.
    """
    tokenizer = fitting_tokenizer(source, checkpoint.config)
    return tokenizer(SENTENCES, max_length=checkpoint.config.max_position_embeddings)


def our_outputs(
    against: Library, source: OpenedSource, inputs: Mapping[str, np.ndarray], mask: str
) -> dict[str, np.ndarray]:
    """Our model's `embeddings`, `layer_0`, … (B, T, H), `logits`, `pooled` (B, H).

    The model has the heads that the other library supports. It runs on the CPU, because GPUs may
    round the products of float32.
    """
    import keras

    model_class = _our_class(source.checkpoint(attention_type=mask), against)
    # All of the model is created and run within the scope of the device.
    with keras.device("cpu:0"):
        model = model_class.from_source(source, attention_type=mask)
        model_parts = model.parts()
        embeddings, *states = model_parts["encoder"].hidden_states(inputs)
        outputs = {"embeddings": embeddings} | {f"layer_{i}": x for i, x in enumerate(states)}
        if "pooler" in model_parts:
            outputs["pooled"] = model.pooler(states[-1])
        if "mlm" in model_parts:
            outputs["logits"] = model.logits(states[-1])
        elif len(model_parts) > 1:  # a classifier
            outputs["logits"] = model(inputs)
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}


def their_outputs(
    against: Library, source: OpenedSource, inputs: Mapping[str, np.ndarray], mask: str
) -> dict[str, np.ndarray]:
    """The other library's outputs with the same names, as far as it has them.

    Raises InputError for a model that the library does not support, and if it fails.
    """
    with tempfile.TemporaryDirectory(prefix="roformer-tf-") as name:
        scratch, folder = Path(name), source.folder
        checkpoint = source.checkpoint(attention_type=mask)
        _check_known(against, checkpoint, source.name)
        # The library must read a file that it supports; converting is tested separately.
        # bert4keras reads the layout tf1 alone, transformers only the others.
        is_readable = (checkpoint.layout == "tf1") == (against == "bert4keras")
        # A saved regression predicts labels, our model standardized ones.
        if not is_readable or checkpoint.config.has_label_scale:
            folder = scratch / "checkpoint"
            config = checkpoint.config.replace(label_mean=0.0, label_deviation=1.0)
            stored = Stored(replace(checkpoint, config=config), None, {})
            output = OutputConfig(to="tf1" if against == "bert4keras" else "own")
            convert_checkpoint(stored, folder, output)
        np.savez(scratch / "inputs.npz", **inputs)  # type: ignore[arg-type]
        _run(against, folder, scratch, _options(against, checkpoint))
        with np.load(scratch / "outputs.npz") as file:
            return dict(file)


def differences(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], token_ids: np.ndarray
) -> dict[str, float]:
    """The largest difference of every output that both have, without padding."""
    real = token_ids != 0
    real[:, 0] = True  # the first position is never padding, even if its token is 0
    return {
        name: largest_difference(
            *(x[real] if x.ndim == 3 else x for x in (ours[name], theirs[name]))
        )
        for name in ours
        if name in theirs
    }


def print_differences(largest: Mapping[str, float]) -> None:
    """Print each difference with its bound; raise DifferenceError if one is larger."""
    print(f"{'output':12} {'difference':>10} {'bound':>10}")
    for name, value in largest.items():
        print(f"{name:12} {value:10.1e} {BOUNDS.get(name, BOUND):10.0e}")
    # The first one in the order of computation is where the error is; later ones follow from it.
    too_large = [name for name, value in largest.items() if value > BOUNDS.get(name, BOUND)]
    if too_large:
        raise DifferenceError(
            f"{too_large[0]} is the first output that differs: by {largest[too_large[0]]:.1e}, "
            f"where {BOUNDS.get(too_large[0], BOUND):.0e} is allowed."
        )
    say("All differences are within their bounds.")


def _check_known(against: Library, checkpoint: Checkpoint, name: str) -> None:
    """Raise InputError for a model of which the other library would compute another one."""
    config = checkpoint.config
    form = config.unusual_form(learned=True, value=against == "transformers")
    is_bert = huggingface.model_type(config, checkpoint.arrays) == "bert"
    if form:
        problem, advice = f"has {form}", "It cannot be verified."
    elif against == "transformers" and config.position_embedding_type == "learned" and not is_bert:
        problem, advice = "is a BERT with another head or embedding size", "It cannot be verified."
    elif against == "transformers" and config.is_v2:
        problem, advice = "is a RoFormerV2", "Verify it --against bert4keras."
    elif against == "bert4keras" and config.rotary_base != 10_000:
        problem = f"has rotary_base {config.rotary_base:g}"
        advice = "Verify it --against transformers."
    else:
        return
    raise InputError(f"{name} {problem}, which {against} does not support. {advice}")


def _our_class(checkpoint: Checkpoint, against: Library) -> Any:
    """Our model class with the heads that the other library supports."""
    from roformer_tf.models import heads
    from roformer_tf.models.encoder import RoFormerEncoder

    if against == "transformers":
        return getattr(heads, checkpoint.transformers_class, RoFormerEncoder)
    if "pooler" in checkpoint.parts and not checkpoint.config.is_v2:
        return heads.RoFormerForSentenceSimilarity
    return heads.RoFormerForMaskedLM if checkpoint.is_language_model else RoFormerEncoder


def _options(against: Library, checkpoint: Checkpoint) -> dict[str, Any]:
    """Options of `other_libraries.py`: what the library does not read from the files."""
    config = checkpoint.config
    learned = config.position_embedding_type == "learned"
    if against == "transformers":
        name = checkpoint.transformers_class
        return {
            "class": huggingface.bert_class(name) if learned else name,
            "is_decoder": config.attention_type == "causal",
        }
    applications = {"bidirectional": "encoder", "causal": "lm", "unilm": "unilm"}
    activation = {"gelu_new": "gelu_tanh"}.get(config.hidden_act, config.hidden_act)
    return {
        # bert4keras' default 1e-7 makes a visible difference if embeddings are small.
        "epsilon": config.layer_norm_eps,
        "model": "bert" if learned else "roformer_v2" if config.is_v2 else "roformer",
        "application": applications[str(config.attention_type)],
        "hidden_act": activation,
        "with_mlm": "linear" if checkpoint.is_language_model else False,
        "with_pool": "linear" if "pooler" in checkpoint.parts else False,
    }


def _run(against: Library, folder: Path, scratch: Path, options: Mapping[str, Any]) -> None:
    """Run the other library. Raises InputError with its last words if it fails."""
    checkpoint = folder
    if against == "bert4keras":
        # TensorFlow takes the common prefix of a checkpoint's files: model.ckpt.index → model.ckpt.
        (index,) = folder.glob("*.index")
        checkpoint = index.with_suffix("")
    # By its path: a module name would import the package, and with it our Keras.
    program = Path(__file__).with_name("other_libraries.py")
    files = [checkpoint, scratch / "inputs.npz", scratch / "outputs.npz"]
    done = subprocess.run(
        [sys.executable, program, against, *files, json.dumps(options)],
        env=os.environ
        # No GPU: both sides must round in the same way.
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
