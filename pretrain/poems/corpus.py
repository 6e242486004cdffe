"""The poems' text: Tang and Song verse from the npm package `chinese-poetry` (MIT).

The text is not in this repository; npm downloads it into the cache of checkpoints.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from string import ascii_lowercase
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from pretrain.poems.forms import FORMS, MARKS, Form, form_of, lines_of, with_marks
from pretrain.poems.measures import rhyme_of
from roformer_tf.checkpoints.registry import folder as cache_folder
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file, write_text
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

PACKAGE = "chinese-poetry"
VERSION = "2.0.1"
# Checksum of the package's archive in npm's registry.
SHA512 = "KtYARvV7CWNtax0na9+Jn6PlhGgSoid7PWyDzXI4KsCEm2odZcqEQyval5koaLygZnM/EQ3lfJ//25K8p3uHNg=="
# The files with poems, a JSON list of `{"paragraphs": ["…，…。", …], …}` each.
NAMES = "poet.*.json"

# Minimum number of occurrences of a character; poems with a rarer one are skipped.
LEAST_COUNT = 20
# With fewer poems, none is skipped for that: all characters are rare then.
FEW = 10_000
# Number of nearly equal lines from which two poems count as copies.
TOGETHER = 2
# Number of lines that differ in one character from which they are a phrase, not copies.
_COMMON = 16


class Poem(NamedTuple):
    """A poem of one of the four forms."""

    form: Form
    lines: list[str]

    @property
    def front(self) -> str:
        """Its control token: its form, and its rhyme if it has one."""
        return self.form.token + rhyme_of(self.lines)

    @property
    def text(self) -> str:
        """Its line in the corpus."""
        return self.front + with_marks(self.lines)


class Written(NamedTuple):
    """Numbers of poems that were read and written."""

    # Poems in the files, of whatever form.
    read: int
    # Poems of the four forms, each once, without damaged characters.
    of_form: int
    # Of these, poems without rare characters, and without a copy in the other set.
    kept: int
    # Of the kept ones.
    held_out: int


def write_corpus(files: Iterable[IO[bytes]], target: Path, vocab: Path, held_out: float) -> Written:
    """Write poems of the four forms, one `{"text": …}` a line, and their vocabulary.

    A hash of its text decides whether a poem is held out, as in `prepare`. Poems that are copies of
    each other, or nearly, form a group. Those that the hash assigns to another set than the first
    of their group are skipped, so that no set has a copy of the other's poems. The same files give
    the same bytes. Raises InputError if there are no poems, or too few to hold some out.
    """
    poems, total = read_poems(files)
    if not poems:
        raise InputError(
            f"none of the {total:,} poems in the corpus has four or eight lines of five or seven "
            f"characters. Give the folder of {PACKAGE} that holds {NAMES}."
        )
    kept = frequent(poems)
    outside = np.array([is_held_out(poem.text, held_out) for poem in kept])
    groups = groups_of_copies(kept)
    _, first = np.unique(groups, return_index=True)
    chosen = outside == outside[first][groups]
    if not outside[chosen].any() or outside[chosen].all():
        raise InputError(
            f"{len(kept):,} poems are too few for a training and a held-out set. Give more."
        )
    texts = [poem.text for poem, right in zip(kept, chosen.tolist(), strict=True) if right]
    trained = [text for text in texts if not is_held_out(text, held_out)]
    write_text(vocab, "".join(f"{token}\n" for token in vocabulary(trained)))
    with (
        temporary_file(target) as partial,
        partial.open("w", encoding="utf-8", newline="\n") as out,
    ):
        for text in texts:
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return Written(total, len(poems), len(texts), len(texts) - len(trained))


def read_corpus(path: Path) -> list[Poem]:
    """The poems of a corpus that `write_corpus` wrote."""
    with path.open(encoding="utf-8") as file:
        return [poem_of(json.loads(line)["text"]) for line in file]


def poem_of(text: str) -> Poem:
    """A poem from its text, which begins with the control token."""
    front = front_of(text)
    (form,) = (form for form in FORMS if front.startswith(form.token))
    return Poem(form, lines_of(text.removeprefix(front)))


def front_of(text: str) -> str:
    """The control token of a poem's text: 七律 in ang, qilvang月落…, → "qilvang"."""
    return text[: len(text) - len(text.lstrip(ascii_lowercase))]


def read_poems(files: Iterable[IO[bytes]]) -> tuple[list[Poem], int]:
    """Poems of the four forms, each once, and the number of all poems.

    Raises InputError for a file with something else.
    """
    poems: dict[str, Poem] = {}
    total = 0
    for file in files:
        for text in _poems_of(file):
            total += 1
            lines = lines_of(text)
            if form := form_of(lines):
                poems.setdefault("".join(lines), Poem(form, lines))
    return list(poems.values()), total


def frequent(poems: Sequence[Poem]) -> list[Poem]:
    """Poems without rare characters, of which a small model learns nothing."""
    texts = ["".join(poem.lines) for poem in poems]
    least = LEAST_COUNT if len(poems) >= FEW else 1
    rare = {c for c, count in Counter("".join(texts)).items() if count < least}
    return [poem for poem, text in zip(poems, texts, strict=True) if rare.isdisjoint(text)]


def vocabulary(texts: Iterable[str]) -> list[str]:
    """Special tokens, control tokens, marks, then characters by falling frequency."""
    texts = list(texts)
    counts = Counter("".join(texts))
    fronts = {form.token for form in FORMS} | set(map(front_of, texts))
    always = [*SPECIAL_TOKENS, *sorted(fronts), *MARKS]
    characters = [c for c in counts if c > "z" and c not in MARKS]
    return [*always, *sorted(characters, key=lambda c: (-counts[c], c))]


def groups_of_copies(poems: Sequence[Poem]) -> npt.NDArray[np.integer]:
    """The number of each poem's group (poems,): 0, 1, …, the same for poems that are linked.

    Two poems are linked if they share a line, or if two lines of one equal two of the other except
    for a character each; also indirectly, over other poems. So variants of a poem in different
    editions are detected. A few poems that only share a phrase are grouped, too.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    numbers: dict[str, int] = {}
    line = np.array([numbers.setdefault(x, len(numbers)) for p in poems for x in p.lines])
    poem = np.repeat(np.arange(len(poems)), [len(p.lines) for p in poems])
    first, second = _nearly_equal(list(numbers))
    owner = np.zeros(len(numbers), np.int64)
    owner[line[::-1]] = poem[::-1]  # the first poem that has the line
    pairs = np.stack([owner[first], owner[second], first])
    pairs = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)[:2]
    linked, counts = np.unique(pairs, axis=1, return_counts=True)
    linked = linked[:, counts >= TOGETHER]
    size = len(poems) + len(numbers)  # nodes: poems, then lines
    begins = np.concatenate([poem, linked[0]])
    ends = np.concatenate([len(poems) + line, linked[1]])
    graph = coo_matrix((np.ones(len(begins), bool), (begins, ends)), (size, size))
    _, labels = connected_components(graph, directed=False)
    return np.unique(labels[: len(poems)], return_inverse=True)[1]


def _nearly_equal(lines: Sequence[str]) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Pairs of lines that differ in one character: their indices, each pair in both orders."""
    firsts, seconds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    sizes = np.array(list(map(len, lines)))
    for size in sorted(set(sizes.tolist())):
        (indices,) = np.nonzero(sizes == size)
        text = "".join(lines[i] for i in indices.tolist())
        letters = np.frombuffer(text.encode("utf-32-le"), "<u4").reshape(-1, size)
        # Lines that are equal without one position. Sorting hashes takes a tenth of the time of a
        # dictionary of strings: 2 s, not 20, for 400,000 lines.
        for gap in range(size):
            rest = np.delete(letters, gap, axis=1).astype(np.uint64)
            # A random odd factor for each position: sums modulo 2^64 almost surely differ.
            factors = np.random.default_rng([size, gap]).integers(2**63, size=size - 1) * 2 + 1
            keys = rest @ factors.astype(np.uint64)
            order = np.argsort(keys, kind="stable")
            keys, sorted_indices = keys[order], indices[order]
            common = np.zeros(len(keys), bool)
            common[_COMMON:] = keys[_COMMON:] == keys[:-_COMMON]
            for offset in range(1, _COMMON):
                same = keys[offset:] == keys[:-offset]
                same &= ~np.isin(keys[offset:], keys[common])
                a, b = sorted_indices[:-offset][same], sorted_indices[offset:][same]
                firsts += [a, b]
                seconds += [b, a]
    return np.concatenate(firsts), np.concatenate(seconds)


def files_in(corpus: Path) -> Iterator[IO[bytes]]:
    """The files with poems in a folder, or in the package's archive, in the order of their numbers.

    Raises InputError if there are none, and for an incomplete archive.
    """
    if corpus.is_dir():
        paths = sorted(corpus.glob(NAMES), key=lambda path: _order(path.name))
        if not paths:
            raise InputError(
                f"{corpus} holds no {NAMES}. Give the folder of {PACKAGE} that does, such as "
                "quantangshi of its npm package or 全唐诗 of its clone."
            )
        for path in paths:
            with path.open("rb") as opened:
                yield opened
        return
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(corpus, "r|*") as archive:  # one pass: seeking in it takes long
            for member in archive:
                inside = PurePosixPath(member.name)
                file = archive.extractfile(member)
                if file and inside.match(f"dist/quantangshi/{NAMES}"):
                    contents[inside.name] = file.read()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise InputError(
            f"cannot read {corpus}: {error}. Give a folder with {NAMES}, or remove it to download "
            "it again."
        ) from None
    yield from (BytesIO(contents[name]) for name in sorted(contents, key=_order))


def fetch() -> Path:
    """The package's archive, from the cache or downloaded by npm.

    Raises InputError if npm is missing or fails, and if the archive is another one.
    """
    archive = cache_folder() / f"{PACKAGE}-{VERSION}.tgz"
    if archive.is_file():
        return archive
    npm = shutil.which("npm")
    other = (
        f"use `python -m pretrain.poems --corpus FOLDER` with a folder that has {NAMES}, such as "
        "全唐诗 of a clone of https://github.com/chinese-poetry/chinese-poetry"
    )
    if npm is None:
        raise InputError(
            f"the poems are in the npm package {PACKAGE}, but npm is not installed. Install "
            f"Node.js, or {other}."
        )
    print(f"npm downloads {PACKAGE}@{VERSION}, 85 MB, to {archive.parent}", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        arguments = [npm, "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", folder]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        fetched = Path(folder) / archive.name
        if done.returncode or not fetched.is_file():
            reason = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
            raise InputError(
                f"npm cannot download {PACKAGE}@{VERSION}: {reason}. Try again, or {other}."
            )
        digest = hashlib.sha512(fetched.read_bytes()).digest()
        if base64.b64encode(digest).decode() != SHA512:
            raise InputError(
                f"the archive of {PACKAGE}@{VERSION} that npm downloaded has another checksum. Try "
                f"again, or {other}."
            )
        fetched.replace(archive)
    return archive


def _poems_of(file: IO[bytes]) -> list[str]:
    """The texts of a file's poems. Raises InputError for another kind of file."""
    try:
        return ["".join(record["paragraphs"]) for record in json.load(file)]
    except (ValueError, TypeError, KeyError) as error:
        name = getattr(file, "name", "a file of the corpus")
        raise InputError(
            f'{name} is not a list of {{"paragraphs": ["…", …]}}: {type(error).__name__} {error}.'
        ) from None


def _order(name: str) -> tuple[bool, int]:
    """Tang before Song, and each by number: poet.tang.1000.json → (False, 1000)."""
    number = re.search(r"\d+", name)
    return "song" in name, int(number[0]) if number else 0
