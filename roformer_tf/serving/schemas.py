"""JSON of requests and responses, as FastAPI validates and documents it."""

from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.settings import MAX_INPUTS

# A text for examples, and for the first prediction when the service starts.
SAMPLE = "今天天气很好，我们去公园。"
# More keys are refused at once. A list of 500,000 errors would block the service for seconds; for
# the same reason lists stop at the first error (`fail_fast`).
MAX_KEYS = 32
# Choices of a text, each of which is a sequence.
MAX_CHOICES = 100
# Documents of a search that may be skipped: a search ranks them all.
MAX_OFFSET = 1000
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


Text = Annotated[str, AfterValidator(_readable), Field(json_schema_extra={"pattern": r"\S"})]
# A whole number is a text, as in a file of documents.
Id = Annotated[Text, BeforeValidator(lambda x: str(x) if type(x) is int else x)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
Triple = Annotated[list[Text], Field(min_length=3, max_length=3, fail_fast=True)]
# An example, by its number of texts.
EXAMPLES: dict[int, Any] = {1: Text, 2: Pair, 3: Triple}
Choices = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
Item = TypeVar("Item")

_DEFAULTS = GenerationConfig()
_MODEL = Field(None, description="Name of a model. Any, or none, if one model has the route.")


class JsonRequest(BaseModel):
    """The body of a request."""

    # strict: the number 1 is not the text "1". extra: a misspelt setting is not ignored.
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = _MODEL

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_KEYS:
            raise PydanticCustomError("keys", f"the object has {len(data):,} keys")
        # In JSON 5.0 is an integer, too.
        whole = {k: int(x) for k, x in data.items() if isinstance(x, float) and x.is_integer()}
        return data | whole


class TextsRequest(JsonRequest, Generic[Item]):
    """One `text`, or several `texts`; of a pair, a text is a list of two texts."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["text"]}, {"required": ["texts"]}]}
    )

    # Not `Item | None`: the description would allow null.
    text: Item = None  # type: ignore[assignment]
    texts: Annotated[list[Item], Field(min_length=1, fail_fast=True)] = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _one_of_both(self) -> "TextsRequest[Item]":
        if len(self.model_fields_set & {"text", "texts"}) != 1:
            raise PydanticCustomError("one", "give either text or texts")
        return self

    @property
    def items(self) -> list[Item]:
        """The texts, or the only one."""
        return self.texts or [self.text]


class TextRequest(TextsRequest[Text]):
    """A text, or several."""


class PairRequest(TextsRequest[Pair]):
    """A pair of texts, or several pairs."""


class TripleRequest(TextsRequest[Triple]):
    """Three texts to rank, or several triples."""


class QuestionRequest(JsonRequest):
    """A `question` and its `context`."""

    question: Text
    context: Text

    @property
    def items(self) -> list[list[str]]:
        """The question with its context."""
        return [[self.question, self.context]]


class Options(BaseModel):
    """A text and its choices."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    choices: Choices


class ChoicesRequest(Options, JsonRequest):
    """A text and its choices."""

    @property
    def items(self) -> list[list[str]]:
        """The text followed by its choices."""
        return [[self.text, *self.choices]]


class SeveralChoicesRequest(JsonRequest):
    """Several texts with their choices."""

    texts: Annotated[list[Options], Field(min_length=1, fail_fast=True)]

    @property
    def items(self) -> list[list[str]]:
        """Each text followed by its choices."""
        return [[item.text, *item.choices] for item in self.texts]


# Request for predictions, by the number of texts of an example.
REQUESTS: dict[int, type[TextsRequest[Any]]] = {1: TextRequest, 2: PairRequest, 3: TripleRequest}


class SearchRequest(TextsRequest[Text]):
    """Queries, and how many documents to return for each."""

    top: int = Field(10, ge=1, le=100)
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Number of the best to skip.")
    where: str | None = Field(
        None, max_length=1000, pattern=r"\S", description="On metadata, such as year >= 2020."
    )


class AskedRequest(TextsRequest[Text]):
    """A text, or several, and the labels to predict, for models that can be asked for labels."""

    labels: Choices
    template: Text | None = Field(None, description="A sentence about a label, which is {} in it.")


class IndexedDocument(BaseModel):
    """A document; other keys than `id` and `text` are metadata: texts, numbers, true or false."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, str | int | FiniteFloat | bool | None]

    id: Id | None = Field(
        None, description="Replaces the document that has it. Numbers become text."
    )
    text: Text


class DocumentsRequest(JsonRequest):
    """Documents to add or replace."""

    documents: Annotated[list[IndexedDocument], Field(min_length=1, fail_fast=True)]


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
    seed: int | None = Field(None, description="Default: a new one, which is returned.")
    paraphrases: int = Field(
        0, ge=0, description="Of a sim model: number of paraphrases, the nearest first."
    )
    stream: bool = Field(
        False, description="For one text: send it as it is generated, as server-sent events."
    )


class Predictions(BaseModel):
    """Predictions in the order of the texts."""

    predictions: list[dict[str, Any]]


class TextVectors(BaseModel):
    """Vectors of length 1 in the order of the texts: a dot product is a cosine."""

    vectors: list[list[float]]


class SearchResult(BaseModel):
    """A document of the index."""

    document: str
    score: float = Field(description="The higher, the better. Of those not reranked: the search's.")
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


# Requests and responses of other programs. Their clients send keys that change nothing here, such
# as `user`, and new ones with each version: unknown keys are ignored.


class CompatibleRequest(JsonRequest):
    """The body of a client of another service."""

    model_config = ConfigDict(extra="ignore", strict=True)


def either(first: Any, second: Any, is_second: Callable[[Any], bool]) -> Any:
    """A value of one of two forms, chosen before validation: so errors are those of one form."""
    # Pydantic has these names in the place of an error, where `failures` drops what begins with a
    # bracket: it is not in the request.
    forms = Annotated[first, Tag("(first)")] | Annotated[second, Tag("(second)")]
    choice = Discriminator(lambda value: "(second)" if is_second(value) else "(first)")
    return Annotated[forms, choice]


def has(key: str) -> Callable[[Any], bool]:
    """Whether a value is an object with this key."""
    return lambda value: isinstance(value, dict) and key in value


def _first_is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _listed(value: Any) -> Any:
    """A list of one for a text, or for a list of token ids."""
    is_one = not isinstance(value, list) or (bool(value) and isinstance(value[0], int))
    return [value] if is_one else value


_SEVERAL = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
ManyTexts = Annotated[list[Text], _SEVERAL]
# A union of text and list would report the errors of both forms: a text becomes a list first.
TextOrTexts = Annotated[
    ManyTexts, BeforeValidator(_listed, json_schema_input_type=Text | ManyTexts)
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
ManyIds = Annotated[list[TokenIds], _SEVERAL]
TextsOrIds: Any = Annotated[
    either(ManyTexts, ManyIds, _first_is_list),
    BeforeValidator(_listed, json_schema_input_type=Text | ManyTexts | TokenIds | ManyIds),
]


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
_Stops = Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)]
StopTexts = Annotated[_Stops, BeforeValidator(_listed, json_schema_input_type=StopText | _Stops)]


class ServedModel(BaseModel):
    """A model of the service."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="When the service started, Unix time in seconds.")
    owned_by: Literal["roformer_tf"] = "roformer_tf"


class ServedModels(BaseModel):
    """All models of the service."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


def _text_of(document: Any) -> Any:
    """The text of a document, which may be an object with more than its text."""
    return document["text"] if isinstance(document, dict) and "text" in document else document


class TextDocument(BaseModel):
    """A document as an object."""

    text: Text


DocumentText = Annotated[
    Text, BeforeValidator(_text_of, json_schema_input_type=Text | TextDocument)
]
ManyDocuments = Annotated[list[DocumentText], _SEVERAL]


class TeiEmbedRequest(CompatibleRequest):
    """Text Embeddings Inference's request for vectors; long texts are always truncated."""

    inputs: TextOrTexts
    normalize: Literal[True] | None = Field(None, description="Vectors always have length 1.")
    dimensions: int | None = Field(None, ge=1, description="Cut vectors to so many numbers.")


EmbedRequest = either(TextRequest, TeiEmbedRequest, has("inputs"))


class TeiScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class TeiPredictRequest(CompatibleRequest):
    """Text Embeddings Inference's request for labels; long texts are always truncated."""

    inputs: Any
    raw_scores: Literal[False] | None = Field(None, description="Scores are probabilities.")


def predict_request(columns: int, of_labels: bool, accepts_labels: bool) -> Any:
    """The type of the body of /predict, by the number of texts of an example.

    of_labels: whether `inputs` are accepted, too. accepts_labels: whether `labels` are.
    """
    request: Any = REQUESTS[columns]
    if of_labels:
        example = EXAMPLES[columns]
        # Text Embeddings Inference documents [["a"], ["b"]] for two texts; ["a", "b"] works, too.
        alone = BeforeValidator(lambda x: x[0] if isinstance(x, list) and len(x) == 1 else x)
        several = Annotated[list[Annotated[example, alone]], _SEVERAL]  # type: ignore[valid-type]
        is_several = _first_is_list if columns > 1 else lambda x: isinstance(x, list)
        inputs = either(example, several, is_several)
        # `inputs` depends on the number of texts of the model's examples, so each such number has a
        # type of its own.
        tei = create_model("TeiPredictRequest", __base__=TeiPredictRequest, inputs=(inputs, ...))
        request = either(request, tei, has("inputs"))
    return either(request, AskedRequest, has("labels")) if accepts_labels else request


QUESTION_REQUEST = either(PairRequest, QuestionRequest, has("question"))
CHOICES_REQUEST = either(ChoicesRequest, SeveralChoicesRequest, has("texts"))
