"""Each setting that is stored with an embedding model is used by every way to compute vectors.

The reference is computed here from the encoder's hidden states, with and without the setting.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.model import onnx_session
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.labelled.encoding import windows
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.tasks.classification import Pair
from roformer_tf.tasks.regression import Regression
from tests.support import embedding_file
from tests.support.finetuned import predict
from tests.support.random_model import LETTERS, TINY, random_model, tokenizer_of
from tests.support.wiring import assert_wired, post

pytestmark = pytest.mark.usefixtures("eager_steps")

H = TINY["hidden_size"]


def random_texts(count, seed, shortest=2, longest=24):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest, count)
    return ["".join(rng.choice(list(LETTERS), length)) for length in lengths]


QUERIES, DOCUMENTS = random_texts(4, 0), random_texts(6, 1)


@dataclass(frozen=True)
class Vectors:
    """The settings that turn texts into vectors."""

    pooling: str = "mean"
    max_length: int = 64
    dimensions: int | None = None
    attention_type: str = "bidirectional"


CASES = {  # the settings of a folder, and those without the setting
    "pooling": (Vectors(pooling="cls"), Vectors()),
    "max_length": (Vectors(max_length=8), Vectors(max_length=512)),
    "attention": (Vectors(attention_type="causal"), Vectors()),
}


class Model:
    """An encoder with random weights that computes vectors with any of the settings."""

    def __init__(self):
        self.tokenizer = tokenizer_of()
        keras.utils.set_random_seed(6)
        self.encoders = {}
        for attention in ("bidirectional", "causal"):
            config = RoFormerConfig(
                **TINY, vocab_size=self.tokenizer.vocab_size, attention_type=attention
            )
            self.encoders[attention] = RoFormerEncoder(config)
            self.encoders[attention].tokenizer = self.tokenizer
        self.encoders["causal"].set_weights(self.encoders["bidirectional"].get_weights())

    def save(self, vectors, folder):
        self.encoders[vectors.attention_type].save_pretrained(folder)
        EmbeddingConfig(vectors.pooling, vectors.max_length).save(folder)

    def embed(self, texts, settings):
        """Unit vectors (texts, D). Texts that are too long are truncated."""
        ids = [self.tokenizer.ids(text)[: settings.max_length - 2] for text in texts]
        return normalized(self.raw(ids, settings), settings)

    def raw(self, ids, settings):
        """Unnormalized vectors (rows, H) of ids without special tokens."""
        rows = [[self.tokenizer.cls_id, *item, self.tokenizer.sep_id] for item in ids]
        padded = np.zeros((len(rows), max(map(len, rows))), "int32")
        for row, item in zip(padded, rows, strict=True):
            row[: len(item)] = item
        hidden = self.encoders[settings.attention_type]({"token_ids": padded})
        hidden = keras.ops.convert_to_numpy(hidden)
        if settings.pooling == "cls":
            return hidden[:, 0]
        return np.stack([x[: len(row)].mean(axis=0) for x, row in zip(hidden, rows, strict=True)])

    def cosines(self, settings):
        """The score of each query and document: the cosine of its nearest passage."""
        queries = self.embed(QUERIES, settings)
        return by_texts([(queries @ self._passages(x, settings).T).max(axis=1) for x in DOCUMENTS])

    def _passages(self, text, settings):
        ids = self.tokenizer.ids(text)
        longest = settings.max_length - 2
        spans = windows(np.arange(len(ids) + 1), longest) if len(ids) > longest else [(0, len(ids))]
        return normalized(self.raw([ids[first:last] for first, last in spans], settings), settings)


def normalized(vectors, settings):
    vectors = vectors[:, : settings.dimensions]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_texts(columns):
    """Scores of documents (documents, queries) → {query: {document: score}}."""
    return {
        query: {text: float(column[i]) for text, column in zip(DOCUMENTS, columns, strict=True)}
        for i, query in enumerate(QUERIES)
    }


@dataclass
class Prepared:
    """A folder that stores a setting."""

    folder: Path
    want: Vectors
    without: Vectors

    @property
    def documents(self):
        """A file of the documents."""
        return write(self.folder.with_name("documents.txt"), DOCUMENTS)

    @cached_property
    def index(self):
        """An index that was built with the model."""
        index = self.folder.with_name("index")
        flags = ("--documents", self.documents, "--index", index)
        assert main(["search", "--model", str(self.folder), *map(str, flags)]) == 0
        return index


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def prepared(model, tmp_path_factory):
    """prepared("pooling") → its folder, written once."""

    @cache
    def make(name):
        want, without = CASES[name]
        folder = tmp_path_factory.mktemp("kept") / "model"
        model.save(want, folder)
        return Prepared(folder, want, without)

    return make


def loaded(prepared, engine, **_):
    return np.stack(
        [x["vector"] for x in roformer_tf.load(prepared.folder, engine=engine)(QUERIES)]
    )


def embedded(prepared, engine, tmp_path, **_):
    flags = ("--input", write(tmp_path / "texts.txt", QUERIES), "--output", tmp_path / "out.npy")
    assert main(["embed", str(prepared.folder), *map(str, flags), "--engine", engine]) == 0
    return np.load(tmp_path / "out.npy")


def served(prepared, engine, **_):
    app = open_service(ServeConfig(model=(str(prepared.folder),), engine=engine))
    (actual,) = post(app, ("/embed", {"texts": QUERIES}))
    return np.array(actual["vectors"])


def exported(prepared, engine, to, **_):
    """The vectors of an exported graph. The inputs are prepared with the files of the export."""
    folder = prepared.folder.with_name(to)
    assert main(["export", str(prepared.folder), "--to", to, "--output", str(folder)]) == 0
    length = embedding_file.load(folder).max_length
    tokenizer = roformer_tf.RoFormerTokenizer.from_pretrained(folder)
    rows = tokenizer(QUERIES, max_length=length)
    if to == "onnx":
        return onnx_session(folder / "model.onnx").run(rows)
    import tensorflow as tf

    graph = tf.saved_model.load(str(folder)).signatures["serve"]
    return graph(**{name: tf.constant(x) for name, x in rows.items()})["vectors"].numpy()


VECTORS = {
    "load": loaded,
    "embed": embedded,
    "serve": served,
    "export onnx": partial(exported, to="onnx"),
}


def similar(prepared, tmp_path, **_):
    """The cosine of each query and document, from `similarity` on a file of pairs."""
    pairs = write(tmp_path / "pairs.tsv", [f"{q}\t{d}" for q in QUERIES for d in DOCUMENTS])
    out = tmp_path / "out.tsv"
    flags = ("--input", pairs, "--first-line", "example", "--output", out)
    assert main(["similarity", "--model", str(prepared.folder), *map(str, flags)]) == 0
    return scores(out, ("text_a", "text_b"))


def searched(prepared, tmp_path, **_):
    return search(prepared.folder, tmp_path, "--documents", prepared.documents)


def searched_by_index(prepared, tmp_path, **_):
    return search(prepared.folder, tmp_path, "--index", prepared.index)


def searched_by_service(prepared, **_):
    return serve(model=(str(prepared.folder),), index=prepared.index)


def search(folder, tmp_path, *flags):
    """{query: {document: score}} from the `search` command."""
    out = tmp_path / "found.tsv"
    flags = ("--output", out, *flags, "--queries", *QUERIES)
    assert main(["search", "--model", str(folder), *map(str, flags)]) == 0
    return scores(out, ("query", "document"))


def serve(**settings):
    """{query: {document: score}} from the service."""
    app = open_service(ServeConfig(**settings))
    (actual,) = post(app, ("/search", {"texts": QUERIES}))
    return {
        query: {item["document"]: item["score"] for item in results}
        for query, results in zip(QUERIES, actual["results"], strict=True)
    }


def scores(path, names):
    """The score column of a TSV file, by two other columns."""
    header, *lines = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    actual = {}
    for line in lines:
        row = dict(zip(header, line, strict=True))
        actual.setdefault(row[names[0]], {})[row[names[1]]] = float(row["score"])
    return actual


SEARCHES = {
    "search": searched,
    "search --index": searched_by_index,
    "serve --index": searched_by_service,
}
NEEDED = {"keras": [], "onnx": ["onnx", "onnxruntime"], "openvino": ["onnx", "openvino"]}


def cell(way, engine):
    """A column of the table."""
    missing = [item for item in NEEDED[engine] if not find_spec(item)]
    if way.startswith("serve") and not find_spec("fastapi"):
        missing.append("fastapi")
    skipped = pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")
    return pytest.param(way, engine, marks=skipped, id=f"{way}-{engine}")


TABLE = [
    *(cell(way, engine) for way in ("load", "embed", "serve") for engine in ("keras", "onnx")),
    cell("load", "openvino"),
    cell("export onnx", "onnx"),
]


@pytest.mark.quick_cases("*-onnx", "*-load-keras", "*-load-openvino")  # the rest opens as `load`
@pytest.mark.parametrize(("way", "engine"), TABLE)
@pytest.mark.parametrize("case", CASES)
def test_stored_settings_determine_vectors(case, way, engine, prepared, model, tmp_path):
    item = prepared(case)
    actual = VECTORS[way](item, engine=engine, tmp_path=tmp_path)
    want, wrong = (model.embed(QUERIES, settings) for settings in (item.want, item.without))
    assert_wired(actual, want, {f"{case} lost": wrong})


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs the TensorFlow backend")
@pytest.mark.parametrize("case", ["pooling", "attention"])
def test_stored_settings_determine_the_vectors_of_a_savedmodel(case, prepared, model):
    item = prepared(case)
    want, wrong = (model.embed(QUERIES, settings) for settings in (item.want, item.without))
    assert_wired(exported(item, "keras", "savedmodel"), want, {f"{case} lost": wrong})


@pytest.mark.parametrize("way", SEARCHES)
@pytest.mark.parametrize("case", CASES)
def test_stored_settings_determine_search_results(case, way, prepared, model, tmp_path):
    item = prepared(case)
    actual = SEARCHES[way](item, tmp_path=tmp_path)
    want, wrong = (model.cosines(settings) for settings in (item.want, item.without))
    assert_wired(actual, want, {f"{case} lost": wrong})


@pytest.mark.parametrize("case", CASES)
def test_stored_settings_determine_similarities(case, prepared, model, tmp_path):
    item = prepared(case)
    want, wrong = (
        by_texts(model.embed(DOCUMENTS, settings) @ model.embed(QUERIES, settings).T)
        for settings in (item.want, item.without)
    )
    assert_wired(similar(item, tmp_path), want, {f"{case} lost": wrong})


# Settings that an index stores: flags of the command that builds it, and the flags without the
# setting.
INDEXES = {
    "pooling": ({"pooling": "mean"}, {}),
    "max_length": ({"max_length": 8}, {}),
    "dimensions": ({"dimensions": 5}, {}),
    "passage_length": ({"passage_length": 6}, {}),
    "beginning_weight": ({"beginning_weight": 2, "passage_length": 6}, {"passage_length": 6}),
    "hybrid_weight": ({"hybrid_weight": 0.5}, {}),
}
HYBRID = ("hybrid_weight",)


def as_flags(flags):
    return [word for key, x in flags.items() for word in (f"--{key.replace('_', '-')}", str(x))]


@pytest.fixture(scope="module")
def indexed(prepared, tmp_path_factory):
    """indexed("pooling") → an index, and the results of searches without an index.

    The searches use the setting and ignore it, respectively.
    """

    @cache
    def make(name):
        folder, outputs = prepared("pooling").folder, tmp_path_factory.mktemp("index")
        hybrid = ["--hybrid"] * (name in HYBRID)
        files = [write(outputs / f"{i}.txt", DOCUMENTS[i::2]) for i in (0, 1)]
        all_documents = ["--documents", write(outputs / "both.txt", DOCUMENTS)]
        want, wrong = (
            search(folder, outputs, *all_documents, *as_flags(flags), *hybrid)
            for flags in INDEXES[name]
        )
        index = outputs / "index"
        for file, flags in zip(files, (as_flags(INDEXES[name][0]), []), strict=True):
            index_flags = ["--documents", file, "--index", index, *flags]
            assert main(["search", "--model", str(folder), *map(str, index_flags)]) == 0
        return folder, index, hybrid, want, wrong

    return make


@pytest.mark.parametrize("way", ["search", "serve"])
@pytest.mark.parametrize("case", INDEXES)
def test_settings_of_an_index_determine_search_results(case, way, indexed, tmp_path):
    """The index also applies the settings to documents that a command without the flags adds."""
    folder, index, hybrid, want, wrong = indexed(case)
    if way == "search":
        actual = search(folder, tmp_path, "--index", index, *hybrid)
    else:
        pytest.importorskip("fastapi", reason="needs the extra [serve]")
        actual = serve(model=(str(folder),), index=index, hybrid=bool(hybrid))
    assert_wired(actual, want, {f"{case} lost": wrong})


PAIR = Pair(labels=("0", "1"), text_columns=("a", "b"))
RERANKERS = {  # a task, and the same task if a setting of its folder were ignored
    "label order": (replace(PAIR, labels=("1", "0")), PAIR),
    "max_length": (replace(PAIR, max_length=12), PAIR),
    "mean": (
        Regression(mean=3.0, deviation=2.0, text_columns=PAIR.text_columns),
        Regression(text_columns=PAIR.text_columns),
    ),
}


@pytest.fixture(scope="module")
def reranking(tmp_path_factory, eagerly):
    """reranking("mean") → a folder, the scores of all pairs, and those without the setting."""

    @cache
    def make(name):
        tasks = RERANKERS[name]
        keras.utils.set_random_seed(8)
        reranker = random_model(tasks[0])
        folder = tmp_path_factory.mktemp("rerank") / "model"
        LabelledDataset([], tasks[0]).save_model(reranker, folder)
        examples = [Example((q, d), None, "") for d in DOCUMENTS for q in QUERIES]
        with eagerly():
            actual = [predict(reranker, reranker.tokenizer, task, examples) for task in tasks]
        return folder, *(
            by_texts(np.reshape([score_of(x, task) for x in predictions], (len(DOCUMENTS), -1)))
            for predictions, task in zip(actual, tasks, strict=True)
        )

    return make


def score_of(prediction, task):
    return prediction.scores[task.labels.index("1")] if task.labels else prediction.label


@pytest.mark.parametrize("way", ["search", "serve"])
@pytest.mark.parametrize("case", RERANKERS)
def test_stored_settings_determine_reranker_scores(case, way, reranking, prepared, tmp_path):
    item = prepared("pooling")
    folder, want, wrong = reranking(case)
    if way == "search":
        actual = search(item.folder, tmp_path, "--documents", item.documents, "--rerank", folder)
    else:
        pytest.importorskip("fastapi", reason="needs the extra [serve]")
        actual = serve(model=(str(item.folder),), index=item.index, rerank=str(folder))
    assert_wired(actual, want, {f"{case} lost": wrong})
