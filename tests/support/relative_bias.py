"""A layer with T5's bias, for tests."""

from roformer_tf.config import RoFormerConfig
from roformer_tf.layers.positions import RelativeBias


def bias_layer(buckets, furthest, bidirectional):
    """Return a built layer with 3 heads."""
    sizes = dict.fromkeys(("vocab_size", "num_hidden_layers", "intermediate_size"), 1)
    config = RoFormerConfig(
        **sizes,
        hidden_size=12,
        num_attention_heads=3,
        position_embedding_type="t5",
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=furthest,
        attention_type=None if bidirectional else "causal",
    )
    layer = RelativeBias(config)
    layer.build()
    return layer
