"""Hugging Face folders, which are our own format too: `config.json` and `model.safetensors`."""

import json
import re
import zipfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from roformer_tf.checkpoints.arrays import DTYPES, LazyArrays, save_tensors, tensors_of_file
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside, parse_json, remove, write_text

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
WEIGHT_FILES = (WEIGHTS, SHARDS, PICKLE)
"""Files that the weights may be in; of several, the first is read."""
POSITIONS = "roformer.encoder.embed_positions.weight"
MODEL_CARD = "README.md"
CAUSAL = "RoFormerForCausalLM"
"""The class of transformers that writes text."""
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
CRF_TYPE, FORM_TYPE = "roformer_crf", "roformer_tf"
"""The `model_type` of a tagger with a conditional random field, and of a form of positions,
attention or head that transformers has no class for, neither of which it knows: it would take each
label by itself, or every model for a RoFormer, and say nothing."""
SCALED_HEAD = ("classifier/out_proj/kernel", "classifier/out_proj/bias")
"""The last layer of a classifier of texts."""
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
"""What transformers' `generate` goes by, beside a model that writes alone."""

_DTYPES = {
    "F64": np.dtype("float64"),
    "F32": DTYPES["float32"],
    "F16": DTYPES["float16"],
    "BF16": DTYPES["bfloat16"],
    "I64": np.dtype("int64"),
}
"""What safetensors calls the dtypes that a model's file may hold."""


def read_tensors(path: Path) -> LazyArrays:
    """Find the tensors of a file of weights, or of the shards that an index lists, by their names.

    Raises InputError, here or on reading, where a file is truncated or damaged.
    """
    if path.name == PICKLE:
        return _unpickled(path)
    parts = [_tensors(file) for file in (_shards(path) if path.name == SHARDS else [path])]
    home = {name: part for part in parts for name in part}
    return LazyArrays(
        {name: part.shapes[name] for name, part in home.items()},
        {name: part.dtypes[name] for name, part in home.items()},
        lambda name: home[name][name],
    )


def as_roformer(tensors: LazyArrays) -> LazyArrays:
    """Tensors under a RoFormer's names: a BERT's differ by the first word alone.

    A model without a head has no such word, and old files call a norm's weights as TF1 does.
    """
    bare = "embeddings.word_embeddings.weight" in tensors
    names = {}
    for name in tensors:
        ours = re.sub(r"^bert\.", "roformer.", name)
        ours = f"roformer.{ours}" if bare and _BARE.match(ours) else ours
        ours = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", ours)
        names[re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", ours)] = name
    return tensors.renamed(names)


def write(
    folder: str | Path,
    config: RoFormerConfig,
    arrays: Mapping[str, np.ndarray],
    architecture: str,
    dtype: str | None = None,
    special_ids: Mapping[str, int] | None = None,
    *,
    scale_head: bool = True,
) -> None:
    """Write a config and arrays under our names, as transformers reads them.

    `architecture` is the transformers class that the folder is offered to; `dtype` None keeps
    the arrays' own. `special_ids`, under transformers' names, are written for a model that writes:
    [CLS] as `bos_token_id`, [SEP], which ends a text, as `eos_token_id`, and `pad_token_id`.
    Each file is replaced whole; the config comes last, so that a folder with one has its weights.
    A RoFormerV2 gets a model card, for transformers would misread it; and with a conditional
    random field the config has another `model_type`, at which transformers' pipelines stop: they
    would leave it out. So has a form that transformers has no class for, such as a classifier of
    the mean of all tokens. A model with learned
    positions and the rest a BERT's is written as one.
    A regression's head is written such that it gives the number itself, unless `scale_head` is
    False, for a training that goes on with exactly these weights.
    """
    folder = Path(folder)
    tensors = dict(tensors_of_file(arrays, config, "huggingface", dtype))
    dtypes = {str(tensor.dtype) for tensor in tensors.values()}
    if scale_head and has_scaled_head(config, arrays):
        # float32 in files of every dtype: in bfloat16 the years 2017 and 2023 are one number
        head = {name: scale_head_array(arrays[name], name, config) for name in SCALED_HEAD}
        tensors |= tensors_of_file(head, config, "huggingface", "float32")
    else:
        config = config.replace(label_mean=0.0, label_deviation=1.0)
    config = config.replace(crf=any(name.startswith("crf/") for name in arrays))
    kind = model_type(config, arrays)
    if kind == "bert":
        tensors = {re.sub(r"^roformer\.", "bert.", name): x for name, x in tensors.items()}
        architecture = bert_class(architecture)
    elif config.position_embedding_type == "rotary":
        tensors[POSITIONS] = _position_table(config)
    with file_beside(folder / WEIGHTS) as beside:
        save_tensors(tensors, beside, {"format": "pt"})  # the word transformers asks for
    if config.is_v2:
        write_text(folder / MODEL_CARD, model_card(config))
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    values = _config_values(config, architecture, dtype, kind)
    if architecture in (CAUSAL, "BertLMHeadModel"):
        values |= special_ids or {}
        generation = {key: values[key] for key in SPECIAL_IDS if values.get(key) is not None}
        write_text(folder / GENERATION_CONFIG, json.dumps(generation, indent=2) + "\n")
    else:
        remove(folder / GENERATION_CONFIG)  # of an earlier model in its place
    write_text(folder / CONFIG, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def has_scaled_head(config: RoFormerConfig, names: Container[str]) -> bool:
    """Whether a saved head gives numbers where the model's gives deviations from their mean.

    names: ours, of all weights. RoFormerV2's head has no bias that could add the mean.
    """
    held = all(name in names for name in SCALED_HEAD)
    return config.has_label_scale and config.num_labels == 1 and held


def scale_head_array(array: np.ndarray, name: str, config: RoFormerConfig) -> np.ndarray:
    """A weight of the head, kernel (H, 1) or bias (1,), such that it gives the number: float32."""
    mean = config.label_mean if name == SCALED_HEAD[1] else 0.0
    return (array.astype("float64") * config.label_deviation + mean).astype("float32")


def unscale_head_array(array: np.ndarray, name: str, config: RoFormerConfig) -> np.ndarray:
    """The inverse of `scale_head_array`: float32."""
    mean = config.label_mean if name == SCALED_HEAD[1] else 0.0
    return ((array.astype("float64") - mean) / config.label_deviation).astype("float32")


def bert_class(name: str) -> str:
    """What transformers calls the class of a BERT that has the head of this one of a RoFormer."""
    return "BertLMHeadModel" if name == CAUSAL else name.replace("RoFormer", "Bert")


def model_card(config: RoFormerConfig) -> str:
    """Give a RoFormerV2's `README.md`: what reads the folder, and what only seems to."""
    return _V2_CARD.format(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
    )


def _tensors(path: Path) -> LazyArrays:
    """The tensors of one safetensors file, which is opened anew for each.

    An open one is mapped into memory, where what was once read of it stays.
    """

    @contextmanager
    def opened() -> Iterator[Any]:
        try:
            with safe_open(path, "numpy") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"cannot read {path}: {error}. The file is incomplete or damaged: fetch it again."
            ) from None

    with opened() as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(piece.get_shape()) for name, piece in slices.items()}
        kinds = {name: piece.get_dtype() for name, piece in slices.items()}
    if strange := sorted(name for name, kind in kinds.items() if kind not in _DTYPES):
        raise InputError(
            f"cannot read {path}: {strange[0]} is of dtype {kinds[strange[0]]}, which is not "
            f"known here. Save the model as one of {', '.join(DTYPES)}."
        )

    def read(name: str) -> np.ndarray:
        with opened() as file:
            return file.get_tensor(name)

    return LazyArrays(shapes, {name: _DTYPES[kind] for name, kind in kinds.items()}, read)


def _shards(index: Path) -> list[Path]:
    """The files that an index of shards lists, in its folder."""
    try:
        names = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
        inside = all(Path(name).name == name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        inside = False
    if not inside:
        raise InputError(f"cannot read {index}: it is no index of files beside it. Fetch it again.")
    return [index.with_name(name) for name in sorted(names)]


def _unpickled(path: Path) -> LazyArrays:
    """The tensors of a `pytorch_model.bin`, by the reader of torch that makes nothing else."""
    if find_spec("torch") is None:
        raise InputError(
            f"{path} is a pickle, which is never opened without torch's guard (weights_only). "
            f"Install torch, or save the model as {WEIGHTS} with transformers."
        )
    import torch

    try:
        tensors = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        dtypes = {
            name: np.dtype(str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()
        }
    except Exception as error:  # torch has no class of its own for a bad file
        raise InputError(
            f"cannot read {path}: {str(error).strip().splitlines()[0]} "
            "The file is damaged or holds more than tensors: fetch it again."
        ) from None

    def read(name: str) -> np.ndarray:
        tensor = tensors[name].contiguous()
        if tensor.dtype == torch.bfloat16:  # which torch gives NumPy as bits alone
            return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
        return tensor.numpy()

    return LazyArrays({name: tuple(t.shape) for name, t in tensors.items()}, dtypes, read)


def _position_table(config: RoFormerConfig) -> np.ndarray:
    """Sines, then cosines: (positions, head size) float32, as transformers keeps it.

    Where it is missing, transformers makes one, warns of an untrained weight, and knows only the
    base 10,000. It is float32 in files of every dtype: half of it would be lost on a reader that
    computes in float32.
    """
    pairs = np.arange(0, config.head_size, 2) / config.head_size
    theta = np.outer(np.arange(config.max_position_embeddings), config.rotary_base**-pairs)
    return np.concatenate([np.sin(theta), np.cos(theta)], axis=1).astype("float32")


def model_type(config: RoFormerConfig, arrays: Iterable[str]) -> str:
    """What transformers calls a model of this config and these weights, by our names.

    "roformer" and "bert" it knows, and reads right; at any other word its pipelines stop.
    """
    if config.crf:
        return CRF_TYPE
    classifies = any(name.startswith("classifier/") for name in arrays)
    # transformers would give a head on the mean of all tokens a new, random layer
    if config.unusual_form(learned=True, value=True) or (classifies and config.pooling == "mean"):
        return FORM_TYPE
    if config.position_embedding_type == "rotary":
        return "roformer"
    # BERT has one size for embeddings and layers, norms with weights, and another head for texts.
    other = config.embedding_size != config.hidden_size or config.is_v2 or config.rotary_value
    return FORM_TYPE if other or classifies else "bert"


def classifier_opens_in_transformers(config: RoFormerConfig) -> bool:
    """Whether transformers computes what we do of a classifier of texts with this config."""
    return not config.is_v2 and model_type(config, SCALED_HEAD) == "roformer"


def _config_values(
    config: RoFormerConfig, architecture: str, dtype: str, kind: str
) -> dict[str, Any]:
    values = config.to_dict()
    for key in ("torch_dtype", "transformers_version"):  # true of the file it was read from
        values.pop(key, None)
    labels = values.pop("num_labels")  # transformers counts them in its two tables
    if len(values.get("id2label", ())) != labels:
        values["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        values["label2id"] = {label: int(i) for i, label in values["id2label"].items()}
    if not config.crf:
        del values["crf"]
    return values | {
        "architectures": [architecture],
        "model_type": kind,
        "dtype": dtype,
        "is_decoder": config.attention_type == "causal",
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        **(_BERT_VALUES if kind == "bert" else {"rotary_value": config.rotary_value}),
    }


_BARE = re.compile(r"(embeddings|embeddings_project|encoder|pooler)\.")
_BERT_VALUES = {"position_embedding_type": "absolute"}

_V2_CARD = """\
---
language: zh
library_name: roformer-tf
tags:
- roformer-v2
---

# RoFormerV2, {layers} layers of {hidden}, {heads} heads, {vocabulary:,} tokens

**Not for `transformers`.** `config.json` says `model_type: roformer`, and transformers' RoFormer
loads this folder without an error; but it knows neither `norm_type: rms_norm` nor
`use_bias: false`, adds the biases and layer norms that RoFormerV2 does not have, and computes
nonsense.

What reads it:

```python
from roformer_tf import RoFormerForMaskedLM  # or RoFormerEncoder, or a classifier

model = RoFormerForMaskedLM.from_pretrained("this folder")
```

So does the PyTorch package `roformer` (github.com/JunnYu/RoFormer_pytorch), whose keys these are.
"""
