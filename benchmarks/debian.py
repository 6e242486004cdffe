"""Chinese text from three Debian packages: LibreOffice help, manual pages, Debian Reference.

    python -m benchmarks.debian --output /tmp/debian        on Debian or Ubuntu; one file a package

Only the text is kept, without markup: headings, paragraphs and table cells of HTML, and the lines
of manual pages that are not roff commands.
"""

import gzip
import html.parser
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command_line import settings_of
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

PACKAGES = ("libreoffice-help-zh-cn", "manpages-zh", "debian-reference-zh-cn")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Minimum number of Chinese characters on a page. Pages with fewer are not translated.
MIN_CHINESE = 20
_HIDDEN = frozenset(("script", "style", "head", "header", "aside", "nav", "footer", "pre"))
_BLOCKS = frozenset("h1 h2 h3 h4 h5 h6 p li td th dt dd div br tr".split())  # noqa: SIM905
_ROFF = re.compile(r"\\(?:f[A-Z]|f\[\w*\]|s[-+]?\d|[,/&|^])")  # fonts, sizes, zero-width escapes


@dataclass(frozen=True)
class DebianConfig:
    """Fetch the packages with apt, and write the text of each to a file."""

    output: Path
    """Folder for the files `PACKAGE.jsonl`, one page a line."""
    packages: tuple[str, ...] = PACKAGES
    """Names of the packages."""


def main(config: DebianConfig) -> None:
    """Write the missing files. Raises InputError if apt cannot download a package."""
    config.output.mkdir(parents=True, exist_ok=True)
    for package in config.packages:
        path = config.output / f"{package}.jsonl"
        if path.exists():
            continue
        with tempfile.TemporaryDirectory() as folder, temporary_file(path) as temporary:
            unpack(package, Path(folder))
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                for text in pages(Path(folder)):
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def pages(folder: Path) -> Iterator[str]:
    """Yield the Chinese pages of an unpacked package, sorted by path."""
    for path in sorted(folder.rglob("*")):
        text = ""
        if path.suffix == ".html":
            text = html_text(path.read_text(encoding="utf-8", errors="replace"))
        elif path.suffix == ".gz" and "man" in path.parts and "zh_CN" in path.parts:
            text = roff_text(gzip.decompress(path.read_bytes()).decode(errors="replace"))
        if len(CHINESE.findall(text)) >= MIN_CHINESE:
            yield text


def html_text(page: str) -> str:
    """Return the visible text of an HTML page, one heading, paragraph or cell a line."""
    reader = _Text()
    reader.feed(page)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def roff_text(page: str) -> str:
    """Return the text and headings of a manual page without roff commands and fonts."""
    lines = []
    for line in page.splitlines():
        if line.startswith((".SH ", ".SS ", ".B ", ".I ")):
            line = line[3:].strip(' "')
        if line.startswith((".", "'")):
            continue
        line = _ROFF.sub("", line.replace(r"\-", "-").replace(r"\(aq", "'"))
        lines.append(line.replace("\\ ", " ").replace("\\e", "\\").strip())
    return "\n".join(line for line in lines if line)


class _Text(html.parser.HTMLParser):
    """Collects the text of block elements."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(" ".join(data.split("\n")))


def unpack(package: str, folder: Path) -> None:
    """Download a package with apt and unpack it into a folder. Raises InputError on failure.

    It uses temporary package lists, because the system's may be old or missing.
    """
    with tempfile.TemporaryDirectory() as apt_folder:
        apt = ["apt-get", "-o", f"Dir::State::Lists={apt_folder}", "-o", f"Dir::Cache={apt_folder}"]
        _run_for(package, folder, [*apt, "update"], [*apt, "download", package])
    _run_for(package, folder, ["dpkg-deb", "--extract", "*.deb", "."])


def _run_for(package: str, folder: Path, *commands: list[str]) -> None:
    """Run commands in a folder; `*.deb` is the package. Raises InputError if one fails."""
    for command in commands:
        arguments = [str(*folder.glob(x)) if x.startswith("*") else x for x in command]
        try:
            subprocess.run(arguments, cwd=folder, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            message = getattr(error, "stderr", None) or str(error).encode()
            raise InputError(
                f"{arguments[0]} failed for {package}: {message.decode().strip()[-300:]}. "
                "Run it on Debian or Ubuntu, with a network."
            ) from None


if __name__ == "__main__":
    main(settings_of(DebianConfig))
