"""The service of a fine-tuned model.

POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [prediction, …]}
               of labels and numbers also, as at Text Embeddings Inference,
               {"inputs": X} → [{"label", "score"}, …], {"inputs": [X, …]} → a list of such lists;
               there the text X may also be alone in a list
               of models that can be asked for labels also
               {"texts": [text, …], "labels": [label, …], "template"?} → {"predictions": […]}

X is a text; of a pair a list of two texts, of a ranking a list of three. A question may also be
{"question": Q, "context": C}. Of multiple choice X is {"text": X, "choices": [X, …]}, or {"texts":
[{"text": X, "choices": [X, …]}, …]}.

A model of pairs also orders documents by their relevance to a query:

POST /v1/rerank, /v2/rerank   as at Jina and Cohere: {"query", "documents", "top_n"?, …}
                              → {"results": [{"index", "relevance_score"}, …], …}
POST /rerank                  the same; or as at Text Embeddings Inference: {"query", "texts", …}
                              → [{"index", "score"}, …]

The relevance is the probability of the label that `search.retriever.relevant_label` finds, or what
a regression predicts.
"""

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from roformer_tf.engines.choice import KERAS, Choice
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.inference.text_files import report
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import grouped
from roformer_tf.search.retriever import relevant_label
from roformer_tf.serving.application import ModelRoutes, check_lengths, check_texts, json_response
from roformer_tf.serving.batching import Batcher, Deliver
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.schemas import (
    CHOICES_REQUEST,
    QUESTION_REQUEST,
    SAMPLE,
    AskedRequest,
    CompatibleRequest,
    ManyDocuments,
    ManyTexts,
    Predictions,
    TeiScore,
    Text,
    either,
    has,
    predict_request,
)
from roformer_tf.serving.settings import Limits, ServeConfig, WorkerPart
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.decoding import NumberDecoding
from roformer_tf.tasks.probabilities import SMALLEST, shortest
from roformer_tf.top_k import top_k

# Tokens of a batch: twice what keeps a CPU busy.
BATCH_TOKENS = 2048
# Characters of the texts of a short response.
SHORT = 1000
# Texts, and the task if it is not that of the model → the examples and their predictions.
Predict: TypeAlias = Callable[..., Awaitable[list[tuple[Example, Prediction]]]]
DOCUMENTS = {"query": SAMPLE, "documents": [SAMPLE], "top_n": 1}


class ServedTask(NamedTuple):
    """A fine-tuned model in service."""

    name: str
    task: Task
    predict: Callable[..., list[Prediction]]
    """Of a list of examples, and of the task with the labels of a request, if it names some."""
    choice: Choice = KERAS


class TaskQuery(NamedTuple):
    """One example of a request."""

    example: Example
    asked: Task | None = None
    """The task with the labels of the request, if it names some."""


def load_served_task(
    source: str, name: str, config: ServeConfig, part: WorkerPart | None = None
) -> ServedTask:
    """Open what `finetune` or `export` wrote, and predict once."""
    fields: dict[str, Any] = {"batch_size": config.batch_size} | (part._asdict() if part else {})
    opened = open_finetuned(source, config.engine, config.precision, **fields)
    if part is None:  # else the first process has printed it
        report(*opened.notes)
    if len(config.model) == 1 or opened.task.decoding.lists_labels:
        opened = replace(opened, task=opened.task.decoding.with_top_k(config.top_k))
    task = opened.task

    def run(examples: list[Example], asked: Task | None = None) -> list[Prediction]:
        model = opened.with_task(asked) if asked else opened
        return model.predict(examples)

    # Two batches of different shape: TensorFlow's plan for the second serves all later shapes.
    for text, count in (("好" * 100, 2), (SAMPLE, 1)):
        run([as_example(task.labelling.sample(text), task)] * count)
    return ServedTask(name, task, run, opened.choice)


def as_example(texts: Sequence[str], task: Task) -> Example:
    """An example without a label, as the model takes it."""
    return task.labelling.for_prediction(Example(tuple(texts), None, "the request"))


def task_routes(served: ServedTask, metrics: ServiceMetrics, config: ServeConfig) -> ModelRoutes:
    """The routes of a fine-tuned model."""
    task = served.task
    # Batches are limited by tokens, roughly characters: a batch of long texts delays all its
    # requests. And by texts: each takes at least its share of the batch.
    share = BATCH_TOKENS // config.batch_size

    def width(query: TaskQuery) -> int:
        sequences = len(query.asked.labels) if query.asked else 1
        return max(sum(map(len, query.example.texts)), share) * sequences

    def run(batch: list[TaskQuery], deliver: Deliver[Prediction]) -> None:
        # A task with labels of a request has other inputs: each such task is predicted separately.
        for asked, chosen in grouped(batch, lambda query: query.asked).items():
            settings = [asked] if asked else []
            results = served.predict([batch[i].example for i in chosen], *settings)
            for i, result in zip(chosen, results, strict=True):
                deliver(i, result)

    batcher = Batcher(run, BATCH_TOKENS, config.limits, metrics, width=width)

    async def predict(
        texts: Iterable[Sequence[str]], asked: Task | None = None
    ) -> list[tuple[Example, Prediction]]:
        queries = [TaskQuery(as_example(each, asked or task), asked) for each in texts]
        results = await batcher.results(queries)
        return [(query.example, result) for query, result in zip(queries, results, strict=True)]

    # What the page needs to draw its form and the prediction.
    names = ("title", "headline", "labels", "text_columns", "spaced_units", "accepts_labels")
    health: dict[str, Any] = {"task": task.name, "limits": asdict(config.limits)}
    health |= {name: getattr(task, name) for name in names}
    health["lists_texts"] = task.labelling.lists_texts
    router = APIRouter()
    # Only pairs: of a text's candidates each alone would have the probability 1.
    is_other = task.labelling.column_names or task.labelling.lists_texts
    if len(task.text_columns) == 2 and not is_other:
        add_rerank(router, served.name, task, predict, config.limits)
    _add_predict(router, task, predict, config.limits)
    return ModelRoutes(served.name, router, health, "predict.js", [batcher], served.choice)


def _add_predict(router: APIRouter, task: Task, predict: Predict, limits: Limits) -> None:
    columns = len(task.text_columns)
    has_scores = task.decoding.lists_labels or isinstance(task.decoding, NumberDecoding)
    request_type = predict_request(columns, has_scores, task.accepts_labels)
    response_type = Predictions | list[TeiScore] | list[list[TeiScore]]
    sample: dict[str, Any] = {"text": SAMPLE if columns == 1 else [SAMPLE] * columns}
    if task.labelling.lists_texts:
        request_type, sample = CHOICES_REQUEST, {"text": SAMPLE, "choices": [SAMPLE, SAMPLE]}
    elif task.labelling.column_names:
        request_type = QUESTION_REQUEST
        sample = dict.fromkeys(task.labelling.column_names[0][:columns], SAMPLE)

    @router.post(
        "/predict",
        summary="Predict for one text, or several",
        response_model=response_type if has_scores else Predictions,
    )
    async def predict_texts(body: Annotated[request_type, Body(examples=[sample])]) -> Response:  # type: ignore[valid-type]
        request: Any = body
        inputs = getattr(request, "inputs", None)  # of Text Embeddings Inference
        # a single text, or a pair, whose first item is a text
        is_single = inputs is not None and isinstance(inputs if columns == 1 else inputs[0], str)
        items = request.items if inputs is None else [inputs] if is_single else inputs
        check_texts(items, limits)
        texts = [[item] if isinstance(item, str) else item for item in items]
        asked = None
        if isinstance(request, AskedRequest):
            asked = task.with_labels(request.labels, request.template)
        decoding = (asked or task).decoding
        # Lazy: each prediction becomes a dictionary only when `json_response` encodes it, perhaps
        # in another thread.
        as_json: Any = (decoding.as_json(*pair) for pair in await predict(texts, asked))
        if inputs is None:
            short = sum(len(text) for each in texts for text in each) <= SHORT
            return await json_response({"predictions": as_json}, limits, short)
        as_json = map(_label_scores, as_json)
        return await json_response(next(as_json) if is_single else as_json, limits)


def _label_scores(prediction: dict[str, Any]) -> list[dict[str, Any]]:
    """The labels of a prediction, the most probable first, or its number by its name."""
    scores = prediction.get("scores", prediction)
    ordered = sorted(scores.items(), key=lambda item: -item[1])
    return [{"label": label, "score": score} for label, score in ordered]


# The routes that order documents


class RerankRequest(CompatibleRequest):
    """Cohere's and Jina's request to order documents."""

    query: Text
    documents: ManyDocuments
    top_n: int | None = Field(None, ge=1, description="Number of results. Default: all.")
    return_documents: bool | None = Field(None, description="Return texts. Default: false.")


class RerankResult(BaseModel):
    """A document, by its index in the request."""

    index: int
    relevance_score: float = Field(description="Probability that they belong together.")
    document: dict[str, str] | None = None


class RerankResults(BaseModel):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]


class TeiRerankRequest(CompatibleRequest):
    """Text Embeddings Inference's request to order texts; long ones are always truncated."""

    query: Text
    texts: ManyTexts
    raw_scores: bool = Field(False, description="Return log odds instead of probabilities.")
    return_text: bool = False


class TeiRank(BaseModel):
    """A text, by its index in the request."""

    index: int
    score: float
    text: str | None = None


AnyRerankRequest: Any = either(RerankRequest, TeiRerankRequest, has("texts"))


def add_rerank(router: APIRouter, name: str, task: Task, predict: Predict, limits: Limits) -> None:
    """Add the routes of a model of pairs."""

    async def scores(query: str, texts: list[str], log_odds: bool = False) -> list[float]:
        label = relevant_label(task, name)
        check_lengths([query], limits, "query")
        check_lengths(texts, limits)
        predictions = await predict([(query, text) for text in texts])
        return [relevance(x, task, label, log_odds) for _, x in predictions]

    post = partial(
        router.post, summary="Order documents, best first", response_model_exclude_none=True
    )

    @post("/v1/rerank")
    @post("/v2/rerank")
    async def ranked(body: Annotated[RerankRequest, Body(examples=[DOCUMENTS])]) -> RerankResults:
        texts = body.documents
        relevances = await scores(body.query, texts)
        results = [
            RerankResult(
                index=index,
                relevance_score=relevances[index],
                document={"text": texts[index]} if body.return_documents else None,
            )
            for index in top_k(np.array(relevances), body.top_n or len(texts)).tolist()
        ]
        return RerankResults(id=uuid.uuid4().hex, model=name, results=results)

    @post("/rerank")
    async def rerank(
        body: Annotated[AnyRerankRequest, Body(examples=[DOCUMENTS])],
    ) -> RerankResults | list[TeiRank]:
        if not isinstance(body, TeiRerankRequest):
            return await ranked(body)
        relevances = await scores(body.query, body.texts, body.raw_scores)
        return [
            TeiRank(index=i, score=relevances[i], text=body.texts[i] if body.return_text else None)
            for i in top_k(np.array(relevances), len(relevances)).tolist()
        ]


def relevance(prediction: Prediction, task: Task, label: int, log_odds: bool = False) -> float:
    """The probability of a label, or its log odds; or the number that is predicted."""
    score = prediction.scores[label]
    if not (log_odds and (task.labels or task.reranks)):
        return shortest(score)
    # Not 1 - score: in float32, a score above 0.99999997 is 1, and the difference 0. A reranker
    # gives one score, without those of other labels.
    rest = np.delete(prediction.scores, label).sum() if task.labels else 1 - score
    return float(np.log(max(float(score), SMALLEST)) - np.log(max(float(rest), SMALLEST)))
