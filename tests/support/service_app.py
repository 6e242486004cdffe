"""Applications of one model, as `serve` creates them."""

from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.serving.application import create_app
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_generation import generation_routes
from roformer_tf.serving.serve_predictions import task_routes
from roformer_tf.serving.serve_vectors import vector_routes
from roformer_tf.serving.settings import ApiConfig, GenerationLimits, Limits


def create_task_app(served, batch_size=BATCH_SIZE, limits=None, api=None):
    metrics, limits = ServiceMetrics(), limits or Limits()
    return create_app([task_routes(served, metrics, batch_size, limits)], metrics, limits, api)


def create_vector_app(served, batch_size=BATCH_SIZE, limits=None, api=None):
    metrics, limits, api = ServiceMetrics(), limits or Limits(), api or ApiConfig()
    model = vector_routes(served, metrics, batch_size, limits, api)
    return create_app([model], metrics, limits, api)


def create_generation_app(
    served, batch_size=BATCH_SIZE, limits=None, generation_limits=None, api=None
):
    metrics, limits, api = ServiceMetrics(), limits or Limits(), api or ApiConfig()
    of_text = generation_limits or GenerationLimits()
    model = generation_routes(served, metrics, batch_size, limits, of_text, api)
    return create_app([model], metrics, limits, api)
