import gzip
import json

import pytest

from benchmarks.search.manual import SHARES, ManualConfig, Page, main, split_of, unique_queries
from roformer_tf.errors import InputError

PAGE = """<!DOCTYPE html><html><head><title>不算</title></head><body>
<header><p>LibreOffice 7.4 帮助</p></header>
<div id="DisplayArea"><meta itemprop="keywords" content="{first}">
<meta itemprop="keywords" content="untranslated">
<meta itemprop="keywords" content="引用&amp;单元格">
<h1 id="hd_1"><a name="x"></a>{title}
 和<em>例子</em></h1><p>这一页的内容是关于怎样在电子表格里使用日期和函数的详细说明文字。</p>
<p>第二段&lt;文字&gt;。</p></div>
<footer><p>Title is: {title}</p></footer></body></html>"""


@pytest.fixture
def package(tmp_path):
    """An artificial package with three pages, of which one is not translated."""
    text = tmp_path / "package" / "usr" / "share" / "libreoffice" / "help" / "zh-CN" / "text"
    for name, first, title in (
        ("scalc/guide/date", "日期,计算", "日期函数"),
        ("scalc/01/0406", "公式,输入", "公式"),
    ):
        path = text / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(first=first, title=title), encoding="utf-8")
    (text / "scalc" / "english.html").write_text("<h1>标题</h1><p>Nothing</p>", encoding="utf-8")
    (text.parent / "contents.html").write_text(PAGE.format(first="目录", title="目录"), "utf-8")
    return tmp_path / "package"


def lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_package_is_converted_to_documents_and_queries(package, tmp_path, capsys):
    main(ManualConfig(tmp_path / "made", package))
    documents = [json.loads(line) for line in lines(tmp_path / "made" / "documents.jsonl.gz")]
    body = "这一页的内容是关于怎样在电子表格里使用日期和函数的详细说明文字。 第二段<文字>。"
    assert documents == [
        {"id": "scalc/01/0406", "text": body},
        {"id": "scalc/guide/date", "text": body},
    ]
    actual = {}
    for split in SHARES:
        header, *rows = lines(tmp_path / "made" / f"queries_{split}.tsv.gz")
        assert header == "query\tid"
        for row in rows:
            query, page = row.split("\t")
            assert split_of(page) == split
            actual[query] = page
    assert actual == {  # without 引用&单元格, an entry of both pages
        "日期,计算": "scalc/guide/date",
        "日期函数 和例子": "scalc/guide/date",
        "公式,输入": "scalc/01/0406",
        "公式 和例子": "scalc/01/0406",
    }
    assert "2 pages; queries: " in capsys.readouterr().out


def test_splits_have_the_right_proportions():
    actual = [split_of(f"scalc/{number}") for number in range(10_000)]
    for split, share in SHARES.items():
        assert actual.count(split) / 100 == pytest.approx(share, abs=1)


def test_entries_of_two_pages_are_dropped():
    actual = [Page("a", "", ("甲", "乙")), Page("b", "", ("乙", "丙"))]
    assert dict(unique_queries(actual)) == {"甲": "a", "丙": "b"}


def test_a_folder_without_pages_is_refused(tmp_path):
    with pytest.raises(InputError, match="no pages with titles"):
        main(ManualConfig(tmp_path / "made", tmp_path))
    assert not (tmp_path / "made").exists()
