"""The benchmark cases: each case with its shapes, its contenders and their settings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import SIZES, make_checkpoint, make_embedder
from benchmarks.corpus import write_mixed
from benchmarks.peers.inputs import MASKED, texts_of
from benchmarks.workers import Contender
from roformer_tf.tokenizers.vocabulary import Tokenization

# Keep glibc's malloc from returning memory, so that the kernel never zeroes a page twice.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "67108864",
}

# Batch size by model size and length: about 4,096 tokens a step (small) or 1,536 (base).
BATCHES = {"small": {128: 32, 512: 8, 1536: 3}, "base": {128: 12, 512: 3, 1536: 1}}

LIMIT = "matrix products"

AUTO = "precision auto, masked positions projected, Keras `fit` as `pretrain` calls it"


@dataclass(frozen=True)
class Measurement:
    """One case at one shape: contenders that do the same work."""

    case: str
    shape: Mapping[str, Any]
    """What distinguishes it from the other measurements of the case."""
    contenders: tuple[Contender, ...]
    settings: Mapping[str, Any]
    """Arguments of all contenders."""
    work: str = ""
    """Name of the function of the peers that is timed. Default: the case's name."""
    rounds: int | None = None
    """Number of rounds. Default: `--rounds`."""
    at_least: float = 1.0
    """Minimum duration of a round in seconds. Shorter work is repeated."""

    @property
    def key(self) -> str:
        """Key of this measurement in results.json."""
        return " ".join([self.case, *(f"{name}={value}" for name, value in self.shape.items())])


class Material:
    """The checkpoints and corpora of the measurements, created in one folder when first used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = cache(self._checkpoint)
        self.corpus = cache(self._corpus)
        self.rows = cache(self._rows)
        self.embedder = cache(self._embedder)
        self.sentences = cache(self._sentences)

    def _checkpoint(self, size: str) -> str:
        return str(make_checkpoint(self.folder / size, size))

    def _corpus(self, megabytes: int) -> str:
        return str(write_mixed(self.folder / f"{megabytes}.jsonl", megabytes))

    def _rows(self, tokenization: Tokenization) -> str:
        """Prepare 10 MB of text, with a vocabulary of 20,000 words or of all characters."""
        from roformer_tf.corpus.preparation import PreparationConfig, prepare

        config = PreparationConfig(
            corpus=(self.corpus(10),),
            vocab_size=20_000,
            tokenization=tokenization,
            output=str(self.folder / f"rows-{tokenization}"),
        )
        return str(prepare(config))

    def _embedder(self) -> str:
        """Write an embedding model with a character tokenizer."""
        characters = "".join(texts_of(self.corpus(10)))
        return str(make_embedder(self.folder / "embedder", characters))

    def _sentences(self, count: int) -> str:
        """Write `count` chunks of the corpus, 20 tokens on average including [CLS] and [SEP]."""
        text = "".join("".join(texts_of(self.corpus(10))).split())
        random = np.random.default_rng(5)
        starts = random.integers(0, len(text) - 30, count).tolist()
        lengths = random.integers(8, 29, count).tolist()
        path = self.folder / f"sentences-{count}.txt"
        with path.open("w", encoding="utf-8") as file:
            for start, length in zip(starts, lengths, strict=True):
                file.write(text[start : start + length] + "\n")
        return str(path)


def mlm_step(material: Material) -> Iterator[Measurement]:
    """One step of masked-language-model training."""
    for size, batches in BATCHES.items():
        for length, batch in batches.items():
            for dropout in (0.1, 0.0):
                arguments = {"checkpoint": material.checkpoint(size), "dropout": dropout}
                yield Measurement(
                    "mlm_step",
                    {"size": size, "length": length, "dropout": dropout},
                    (*_training_contenders(arguments, size, length), _limit(size, length)),
                    {"batch": batch, "length": length},
                )


def _training_contenders(arguments: dict[str, Any], size: str, length: int) -> Iterator[Contender]:
    """Yield the contenders of a training step.

    To save time, some run at few shapes only: base models without dropout are compared only with
    the fastest rival, bert4keras runs at the shapes that meet two of three conditions (small
    model, dropout, 512 tokens), and the other settings run at one shape.
    """
    yield Contender("ours", "ours", AUTO, arguments)
    settings = "bf16 autocast, fused AdamW, gradients clipped"
    if arguments["dropout"] or size == "small":
        yield Contender(
            "Hugging Face, stock",
            "huggingface",
            f"torch.compile, every position projected, {settings}",
            arguments | {"variant": "stock"},
        )
    yield Contender(
        "Hugging Face, tuned",
        "huggingface",
        f"torch.compile, masked positions projected, {settings}, inductor's fallback_random, "
        "malloc keeps its memory",
        arguments | {"variant": "tuned"},
        KEEP_MEMORY,
    )
    every_contender = (size, length, arguments["dropout"]) == ("small", 512, 0.1)
    if every_contender:
        yield Contender(
            "Hugging Face, eager",
            "huggingface",
            f"not compiled, every position projected, {settings}",
            arguments | {"variant": "eager"},
        )
    if (size == "small") + (arguments["dropout"] > 0) + (length == 512) >= 2:
        yield Contender(
            "bert4keras",
            "bert4keras",
            "TensorFlow graph, float32, every position projected, AdamW",
            arguments | {"variant": "stock"},
        )
    if every_contender:
        yield Contender(
            "bert4keras, tuned",
            "bert4keras",
            "the same with TensorFlow's auto_mixed_precision_onednn_bfloat16",
            arguments | {"variant": "tuned"},
        )


def _limit(size: str, length: int) -> Contender:
    return Contender(
        LIMIT,
        "limit",
        "the step's matrix products alone, each in the faster of float32 and bf16",
        {"shape": SIZES[size], "predictions": int(MASKED * length)},
    )


def variables(material: Material) -> Iterator[Measurement]:
    """Our step (small, 8 × 512 tokens) with environment variables that might speed it up."""
    arguments = {"checkpoint": material.checkpoint("small"), "dropout": 0.1}
    contenders = (
        Contender("ours", "ours", "none of them", arguments),
        Contender(
            "malloc", "ours", "malloc keeps its memory, as for the rival", arguments, KEEP_MEMORY
        ),
        Contender(
            "XLA",
            "ours",
            "XLA takes what it can: `--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit`",
            arguments,
            {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"},
        ),
        Contender(
            "one operation at a time",
            "ours",
            "`TF_NUM_INTEROP_THREADS=1`",
            arguments,
            {"TF_NUM_INTEROP_THREADS": "1"},
        ),
    )
    settings = {"batch": BATCHES["small"][512], "length": 512}
    yield Measurement("variables", {}, contenders, settings, work="mlm_step")


def square(material: Material) -> Iterator[Measurement]:
    """Throughput of a large matrix product."""
    contenders = (
        Contender(dtype, "limit", "TensorFlow, 4,096³", {"dtype": dtype})
        for dtype in ("float32", "bfloat16")
    )
    yield Measurement("square", {}, tuple(contenders), {})


# Engines that predict without TensorFlow, each in its precisions.
GRAPHS = (
    ("ONNX Runtime", "onnx", "float32"),
    ("ONNX Runtime, int8", "onnx", "int8"),
    ("OpenVINO", "openvino", "float32"),
    ("OpenVINO, bfloat16", "openvino", "bfloat16"),
    ("OpenVINO, int8", "openvino", "int8"),
)


def inference(material: Material) -> Iterator[Measurement]:
    """Computing hidden states without gradients."""
    for size in BATCHES:
        for texts in ("one", "mixed"):
            yield Measurement(
                "inference",
                {"size": size, "texts": texts},
                (*_inference_contenders(size, texts), *_forward_limit(size, texts)),
                {"checkpoint": material.checkpoint(size), "texts": texts},
            )


def _inference_contenders(size: str, texts: str) -> Iterator[Contender]:
    """Yield the contenders of inference; bert4keras is too slow for 32 texts at base size."""
    batched = "as `predict` batches its texts"
    yield Contender("ours", "ours", f"float32, {batched}", {"precision": "float32"})
    yield Contender(
        "ours, bfloat16",
        "ours",
        f"`--precision bfloat16`, {batched}",
        {"precision": "bfloat16"},
    )
    for name, engine, precision in GRAPHS:
        about = f"`--engine {engine} --precision {precision}`, {batched}"
        settings = {"engine": engine, "precision": precision}
        yield Contender(f"ours, {name}", "ours", about, settings)
    for variant, about in {
        "eager": "one batch padded to the longest, float32",
        "compiled": "torch.compile, one batch padded to the longest, float32",
        "tuned": "torch.compile, sorted batches of at most 2,048 tokens, bf16 weights",
    }.items():
        yield Contender(f"Hugging Face, {variant}", "huggingface", about, {"variant": variant})
    if (size, texts) != ("base", "mixed"):
        yield Contender("bert4keras", "bert4keras", "one batch padded to the longest, float32")


def _forward_limit(size: str, texts: str) -> Iterator[Contender]:
    """Yield the matrix-product limit, except for one text.

    For one text, the overhead of an operation exceeds its product, so the limit means nothing.
    """
    if texts == "mixed":
        yield Contender(
            LIMIT,
            "limit",
            "those of the forward pass alone, without padding, each in the faster of float32 and "
            "bf16",
            {"shape": SIZES[size]},
        )


def generate(material: Material) -> Iterator[Measurement]:
    """Greedy generation of 128 tokens from prompts of 32 tokens."""
    for batch in (1, 16):
        yield Measurement(
            "generate",
            {"size": "base", "batch": batch},
            tuple(_generation_contenders()),
            {"checkpoint": material.checkpoint("base"), "batch": batch, "prompt": 32, "new": 128},
            rounds=2 if batch > 1 else None,  # bert4keras takes minutes for one round
        )


def _generation_contenders() -> Iterator[Contender]:
    """Yield the contenders of generation; all except bert4keras have a key-value cache."""
    yield Contender("ours", "ours", "`generate`, TensorFlow, float32", {"dtype": "float32"})
    yield Contender(
        "ours on JAX", "ours", "the same on JAX", {"dtype": "float32"}, {"KERAS_BACKEND": "jax"}
    )
    yield Contender("ours, bfloat16", "ours", "`--precision bfloat16`", {"dtype": "bfloat16"})
    for variant, dtype, about in (
        ("eager", "float32", "`generate`, float32"),
        ("compiled", "float32", "`generate`, its forward by torch.compile(dynamic=True), float32"),
        ("eager", "bfloat16", "`generate`, bf16 weights"),
    ):
        suffix = ", bfloat16" if dtype == "bfloat16" else ""
        yield Contender(
            f"Hugging Face, {variant}{suffix}",
            "huggingface",
            about,
            {"variant": variant, "dtype": dtype},
        )
    yield Contender("bert4keras", "bert4keras", "AutoRegressiveDecoder, nothing kept, float32")


def paraphrase(material: Material) -> Iterator[Measurement]:
    """Sampling 20 texts of 24 tokens per sentence of 20 tokens, and computing their vectors."""
    yield Measurement(
        "paraphrase",
        {"size": "base"},
        (
            Contender("ours", "ours", "`generate --paraphrases`, eight sentences at once"),
            Contender(
                "bert4keras",
                "bert4keras",
                "the released script's way: one by one, its vectors computed separately",
            ),
        ),
        {"checkpoint": material.checkpoint("base"), "samples": 20, "new": 24},
        rounds=3,
    )


EMBEDDERS = (
    Contender("ours", "ours", "as `embed` writes its .npy, float32", {"dtype": "float32"}),
    Contender("ours, bfloat16", "ours", "`--precision bfloat16`", {"dtype": "bfloat16"}),
    Contender(
        "sentence-transformers",
        "huggingface",
        "`encode`, float32, batches of 32, sorted by length",
        {"dtype": "float32"},
    ),
    Contender(
        "sentence-transformers, bfloat16",
        "huggingface",
        "`encode`, bf16 weights, batches of 32, sorted by length",
        {"dtype": "bfloat16"},
    ),
)


def embed(material: Material) -> Iterator[Measurement]:
    """Sentence vectors (20 tokens; 4 layers, hidden size 256; mean pooling; normalised)."""
    yield _embedded(material, 20_000, EMBEDDERS, rounds=3)


def embed_million(material: Material) -> Iterator[Measurement]:
    """Sentence vectors of 200,000 texts for us and one peer, and of a million texts for us.

    This takes half an hour, so it runs only if named. Sentence-transformers would need another
    hour for a million texts at its rate.
    """
    yield _embedded(material, 200_000, EMBEDDERS[::2], rounds=1)
    yield _embedded(material, 1_000_000, EMBEDDERS[:1], rounds=1)


def _embedded(
    material: Material, texts: int, contenders: tuple[Contender, ...], rounds: int
) -> Measurement:
    arguments = {"model": material.embedder(), "texts": material.sentences(texts)}
    return Measurement("embed", {"texts": texts}, contenders, arguments, rounds=rounds)


def rotary(material: Material) -> Iterator[Measurement]:
    """Rotating queries and keys of 8 × 512 × 6 × 64, forward and backward."""
    for dtype in ("float32", "bfloat16"):
        contenders = (
            Contender("ours", "ours", "TensorFlow graph", {"form": "ours"}),
            Contender("the paper's form", "ours", "TensorFlow graph", {"form": "paper"}),
            Contender("Hugging Face, eager", "huggingface", "", {"variant": "eager"}),
            Contender("Hugging Face", "huggingface", "torch.compile", {"variant": "compiled"}),
            Contender("bert4keras", "bert4keras", "TensorFlow graph"),
        )
        yield Measurement("rotary", {"dtype": dtype}, contenders, {"dtype": dtype})
    about = "the pass by which a step splits its projection"
    in_a_step = (
        Contender("ours", "ours", f"{about}, with rotation", {"rotated": True}),
        Contender("without rotation", "ours", about, {"rotated": False}),
    )
    yield Measurement(
        "rotary",
        {"in a step": "bfloat16"},
        in_a_step,
        {"dtype": "bfloat16"},
        work="split",
        rounds=11,
    )


def linear_attention(material: Material) -> Iterator[Measurement]:
    """Attention over one sequence (hidden size 256, 4 heads), forward and backward, by length.

    Linear attention over four times the tokens should take four times the time and memory;
    softmax attention takes sixteen times.
    """
    for length in (1024, 4096, 16_384, 65_536):
        contenders = [
            Contender("elu + 1", "ours", "all see all", {"form": "elu"}),
            Contender("elu + 1, causal", "ours", "chunks of 128", {"form": "elu", "causal": True}),
            Contender("FAVOR+", "ours", "256 features, all see all", {"form": "favor"}),
            Contender("softmax in a window", "ours", "64 on each side", {"form": "window"}),
        ]
        if length <= 4096:  # the scores of longer sequences take gigabytes
            contenders.append(Contender("softmax", "ours", "quadratic", {"form": "softmax"}))
        shape = {"length": length}
        yield Measurement("linear_attention", shape, tuple(contenders), shape)


def tokenization(material: Material) -> Iterator[Measurement]:
    """Converting 10 MB of Chinese text to ids with new tokenizers, so all caches are empty."""
    one_core, all_cores = {"TOKENIZERS_PARALLELISM": "false"}, {"TOKENIZERS_PARALLELISM": "true"}
    for level, peers in {
        "word": (
            Contender("bert4keras", "bert4keras", "jieba without HMM", {"word": True}),
            Contender("Hugging Face", "huggingface", "RoFormerTokenizer with rjieba", {}, one_core),
        ),
        "char": (
            Contender("bert4keras", "bert4keras", "", {"word": False}),
            Contender("Hugging Face", "huggingface", "fast tokenizer, one core", {}, one_core),
            Contender(
                "Hugging Face, all cores", "huggingface", "fast tokenizer, all cores", {}, all_cores
            ),
        ),
    }.items():
        yield Measurement(
            "tokenization",
            {"level": level},
            (Contender("ours", "ours", "one core"), *peers),
            {"corpus": material.corpus(10), "tokenizer": material.rows(level)},
        )


def preparation(material: Material) -> Iterator[Measurement]:
    """Preparing 10 MB of Chinese text as rows of 512 tokens."""
    folder = material.rows("word")
    yield Measurement(
        "preparation",
        {},
        (
            Contender("ours", "ours", "`prepare`, one process a core", {"vocab": folder}),
            Contender("ours, one process", "ours", "`prepare`", {"vocab": folder, "workers": 1}),
            Contender(
                "ours, words counted",
                "ours",
                "`prepare` with a new vocabulary, one process a core",
                {"vocab_size": 20_000},
            ),
            Contender(
                "Hugging Face",
                "huggingface",
                "the tokenizing and grouping of transformers' run_mlm.py, without its cache; "
                "documents are not separated, held out or masked by words",
                {"tokenizer": folder},
            ),
        ),
        {"corpus": material.corpus(10), "length": 512},
    )


def startup(material: Material) -> Iterator[Measurement]:
    """A process that imports, loads a base-size masked language model and predicts one text."""
    yield Measurement(
        "startup",
        {},
        (
            Contender("ours, zip", "ours", "the released layout, zipped", {"layout": "tf1.zip"}),
            Contender("ours", "ours", "our own layout, Hugging Face's too", {"layout": "own"}),
            Contender("Hugging Face", "huggingface", "its own layout; it reads no other"),
            Contender("bert4keras", "bert4keras", "the released layout, unpacked by hand"),
            Contender("the zip's bytes", "limit", "only read and inflated"),
        ),
        {"checkpoint": material.checkpoint("base")},
    )


def scaling(material: Material) -> Iterator[Measurement]:
    """Our step by length, batch size, layers and vocabulary; the rest is the small size."""
    for name, values in {
        "length": (128, 256, 512, 1024, 2048, 4096),
        "batch": (1, 2, 4, 8, 16),
        "num_hidden_layers": (1, 2, 4, 6, 12),
        "vocab_size": (5_000, 20_000, 50_000, 100_000),
    }.items():
        contenders = (Contender(str(value), "ours", "", _scaled(name, value)) for value in values)
        yield Measurement("scaling", {"by": name}, tuple(contenders), {}, work="scaled_step")


def _scaled(name: str, value: int) -> dict[str, Any]:
    """Return the arguments of the small size's step of 8 × 512 tokens with one size changed."""
    length = value if name == "length" else 512
    batch = {"length": 4096 // length, "batch": value}.get(name, 8)
    shape = SIZES["small"] | ({name: value} if name in SIZES["small"] else {})
    return {"shape": shape, "batch": batch, "length": length}


def corpus_scaling(material: Material) -> Iterator[Measurement]:
    """`prepare` by corpus size, including the vocabulary count."""
    for megabytes in (1, 10, 100, 1000):
        yield Measurement(
            "corpus_scaling",
            {"megabytes": megabytes},
            (Contender("ours", "ours", "`prepare`", {"vocab_size": 20_000, "length": 512}),),
            {"corpus": material.corpus(megabytes)},
            work="preparation",
            rounds=3 if megabytes < 100 else 1,
        )


def feeding(material: Material) -> Iterator[Measurement]:
    """The small model's step on rows that a thread reads and masks, and on one fixed batch."""
    yield Measurement(
        "feeding",
        {"length": 512},
        (
            Contender("real rows", "ours", AUTO, {"data": "real"}),
            Contender("one batch", "ours", AUTO, {"data": "one"}),
            Contender("rows alone", "ours", "read and masked, for no step", {"data": "no"}),
        ),
        {"rows": material.rows("word"), "batch": 8},
        work="fed_step",
        rounds=11,
        at_least=5.0,
    )


def profile(material: Material) -> Iterator[Measurement]:
    """Time of each operation of a step, with the plain and with the fast implementations."""
    yield Measurement(
        "profile",
        {},
        (
            Contender("before", "ours", "plain forms", {"forms": "plain"}),
            Contender("after", "ours", "fast forms", {"forms": "fast"}),
        ),
        {"checkpoint": material.checkpoint("small"), "batch": 8, "length": 512, "dropout": 0.1},
        work="profiled_step",
        rounds=3,
        at_least=3.0,
    )


# The cases, in the order in which they run.
CASES: dict[str, Callable[[Material], Iterator[Measurement]]] = {
    case.__name__: case
    for case in (
        square,
        mlm_step,
        variables,
        profile,
        feeding,
        inference,
        generate,
        paraphrase,
        embed,
        embed_million,
        rotary,
        linear_attention,
        tokenization,
        preparation,
        startup,
        scaling,
        corpus_scaling,
    )
}
# Cases that run only if `--cases` names them.
BY_NAME_ALONE = ("embed_million",)
