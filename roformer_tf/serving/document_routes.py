"""Routes that change the documents of an index, of a service with --writable.

PUT, POST /documents     {"documents": [{"id", "text", …}, …]} → {"new", "updated", "unchanged",
                         "total"}: as the lines of a file of `search --documents`; other keys are
                         metadata for `where`
DELETE /documents/ID      → {"deleted": ID}, or status 404

The index is a database: other processes may search and change it at the same time.
"""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException

from roformer_tf.errors import InputError
from roformer_tf.search import writing
from roformer_tf.search.documents import Document
from roformer_tf.serving.application import check_texts
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.failures import FAILURES, NO_DOCUMENT
from roformer_tf.serving.schemas import SAMPLE, ChangedDocuments, DocumentsRequest
from roformer_tf.serving.settings import Limits
from roformer_tf.serving.vector_batches import ServedVectors, VectorQuery

EXAMPLE = {"documents": [{"id": "a", "text": SAMPLE, "year": 2024}]}


def add_documents(
    router: APIRouter,
    served: ServedVectors,
    batcher: Batcher[VectorQuery, Any],
    batch_size: int,
    limits: Limits,
) -> None:
    """Add the routes."""
    assert served.retriever is not None
    folder = served.retriever.index.folder
    write = partial(writing.add_documents, folder, served.embedder, batch_size=batch_size)

    @router.put("/documents", summary="Add documents, or replace them by id", responses=FAILURES)
    @router.post("/documents", summary="The same as PUT", responses=FAILURES)
    async def put(
        body: Annotated[DocumentsRequest, Body(examples=[EXAMPLE])],
    ) -> ChangedDocuments:
        check_texts([x.text for x in body.documents], limits)
        documents = [Document(x.text, x.id, x.metadata) for x in body.documents]
        try:
            added = await batcher.call(partial(write, documents))
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        return ChangedDocuments(**added._asdict())

    @router.delete("/documents/{name:path}", summary="Delete a document", responses=NO_DOCUMENT)
    async def delete(name: str) -> dict[str, str]:
        if await asyncio.to_thread(writing.delete_documents, folder, [name]):
            raise HTTPException(404, f"no document has the id {name!r}")
        return {"deleted": name}
