"""JSON of requests and responses, as FastAPI validates and documents it."""

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    Tag,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.settings import MAX_INPUTS
from roformer_tf.tasks.base import FIXED_LABELS

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


Text = Annotated[str, AfterValidator(_readable)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
Triple = Annotated[list[Text], Field(min_length=3, max_length=3, fail_fast=True)]
Item = TypeVar("Item")

_DEFAULTS = GenerationConfig()
_MODEL = Field(None, description="Name of a model. Any, or none, if one model has the route.")


class JsonRequest(BaseModel):
    """The body of a request."""

    # strict: the number 1 is not the text "1". extra: a misspelt setting is not ignored.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_KEYS:
            raise PydanticCustomError("keys", f"the object has {len(data):,} keys")
        return data


class TextsRequest(JsonRequest, Generic[Item]):
    """One `text`, or several `texts`; of a pair, a text is a list of two texts."""

    text: Item | None = None
    texts: Annotated[list[Item], Field(min_length=1, fail_fast=True)] | None = None
    model: str | None = _MODEL

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


class QuestionRequest(PairRequest):
    """A `question` and its `context`, or as of other pairs a list of both."""

    question: Text | None = None
    context: Text | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "QuestionRequest":
        named = [self.question is not None, self.context is not None]
        listed = [self.text is not None, self.texts is not None]
        if (all(named), any(named), sum(listed)) not in ((True, True, 0), (False, False, 1)):
            raise PydanticCustomError("one", "give either question and context, or text or texts")
        return self

    @property
    def items(self) -> list[list[str]]:
        """The questions with their contexts."""
        if self.question is not None and self.context is not None:
            return [[self.question, self.context]]
        return super().items


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
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Number of the best to skip.")
    where: str | None = Field(
        None, max_length=1000, description="A condition on metadata, such as year >= 2020."
    )


class AskedRequest(TextsRequest[Text]):
    """A text, or several, and the labels to predict, for models that can be asked for labels."""

    labels: Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
    template: Text | None = Field(None, description="A sentence about a label, which is {} in it.")


class IndexedDocument(BaseModel):
    """A document; other keys than `id` and `text` are metadata: texts, numbers, true or false."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, str | int | FiniteFloat | bool | None]

    id: Text | None = Field(None, description="Replaces the document that has it.")
    text: Text

    @property
    def metadata(self) -> dict[str, Any]:
        """Other keys, except those without a value."""
        return {key: x for key, x in self.__pydantic_extra__.items() if x is not None}


class DocumentsRequest(JsonRequest):
    """Documents to add or replace."""

    documents: Annotated[list[IndexedDocument], Field(min_length=1, fail_fast=True)]
    model: str | None = _MODEL


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


class ChangedDocuments(BaseModel):
    """What became of documents."""

    new: int
    updated: int = Field(description="Those that replaced one with the same id.")
    unchanged: int = Field(description="Those that were there already.")
    total: int = Field(description="Documents of the index now.")


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


# Requests and responses of other programs. Their clients send keys that change nothing here, such
# as `user`, and new ones with each version: unknown keys are ignored.


class CompatibleRequest(JsonRequest):
    """The body of a client of another service."""

    model_config = ConfigDict(extra="ignore", strict=True)


class NamedRequest(CompatibleRequest):
    """A request that names a model."""

    model: str | None = _MODEL


# Names of the forms that a value may have. Pydantic has them in the place of an error, where
# `failures` drops what begins with a bracket: it is not in the request.
TEXT, TEXTS, IDS, LISTS, INPUTS, OBJECT = "(text)", "(texts)", "(ids)", "(lists)", "(tei)", "(json)"
ASKED = "(asked)"


def _form(value: Any) -> str:
    """The form of a value, by its first item: so that errors are those of one form alone."""
    if isinstance(value, dict):
        return OBJECT
    if not isinstance(value, list):
        return TEXT
    first = value[0] if value else ""
    return LISTS if isinstance(first, list) else IDS if isinstance(first, int) else TEXTS


def _one_of(message: str) -> Discriminator:
    return Discriminator(_form, custom_error_type="form", custom_error_message=message)


def _has_inputs(value: Any) -> str:
    return INPUTS if isinstance(value, dict) and "inputs" in value else TEXT


def _has_texts(value: Any) -> str:
    return INPUTS if isinstance(value, dict) and "texts" in value else TEXT


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_SEVERAL = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
ManyTexts = Annotated[list[Text], _SEVERAL]
TextOrTexts: TypeAlias = Annotated[
    Annotated[Text, Tag(TEXT)] | Annotated[ManyTexts, Tag(TEXTS)],
    _one_of("must be a text, or a list of texts"),
]
TextsOrIds: TypeAlias = Annotated[
    Annotated[Text, Tag(TEXT)]
    | Annotated[ManyTexts, Tag(TEXTS)]
    | Annotated[TokenIds, Tag(IDS)]
    | Annotated[list[TokenIds], _SEVERAL, Tag(LISTS)],
    _one_of("must be a text, or a list of texts"),
]


def listed(value: Any) -> list[Any]:
    """One or several texts, or lists of token ids: a list of them."""
    return value if _form(value) in (TEXTS, LISTS) else [value]


class EmbeddingsRequest(NamedRequest):
    """OpenAI's request for vectors."""

    input: TextsOrIds
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32. Default: float."
    )
    dimensions: int | None = Field(None, ge=1, description="Cut vectors to so many numbers.")


class EmbeddingItem(BaseModel):
    """A vector of length 1."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Numbers of tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class StreamOptions(CompatibleRequest):
    """OpenAI's settings of a stream."""

    include_usage: bool | None = Field(None, description="Send `usage` in the last event.")


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class CompletionsRequest(NamedRequest):
    """OpenAI's request for generated text; what is not supported must have no effect."""

    prompt: TextOrTexts
    max_tokens: int | None = Field(None, ge=1, description="Of a completion. Default: 16.")
    temperature: float | None = Field(None, ge=0, le=2, description="0: greedy. Default: 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sample from this probability.")
    n: int | None = Field(None, ge=1, description="Number of completions of each prompt.")
    stop: (
        Annotated[
            Annotated[StopText, Tag(TEXT)]
            | Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True), Tag(TEXTS)],
            _one_of("must be a text, or a list of texts"),
        ]
        | None
    ) = Field(None, description="The completion ends before this text.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**64, description="Default: a new one.")
    stream: bool | None = Field(None, description="Of one completion: as server-sent events.")
    stream_options: StreamOptions | None = None
    best_of: int | None = Field(None, ge=1, le=1, description="Not supported: 1.")
    echo: Literal[False] | None = Field(None, description="Not supported.")
    logprobs: None = Field(None, description="Not supported.")
    suffix: None = Field(None, description="Not supported.")
    logit_bias: dict[str, float] | None = Field(None, max_length=0, description="Not supported.")
    presence_penalty: float | None = Field(None, ge=0, le=0, description="Not supported: 0.")
    frequency_penalty: float | None = Field(None, ge=0, le=0, description="Not supported: 0.")


class CompletionChoice(BaseModel):
    """A completion."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = Field(description="length: max_tokens.")


class CompletionUsage(Usage):
    """Numbers of tokens that were read and generated."""

    completion_tokens: int


class Completions(BaseModel):
    """Completions of all prompts, in their order."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(description="Unix time in seconds.")
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


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


class RankedText(CompatibleRequest):
    """A document as an object."""

    text: Text


class RerankRequest(NamedRequest):
    """Cohere's and Jina's request to order documents."""

    query: Text
    documents: Annotated[
        list[
            Annotated[
                Annotated[Text, Tag(TEXT)] | Annotated[RankedText, Tag(OBJECT)],
                _one_of('must be a text, or {"text": …}'),
            ]
        ],
        _SEVERAL,
    ]
    top_n: int | None = Field(None, ge=1, description="Number of results. Default: all.")
    return_documents: bool | None = Field(None, description="Return texts. Default: false.")


class RerankResult(BaseModel):
    """A document, by its index in the request."""

    index: int
    relevance_score: float = Field(description="Probability of the label 1.")
    document: dict[str, str] | None = None


class RerankResults(BaseModel):
    """Documents, the most relevant first."""

    id: str
    model: str
    results: list[RerankResult]


class TeiRerankRequest(NamedRequest):
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


AnyRerankRequest = Annotated[
    Annotated[RerankRequest, Tag(TEXT)] | Annotated[TeiRerankRequest, Tag(INPUTS)],
    Discriminator(_has_texts),
]


class TeiEmbedRequest(NamedRequest):
    """Text Embeddings Inference's request for vectors; long texts are always truncated."""

    inputs: TextOrTexts
    normalize: Literal[True] | None = Field(None, description="Vectors always have length 1.")
    dimensions: int | None = Field(None, ge=1, description="Cut vectors to so many numbers.")


EmbedRequest = Annotated[
    Annotated[TextRequest, Tag(TEXT)] | Annotated[TeiEmbedRequest, Tag(INPUTS)],
    Discriminator(_has_inputs),
]


class TeiScore(BaseModel):
    """A label and its probability."""

    label: str
    score: float


class TeiPredictRequest(NamedRequest):
    """Text Embeddings Inference's request for labels; long texts are always truncated."""

    inputs: Any
    raw_scores: Literal[False] | None = Field(None, description="Scores are probabilities.")


def predict_request(columns: int, of_labels: bool, can_be_asked: bool) -> Any:
    """The type of the body of /predict, by the number of texts of an example.

    of_labels: whether `inputs` are accepted, too. can_be_asked: whether `labels` are.
    """
    forms: Any = Annotated[REQUESTS[columns], Tag(TEXT)]
    if can_be_asked:
        forms |= Annotated[AskedRequest, Tag(ASKED)]
    if of_labels:
        forms |= Annotated[_tei_request(columns), Tag(INPUTS)]
    if not (can_be_asked or of_labels):
        return REQUESTS[columns]

    def form(value: Any) -> str:
        if isinstance(value, dict) and "labels" in value:
            return ASKED
        return _has_inputs(value) if of_labels else TEXT

    refusal = Discriminator(form, custom_error_type="form", custom_error_message=str(FIXED_LABELS))
    return Annotated[forms, refusal]


def _tei_request(columns: int) -> Any:
    """The type of Text Embeddings Inference's request for examples of so many texts."""
    inputs: Any = TextOrTexts
    if columns > 1:
        example = {2: Pair, 3: Triple}[columns]
        inputs = Annotated[
            Annotated[example, Tag(TEXTS)] | Annotated[list[example], _SEVERAL, Tag(LISTS)],  # type: ignore[valid-type]
            _one_of(f"must be a list of {columns} texts, or several of them"),
        ]
    return create_model("TeiPredictRequest", __base__=TeiPredictRequest, inputs=(inputs, ...))


class OpenAiError(BaseModel):
    """Why a request failed."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiFailure(BaseModel):
    """Why a request failed, as at OpenAI."""

    error: OpenAiError


class CohereFailure(BaseModel):
    """Why a request failed, as at Cohere."""

    message: str
