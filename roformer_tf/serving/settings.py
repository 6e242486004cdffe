"""Settings of `serve`, and the limits of a request."""

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_needed, check_numbers
from roformer_tf.models.rows import BATCH_SIZE

# Time limit for the body of a request.
BODY_SECONDS = 30
# Time that running requests have to finish when the service stops.
SHUTDOWN_SECONDS = 30
# Maximum number of inputs of /v1/embeddings, as at OpenAI, and of documents to rerank.
MAX_INPUTS = 2048
# The environment variable with the key of --api-key.
KEY_VARIABLE = "ROFORMER_TF_API_KEY"
# Of one of several models; it is in URLs.
NAME = re.compile(r"\w[\w.@+-]*")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one request, and of the number of requests."""

    max_texts: int = 128
    """Maximum number of texts (pairs, triples) in a request."""
    max_characters: int = 100_000
    """Maximum number of characters in a text."""
    max_megabytes: int = 4
    """Maximum size of a request's body."""
    max_answer_megabytes: int = 64
    """Maximum size of a response, such as the documents that a search returns."""
    max_waiting: int = 256
    """Maximum number of requests that wait for the model; further ones get status 503."""
    max_connections: int = 512
    """Maximum number of open connections; requests on further ones get status 503."""

    def __post_init__(self) -> None:
        check_numbers(self, *(x.name for x in fields(self)), at_least=1)


@dataclass(frozen=True, kw_only=True)
class GenerationLimits:
    """Limits of one request for generated text, so that none delays the others for long."""

    max_text_tokens: int = 512
    """Maximum number of tokens in a generated text."""
    max_request_tokens: int = 8192
    """Maximum number of tokens generated for a request: its texts times the maximum of each, times
    samples, candidates for paraphrases, or beams."""
    max_samples: int = 32
    """Maximum number of samples of a text, of candidates for its paraphrases, or of beams."""

    def __post_init__(self) -> None:
        check_numbers(self, *(x.name for x in fields(self)), at_least=1)


@dataclass(frozen=True, kw_only=True)
class ApiConfig:
    """Who may use the service, at which URL, and what its requests may hold."""

    api_key: Annotated[str | None, "KEY"] = field(default=None, repr=False)
    """Clients must send it: "Authorization: Bearer KEY", or as the password in a browser. /health,
    /healthz and /readyz need no key. Default: the environment variable ROFORMER_TF_API_KEY, which
    other users of the machine cannot read, else no key."""
    cors_origins: Annotated[tuple[str, ...], "URL"] = ()
    """Web pages of these origins may use the service, such as https://example.com; * for all."""
    root_path: Annotated[str, "PATH"] = ""
    """Path at which a proxy serves the service, such as /roformer; the proxy removes it."""
    tls_certificate: Annotated[Path | None, "FILE"] = None
    """Certificate chain (PEM): the service speaks HTTPS."""
    tls_key: Annotated[Path | None, "FILE"] = None
    """Private key of --tls-certificate (PEM)."""
    accept_token_ids: bool = False
    """Accept lists of token ids in /v1/embeddings: those of the model's own vocabulary, where many
    clients send tiktoken's."""

    def __post_init__(self) -> None:
        if self.key == "":
            raise InputError(f"the key of --api-key or {KEY_VARIABLE} is empty. Give a long one.")
        if self.root_path and not self.root_path.startswith("/"):
            raise InputError(f"--root-path is {self.root_path}, but must begin with /.")

    @property
    def key(self) -> str | None:
        """The key that clients must send, without white space around it; None: no key."""
        key = os.environ.get(KEY_VARIABLE) if self.api_key is None else self.api_key
        return key and key.strip()


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Serve models over HTTP: labels, generated text, sentence vectors, or search.

    A page to try it in a browser is served at /, the API documentation at /docs.

    Examples:
        roformer-tf serve runs/reviews/model
        roformer-tf serve runs/reviews/model runs/vectors/model --index help-index
    """

    model: Annotated[tuple[str, ...], "MODEL"]
    """The model/ folder of a `finetune` run, or its export; or a causal language model: a released
    zip or name, a checkpoint folder, or the model/ of a causal pretraining run. With --index or
    --pooling, any model is served for its vectors. Of several models, the `model` of a request
    chooses one. The flag --model itself may be omitted."""
    names: Annotated[tuple[str, ...], "NAME"] = ()
    """Names of the models in requests, in their order. Default: those of the folders."""
    index: Annotated[Path | None, "DIR"] = None
    """Index folder that `search` created with this model: POST /search searches it. Of several
    models, it belongs to the one that created it."""
    writable: bool = False
    """With --index: requests may add, replace and delete documents."""
    hybrid: bool = False
    """With --index: also search by words (BM25)."""
    rerank: Annotated[str | None, "MODEL"] = None
    """With --index: a model for --rerank of `search`, which reorders the best documents."""
    pooling: Pooling | None = None
    """Serve vectors (POST /embed) with this pooling. Default: what the model was trained for."""
    host: str = "127.0.0.1"
    """Address to listen on: 127.0.0.1 for this machine only, 0.0.0.0 for every network."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch; texts of several requests share one."""
    workers: int = 1
    """Server processes. They share the weights where ONNX Runtime computes, and each has its part
    of the cores. Several process short requests in parallel."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware supports it, and moves probabilities by some
    thousandths; int8 is faster on any CPU. Default: bfloat16 for labels where --engine auto finds
    one that multiplies it on this CPU, else float32. An export keeps its own precision."""
    engine: Engine = "auto"
    """What computes: Keras on its backend, or ONNX Runtime or OpenVINO on a CPU; auto takes the
    fastest that is installed and supports the model. Text is always generated by Keras."""
    top_k: int | None = None
    """Number of most probable labels in a prediction. Default: all, or 5 of more than 20."""
    attention_type: Literal["causal", "unilm"] | None = None
    """For text generation: the attention mask, where neither the config, nor the name, nor the
    weights determine it."""
    api: ApiConfig = field(default_factory=ApiConfig)
    limits: Limits = field(default_factory=Limits)
    generation_limits: GenerationLimits = field(default_factory=GenerationLimits)

    def __post_init__(self) -> None:
        check_numbers(self, "workers", "batch_size", at_least=1)
        if self.index is None:
            check_needed(self, "--index", "hybrid", "rerank", "writable")
        _check_names(self.model_names, len(self.model))

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models in requests."""
        return self.names or tuple(map(model_name, self.model))


class WorkerPart(NamedTuple):
    """What one of several server processes gets."""

    threads: int
    shared: Path | None
    """The graph with the weights that all processes map into memory."""


def model_name(source: str | Path) -> str:
    """Name of a model for people: of a run's model/ folder, the run's."""
    path = Path(source).resolve()
    return path.parent.name if path.name == "model" else path.name.removesuffix(".zip")


def _check_names(names: tuple[str, ...], models: int) -> None:
    if len(names) != models:
        raise InputError(f"models: {models}, but --names: {len(names)}. Give a name for each.")
    if len(names) == 1:  # which needs no name in a request
        return
    for name in names:
        if names.count(name) > 1 or not NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot be the name of one of several models: each has a name of its "
                "own, of letters, digits and the characters _ . - @ +, which begins with a letter "
                "or digit. Give --names, in the order of the models."
            )
