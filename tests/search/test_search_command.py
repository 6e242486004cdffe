"""The command `roformer-tf search`: flags, output and refusals."""

import json
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pytest

from roformer_tf import cli
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.search import retriever, writing
from roformer_tf.search.database import FILE, SCHEMA, sqlite3
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.retriever import Reranker, Retriever, open_reranker
from roformer_tf.tasks.classification import Pair

DOCUMENTS = {
    "print": "打印文档：选择文件菜单中的打印。",
    "open": "打开文件",
    "park": "今天天气很好，我们去公园。",
    "save": "保存\t文件",
}
QUERIES = ["怎么打印", "公园"]

pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def sim(released):
    return str(released("sim_char"))


@pytest.fixture(scope="module")
def order(sim, eagerly):
    """For each query, its documents sorted by cosine, with the cosines."""
    with eagerly():
        embedder = VectorSettings().open(sim)
        cosines = embedder.embed(QUERIES) @ embedder.embed(DOCUMENTS.values()).T
    rankings = np.argsort(-cosines, axis=1)
    return [
        [(list(DOCUMENTS)[i], row[i]) for i in indices]
        for indices, row in zip(rankings, cosines, strict=True)
    ]


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.jsonl"
    rows = [{"id": name, "text": text} for name, text in DOCUMENTS.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def run(capsys):
    """A function that runs the command and returns exit code, rows of stdout, and stderr."""

    def run(*words):
        try:
            code = cli.main(["search", *map(str, words)])
        except SystemExit as ended:  # raised for wrong flags
            code = ended.code
        out, err = capsys.readouterr()
        return code, [line.split("\t") for line in out.splitlines()], err

    return run


def names(rows):
    """Return the names of the documents by query."""
    actual = {}
    for query, rank, _, _, name in rows:
        actual.setdefault(query, []).append(name)
        assert int(rank) == len(actual[query])
    return actual


def test_documents_are_searched_without_keeping_an_index(run, sim, documents, order, tmp_path):
    code, rows, err = run("--model", sim, "--documents", documents, "--queries", *QUERIES)
    assert code == 0
    assert rows[0] == ["query", "rank", "score", "document", "id"]
    assert [row[0] for row in rows[1:]] == [q for q in QUERIES for _ in DOCUMENTS]
    for actual, (name, cosine) in zip(rows[1:], chain(*order), strict=True):
        assert actual[4] == name
        assert actual[3] == DOCUMENTS[name].replace("\t", "\\t")
        assert float(actual[2]) == pytest.approx(cosine, abs=1e-5)
    assert "queries: 2, documents: 4;" in err
    assert {path.name for path in tmp_path.iterdir()} == {"documents.jsonl"}


def test_an_index_is_created_searched_and_extended(run, sim, documents, order, tmp_path):
    index, queries = tmp_path / "index", tmp_path / "queries.txt"
    queries.write_text("\n".join(QUERIES) + "\n", "utf-8")
    code, rows, err = run("--model", sim, "--documents", documents, "--index", index)
    assert (code, rows) == (0, [])
    assert ": 4 (4 new, 0 updated, 0 unchanged)." in err
    code, rows, _ = run("--model", sim, "--index", index, "--queries", queries, "--top", 2)
    assert code == 0
    assert names(rows[1:]) == {
        query: [name for name, _ in each[:2]] for query, each in zip(QUERIES, order, strict=True)
    }
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "new", "text": "怎么打印"}) + "\n", "utf-8")
    output = tmp_path / "found.tsv"
    flags = ("--documents", more, "--queries", "怎么打印", "--top", 1, "--output", output)
    code, rows, err = run("--model", sim, "--index", index, *flags)
    assert (code, rows) == (0, [])
    assert ": 5 (1 new, 0 updated, 0 unchanged)." in err
    last = output.read_text("utf-8").splitlines()[1].split("\t")
    assert (last[2], last[4]) == ("1.000000", "new")


def test_an_index_whose_creation_was_killed_is_created(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    for tables in (), SCHEMA:  # an empty file, then tables without settings
        with closing(sqlite3.connect(index / FILE)) as database:
            list(map(database.execute, tables))
        assert (
            "is no index. Make one" in run("--model", sim, "--index", index, "--queries", "甲")[2]
        )
    code, _, err = run("--model", sim, "--documents", documents, "--index", index)
    assert (code, len(SearchIndex(index))) == (0, 4), err


def test_a_query_of_several_words_is_a_file_only_if_it_exists(run, sim, documents, tmp_path):
    queries = tmp_path / "my queries.txt"
    queries.write_text("公园\n", "utf-8")
    flags = ("--model", sim, "--documents", documents, "--queries")
    for query, searched in (
        ("https://a.cn 打不开", None),
        ("打不开 a.txt", None),
        (queries, "公园"),
    ):
        code, rows, err = run(*flags, query)
        assert code == 0, err
        assert {row[0] for row in rows[1:]} == {searched or query}


def test_hybrid_search_counts_words_by_their_weight(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    flags = ("--model", sim, "--index", index)
    assert run(*flags, "--documents", documents, "--hybrid-weight", 0)[0] == 0
    assert SearchIndex(index).manifest.hybrid_weight == 0
    for more in (["--hybrid"], ["--hybrid-weight", 0]):
        _, rows, _ = run(*flags, "--queries", "打印", *more, "--top", 1)
        assert [(row[2], row[4]) for row in rows[1:]] == [("1.000000", "print")]
    _, rows, _ = run(*flags, "--queries", "打印", "--hybrid-weight", 100)
    assert float(rows[1][2]) > 50


def test_an_index_keeps_its_beginning_weight(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    flags = ("--model", sim, "--index", index)
    assert run(*flags, "--documents", documents, "--beginning-weight", 0.3)[0] == 0
    for _ in range(2):
        assert SearchIndex(index).manifest.beginning_weight == 0.3
        assert run(*flags, "--documents", documents, "--queries", "打印")[0] == 0
    code, _, err = run(*flags, "--queries", "打印", "--beginning-weight", 0.3)
    assert code == 2
    assert "--beginning-weight needs --documents. Give both" in err


def test_documents_without_query_words_score_by_their_cosine(run, sim, documents, order):
    flags = ("--model", sim, "--documents", documents, "--hybrid", "--queries", "公园")
    _, rows, _ = run(*flags)
    want = dict(order[1])
    want["park"] += 1
    assert {row[4]: float(row[2]) for row in rows[1:]} == pytest.approx(want, abs=1e-6)


def test_queries_use_the_settings_of_the_index(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    result = ("--pooling", "mean", "--dimensions", 8, "--max-length", 20, "--passage-length", 9)
    assert run("--model", sim, "--documents", documents, "--index", index, *result)[0] == 0
    code, rows, err = run("--model", sim, "--index", index, "--queries", "公园")
    assert code == 0
    assert len(rows) == 5
    assert "vectors of 8 numbers (of 32), the means of its hidden states; at most 20" in err
    for other in (["--pooling", "cls"], ["--dimensions", 9]):
        code, rows, err = run("--model", sim, "--index", index, "--queries", "公园", *other)
        assert (code, rows) == (2, [])
        assert "made with another model, or other settings" in err


def test_a_pair_model_reranks(run, sim, documents, finetuned):
    flags = ("--model", sim, "--documents", documents, "--queries", "公园")
    _, plain, _ = run(*flags)
    code, rows, _ = run(*flags, "--rerank", finetuned("pair"), "--rerank-top", 3)
    assert code == 0
    assert {row[4] for row in rows[1:4]} == {row[4] for row in plain[1:4]}
    scores = [float(row[2]) for row in rows[1:4]]
    assert scores == sorted(scores, reverse=True)
    assert rows[4:] == plain[4:]  # not reranked: the order and the score of the search
    # The model scores three results and prints one, which may have had a lower rank before.
    _, first, _ = run(*flags, "--rerank", finetuned("pair"), "--rerank-top", 3, "--top", 1)
    assert first == rows[:2]
    assert rows[1][4] != plain[1][4], "the model changes nothing: choose another query"
    assert "orders the results alone" in run(*flags, "--rerank", finetuned("pair"))[2]
    code, _, err = run(*flags, "--rerank", finetuned("classification"))
    assert code == 2
    assert "--rerank needs a model of --task reranking" in err


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_weight_of_a_reranker(weight, sim, tmp_path, eagerly):
    """Weight 0 keeps the order of the search; weight 1 gives the order of the scores."""
    texts = ["今天吗", "明天吗", "昨天呢", "打印"]

    @dataclass(frozen=True)
    class Scorer:
        weight: float

        def scores(self, query, documents):
            return np.array([texts.index(text) for text in documents], np.float32)

    with eagerly():
        embedder = VectorSettings().open(sim)
        writing.add_documents(tmp_path / "index", embedder, list(map(Document, texts)))
        with SearchIndex(tmp_path / "index") as index:
            plain, reranked = (
                [x.text for x in next(Retriever(index, embedder, reranker=x).results(["今天"], 4))]
                for x in (None, Scorer(weight))
            )
    assert reranked == (texts[::-1] if weight else plain)
    assert plain != texts[::-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--queries", "甲"], "give --documents to search in"),
        (["--documents", "DOCUMENTS"], "give --queries"),
        (["--documents", "DOCUMENTS", "--queries", "甲", "--delete", "x"], "needs --index"),
        (["--index", "NOWHERE", "--delete", "x"], "is no index"),
        (
            ["--documents", "DOCUMENTS", "--queries", "甲", "--where", "year >"],
            "--where is 'year >'",
        ),
        (["--documents", "DOCUMENTS", "--queries", "甲", "--where", "yaer > 1"], "has: id."),
        (["--documents", "DOCUMENTS", "--queries", "甲", "--id-column", "name"], "no column"),
        (["--documents", "DOCUMENTS", "--queries", "甲", " "], "query 2 is blank"),
        (["--documents", "DOCUMENTS", "--queries", "甲", "--top", "0"], "top is 0"),
        (["--documents", "EMPTY", "--queries", "甲"], "rows without text: 2"),
        (["--documents", "DOCUMENTS", "--queries", "EMPTY"], "rows without text: 2"),
        (["--documents", "DOCUMENTS", "--queries", "问题.txt"], "there is no file 问题.txt"),
        (["--index", "NOWHERE", "--queries", "甲"], "is no index. Make one"),
        (["--documents", "EMPTY", "--index", "NOWHERE"], "rows without text: 2"),
        (
            ["--index", "NOWHERE", "--queries", "甲", "--hybrid-weight", "-1"],
            "--hybrid-weight is -1",
        ),
        (
            ["--documents", "DOCUMENTS", "--queries", "甲", "--beginning-weight", "-1"],
            "--beginning-weight is -1",
        ),
    ],
)
def test_input_that_cannot_be_searched_is_refused(words, message, run, sim, documents, tmp_path):
    (tmp_path / "empty.txt").write_bytes("好\n\n".encode() + b"\xff\n")
    replacements = {
        "DOCUMENTS": documents,
        "EMPTY": tmp_path / "empty.txt",
        "NOWHERE": tmp_path / "x",
    }
    code, rows, err = run("--model", sim, *(replacements.get(word, word) for word in words))
    assert (code, rows) == (2, [])
    assert message in " ".join(err.replace("│", " ").split())
    assert {path.name for path in tmp_path.iterdir()} == {"documents.jsonl", "empty.txt"}


def test_an_index_of_another_model_is_refused_and_kept(run, sim, released, documents, tmp_path):
    index, output = tmp_path / "index", tmp_path / "found.tsv"
    run("--model", sim, "--documents", documents, "--index", index)
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    other = released("sim_char_ft")
    for more in (["--queries", "甲", "--output", output], ["--documents", documents]):
        code, _, err = run("--model", other, "--index", index, *more)
        assert code == 2
        assert "made with another model" in err
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before
    assert not output.exists()


@pytest.mark.parametrize("ending", ["jsonl", "csv", "txt"])
def test_a_document_may_have_two_columns(run, sim, tmp_path, ending):
    path, rows = tmp_path / f"documents.{ending}", [("打印", "选择文件菜单。"), ("天气", "很好。")]
    if ending == "jsonl":
        written = [json.dumps({"text": b, "id": a * 2, "title": a}) for a, b in rows]
    else:
        separator = "," if ending == "csv" else "\t"
        written = [separator.join(row) for row in [("title", "text"), *rows]]
    path.write_text("".join(f"{line}\n" for line in written), "utf-8")
    joined = [" ".join(row) for row in rows]
    embedder = VectorSettings().open(sim)
    cosines = (embedder.embed(["怎么打印"]) @ embedder.embed(joined).T)[0]
    order = np.argsort(-cosines)
    columns = ("--text-columns", "title", "text", "--queries", "怎么打印")
    code, actual, _ = run("--model", sim, "--documents", path, *columns)
    assert code == 0
    assert [row[3] for row in actual[1:]] == [joined[index] for index in order]
    assert [row[4:] for row in actual[1:]] == [
        [rows[index][0] * 2] if ending == "jsonl" else [] for index in order
    ]
    np.testing.assert_allclose(
        [float(row[2]) for row in actual[1:]], cosines[order], rtol=0, atol=1e-5
    )


def test_columns_of_documents_and_queries_may_differ(run, sim, tmp_path):
    documents, queries = tmp_path / "documents.tsv", tmp_path / "queries.tsv"
    documents.write_text("title\tbody\n打印\t选择文件菜单。\n", "utf-8")
    queries.write_text("text\n怎么打印\n", "utf-8")
    files = ("--documents", documents, "--queries", queries)
    code, actual, _ = run("--model", sim, *files, "--text-columns", "title", "body")
    assert code == 0
    assert [(row[0], row[3]) for row in actual[1:]] == [("怎么打印", "打印 选择文件菜单。")]


@pytest.mark.parametrize("name", ["documents.tsv", "documents.txt"])
def test_queries_and_documents_may_have_no_header(name, run, sim, tmp_path):
    documents, queries = tmp_path / name, tmp_path / "queries.tsv"
    cells = "\t1" if name.endswith("tsv") else ""
    documents.write_text("".join(f"{x}{cells}\n" for x in ("打印文件", "公园")), "utf-8")
    queries.write_text("怎么打印\t1\n去哪里\t2\n", "utf-8")
    files = ("--documents", documents, "--queries", queries, "--first-line", "example")
    columns = ("--text-columns", "1") if cells else ()
    code, actual, err = run("--model", sim, *files, *columns, "--top", 1)
    assert code == 0, err
    assert [row[0] for row in actual[1:]] == ["怎么打印", "去哪里"]


def test_documents_are_updated_deleted_and_filtered(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    flags = ("--model", sim, "--index", index)
    assert run(*flags, "--documents", documents)[0] == 0
    more = tmp_path / "more.csv"
    more.write_text("名,text,year\nopen,打开旧文件,2019\nclose,关闭文件,2021\n", "utf-8")
    code, rows, err = run(
        *(*flags, "--documents", more, "--id-column", "名", "--delete", "save", "missing"),
        *("--queries", "文件", "--where", "year >= 2000 or id = 'park'"),
    )
    assert code == 0
    assert f"documents deleted from {index}: 1." in err
    assert "no document has the id missing" in err
    assert ": 4 (1 new, 1 updated, 0 unchanged)." in err
    assert {row[4]: row[3] for row in rows[1:]} == {
        "open": "打开旧文件",
        "close": "关闭文件",
        "park": DOCUMENTS["park"],
    }
    wrong = ("--model", tmp_path / "missing", "--index", index, "--queries", "文件")
    assert run(*wrong, "--delete", "close")[0] == 2  # and deletes nothing, as the next lines show
    more.write_text("id,text\nlater,\n", "utf-8")
    assert run(*flags, "--documents", more, "--delete", "close")[0] == 2
    code, rows, err = run("--index", index, "--delete", "close")  # does not need a model
    assert f"documents deleted from {index}: 1." in err
    assert (code, rows) == (0, [])
    _, rows, _ = run(*flags, "--queries", "文件")
    assert {row[4] for row in rows[1:]} == {"print", "open", "park"}
    code, _, err = run("--index", index, "--queries", "文件")
    assert code == 2
    assert "give --model" in err


@pytest.mark.parametrize("name", ["pair", "regression"])
def test_rerankers_are_pair_models(name, finetuned, monkeypatch):
    if name == "regression":  # a model of single texts
        with pytest.raises(InputError, match="or a model of pairs"):
            open_reranker(finetuned(name), VectorSettings())
        return
    model = open_reranker(finetuned("pair"), VectorSettings(batch_size=2))
    assert model.finetuned.batch_size == 2
    assert isinstance(model, Reranker)
    assert model.label == 1
    scores = model.scores("今天", ["好", "北京", "好"])
    assert scores.dtype == np.float32
    assert scores[0] == scores[2] != scores[1]
    monkeypatch.setattr(retriever, "RELATED", ("是",))
    with pytest.raises(InputError, match="has the labels 0, 1, and none is known"):
        open_reranker(finetuned("pair"), VectorSettings())


def test_a_reranker_with_label_names_is_known_by_the_labels_of_its_data():
    names = {"labels": ("无关的", "有关的"), "text_columns": ("query", "document")}
    task = Pair(**names, label_values=("0", "1"))
    assert retriever.relevant_label(task, "m") == 1
    with pytest.raises(InputError, match="none is known"):
        retriever.relevant_label(Pair(**names), "m")


def test_a_converted_model_opens_the_index_of_its_zip(run, sim, documents, tmp_path):
    index = tmp_path / "index"
    assert run("--model", sim, "--documents", documents, "--index", index)[0] == 0
    assert cli.main(["checkpoints", "convert", sim, str(tmp_path / "x"), "--to", "own"]) == 0
    assert VectorSettings().open(tmp_path / "x").config == EmbeddingConfig("pooler", 512)
    assert run("--model", tmp_path / "x", "--index", index, "--queries", "甲")[0] == 0
