"""What the library sentence-transformers reads beside a model's weights. No Keras here.

modules.json                     the modules below, in their order
sentence_bert_config.json        of Transformer, the folder itself: most tokens of a text
1_Pooling/config.json            the mean of all tokens, or the first one
2_Dense/                         the pooler, if the vectors are its
3_Dense/                         whitening, if the folder has one
                                 and Normalize, which has no file

Names and keys are the library's older ones, which its versions 2 to 6 read.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.checkpoints.detection import embedding_settings
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.checkpoints.whitening import load_whitening
from roformer_tf.files import file_beside, remove, write_text

MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_POOLER, _WHITENING = "2_Dense", "3_Dense"


def save_modules(folder: str | Path) -> bool:
    """Have `SentenceTransformer(folder)` give the vectors that the folder gives here.

    folder: ours, whole, with its embedding.json and, if it is whitened, what that needs; modules of
    an earlier model there are replaced. Tells whether it could be: not for a RoFormerV2, which
    transformers misreads. Raises InputError for a folder without an embedding.json, and for a
    pooling that it has no weights for.
    """
    folder = Path(folder)
    for name in (MODULES, _POOLER, _WHITENING):
        remove(folder / name)
    with OpenedSource(folder) as source:
        checkpoint = source.checkpoint()
        config, white = embedding_settings(checkpoint, source), load_whitening(checkpoint, source)
        if checkpoint.config.is_v2:
            return False
        modules = ["Transformer", "1_Pooling"]
        if config.pooling == "pooler":
            kernel, bias = (checkpoint.arrays[f"pooler/dense/{x}"] for x in ("kernel", "bias"))
            _write_dense(folder / _POOLER, kernel, bias)
            modules.append(_POOLER)
    if white is not None:
        # (x - mean) · matrix = x · matrix + bias
        bias = -white.mean.astype(np.float64) @ white.matrix.astype(np.float64)
        _write_dense(folder / _WHITENING, white.matrix, bias)
        modules.append(_WHITENING)
    modules.append(f"{len(modules)}_Normalize")
    pooling = _pooling(config, checkpoint.config.hidden_size)
    write_text(folder / "1_Pooling" / "config.json", _json(pooling))
    limits = {"max_seq_length": config.max_length, "do_lower_case": False}  # the tokenizer does
    write_text(folder / _TRANSFORMER_SETTINGS, _json(limits))
    write_text(folder / _SETTINGS, _json({"prompts": {}, "similarity_fn_name": "cosine"}))
    write_text(folder / MODULES, _json([_module(i, name) for i, name in enumerate(modules)]))
    return True


def _module(number: int, name: str) -> dict[str, Any]:
    """A line of modules.json; the first module lies in the folder itself."""
    kind = name.rpartition("_")[2]
    path = name if number else ""
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }


def _pooling(config: EmbeddingConfig, hidden_size: int) -> dict[str, Any]:
    """What pools hidden states: of the pooler its input, the first token."""
    of_all = config.pooling == "mean"
    return {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": not of_all,
        "pooling_mode_mean_tokens": of_all,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }


def _write_dense(folder: Path, kernel: np.ndarray, bias: np.ndarray) -> None:
    """A module Dense without an activation: x · kernel (H, D) + bias (D,). torch transposes it."""
    rows, columns = kernel.shape
    settings = {
        "in_features": rows,
        "out_features": columns,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_text(folder / "config.json", _json(settings))
    tensors = {
        "linear.weight": np.ascontiguousarray(kernel.T, np.float32),
        "linear.bias": np.asarray(bias, np.float32),
    }
    with file_beside(folder / "model.safetensors") as beside:
        save_tensors(tensors, beside, {"format": "pt"})


def _json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"
