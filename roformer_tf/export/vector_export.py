"""The export of a model for its vectors.

The graph gives `vectors` float32 (batch, D) of length 1: pooled and cut as the model's vectors
are. In the formats with transformers' inputs it is called `sentence_embedding`, and the
graph also gives the `last_hidden_state` (batch, length, H).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from roformer_tf.checkpoints.huggingface import write_graph_config
from roformer_tf.engines.network import Network
from roformer_tf.export.formats import (
    STANDARD,
    Exportable,
    Format,
    check_supported,
)

if TYPE_CHECKING:
    from roformer_tf.inference.embed import TextEmbedder
    from roformer_tf.inference.opening import OpenedModel

# The output of the graph.
VECTORS = "vectors"


def vectors_of(opened: "OpenedModel", embedder: "TextEmbedder", to: Format) -> Exportable:
    """A model for its vectors."""
    print(f"{embedder.described}.")
    model, settings = embedder.model, embedder.config

    def network() -> Network:
        check_supported(opened.checkpoint.config, opened.name)
        return opened.vector_network(settings.pooling, VECTORS, dimensions=model.dimensions)

    def outputs(inputs: Any) -> dict[str, Any]:
        from roformer_tf.models.sentence_embedding import SentenceEmbedder

        embedder = SentenceEmbedder(
            model.pooled.encoder,
            model.pooled.pooler,
            settings.pooling,
            model.dimensions,
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
    )
