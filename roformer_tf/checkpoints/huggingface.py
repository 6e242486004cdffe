"""Hugging Face folders, which are also our own format: `config.json` and `model.safetensors`."""

import re
import zipfile
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from roformer_tf.checkpoints.archives import CONFIG, PICKLE, SHARDS, WEIGHTS
from roformer_tf.checkpoints.arrays import DTYPES, LazyArrays, save_tensors, tensors_of_file
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, remove, write_json, write_text
from roformer_tf.templates import environment, markdown

POSITIONS = "roformer.encoder.embed_positions.weight"
MODEL_CARD = "README.md"
CAUSAL = "RoFormerForCausalLM"
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
CRF_TYPE, FORM_TYPE = "roformer_crf", "roformer_tf"
"""Values of `model_type` at which transformers stops with an error: a tagger with a conditional
random field, and an architecture that transformers has no class for. With "roformer" it would load
them without an error and compute something else."""
MODEL_TYPES = (None, "roformer", "bert", CRF_TYPE, FORM_TYPE)
"""Values of `model_type` in the configs that can be read; early ones have none."""
BERT_POSITIONS = "roformer.embeddings.position_embeddings.weight"
"""A BERT's table of learned positions, under a RoFormer's name."""
SCALED_HEAD = ("classifier/out_proj/kernel", "classifier/out_proj/bias")
"""The last layer of a text classifier."""
_POINTER = "global_pointer/kernel"
GENERATION_CONFIG = "generation_config.json"
"""Settings of transformers' `generate`; only a causal language model has this file."""
# The start of what git writes instead of a large file where git-lfs is not installed.
_LFS = b"version https://git-lfs"

_DTYPES = {
    "F64": np.dtype("float64"),
    "F32": DTYPES["float32"],
    "F16": DTYPES["float16"],
    "BF16": DTYPES["bfloat16"],
    "I64": np.dtype("int64"),
    "I32": np.dtype("int32"),
}
"""Names of safetensors for the dtypes that are supported; integers are numbers of positions."""


def read_tensors(path: Path) -> LazyArrays:
    """The tensors of a file of weights, or of the shards that an index lists.

    Raises InputError, here or on access, if a file is truncated or damaged.
    """
    if path.name == PICKLE:
        return _unpickled(path)
    parts = [_tensors(file) for file in (_shards(path) if path.name == SHARDS else [path])]
    # Which shard has each tensor; by the table of contents of the shards, not by the index.
    part_of = {name: part for part in parts for name in part}
    return LazyArrays(
        {name: part.shapes[name] for name, part in part_of.items()},
        {name: part.dtypes[name] for name, part in part_of.items()},
        lambda name: part_of[name][name],
    )


def as_roformer(tensors: LazyArrays) -> LazyArrays:
    """The tensors under a RoFormer's names.

    A BERT's names differ in the first word only, and a model without a head has no such word. Old
    files use TF1's words for the weights of a norm.
    """
    bare = "embeddings.word_embeddings.weight" in tensors
    names = {}
    for name in tensors:
        ours = re.sub(r"^bert\.", "roformer.", name)
        ours = f"roformer.{ours}" if bare and _BARE.match(ours) else ours
        ours = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", ours)
        # New name → name in the file, as `renamed` expects it.
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
    """Write a config and arrays under our names so that transformers can read them.

    folder: each file in it is replaced atomically. The config is written last, so that a folder
    with a config always has the weights.
    architecture: the class of transformers that should load the folder.
    dtype: of the file; None keeps the dtypes of the arrays. transformers computes in float32.
    special_ids: special tokens under transformers' names, for a causal language model.
    scale_head: whether the head of a regression is scaled so that it predicts the label itself.
    False for training checkpoints, which must restore exactly these weights.
    """
    folder = Path(folder)
    tensors = dict(tensors_of_file(arrays, config, "huggingface", dtype))
    if scale_head and has_scaled_head(config, arrays):
        # float32 in files of every dtype: in bfloat16 the years 2017 and 2023 are equal.
        head = {name: scale_head_array(arrays[name], name, config) for name in SCALED_HEAD}
        tensors |= tensors_of_file(head, config, "huggingface", "float32")
    else:
        config = config.replace(label_mean=0.0, label_deviation=1.0)
    # By the weights that are written, whatever the config has.
    config = config.replace(crf=any(name.startswith("crf/") for name in arrays))
    kind = model_type(config, arrays)
    if kind == "bert":
        tensors = {re.sub(r"^roformer\.", "bert.", name): x for name, x in tensors.items()}
        architecture = bert_class(architecture)
    # transformers stores the table although it could be computed.
    elif config.position_embedding_type == "rotary":
        tensors[POSITIONS] = _position_table(config)
    save_tensors(tensors, folder / WEIGHTS, {"format": "pt"})  # transformers requires this metadata
    if config.is_v2:  # transformers would load it without an error, and compute something else
        templates = environment(Path(__file__).parent)
        write_text(folder / MODEL_CARD, markdown(templates, "v2_card.md.jinja", config=config))
    values = _config_values(config, architecture, kind)
    # transformers' `generate` needs to know which token begins and ends a text.
    if architecture in (CAUSAL, "BertLMHeadModel"):
        values |= special_ids or {}
        generation = {key: values[key] for key in SPECIAL_IDS if values.get(key) is not None}
        write_json(folder / GENERATION_CONFIG, generation)
    else:
        remove(folder / GENERATION_CONFIG)  # of a model that was in the folder before
    write_json(folder / CONFIG, values)


def write_graph_config(folder: str | Path, config: RoFormerConfig, architecture: str) -> None:
    """Write the config of an exported graph, whose logits have the scale of the labels."""
    config = config.replace(label_mean=0.0, label_deviation=1.0)
    # The graph computes what transformers has no class for, except the order of tags.
    kind = CRF_TYPE if config.crf else "roformer"
    write_json(Path(folder) / CONFIG, _config_values(config, architecture, kind))


def has_scaled_head(config: RoFormerConfig, names: Container[str]) -> bool:
    """Whether a saved head predicts labels while the model predicts standardized labels.

    names: our names of all weights. RoFormerV2's head has no bias that could add the mean.
    """
    has_head = all(name in names for name in SCALED_HEAD)
    return config.has_label_scale and config.num_labels == 1 and has_head


def scale_head_array(array: np.ndarray, name: str, config: RoFormerConfig) -> np.ndarray:
    """Kernel (H, 1) or bias (1,) of a head that predicts the label itself: float32."""
    mean = config.label_mean if name == SCALED_HEAD[1] else 0.0
    return (array.astype("float64") * config.label_deviation + mean).astype("float32")


def unscale_head_array(array: np.ndarray, name: str, config: RoFormerConfig) -> np.ndarray:
    """The inverse of `scale_head_array`: float32."""
    mean = config.label_mean if name == SCALED_HEAD[1] else 0.0
    return ((array.astype("float64") - mean) / config.label_deviation).astype("float32")


def bert_class(name: str) -> str:
    """The class of transformers for a BERT with the head of this class of a RoFormer."""
    return "BertLMHeadModel" if name == CAUSAL else name.replace("RoFormer", "Bert")


def _tensors(path: Path) -> LazyArrays:
    """The tensors of one safetensors file, which is opened again for each access.

    An open file is mapped into memory, and every tensor that was read from it would stay there.
    """

    @contextmanager
    def opened() -> Iterator[Any]:
        try:
            with safe_open(path, "numpy") as file:
                yield file
        except (SafetensorError, OSError) as error:
            if path.is_file():
                # Raises PermissionError for a file that the library wrongly reports as missing.
                with path.open("rb") as raw:
                    start = raw.read(len(_LFS))
                if start == _LFS:
                    raise InputError(
                        f"{path} is a pointer of Git LFS, which a clone has without git-lfs. Run "
                        "`git lfs pull` in its folder, or download the file alone."
                    ) from None
            raise InputError(
                f"cannot read {path}: {error}. The file is incomplete or damaged: download it "
                "again."
            ) from None

    with opened() as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in slices.items()}
        kinds = {name: tensor.get_dtype() for name, tensor in slices.items()}
    if unsupported := sorted(name for name, kind in kinds.items() if kind not in _DTYPES):
        raise InputError(
            f"cannot read {path}: {unsupported[0]} has the dtype {kinds[unsupported[0]]}, which is "
            f"not supported. Save the model as one of {', '.join(DTYPES)}."
        )

    def read(name: str) -> np.ndarray:
        with opened() as file:
            return file.get_tensor(name)

    return LazyArrays(shapes, {name: _DTYPES[kind] for name, kind in kinds.items()}, read)


def _shards(index: Path) -> list[Path]:
    """The files that an index of shards lists. Files outside its folder are refused."""
    try:
        names = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
        # A name such as ../../secret.safetensors would be read from another folder.
        inside = all(Path(name).name == name for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        inside = False
    if not inside:
        raise InputError(
            f"cannot read {index}: it is not an index of files in its folder. Download it again."
        )
    return [index.with_name(name) for name in sorted(names)]


def _unpickled(path: Path) -> LazyArrays:
    """The tensors of a `pytorch_model.bin`, read by torch's reader that creates only tensors."""
    if find_spec("torch") is None:
        raise InputError(
            f"{path} is a pickle, which can run code when it is loaded; only torch can read its "
            f"weights alone. Install torch, or save the model as {WEIGHTS} with transformers."
        )
    import torch

    try:
        tensors = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        dtypes = {
            name: np.dtype(str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()
        }
    except Exception as error:  # torch has no exception class for a bad file
        raise InputError(
            f"cannot read {path}: {str(error).strip().splitlines()[0]} "
            "The file is damaged, or contains more than tensors: download it again."
        ) from None
    if sparse := [name for name, t in tensors.items() if t.layout != torch.strided]:
        raise InputError(f"cannot read {path}: {sparse[0]} is sparse. Save it as a dense tensor.")

    def read(name: str) -> np.ndarray:
        tensor = tensors[name].detach().contiguous()
        if tensor.dtype == torch.bfloat16:  # torch has no conversion to NumPy, only its bits
            return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
        return tensor.numpy()

    return LazyArrays({name: tuple(t.shape) for name, t in tensors.items()}, dtypes, read)


def _position_table(config: RoFormerConfig) -> np.ndarray:
    """Sines, then cosines: (positions, head size) float32, in the layout of transformers.

    Without this table, transformers warns of an untrained weight, and computes one with the base
    10,000 only. It is float32 in files of every dtype, for programs that compute in float32.
    """
    # θ_m = base^(−2m/H) in float64; only the finished table is rounded.
    pairs = np.arange(0, config.head_size, 2) / config.head_size
    theta = np.outer(np.arange(config.max_position_embeddings), config.rotary_base**-pairs)
    return np.concatenate([np.sin(theta), np.cos(theta)], axis=1).astype("float32")


def model_type(config: RoFormerConfig, arrays: Collection[str]) -> str:
    """The `model_type` for transformers of a model with these weights (our names).

    transformers loads "roformer" and "bert" correctly. With any other type it stops with an error.
    """
    if config.crf:
        return CRF_TYPE
    if foreign_part(config, arrays):
        return FORM_TYPE
    return "roformer" if config.position_embedding_type == "rotary" else "bert"


def foreign_part(config: RoFormerConfig, arrays: Collection[str]) -> str:
    """What transformers has no class for in a model with these weights (our names), or ""."""
    classifies = any(name.startswith("classifier/") for name in arrays)
    if config.crf:
        return "a conditional random field (--crf)"
    # It would create a new, random layer in the place of these two heads.
    if _POINTER in arrays:
        return "the head of entities (spans)"
    if classifies and config.pooling == "mean":
        return "a classifier of the mean of all tokens (pooling 'mean')"
    if form := config.unusual_form(learned=True, value=True):
        return form
    # BERT has one size for embeddings and layers, norms with weights, and another classifier head.
    other = config.embedding_size != config.hidden_size or config.is_v2 or config.rotary_value
    if config.position_embedding_type != "rotary" and (other or classifies):
        return "learned positions and a head, an embedding size or norms that BERT does not have"
    return ""


def classifier_opens_in_transformers(config: RoFormerConfig) -> bool:
    """Whether a text classifier with this config gives the same numbers in transformers."""
    return not config.is_v2 and model_type(config, SCALED_HEAD) == "roformer"


def _config_values(config: RoFormerConfig, architecture: str, kind: str) -> dict[str, Any]:
    values = config.to_dict()
    for key in ("torch_dtype", "transformers_version"):  # these describe the file that was read
        values.pop(key, None)
    labels = values.pop("num_labels")  # transformers derives it from id2label
    # A changed number of labels makes the old names wrong.
    if len(values.get("id2label", ())) != labels:
        values["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        values["label2id"] = {label: int(i) for i, label in values["id2label"].items()}
    if not values["crf"]:
        del values["crf"]
    return values | {
        "architectures": [architecture],
        "model_type": kind,
        # In which transformers computes, whatever the file holds: only so it gives our numbers.
        "dtype": "float32",
        "is_decoder": config.attention_type == "causal",
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        **(
            {"position_embedding_type": "absolute"}
            if kind == "bert"
            else {"rotary_value": config.rotary_value}
        ),
    }


_BARE = re.compile(r"(embeddings|embeddings_project|encoder|pooler)\.")
