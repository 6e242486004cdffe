"""Models and applications of one model, as `serve` creates them."""

from roformer_tf.serving.application import create_app
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_generation import generation_routes, load_served_generator
from roformer_tf.serving.serve_predictions import load_served_task, task_routes
from roformer_tf.serving.serve_vectors import vector_routes
from roformer_tf.serving.service import load_served_vectors
from roformer_tf.serving.settings import ServeConfig


def served_task(source, part=None, **settings):
    return load_served_task(*_configured(source, settings), part)


def served_vectors(source, **settings):
    return load_served_vectors(*_configured(source, settings))


def served_generator(source):
    return load_served_generator(*_configured(source, {}))


def _configured(source, settings):
    config = ServeConfig(model=(str(source),), **settings)
    return *config.model, *config.model_names, config


def create_task_app(served, **settings):
    return _app(task_routes, served, settings)


def create_vector_app(served, **settings):
    return _app(vector_routes, served, settings)


def create_generation_app(served, **settings):
    return _app(generation_routes, served, settings)


def _app(routes, served, settings):
    metrics, config = ServiceMetrics(), ServeConfig(model=("model",), **settings)
    return create_app([routes(served, metrics, config)], metrics, config)
