"""Routes of a model of pairs that order documents by their relevance to a query.

POST /v1/rerank, /v2/rerank   as at Jina and Cohere: {"query", "documents", "top_n"?, …}
                              → {"results": [{"index", "relevance_score"}, …], …}
POST /rerank                  the same; or as at Text Embeddings Inference: {"query", "texts", …}
                              → [{"index", "score"}, …]

The relevance is the probability of the label 1, or what a regression predicts.
"""

import uuid
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, HTTPException

from roformer_tf.labelled.examples import Example
from roformer_tf.serving.application import check_lengths
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import COHERE_FAILURES, FAILURES, OPENAI_FAILURES
from roformer_tf.serving.schemas import (
    SAMPLE,
    AnyRerankRequest,
    RankedText,
    RerankRequest,
    RerankResult,
    RerankResults,
    TeiRank,
    TeiRerankRequest,
)
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.probabilities import SMALLEST, shortest

RELEVANT = ("0", "1")
EXAMPLE = {"query": SAMPLE, "documents": [SAMPLE], "top_n": 1}


def add_rerank(
    router: APIRouter,
    name: str,
    task: Task,
    as_example: Callable[[list[str], Task], Example],
    batcher: Batcher[Example, Prediction],
    limits: Limits,
) -> None:
    """Add the routes of a model of pairs."""

    async def predictions(query: str, texts: list[str]) -> list[Prediction]:
        if task.labels and set(task.labels) != set(RELEVANT):
            raise HTTPException(
                422,
                f"the labels of this model are {', '.join(task.labels)}: which of them means "
                "relevant is not known. Models with the labels 0 and 1 can rerank.",
            )
        check_lengths([query, *texts], limits)
        examples = [as_example([query, text], task) for text in texts]
        return await batcher.results(examples, limits.max_texts)

    async def ranked(body: RerankRequest) -> RerankResults:
        texts = [x.text if isinstance(x, RankedText) else x for x in body.documents]
        scores = [relevance(x, task) for x in await predictions(body.query, texts)]
        results = [
            RerankResult(
                index=index,
                relevance_score=scores[index],
                document={"text": texts[index]} if body.return_documents else None,
            )
            for index in best_first(scores)[: body.top_n]
        ]
        return RerankResults(id=uuid.uuid4().hex, model=name, results=results)

    @router.post(
        "/rerank",
        summary="Order documents, as at Jina, Cohere and Text Embeddings Inference",
        response_model_exclude_none=True,
        responses=FAILURES,
    )
    async def rerank(
        body: Annotated[AnyRerankRequest, Body(examples=[EXAMPLE])],
    ) -> RerankResults | list[TeiRank]:
        if not isinstance(body, TeiRerankRequest):
            return await ranked(body)
        score = log_odds if body.raw_scores else relevance
        scores = [score(x, task) for x in await predictions(body.query, body.texts)]
        return [
            TeiRank(index=i, score=scores[i], text=body.texts[i] if body.return_text else None)
            for i in best_first(scores)
        ]

    for path, failures in (("/v1/rerank", OPENAI_FAILURES), ("/v2/rerank", COHERE_FAILURES)):

        @router.post(
            path,
            summary="Order documents, as at Jina and Cohere",
            response_model_exclude_none=True,
            responses=failures,
        )
        async def versioned(
            body: Annotated[RerankRequest, Body(examples=[EXAMPLE])],
        ) -> RerankResults:
            return await ranked(body)


def best_first(scores: list[float]) -> list[int]:
    """Indices of the scores, the highest first; of equal ones the first."""
    return [int(i) for i in np.argsort(-np.array(scores), kind="stable")]


def relevance(prediction: Prediction, task: Task) -> float:
    """The probability of the label 1, or the number of a regression."""
    index = task.labels.index("1") if task.labels else 0
    return shortest(prediction.scores[index])


def log_odds(prediction: Prediction, task: Task) -> float:
    """Before the sigmoid; of a regression the same number."""
    if not task.labels:
        return relevance(prediction, task)
    logs: Any = np.log(np.maximum(prediction.scores.astype(np.float64), SMALLEST))
    return float(logs[task.labels.index("1")] - logs[task.labels.index("0")])
