"""Applications of one model, as `serve` creates them."""

from roformer_tf.serving.application import create_app
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_generation import generation_routes
from roformer_tf.serving.serve_predictions import task_routes
from roformer_tf.serving.serve_vectors import vector_routes
from roformer_tf.serving.settings import ServeConfig


def create_task_app(served, **settings):
    return _app(task_routes, served, settings)


def create_vector_app(served, **settings):
    return _app(vector_routes, served, settings)


def create_generation_app(served, **settings):
    return _app(generation_routes, served, settings)


def _app(routes, served, settings):
    metrics, config = ServiceMetrics(), ServeConfig(model=("model",), **settings)
    return create_app([routes(served, metrics, config)], metrics, config)
