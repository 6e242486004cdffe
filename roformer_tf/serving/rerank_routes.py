"""Routes of a model of pairs that order documents by their relevance to a query.

POST /v1/rerank, /v2/rerank   as at Jina and Cohere: {"query", "documents", "top_n"?, …}
                              → {"results": [{"index", "relevance_score"}, …], …}
POST /rerank                  the same; or as at Text Embeddings Inference: {"query", "texts", …}
                              → [{"index", "score"}, …]

The relevance is the probability of the label that `search.retriever.relevant_label` finds, or what
a regression predicts.
"""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeAlias

import numpy as np
from fastapi import APIRouter, Body
from pydantic import BaseModel, Field

from roformer_tf.labelled.examples import Example
from roformer_tf.search.retriever import relevant_label
from roformer_tf.serving.application import check_lengths
from roformer_tf.serving.failures import COHERE_ERRORS, OPENAI_ERRORS
from roformer_tf.serving.schemas import (
    SAMPLE,
    CompatibleRequest,
    ManyDocuments,
    ManyTexts,
    Text,
    either,
    has,
)
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.probabilities import SMALLEST, shortest
from roformer_tf.top_k import top_k

# Texts, and the task if it is not that of the model → the examples and their predictions.
Predict: TypeAlias = Callable[..., Awaitable[list[tuple[Example, Prediction]]]]
EXAMPLE = {"query": SAMPLE, "documents": [SAMPLE], "top_n": 1}


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

    @post("/v1/rerank", responses=OPENAI_ERRORS)
    @post("/v2/rerank", responses=COHERE_ERRORS)
    async def ranked(body: Annotated[RerankRequest, Body(examples=[EXAMPLE])]) -> RerankResults:
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
        body: Annotated[AnyRerankRequest, Body(examples=[EXAMPLE])],
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
    if not (task.labels and log_odds):
        return shortest(score)
    # Not 1 - score: in float32, a score above 0.99999997 is 1, and the difference 0.
    rest = np.delete(prediction.scores, label).sum()
    return float(np.log(max(float(score), SMALLEST)) - np.log(max(float(rest), SMALLEST)))
