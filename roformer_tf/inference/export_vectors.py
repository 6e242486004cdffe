"""What gives vectors → a folder that runs without this package: SavedModel, ONNX, int8 ONNX.

A graph takes `token_ids` and `segment_ids` int32 (batch, length), and gives `vectors` float32
(batch, D) of length 1: pooled, whitened and cut as the model's vectors are.
"""

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.engines.model import onnx_session
from roformer_tf.errors import InputError
from roformer_tf.files import folder_beside, write_text
from roformer_tf.inference.embed import (
    TextEmbedder,
    attention_of,
    open_embedder,
    vector_network,
)
from roformer_tf.inference.engines import ONNX
from roformer_tf.inference.export import (
    INPUTS,
    MEGABYTE,
    MOST_MEASURED,
    Format,
    check_export,
    check_supported,
    write_int8,
    write_onnx,
    write_saved_model,
)
from roformer_tf.inference.export_card import vector_card
from roformer_tf.inference.text_files import TextFileConfig, checked_texts
from roformer_tf.models.rows import run_rows

if TYPE_CHECKING:
    import keras

VECTORS = "vectors"
"""The output of the graph."""


def export_vectors(
    source: str,
    output: str | Path,
    to: Format,
    data: str | None = None,
    dimensions: int | None = None,
) -> None:
    """Write the folder `output`, whole or not at all, and print what was measured.

    data: a file of texts, on which int8 is compared with float32. Raises InputError as
    `open_embedder` and `check_export` do, and for int8 without data; DifferenceError where ONNX
    Runtime computes something else than the model.
    """
    check_export(to, Path(output))
    if to == "int8" and data is None:
        raise InputError(
            "int8 changes the vectors a little, and is written only where that is measured. Give "
            "--data, a file of texts like those that will be embedded."
        )
    embedder = open_embedder(source, dimensions=dimensions, engine="keras")
    print(f"{embedder.described}.")
    with folder_beside(output) as folder:
        if to == "savedmodel":
            write_saved_model(_graph(embedder), folder)
        else:
            with OpenedSource(source) as opened:
                _write_graph(opened, embedder, to, folder, data)
        limit = embedder.config.max_length
        embedder.tokenizer.with_units(None).save_pretrained(folder, max_length=limit)
        embedder.config.save(folder)
        write_text(folder / MODEL_CARD, vector_card(to, embedder.tokenizer, embedder.config))
    size = sum(path.stat().st_size for path in Path(output).rglob("*") if path.is_file())
    print(f"{output} is written: {to}, {size / MEGABYTE:.1f} MB.")


def _write_graph(
    source: OpenedSource, embedder: TextEmbedder, to: Format, folder: Path, data: str | None
) -> None:
    """Write model.onnx into a folder, and for int8 print what it costs."""
    checkpoint, model = source.checkpoint(), embedder.model
    check_supported(checkpoint.config, source.name)
    attention = attention_of(checkpoint, source)
    network = dataclasses.replace(
        vector_network(checkpoint, embedder.config.pooling, attention, source.name),
        whitening=model.whitening,
        dimensions=model.dimensions,
    )
    if to == "onnx":
        write_onnx(network, model, folder / ONNX)
        return
    assert data is not None
    with TemporaryDirectory(dir=folder) as scratch:
        exact = Path(scratch) / ONNX
        write_onnx(network, model, exact)
        write_int8(network, folder / ONNX)
        print(_cost(embedder, exact, folder / ONNX, data))


def _graph(embedder: TextEmbedder) -> "keras.Model":
    """{"token_ids", "segment_ids"} int32 (B, T) → {"vectors": (B, D)} float32."""
    import keras

    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    return keras.Model(inputs, {VECTORS: embedder.model(inputs)})


def _cost(embedder: TextEmbedder, exact: Path, rounded: Path, data: str) -> str:
    """What int8 costs, in a sentence: cosines of both vectors of a text, and which is nearest."""
    with checked_texts(data, TextFileConfig()) as texts:
        step = -(-len(texts) // MOST_MEASURED)
        chosen = [text for number, text in enumerate(texts.texts()) if number % step == 0]
    first, second = (_vectors(embedder, onnx_session(x, VECTORS), chosen) for x in (exact, rounded))
    cosines = np.einsum("nd,nd->n", first, second)
    sizes = [file.stat().st_size / MEGABYTE for file in (exact, rounded)]
    said = (
        f"float32: {sizes[0]:.1f} MB, int8: {sizes[1]:.1f} MB. On {len(chosen):,} texts the cosine "
        f"of both vectors of a text is {cosines.mean():.4f} on average and {cosines.min():.4f} at "
        "worst"
    )
    if len(chosen) == 1:
        return f"{said}."
    same = _nearest(first) == _nearest(second)
    return f"{said}; for {same.mean():.1%} of them the nearest other text is the same."


def _vectors(embedder: TextEmbedder, run: Any, texts: list[str]) -> np.ndarray:
    """What a graph gives for texts."""
    length = embedder.config.max_length
    return np.stack(run_rows(run, [embedder.tokenizer.encode(x, None, length)[0] for x in texts]))


def _nearest(vectors: np.ndarray) -> np.ndarray:
    """The number of each vector's nearest other."""
    products = vectors @ vectors.T
    np.fill_diagonal(products, -np.inf)
    return products.argmax(axis=1)
