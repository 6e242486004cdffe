"""Models and applications of one model, as `serve` creates them."""

from roformer_tf.serving.application import create_app
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_generation import generation_routes, load_served_generator
from roformer_tf.serving.serve_predictions import load_served_task, task_routes
from roformer_tf.serving.serve_vectors import vector_routes
from roformer_tf.serving.settings import ServeConfig


def served_task(source, part=None, **settings):
    config = ServeConfig(model=(str(source),), **settings)
    return load_served_task(str(source), config, part)


def served_generator(source):
    return load_served_generator(str(source), ServeConfig(model=(str(source),)))


def create_task_app(served, **settings):
    return _app(task_routes, served, settings)


def create_vector_app(served, **settings):
    return _app(vector_routes, served, settings)


def create_generation_app(served, **settings):
    return _app(generation_routes, served, settings)


def _app(routes, served, settings):
    metrics, config = ServiceMetrics(), ServeConfig(model=("model",), **settings)
    return create_app([routes(served, metrics, config)], metrics, config)
