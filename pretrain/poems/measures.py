"""What can be measured of poems, the real ones' by the same code: form, rhyme, novelty."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from pretrain.poems.forms import Form, is_of_form, lines_of
from roformer_tf.errors import InputError


class Rhymes(NamedTuple):
    """How the even lines of poems end."""

    # Pairs of even lines of one poem: 1 of four lines, 6 of eight.
    pairs: int
    # Of them, pairs that end in the same final.
    alike: int
    # Fraction of matching endings among pairs of any such endings, of whatever poems.
    chance: float

    @property
    def share(self) -> float:
        """Of alike pairs, 0 to 1."""
        return self.alike / self.pairs if self.pairs else 0.0


class Measures(NamedTuple):
    """Figures of poems that were generated, each for a given form."""

    poems: int
    # Fraction of the poems with the form that was asked for, 0 to 1.
    of_form: float
    # Of those that have it.
    rhymes: Rhymes
    # Fraction of their lines that are in no poem of the training text.
    new_lines: float
    # Fraction of them that repeat no line of the training text at all.
    new_poems: float


def measure(texts: Sequence[tuple[Form, str]], known_lines: Collection[str]) -> Measures:
    """Measure poems, (form asked for, text with its marks); `known_lines`: of the training text."""
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
    """Compare the finals of poems' even lines; `final` of a character, unless it is pypinyin's.

    Today's finals: a 平水韻 rhyme of old need be none any more, and so real poems do not reach 1.
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
    """The final in which most of a poem's even lines end, at least two; "" where there is none."""
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
