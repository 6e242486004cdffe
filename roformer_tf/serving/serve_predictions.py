"""The service of a fine-tuned model.

POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [prediction, …]}
               of labels and numbers also, as at Text Embeddings Inference,
               {"inputs": X} → [{"label", "score"}, …], {"inputs": [X, …]} → a list of such lists
               of models that can be asked for labels also
               {"texts": [text, …], "labels": [label, …], "template"?} → {"predictions": […]}

X is a text; of a pair a list of two texts, of a ranking a list of three. A model of pairs also has
the routes of `rerank_routes`. A question may also be {"question": Q, "context": C}. Of multiple
choice X is {"text": X, "choices": [X, …]}, or {"texts": [{"text": X, "choices": [X, …]}, …]}.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Body, HTTPException, Response

from roformer_tf.engines.choice import Choice, Engine, Precision
from roformer_tf.errors import InputError
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.inference.text_files import report
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.serving.application import ModelRoutes, check_texts, json_response
from roformer_tf.serving.batching import Batcher, deliver_all
from roformer_tf.serving.failures import FAILURES
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.rerank_routes import add_rerank
from roformer_tf.serving.schemas import (
    SAMPLE,
    AskedRequest,
    ChoicesRequest,
    Predictions,
    QuestionRequest,
    TeiPredictRequest,
    TeiScore,
    predict_request,
)
from roformer_tf.serving.settings import Limits, model_name
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.decoding import NumberDecoding

# Tokens of a batch: twice what keeps a CPU busy.
BATCH_TOKENS = 2048
# Characters whose predictions are encoded faster than another thread starts.
SHORT = 1000


class ServedTask(NamedTuple):
    """A fine-tuned model in service."""

    name: str
    task: Task
    predict: Callable[..., list[Prediction]]
    """Of a list of examples, and of the task with the labels of a request, if it names some."""
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

    def run(examples: list[Example], asked: Task | None = None) -> list[Prediction]:
        model = opened.with_task(asked) if asked else opened
        return model.predict(examples, batch_size)

    # Two batches of different shape: TensorFlow's plan for the second serves all later shapes.
    for text, count in (("好" * 100, 2), (SAMPLE, 1)):
        run([as_example(task.labelling.sample(text), task)] * count)
    return ServedTask(model_name(folder), task, run, opened.choice)


def as_example(texts: Sequence[str], task: Task) -> Example:
    """An example without a label, as the model takes it."""
    return task.labelling.for_prediction(Example(tuple(texts), None, "the request"))


def task_routes(
    served: ServedTask, metrics: ServiceMetrics, batch_size: int, limits: Limits
) -> ModelRoutes:
    """The routes of a fine-tuned model."""
    task = served.task
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
    names = ("title", "headline", "labels", "text_columns", "spaced_units", "can_be_asked")
    health: dict[str, Any] = {"task": task.name, "limits": asdict(limits)}
    health |= {name: getattr(task, name) for name in names}
    health["lists_texts"] = task.labelling.lists_texts
    router = APIRouter()
    if len(task.text_columns) == 2 and not task.labelling.column_names:
        add_rerank(router, served.name, task, as_example, batcher, limits)
    _add_predict(router, served, batcher, limits)
    return ModelRoutes(served.name, router, health, "predict.js", [batcher])


def _add_predict(
    router: APIRouter, served: ServedTask, batcher: Batcher[Example, Prediction], limits: Limits
) -> None:
    task = served.task
    columns = len(task.text_columns)
    has_scores = task.decoding.lists_labels or isinstance(task.decoding, NumberDecoding)
    request_type = predict_request(columns, has_scores, task.can_be_asked)
    response_type = Predictions | list[TeiScore] | list[list[TeiScore]]
    sample: dict[str, Any] = {"text": SAMPLE if columns == 1 else [SAMPLE] * columns}
    if task.labelling.lists_texts:
        request_type, sample = ChoicesRequest, {"text": SAMPLE, "choices": [SAMPLE, SAMPLE]}
    elif task.labelling.column_names:
        request_type = QuestionRequest
        sample = dict.fromkeys(task.labelling.column_names[:columns], SAMPLE)

    @router.post(
        "/predict",
        summary="Predict for one text, or several",
        response_model=response_type if has_scores else Predictions,
        responses=FAILURES,
    )
    async def predict_texts(
        body: Annotated[request_type, Body(examples=[sample])],  # type: ignore[valid-type]
    ) -> Response:
        is_tei, is_single = isinstance(body, TeiPredictRequest), False
        if is_tei:
            # a single text, or a pair, whose first item is a text
            inputs = body.inputs  # type: ignore[attr-defined]
            is_single = isinstance(inputs if columns == 1 else inputs[0], str)
            items = [inputs] if is_single else inputs
        else:
            items = body.items  # type: ignore[attr-defined]
        check_texts(items, limits)
        texts = [[item] if isinstance(item, str) else item for item in items]
        asked = _asked(body, task) if isinstance(body, AskedRequest) else task
        examples = [as_example(each, asked) for each in texts]
        if asked is task:
            predictions = await batcher.results(examples)
        else:  # a batch has the labels of one request
            predictions = await batcher.call(partial(served.predict, examples, asked))
        as_json: Any = map(asked.decoding.as_json, examples, predictions)
        key = "predictions"
        if is_tei:
            as_json, key = map(_label_scores, as_json), ""
            as_json = next(as_json) if is_single else as_json
        if sum(map(_characters, examples)) <= SHORT:
            return json_response(key, as_json, limits)
        # The tags of long texts take seconds to encode; meanwhile the loop serves others.
        return await asyncio.to_thread(json_response, key, as_json, limits)


def _label_scores(prediction: dict[str, Any]) -> list[dict[str, Any]]:
    """The labels of a prediction, the most probable first, or its number by its name."""
    scores = prediction.get("probabilities", prediction)
    ordered = sorted(scores.items(), key=lambda item: -item[1])
    return [{"label": label, "score": score} for label, score in ordered]


def _asked(body: AskedRequest, task: Task) -> Task:
    """The task with the labels of a request; status 422 where it cannot be asked for them."""
    try:
        return task.asked(body.labels, body.template)
    except InputError as error:
        raise HTTPException(422, str(error)) from None


def _characters(example: Example) -> int:
    return sum(map(len, example.texts))
