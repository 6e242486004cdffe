"""The export of a model for its vectors.

The graph gives `vectors` float32 (batch, D) of length 1: pooled, whitened and cut as the model's
vectors are. In the formats with transformers' inputs it is called `sentence_embedding`, and the
graph also gives the `last_hidden_state` (batch, length, H).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.checkpoints.huggingface import write_graph_config
from roformer_tf.engines.model import onnx_session
from roformer_tf.engines.network import Network
from roformer_tf.errors import InputError
from roformer_tf.export.formats import (
    MAX_MEASURED,
    MEGABYTE,
    STANDARD,
    Exportable,
    Format,
    check_supported,
)
from roformer_tf.inference.text_files import TextFileConfig, checked_texts
from roformer_tf.models.rows import run_rows

if TYPE_CHECKING:
    from roformer_tf.inference.embed import TextEmbedder
    from roformer_tf.inference.opening import OpenedModel

# The output of the graph.
VECTORS = "vectors"


def vectors_of(
    opened: "OpenedModel", embedder: "TextEmbedder", to: Format, data: str | None = None
) -> Exportable:
    """A model for its vectors; on the texts of the file `data` int8 is compared with float32.

    Raises InputError for int8 without data.
    """
    if to == "int8" and data is None:
        raise InputError(
            "int8 changes the vectors a little, which has to be measured. Give --data, a file of "
            "texts like those that will be embedded."
        )
    print(f"{embedder.described}.")
    model, settings = embedder.model, embedder.config

    def network() -> Network:
        check_supported(opened.checkpoint.config, opened.name)
        finish = {"whitening": model.whitening, "dimensions": model.dimensions}
        return opened.vector_network(settings.pooling, VECTORS, **finish)

    def outputs(inputs: Any) -> dict[str, Any]:
        from roformer_tf.models.sentence_embedding import SentenceEmbedder

        embedder = SentenceEmbedder(
            model.pooled.encoder,
            model.pooled.pooler,
            settings.pooling,
            model.dimensions,
            model.whitening,
        )
        return {VECTORS: embedder(inputs)}

    def save_settings(folder: Path) -> None:
        settings.save(folder)
        if to in STANDARD:
            checkpoint = opened.checkpoint
            write_graph_config(folder, checkpoint.config, checkpoint.arrays, "RoFormerModel")

    return Exportable(
        model,
        outputs,
        network,
        embedder.tokenizer.with_units(None),
        settings.max_length,
        save_settings,
        lambda exact, rounded: _int8_cost(embedder, exact, rounded, data or ""),
    )


def _int8_cost(embedder: "TextEmbedder", exact: Path, rounded: Path, data: str) -> str:
    """How int8 changes vectors: the cosine of both vectors of a text, and its nearest neighbor."""
    with checked_texts(data, TextFileConfig()) as texts:
        step = -(-len(texts) // MAX_MEASURED)  # evenly spaced
        chosen = [text for number, text in enumerate(texts) if number % step == 0]
    length = embedder.config.max_length
    ids = [embedder.tokenizer.encode(text, None, length)[0] for text in chosen]
    first, second = (np.stack(run_rows(onnx_session(x, VECTORS), ids)) for x in (exact, rounded))
    # (texts,) each; both vectors of a text have length 1.
    cosines = np.einsum("nd,nd->n", first, second)
    sizes = [file.stat().st_size / MEGABYTE for file in (exact, rounded)]
    text = (
        f"float32: {sizes[0]:.1f} MB, int8: {sizes[1]:.1f} MB. On {len(chosen):,} texts the cosine "
        f"of both vectors of a text is {cosines.mean():.4f} on average and {cosines.min():.4f} at "
        "worst"
    )
    if len(chosen) == 1:
        return f"{text}."
    same = _nearest(first) == _nearest(second)
    return f"{text}; for {same.mean():.1%} of them the nearest other text is the same."


def _nearest(vectors: np.ndarray) -> np.ndarray:
    """The index of the nearest other vector of each."""
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)  # the nearest of all is the vector itself
    return products.argmax(axis=1)
