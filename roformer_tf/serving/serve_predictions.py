"""The service of a fine-tuned model.

POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [prediction, …]}

X is a text; of a pair a list of two texts, of a ranking a list of three. Of multiple choice it is
{"text": X, "choices": [X, …]}, or {"texts": [{"text": X, "choices": [X, …]}, …]}.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import Body, FastAPI, Response

from roformer_tf.engines.choice import Choice, Engine, Precision
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.inference.text_files import report
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.serving.application import (
    FAILURES,
    check_texts,
    create_app,
    json_response,
)
from roformer_tf.serving.batching import Batcher, deliver_all
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import REQUESTS, SAMPLE, ChoicesRequest, Predictions
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.base import Prediction, Task

# Tokens of a batch: twice what keeps a CPU busy.
BATCH_TOKENS = 2048
# Characters whose predictions are encoded faster than another thread starts.
SHORT = 1000


class ServedTask(NamedTuple):
    """A fine-tuned model in service."""

    name: str
    task: Task
    predict: Callable[[list[Example]], list[Prediction]]
    choice: Choice | None = None


class WorkerPart(NamedTuple):
    """What one of several server processes gets."""

    threads: int
    shared: Path | None
    """The graph with the weights that all processes map into memory."""


def load_served_task(
    folder: Path,
    batch_size: int = BATCH_SIZE,
    precision: Precision | None = None,
    top_k: int | None = None,
    engine: Engine = "auto",
    part: WorkerPart | None = None,
) -> ServedTask:
    """Open what `finetune` or `export` wrote, and predict once."""
    threads, shared = part or (None, None)
    opened = open_finetuned(folder, engine, precision, threads, shared)
    if part is None:  # else the first process has printed it
        report(*opened.notes)
    opened = replace(opened, task=opened.task.decoding.with_top_k(top_k))
    task = opened.task

    def run(examples: list[Example]) -> list[Prediction]:
        return opened.predict(examples, batch_size)

    # Two batches of different shape: TensorFlow's plan for the second serves all later shapes.
    for text, count in (("好" * 100, 2), (SAMPLE, 1)):
        run([as_example(task.labelling.sample(text), task)] * count)
    return ServedTask(model_name(folder), task, run, opened.choice)


def model_name(source: str | Path) -> str:
    """Name of a model for people: of a run's model/ folder, the run's."""
    path = Path(source).resolve()
    return path.parent.name if path.name == "model" else path.name.removesuffix(".zip")


def as_example(texts: Sequence[str], task: Task) -> Example:
    """An example without a label, as the model takes it."""
    return task.labelling.for_prediction(Example(tuple(texts), None, "the request"))


def create_task_app(
    served: ServedTask, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> FastAPI:
    """The application of a fine-tuned model."""
    limits = limits or Limits()
    task = served.task
    metrics = ServiceMetrics(served.name, task.name)
    # Batches are limited by tokens, roughly characters: a batch of long texts delays all its
    # requests. And by texts: each takes at least its share of the batch.
    batcher = Batcher(
        deliver_all(served.predict),
        BATCH_TOKENS,
        limits.max_waiting,
        metrics,
        width=lambda example: max(_characters(example), BATCH_TOKENS // batch_size),
    )
    # What the page needs to draw its form and the prediction.
    names = ("title", "headline", "labels", "text_columns", "spaced_units")
    health: dict[str, Any] = {"task": task.name, "limits": asdict(limits)}
    health |= {name: getattr(task, name) for name in names}
    health["lists_texts"] = task.labelling.lists_texts
    app = create_app(served.name, health, "predict.js", metrics, [batcher], limits)
    columns = len(task.text_columns)
    sample: dict[str, Any] = {"text": SAMPLE if columns == 1 else [SAMPLE] * columns}
    request_type: Any = REQUESTS[columns]
    if task.labelling.lists_texts:
        request_type, sample = ChoicesRequest, {"text": SAMPLE, "choices": [SAMPLE, SAMPLE]}

    @app.post(
        "/predict",
        summary="Predict for one text, or several",
        response_model=Predictions,
        responses=FAILURES,
    )
    async def predict_texts(
        body: Annotated[request_type, Body(examples=[sample])],
    ) -> Response:
        items = body.items
        check_texts(items, limits)
        texts = [[item] if isinstance(item, str) else item for item in items]
        examples = [as_example(each, task) for each in texts]
        predictions = await asyncio.wrap_future(batcher.submit(examples))
        as_json = map(task.decoding.as_json, examples, predictions)
        if sum(map(_characters, examples)) <= SHORT:
            return json_response("predictions", as_json, limits)
        # The tags of long texts take seconds to encode; meanwhile the loop serves others.
        return await asyncio.to_thread(json_response, "predictions", as_json, limits)

    return app


def _characters(example: Example) -> int:
    return sum(map(len, example.texts))
