"""Models → the application that serves them: each is loaded for what it was trained for."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.inference.opening import open_model
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.retriever import Retriever, open_reranker
from roformer_tf.serving.application import ModelRoutes, create_app
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_generation import generation_routes, load_served_generator
from roformer_tf.serving.serve_predictions import load_served_task, task_routes
from roformer_tf.serving.serve_vectors import WARM_UP, ServedVectors, vector_routes
from roformer_tf.serving.settings import ServeConfig, WorkerPart

# The settings of models that --index does not belong to.
WITHOUT_INDEX: dict[str, Any] = {"index": None, "hybrid": False, "rerank": None, "writable": False}


def open_service(config: ServeConfig, parts: Sequence[WorkerPart | None] = ()) -> FastAPI:
    """Load the models, for what they were trained for, and create their application.

    Its `state.choices` are what computes each model. parts: of one of several processes, for each
    model. Raises InputError for a model that cannot be served.
    """
    metrics, indexed, models = ServiceMetrics(), _indexed(config), list[ModelRoutes]()
    parts = parts or [None] * len(config.model)
    for source, name, part in zip(config.model, config.model_names, parts, strict=True):
        own = config if source == indexed else replace(config, **WITHOUT_INDEX)
        models.append(_load(source, name, own, part, metrics))
    app = create_app(models, metrics, config)
    app.state.choices = [model.choice for model in models]
    return app


def _indexed(config: ServeConfig) -> str:
    """The model that --index belongs to: the only one, or of several the one that created it."""
    if config.index is None or len(config.model) == 1:
        return config.model[0]
    with SearchIndex(config.index) as index:
        manifest = index.manifest
    # A fingerprint depends on pooling, dimensions and length, so models are compared with those of
    # the index.
    vectors = manifest.settings(VectorSettings(pooling=config.pooling))
    for source in config.model:
        with open_model(source) as opened:
            has_labels = opened.is_finetuned
        with suppress(InputError):  # such as a model without the pooler of the index
            if not has_labels and vectors.open(source).fingerprint == manifest.fingerprint:
                return source
    raise InputError(
        f"none of the models created {config.index}, but {manifest.model} did. Give it as it was "
        "then, too, or another --index."
    )


def _load(
    source: str, name: str, config: ServeConfig, part: WorkerPart | None, metrics: ServiceMetrics
) -> ModelRoutes:
    """Load a model, and create its routes."""
    with open_model(source) as opened:
        if config.index is not None or config.pooling is not None:
            serves = "vectors"
        elif opened.is_finetuned:
            serves = "labels"
        else:
            serves = "vectors" if opened.has_embedding_file and not opened.generates else "text"
    for flag, about in (("top-k", "labels"), ("attention-type", "text")):
        is_set = getattr(config, flag.replace("-", "_")) is not None
        # Of several models, another may use the flag.
        if is_set and serves != about and len(config.model) == 1:
            raise InputError(
                f"--{flag} is about {about}, but {source} serves {serves}. Omit the flag."
            )
    if serves == "labels":
        return task_routes(load_served_task(source, name, config, part), metrics, config)
    if serves == "vectors":
        return vector_routes(load_served_vectors(source, name, config, part), metrics, config)
    return generation_routes(load_served_generator(source, name, config), metrics, config)


def load_served_vectors(
    source: str, name: str, config: ServeConfig, part: WorkerPart | None = None
) -> ServedVectors:
    """Open a model for its vectors, and an index, and use both once.

    Raises InputError where either cannot be opened, and for an index of another model.
    """
    engine, precision, size = config.engine, config.precision, config.batch_size
    vectors = VectorSettings(
        pooling=config.pooling, precision=precision, engine=engine, batch_size=size
    )
    threads = part and part.threads
    if config.index is None:
        embedder = vectors.open(source, threads)
        embedder.embed(WARM_UP)  # so that the first request is not slow
        return ServedVectors(name, embedder)
    index = SearchIndex(config.index)
    embedder = index.manifest.settings(vectors).open(source, threads)
    index.manifest.check_model(index.folder, embedder)
    reranker = open_reranker(config.rerank, vectors, threads) if config.rerank else None
    retriever = Retriever(index, embedder, config.hybrid, reranker=reranker)
    list(retriever.results(WARM_UP, 1))
    return ServedVectors(name, embedder, retriever)
