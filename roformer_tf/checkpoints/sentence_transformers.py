"""Files of a model that the library sentence-transformers reads. No Keras here.

modules.json                     the modules below, in their order
sentence_bert_config.json        of Transformer, the folder itself: maximum tokens of a text
1_Pooling/config.json            the mean of all tokens, or the first token
2_Dense/                         the pooler, if the vectors are its output
                                 and Normalize, which has no file

Names and keys are the library's older ones, which its versions 2 to 6 read.
"""

from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints import archives
from roformer_tf.checkpoints.arrays import save_tensors
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sources import OpenedSource, embedding_settings
from roformer_tf.files import remove, write_json

_POOLER = "2_Dense"


def save_modules(folder: str | Path) -> bool:
    """Write the files with which `SentenceTransformer(folder)` computes the same vectors.

    folder: a complete folder in our format; modules of an earlier model in it are replaced. Returns
    False for a RoFormerV2, which transformers does not support. Raises InputError for a folder
    without an embedding.json, and for a pooling for which it has no weights.
    """
    folder = Path(folder)
    # modules.json first: without it the library ignores the folders.
    for name in (archives.MODULES, _POOLER):
        remove(folder / name)
    with OpenedSource(folder) as source:
        checkpoint = source.checkpoint()
        config = embedding_settings(checkpoint, source)
        if checkpoint.config.is_v2:
            return False
        modules = ["Transformer", "1_Pooling"]
        if config.pooling == "pooler":
            kernel, bias = (checkpoint.arrays[f"pooler/dense/{x}"] for x in ("kernel", "bias"))
            _write_dense(folder / _POOLER, kernel, bias)
            modules.append(_POOLER)
    modules.append(f"{len(modules)}_Normalize")
    pooling = _pooling(config, checkpoint.config.hidden_size)
    write_json(folder / archives.POOLING, pooling)
    # do_lower_case would be done before the tokenizer, which lower-cases by itself.
    limits = {"max_seq_length": config.max_length, "do_lower_case": False}
    write_json(folder / archives.TRANSFORMER_SETTINGS, limits)
    write_json(folder / archives.PROMPTS, {"prompts": {}, "similarity_fn_name": "cosine"})
    write_json(folder / archives.MODULES, [_module(i, name) for i, name in enumerate(modules)])
    return True


def _module(number: int, name: str) -> dict[str, Any]:
    """An entry of modules.json; the first module is in the folder itself."""
    kind = name.rpartition("_")[2]
    path = name if number else ""
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }


def _pooling(config: EmbeddingConfig, hidden_size: int) -> dict[str, Any]:
    """Settings of the pooling module. A pooler's input is the first token."""
    is_mean = config.pooling == "mean"
    return {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": not is_mean,
        "pooling_mode_mean_tokens": is_mean,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }


def _write_dense(folder: Path, kernel: np.ndarray, bias: np.ndarray) -> None:
    """A Dense module without activation: x · kernel (H, D) + bias (D,); torch stores (D, H)."""
    rows, columns = kernel.shape
    settings = {
        "in_features": rows,
        "out_features": columns,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / archives.CONFIG, settings)
    tensors = {
        "linear.weight": np.ascontiguousarray(kernel.T, np.float32),
        "linear.bias": np.asarray(bias, np.float32),
    }
    save_tensors(tensors, folder / archives.WEIGHTS, {"format": "pt"})
