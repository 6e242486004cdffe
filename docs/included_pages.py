"""MkDocs hook: pages whose text is outside docs/, and links of such texts.

`<!-- include: FILE -->`, with the line after it, becomes a Markdown file of the repository.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# Page of the site for a file that is linked. Of other files only the name is shown.
PAGES = {
    "LOG.md": "LOG.md",
    "RESULTS.md": "research/results.md",
    "PAPER.md": "research/paper.md",
    "SEARCH.md": "research/search.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")
CHINESE_LINE_END = re.compile(
    r"(^```.*?^```)|(?<=[，。；：！？、）])\n *(?=[\u4e00-\u9fff])", re.MULTILINE | re.DOTALL
)
PICTURE = re.compile(r"^!\[.*\n", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the markers of a page (called by MkDocs)."""
    if page.file.src_uri.startswith("zh/"):  # a line break must not become a space; code stays
        markdown = CHINESE_LINE_END.sub(lambda match: match[1] or "", markdown)
    depth = page.file.src_uri.count("/")
    if page.file.src_uri == "LOG.md":
        return adapted(markdown, depth)
    return re.sub(
        r"<!-- include: (\S+) -->\n.*",
        lambda match: adapted((ROOT / match[1]).read_text(encoding="utf-8"), depth),
        markdown,
    )


def adapted(text: str, depth: int) -> str:
    """A text with links to pages of the site, for a page so many folders deep; no pictures."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        page = PAGES.get(Path(target).name)
        return f"[{words}]({'../' * depth}{page}{anchor or ''})" if page else words

    return LINK.sub(link, PICTURE.sub("", text))
