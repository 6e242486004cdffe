"""What a request to a model that writes may ask, and what it asks for as the model takes it."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

from roformer_tf.errors import InputError, check_numbers
from roformer_tf.inference.generate import check_prompts, drawing
from roformer_tf.inference.questions import (
    SAMPLE,
    UNPROCESSABLE,
    JsonObject,
    Limits,
    parsed_question,
    question_type,
)
from roformer_tf.models.generation_config import GenerationConfig

if TYPE_CHECKING:
    from pydantic import BaseModel

    from roformer_tf.inference.generate import Writer

SAMPLE_QUESTION: JsonObject = {"text": SAMPLE, "max_tokens": 16, "seed": 1}
EXAMPLE: JsonObject = {"text": "…", "max_tokens": 64}
STOPS, STOP_LENGTH = 16, 32
"""Most texts to stop at, and the most characters of one: each is looked for at every token."""


@dataclass(frozen=True, kw_only=True)
class WritingLimits:
    """What one request to a model that writes may ask for, so that none holds up others long."""

    max_text_tokens: int = 512
    """Most tokens of a text that is written."""
    max_request_tokens: int = 8192
    """Most tokens that are written for a request: for each of its texts as many as it may have,
    times its samples, candidates for paraphrases, or beams."""
    max_samples: int = 32
    """Most samples of a text, candidates for its paraphrases, or beams."""

    def __post_init__(self) -> None:
        check_numbers(self, *asdict(self), at_least=1)


@dataclass(frozen=True)
class Draft:
    """A text behind which others are to be written."""

    text: str
    token_ids: list[int]
    config: GenerationConfig
    turn: int
    """Which of a request's equal prompts it is."""
    paraphrases: int
    given_up: Event
    """Set when nobody waits for it any more."""
    on_token: Callable[[int], None] | None = None
    """Told of each token as it is written."""

    @property
    def width(self) -> int:
        """Rows that are written side by side for it."""
        return max(self.config.samples, self.config.beams)


class WritingQuestion(NamedTuple):
    """What a request asks for."""

    texts: list[str]
    prompts: list[list[int]]
    """Their token ids."""
    config: GenerationConfig
    paraphrases: int
    stream: bool


def writing_question_type(limits: Limits) -> type["BaseModel"]:
    """What a request's JSON is checked against: `text` or `texts`, and how to write."""
    from pydantic import Field

    number = partial(Field, allow_inf_nan=False)
    bounds: Mapping[str, Any] = {  # beyond which numbers overflow, or time runs
        "temperature": number(ge=1e-3, le=1e3),
        "repetition_penalty": number(ge=1e-3, le=1e3),
        "length_penalty": number(ge=-10, le=10),
        "top_k": Field(lt=2**31),
        "stop": Field(max_length=STOPS),
    }
    hints = get_type_hints(GenerationConfig)
    hints["stop"] = tuple[Annotated[str, Field(max_length=STOP_LENGTH)], ...]
    settings: dict[str, Any] = {}
    for one in fields(GenerationConfig):
        kind = hints[one.name]
        if one.name in bounds:
            kind = Annotated[kind, bounds[one.name]]
        said = f"Unless given: {_told(one.default)}"
        if one.name == "seed":
            said = "Unless given, a new one each time, which the answer tells."
        settings[one.name] = (kind | None, Field(default=None, description=said))
    paraphrases = "Of a sim model: so many texts that mean the same, the nearest first."
    settings["paraphrases"] = (
        Annotated[int, Field(ge=0)],
        Field(default=0, description=paraphrases),
    )
    stream = "Of one text: tell its pieces while they are written, as server-sent events."
    settings["stream"] = (bool, Field(default=False, description=stream))
    return question_type(None, limits, settings)


def _told(default: Any) -> str:
    return "not set." if default in (None, ()) else f"{default}."


def asked_writing(
    question: "type[BaseModel]", body: bytes, model: "Writer", limits: WritingLimits
) -> WritingQuestion:
    """What a body asks to be written; a status of 4xx, with the reason, where that cannot be."""
    from starlette.exceptions import HTTPException

    asked: Any = parsed_question(question, body, EXAMPLE)
    try:
        return _checked(asked, model, limits)
    except InputError as error:
        detail: Any = {"error": str(error), "example": EXAMPLE}
        raise HTTPException(UNPROCESSABLE, detail) from None


def _checked(asked: Any, model: "Writer", limits: WritingLimits) -> WritingQuestion:
    """Raises InputError for what the model cannot do, and for more than the limits allow."""
    names = [one.name for one in fields(GenerationConfig)]
    given = {name: value for name in names if (value := getattr(asked, name)) is not None}
    given.setdefault("seed", secrets.randbelow(2**32))
    given.setdefault("max_tokens", min(GenerationConfig.max_tokens, limits.max_text_tokens))
    config = GenerationConfig(**given)
    model.check_stops(config)
    several = asked.texts is not None or config.samples > 1 or config.beams > 1
    if asked.stream and (several or asked.paraphrases):
        raise InputError(
            "stream tells one text while it is written: give one text, and no samples, beams or "
            "paraphrases."
        )
    if asked.paraphrases:
        if getattr(model, "pooler", None) is None:
            raise InputError("paraphrases need a sim model: this one has no pooler for vectors.")
        if config.beams > 1:
            raise InputError("paraphrases are drawn at random, which beams are not: leave one.")
        config = drawing(config, asked.paraphrases)
    texts = asked.texts or [asked.text]
    _check_samples(config, asked.paraphrases, limits)
    check_prompts(model, texts)
    prompts = [model.encode_prompt(text) for text in texts]
    _check_tokens(prompts, config, model.config.max_position_embeddings, limits)
    return WritingQuestion(texts, prompts, config, asked.paraphrases, asked.stream)


def _check_samples(config: GenerationConfig, paraphrases: int, limits: WritingLimits) -> None:
    """Before the texts are read, which takes longer."""
    if config.max_tokens > limits.max_text_tokens:
        raise InputError(
            f"max_tokens is {config.max_tokens:,}, but this service writes texts of at most "
            f"{limits.max_text_tokens:,} tokens."
        )
    for name, value in (("samples", config.samples), ("beams", config.beams)):
        if value > limits.max_samples:
            for_them = f" of which to choose {paraphrases:,} paraphrases," if paraphrases else ""
            raise InputError(
                f"{name} is {value:,},{for_them} but this service writes at most "
                f"{limits.max_samples:,} texts side by side for one."
            )


def _check_tokens(
    prompts: list[list[int]], config: GenerationConfig, most: int, limits: WritingLimits
) -> None:
    width = max(config.samples, config.beams)
    tokens = sum(width * min(config.max_tokens, most - len(prompt)) for prompt in prompts)
    if tokens > limits.max_request_tokens:
        raise InputError(
            f"up to {tokens:,} tokens would be written ({len(prompts):,} texts, {width:,} side by "
            f"side for each, max_tokens {config.max_tokens:,}), but this service writes at most "
            f"{limits.max_request_tokens:,} for a request. Give fewer texts, or smaller settings."
        )
