"""What a request to the service may ask, and the body of its answer."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails
    from starlette.requests import Request

JsonObject: TypeAlias = Mapping[str, Any]

BAD_REQUEST, TOO_SLOW, TOO_LARGE, UNPROCESSABLE = 400, 408, 413, 422
MANY_MISTAKES = 1000
"""More of them in one question are counted, not described: that would hold up all others."""
SAMPLE = "今天天气很好，我们去公园。"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask, and how many may wait."""

    max_texts: int = 128
    """Most texts (pairs, triples) of a request."""
    max_characters: int = 100_000
    """Most characters of a text."""
    max_megabytes: int = 4
    """Largest body of a request; a larger one is refused before it is read whole."""
    max_waiting: int = 256
    """Most requests that wait for the model; further ones are asked to come later."""
    max_connections: int = 512
    """Most connections at a time, and no more than half of the files that the process may still
    open; a further one takes the place of the one that has been idle the longest."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise InputError(f"{name} is {value}, but must be at least 1.")


def sample_question(task: Task) -> JsonObject:
    """A right question of the task, as an example."""
    texts = [SAMPLE] * len(task.text_columns)
    return {"text": texts if len(texts) > 1 else SAMPLE}


def question_type(
    task: Task | None, limits: Limits, settings: Mapping[str, Any] | None = None
) -> type["BaseModel"]:
    """What a request's JSON is checked against: `text` or `texts`, and nothing else.

    `settings` are further fields, by name the type and the value unless given; without a task each
    text is one.
    """
    from pydantic import AfterValidator, ConfigDict, Field, create_model, model_validator
    from pydantic_core import PydanticCustomError

    def not_blank(text: str) -> str:
        if not text.strip():
            raise PydanticCustomError("blank", "the text is empty")
        return text

    def one_of_both(question: Any) -> Any:
        if (question.text is None) == (question.texts is None):
            raise PydanticCustomError("one", "give either text or texts")
        return question

    count = 1 if task is None else len(task.text_columns)
    text: Any = Annotated[str, Field(max_length=limits.max_characters), AfterValidator(not_blank)]
    one: Any = text
    if count > 1:
        one = Annotated[list[text], Field(min_length=count, max_length=count)]
    several: Any = Annotated[list[one], Field(min_length=1, max_length=limits.max_texts)]
    return create_model(
        "Question",
        __config__=ConfigDict(extra="forbid", strict=True),
        __validators__={"one_of_both": model_validator(mode="after")(one_of_both)},  # type: ignore[dict-item]
        text=(one | None, None),
        texts=(several | None, None),
        **(settings or {}),
    )


async def read_body(request: "Request", limit: int, patience: float) -> bytes:
    """A request's body of so many bytes, within so many seconds.

    No more is read of one that is too large (status 413) or slow (408).
    """
    from starlette.exceptions import HTTPException

    async def read() -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise HTTPException(TOO_LARGE, f"the body is larger than {limit:,} bytes")
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), patience)
    except asyncio.TimeoutError:  # TimeoutError itself only since Python 3.11
        raise HTTPException(TOO_SLOW, f"no whole body came in {patience} seconds") from None


def parsed_question(question: "type[BaseModel]", body: bytes, example: JsonObject) -> Any:
    """What a body asks; a status of 4xx, and an example of a question, where it is none."""
    from pydantic import ValidationError
    from starlette.exceptions import HTTPException

    try:
        return question.model_validate_json(body)
    except ValidationError as error:
        mistakes = error.error_count()
        found = error.errors() if mistakes <= MANY_MISTAKES else []
        malformed = any(one["type"] == "json_invalid" for one in found)
        status = BAD_REQUEST if malformed else UNPROCESSABLE
        wrong = reason(found) if found else f"{mistakes:,} things are wrong in it"
        detail: Any = {"error": wrong, "example": example}
        raise HTTPException(status, detail) from None


def asked_texts(question: "type[BaseModel]", body: bytes, task: Task) -> list[list[str]]:
    """The texts of each example that a body asks about; a status of 4xx where it is no question."""
    count = len(task.text_columns)
    asked = parsed_question(question, body, {"text": "…" if count == 1 else ["…"] * count})
    examples = asked.texts or [asked.text]
    return [[one] if isinstance(one, str) else one for one in examples]


def reason(errors: "Sequence[ErrorDetails]") -> str:
    """What is wrong with a question, and where in it: "texts.1: the text is empty"."""
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, one["loc"])), one["msg"]])) for one in errors[:3]
    )


def as_example(texts: Sequence[str], task: Task) -> Example:
    """An example without a label, as the model takes it."""
    return task.labelling.for_prediction(Example(tuple(texts), None, "the request"))


def reply(examples: Sequence[Example], predictions: Sequence[Prediction], task: Task) -> bytes:
    """The body of an answer, {"predictions": [answer, …]}.

    Answer by answer: `json.dumps` of all at once would stop every other thread until it ends.
    """
    answers = (
        json.dumps(
            task.decoding.as_json(example, prediction),
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
        for example, prediction in zip(examples, predictions, strict=True)
    )
    return f'{{"predictions":[{",".join(answers)}]}}'.encode()
