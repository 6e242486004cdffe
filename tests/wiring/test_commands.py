"""Settings of a command reach the code that uses them, in every command that has the setting."""

from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines.model import GraphModel
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.generation_jobs import GenerationJob, generation_queue
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ServeConfig
from roformer_tf.tasks.classification import Classification
from tests.support.random_model import random_causal_lm, save_random_models
from tests.support.service_app import served_generator
from tests.support.wiring import assert_wired, post
from tests.wiring.test_vectors import Model, Vectors, random_texts, write

pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def models(tmp_path_factory, eagerly):
    """A folder with one model of each kind, an index, and the embedding model itself."""
    folder = tmp_path_factory.mktemp("models")
    task = Classification(labels=("坏", "好"), label_column="label")
    vectors = Model()
    vectors.save(Vectors(), folder / "vectors")
    random_causal_lm(folder / "writer")
    documents = write(folder / "documents.txt", random_texts(5, 3))
    result = ["--model", folder / "vectors", "--documents", documents, "--index", folder / "index"]
    with eagerly():
        assert main(["search", *map(str, result)]) == 0
    return SimpleNamespace(
        labels=save_random_models({"labels": task}, folder)["labels"],
        vectors=folder / "vectors",
        writer=folder / "writer",
        index=folder / "index",
        weights=vectors,
    )


COMMANDS = {  # name: words of the command, flag of its input, name of its output
    "predict": lambda x: (["predict", x.labels, "--engine", "onnx"], "--input", "out.tsv"),
    "evaluate": lambda x: (["evaluate", x.labels, "--engine", "onnx"], "--data", "out.json"),
    "embed": lambda x: (["embed", x.vectors], "--input", "out.npy"),
    "similarity": lambda x: (["similarity", "--model", x.vectors], "--input", "out.tsv"),
    "search in": lambda x: (
        ["search", "--model", x.vectors, "--queries", "今天"],
        "--documents",
        "out.tsv",
    ),
    "search for": lambda x: (
        ["search", "--model", x.vectors, "--index", x.index],
        "--queries",
        "out.tsv",
    ),
    "generate": lambda x: (
        ["generate", "--model", x.writer, "--max-tokens", 2],
        "--input",
        "out.tsv",
    ),
}


def output_of(name, models, file, folder, *flags):
    """Run a command on a file and return its output."""
    words, flag, output = COMMANDS[name](models)
    words = [*words, flag, file, "--output", folder / output, *flags]
    assert main(list(map(str, words))) == 0
    if output.endswith(".npy"):
        return np.load(folder / output)
    return (folder / output).read_text("utf-8").replace(str(file), "")


def columns(name, seed):
    """A header and rows in the format that the command reads."""
    texts = random_texts(4, seed)
    if name == "evaluate":
        return [("text", "label"), *((text, "好") for text in texts)]
    if name == "similarity":
        return [("text_a", "text_b"), *zip(texts, texts[1:] + texts[:1], strict=True)]
    return [("text",), *((text,) for text in texts)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sheet_is_read_by_every_command(name, models, tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="needs the extra [xlsx]")
    book = openpyxl.Workbook()
    results = []
    for title, seed in (("一", 20), ("二", 21)):
        sheet = book.active if title == "一" else book.create_sheet()
        sheet.title = title
        rows = columns(name, seed)
        for row in rows:
            sheet.append(row)
        table = write(tmp_path / f"{title}.tsv", map("\t".join, rows))
        results.append(output_of(name, models, table, tmp_path))
    book.save(tmp_path / "book.xlsx")
    actual = output_of(name, models, tmp_path / "book.xlsx", tmp_path, "--sheet", "二")
    assert_wired(actual, results[1], {"the first sheet": results[0]})


@pytest.fixture
def largest(monkeypatch):
    """largest() → the size of the largest batch that a graph computed since the last call."""
    sizes = [0]
    call = GraphModel.__call__

    def counted(self, rows):
        sizes.append(len(rows["token_ids"]))
        return call(self, rows)

    def largest():
        size = max(sizes)
        sizes[:] = [0]
        return size

    monkeypatch.setattr(GraphModel, "__call__", counted)
    return largest


GRAPH_COMMANDS = [*(set(COMMANDS) - {"generate"}), "load", "load vectors", "load masks", "serve"]


@pytest.mark.parametrize("name", sorted(GRAPH_COMMANDS))
def test_batches_are_no_larger_than_the_batch_size(name, models, released, tmp_path, largest):
    """Use 24 texts of equal length, so that only --batch-size limits the batches."""
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    texts = random_texts(24, 4, 9, 10)

    def rows(size):
        if name.startswith("load"):
            folder = models.vectors if "vectors" in name else models.labels
            folder = released("char") if "masks" in name else folder
            model = roformer_tf.load(folder, engine="onnx", batch_size=size)
            largest()
            model([f"{text}[MASK]" for text in texts])
        elif name == "serve":
            config = ServeConfig(model=(str(models.vectors),), batch_size=size)
            app = open_service(config)
            largest()
            post(app, ("/embed", {"texts": texts}))
        else:
            header = columns(name, 0)[0]
            table = write(
                tmp_path / "texts.tsv",
                ["\t".join(header)]
                + [
                    "\t".join(
                        [text] if len(header) == 1 else [text, "好" if "label" in header else text]
                    )
                    for text in texts
                ],
            )
            output_of(name, models, table, tmp_path, "--batch-size", size)
        return largest()

    assert (rows(5), rows(64)) == (5, 24)


@pytest.mark.slow
def test_each_request_gets_its_own_number_of_paraphrases(released):
    """Requests in one batch may ask for different numbers of paraphrases."""
    served = served_generator(released("sim_char"))
    texts, counts = ["今天天气很好", "我们去公园", "人民生活", "经济发展"], [2, 0, 5, 1]
    config = GenerationConfig(max_tokens=3, temperature=2.0, samples=8, seed=8)
    batcher = generation_queue(served, ServiceMetrics(), ServeConfig(model=("sim",))).batcher

    def write_batch(numbers):
        jobs = [
            GenerationJob(
                texts[i], served.model.encode_prompt(texts[i]), config, 0, counts[i], Event()
            )
            for i in numbers
        ]
        by_index = {}
        batcher.run(jobs, by_index.__setitem__)
        return [
            [{"text": item.text, "score": item.score} for item in by_index[index]]
            for index in range(len(numbers))
        ]

    together = write_batch(range(4))
    assert [len(results) for results in together] == [2, 8, 5, 1]
    alone = [write_batch([number])[0] for number in range(4)]
    rest = [results[: len(alone[0])] for results in alone]
    assert_wired(together, alone, {"the first one's number": rest}, atol=1e-3)
