"""JSON of requests and responses, as FastAPI validates and documents it."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from roformer_tf.models.generation_config import GenerationConfig

# A text for examples, and for the first prediction when the service starts.
SAMPLE = "今天天气很好，我们去公园。"
# More keys are refused at once. A list of 500,000 errors would block the service for seconds; for
# the same reason lists stop at the first error (`fail_fast`).
MAX_KEYS = 32
# Choices of a text, each of which is a sequence.
MAX_CHOICES = 100
# Limits of stop texts: each is searched for after every token.
MAX_STOPS, MAX_STOP_LENGTH = 16, 32


def _readable(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "the text is empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may hold half of a surrogate pair, such as "\\ud800"
        raise PydanticCustomError("surrogate", "the text is not valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_readable)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
Triple = Annotated[list[Text], Field(min_length=3, max_length=3, fail_fast=True)]
Item = TypeVar("Item")

_DEFAULTS = GenerationConfig()


class TextsRequest(BaseModel, Generic[Item]):
    """One `text`, or several `texts`; of a pair, a text is a list of two texts."""

    # strict: the number 1 is not the text "1". extra: a misspelt setting is not ignored.
    model_config = ConfigDict(extra="forbid", strict=True)

    text: Item | None = None
    texts: Annotated[list[Item], Field(min_length=1, fail_fast=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_KEYS:
            raise PydanticCustomError("keys", f"the object has {len(data):,} keys")
        return data

    @model_validator(mode="after")
    def _one_of_both(self) -> "TextsRequest[Item]":
        if (self.text is None) == (self.texts is None):
            raise PydanticCustomError("one", "give either text or texts")
        return self

    @property
    def items(self) -> list[Item]:
        """The texts, or the only one."""
        return self.texts or [self.text]  # type: ignore[list-item]


class TextRequest(TextsRequest[Text]):
    """A text, or several."""


class PairRequest(TextsRequest[Pair]):
    """A pair of texts, or several pairs."""


class TripleRequest(TextsRequest[Triple]):
    """Three texts to rank, or several triples."""


class Question(BaseModel):
    """A text and its choices."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    choices: Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]


class ChoicesRequest(TextsRequest[Question]):
    """A `text` with its `choices`, or several of both in `texts`."""

    text: Text | None = None  # type: ignore[assignment]
    choices: Annotated[
        list[Text] | None, Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
    ] = None

    @model_validator(mode="after")
    def _choices_of_text(self) -> "ChoicesRequest":
        if (self.text is None) != (self.choices is None):
            raise PydanticCustomError("choices", "give choices with text, and only there")
        return self

    @property
    def items(self) -> list[Any]:
        """Each text followed by its choices."""
        if self.texts is None:
            return [[self.text, *(self.choices or [])]]
        return [[item.text, *item.choices] for item in self.texts]


# Request for predictions, by the number of texts of an example.
REQUESTS: dict[int, type[TextsRequest[Any]]] = {1: TextRequest, 2: PairRequest, 3: TripleRequest}


class SearchRequest(TextsRequest[Text]):
    """Queries, and how many documents to return for each."""

    top: int = Field(10, ge=1, le=100)
    where: str | None = Field(
        None, max_length=1000, description="A condition on metadata, such as year >= 2020."
    )


class GenerateRequest(TextsRequest[Text]):
    """Prompts, and how to generate: the settings of `GenerationConfig`, by its names."""

    # GenerationConfig checks the values. Bounds here keep numbers from overflowing, or texts that
    # are searched for after every token from taking long.
    max_tokens: int = Field(_DEFAULTS.max_tokens, description="Maximum number of new tokens.")
    min_tokens: int = Field(_DEFAULTS.min_tokens, description="Minimum number of new tokens.")
    samples: int = Field(_DEFAULTS.samples, description="Number of sampled texts for each prompt.")
    temperature: float | None = Field(None, ge=1e-3, le=1e3, description="Of sampling.")
    top_k: int | None = Field(None, lt=2**31, description="Sample among so many tokens.")
    top_p: FiniteFloat | None = Field(None, description="Sample from this share of probability.")
    repetition_penalty: float = Field(
        _DEFAULTS.repetition_penalty, ge=1e-3, le=1e3, description="Above 1: fewer repetitions."
    )
    beams: int = Field(_DEFAULTS.beams, description="Beam search with so many beams.")
    length_penalty: float | None = Field(
        None, ge=-10, le=10, description="Beams are compared by log-probability / length^penalty."
    )
    stop: list[Annotated[str, Field(max_length=MAX_STOP_LENGTH)]] = Field(
        [], max_length=MAX_STOPS, fail_fast=True, description="Texts that end a generated text."
    )
    seed: StrictInt | None = Field(None, description="Default: a new one, which is returned.")
    paraphrases: int = Field(
        0, ge=0, description="Of a sim model: number of paraphrases, the nearest first."
    )
    stream: StrictBool = Field(
        False, description="For one text: send it as it is generated, as server-sent events."
    )


class Predictions(BaseModel):
    """Predictions in the order of the texts."""

    predictions: list[dict[str, Any]]


class TextVectors(BaseModel):
    """TextVectors of length 1 in the order of the texts: a dot product is a cosine."""

    vectors: list[list[float]]


class SearchResult(BaseModel):
    """A document of the index."""

    document: str
    score: float = Field(description="The higher, the better.")
    id: str | None = Field(None, description="Of documents that have one.")


class SearchResults(BaseModel):
    """For each query its documents, the best first."""

    results: list[list[SearchResult]]


class GeneratedText(BaseModel):
    """A text without its prompt."""

    text: str
    score: float = Field(
        description="Mean log-probability of a token in nats; of a paraphrase its cosine."
    )


class Generations(BaseModel):
    """For each prompt its generated texts, in the order of the prompts."""

    generations: list[list[GeneratedText]]
    seed: int = Field(description="The seed that was requested or drawn.")


class Failure(BaseModel):
    """Why a request failed."""

    error: str
