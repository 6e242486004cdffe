"""brat's standoff annotations: a `.ann` file next to the `.txt` file that it annotates.

T1	LOC 0 2	北京      an entity: its label, its first character and the one after its last, its text

Each line of the text is a row. Lines of the `.ann` file for other things than entities, such as
relations and notes, are skipped.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import damage, text_lines
from roformer_tf.readers.records import Row

# Several fragments are written "0 2;5 7": 0 and 7 are the ends, and "2;5 " is the third group.
_ENTITY = re.compile(r"(T\S*)\t(\S+) (\d+) ([\d ;]*?)(\d+)\t(.*?)[\r\n]*")


def annotated_lines(path: str | Path, encoding: str = "auto") -> Iterator[Row]:
    """The lines, except blank ones, of an annotated text, or of all in a folder.

    path: a `.ann` file, or a folder of them. The cells of a row are {"text": line, "entities":
    [{"start", "end", "label", "text"}]}, in characters of the line. Raises InputError where a file
    is missing, or a line of annotations cannot be read.
    """
    path = Path(path)
    for annotations in sorted(path.glob("*.ann")) if path.is_dir() else [path]:
        text = annotations.with_suffix(".txt")
        if not text.is_file():
            raise InputError(
                f"{annotations} has no {text.name} next to it, whose text it annotates. Put it "
                "there."
            )
        yield from _lines(text, annotations, encoding)


def _lines(text: Path, annotations: Path, encoding: str) -> Iterator[Row]:
    """The lines of one text."""
    lines = list(text_lines(text, encoding))
    # The first character of each line in the file, line ends included, as brat counts.
    begins = list(accumulate(map(len, lines), initial=0))
    entities: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    problems: dict[int, str] = {}
    for number, line in enumerate(text_lines(annotations, encoding), start=1):
        if not line.startswith("T"):
            continue
        match = _ENTITY.fullmatch(line)
        if match is None:
            raise InputError(
                f"{annotations}:{number} is no entity of brat. Write T1, a tab, the label, its "
                "first character and the one after its last, a tab, and its text."
            )
        name, label, start, fragments, end, quoted = match.groups()
        index = bisect_right(begins, int(start)) - 1  # of the line in which it begins
        if index >= len(lines):
            raise InputError(f"{annotations}:{number} is past the end of {text}. Correct it.")
        begin = begins[index]
        # Git adds a CR to each line on Windows, after the characters were counted.
        if lines[index].endswith("\r\n") and not lines[index].startswith(
            quoted, int(start) - begin
        ):
            problems[index] = f"does not have {quoted!r} at {start}: change its CRLF to LF"
        if fragments:
            problems[index] = f"has the entity {name} in several fragments, which no span can be"
        entity = {"start": int(start) - begin, "end": int(end) - begin, "label": label}
        entities[index].append(entity | {"text": quoted})
    for index, line in enumerate(lines):
        source_line, line = f"{text}:{index + 1}", line.rstrip("\r\n")
        if problem := damage(line) or problems.get(index, ""):
            yield Row(source_line, {}, problem)
        elif line.strip() or index in entities:
            yield Row(source_line, {"text": line, "entities": entities[index]})
