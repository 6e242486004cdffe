"""Measures of poems, generated or real: form, rhyme, novelty."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from pretrain.poems.forms import Form, is_of_form, lines_of
from roformer_tf.errors import InputError


class Rhymes(NamedTuple):
    """Statistics of the finals of even lines."""

    # Pairs of even lines of one poem: 1 of four lines, 6 of eight.
    pairs: int
    # Of them, pairs that end in the same final.
    alike: int
    # Fraction of matching endings among all pairs of such endings, also of different poems.
    chance: float

    @property
    def share(self) -> float:
        """Fraction of pairs that are alike."""
        return self.alike / self.pairs if self.pairs else 0.0


class Measures(NamedTuple):
    """Figures of generated poems, each for a requested form."""

    poems: int
    # Fraction of the poems with the requested form, 0 to 1.
    of_form: float
    # Of those that have it.
    rhymes: Rhymes
    # Fraction of their lines that are in no poem of the training text.
    new_lines: float
    # Fraction of them that repeat no line of the training text.
    new_poems: float


def measure(texts: Sequence[tuple[Form, str]], known_lines: Collection[str]) -> Measures:
    """Measure poems, (requested form, text with marks); `known_lines`: of the training text."""
    right = [lines_of(text) for form, text in texts if is_of_form(text, form)]
    new = [[line not in known_lines for line in lines] for lines in right]
    lines = sum(map(len, new))
    return Measures(
        poems=len(texts),
        of_form=len(right) / len(texts) if texts else 0.0,
        rhymes=rhymes(right),
        new_lines=sum(map(sum, new)) / lines if lines else 0.0,
        new_poems=sum(map(all, new)) / len(new) if new else 0.0,
    )


def rhymes(poems: Iterable[Sequence[str]], final: Callable[[str], str] | None = None) -> Rhymes:
    """Compare the finals of poems' even lines; `final`: of a character. Default: pypinyin's.

    These are modern finals. A 平水韻 rhyme is not always one today, so real poems do not reach 1.
    """
    final = final or final_of
    alike = pairs = 0
    endings: Counter[str] = Counter()
    for lines in poems:
        finals = [final(line[-1]) for line in lines[1::2]]
        endings.update(finals)
        for first, second in combinations(finals, 2):
            pairs += 1
            alike += bool(first) and first == second
    total = endings.total()
    by_chance = sum(n * (n - 1) for end, n in endings.items() if end) / max(total * (total - 1), 1)
    return Rhymes(pairs, alike, by_chance)


def rhyme_of(lines: Sequence[str]) -> str:
    """The final of most of a poem's even lines, at least two; "" without such a final."""
    finals = Counter(filter(None, (final_of(line[-1]) for line in lines[1::2])))
    final, count = finals.most_common(1)[0] if finals else ("", 0)
    return final if count > 1 else ""


@cache
def final_of(character: str) -> str:
    """The final of a character's commonest reading, without its tone: 山 → "an"; "" for none.

    Raises InputError where pypinyin is not installed.
    """
    try:
        from pypinyin import Style, pinyin
    except ImportError:
        raise InputError(
            "finding rhymes needs pypinyin, which is not installed. Run `make poems`, or "
            "`pip install 'roformer-tf[poems]'`."
        ) from None
    readings = pinyin(character, style=Style.FINALS, errors="ignore")  # [[final, …]], or nothing
    return readings[0][0] if readings else ""
