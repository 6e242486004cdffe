"""`--where`: conditions on metadata, such as `year >= 2020 and lang in ("zh", "en")`.

A condition is comparisons with `and`, `or`, `not` and parentheses, which bind as in SQL:

    field ( = | != | < | <= | > | >= ) value
    field [ not ] in ( value, … )
    field [ not ] like string          % is any text, _ any character
    field is [ not ] null

A field is a name, in `backquotes` if it has spaces; `id` is the document's id. A value is a number,
a "string" or a 'string', true or false. A document without the field satisfies only `is null`, and
`not` of any other comparison.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from roformer_tf.errors import InputError

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |(?P<string>"[^"]*"|'[^']*')
    |(?P<field>`[^`"]+`|[^\W\d][\w.-]*)
    |(?P<symbol><=|>=|!=|<>|==|[=<>(),]))""",
    re.VERBOSE,
)
_COMPARISONS = {symbol: symbol for symbol in ("=", "!=", "<", "<=", ">", ">=")}
_COMPARISONS |= {"==": "=", "<>": "!="}
_KEYWORDS = {"and", "or", "not", "in", "like", "is", "null"}
# SQLite limits the depth of an expression: of parentheses and `not`, and the number of comparisons.
DEEPEST, MOST = 50, 200


class Filter(NamedTuple):
    """A condition as SQL with placeholders, and the values of these."""

    sql: str
    parameters: tuple[str | float, ...]
    fields: frozenset[str]
    """Names of the fields that it mentions, `id` excepted."""


class _Token(NamedTuple):
    kind: str
    """"number", "string", "field" or "end", or the keyword or symbol itself."""
    value: str | float
    start: int


def parse_filter(text: str, known: Collection[str] | None = None) -> Filter:
    """Parse a condition. Raises InputError for a wrong one, and for fields that are not `known`."""
    parsed = _Parser(text).parse()
    unknown = sorted(parsed.fields - set(known)) if known is not None else []
    if unknown:
        fields = ", ".join(["id", *sorted(known or ())])
        raise InputError(
            f"--where {text!r}: no document has the field {unknown[0]!r}. The index has: {fields}."
        )
    return parsed


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise InputError(f"--where {text!r}: cannot read {text[position:].strip()!r}.")
        kind = str(match.lastgroup)
        value: str | float = match[kind]
        word = match[kind].lower()
        position = match.end()
        if kind == "symbol" or word in _KEYWORDS:
            kind = word
        elif kind == "number":
            value = float(word)
        elif word in ("true", "false"):
            kind, value = "number", float(word == "true")  # SQLite has no other type for them
        elif kind == "string" or word.startswith("`"):
            value = match[kind][1:-1]
        tokens.append(_Token(kind, value, match.start(str(match.lastgroup))))
    return [*tokens, _Token("end", "", len(text))]


class _Parser:
    """Goes through the tokens once; `and`, `or` and `not` are left to SQLite.

    So only comparisons are translated, and parentheses counted. No text of a condition becomes SQL:
    fields and values are bound as parameters, which the methods collect in the order of the SQL.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._comparisons = 0
        self._parameters: list[str | float] = []
        self._fields: set[str] = set()

    def parse(self) -> Filter:
        parts: list[str] = []
        depth = negations = 0
        while True:
            while word := self._accept("not", "("):
                parts.append(word.kind.upper())
                depth += word.kind == "("
                negations += word.kind == "not"
                if depth + negations > DEEPEST:
                    raise InputError(f"--where is nested more than {DEEPEST} levels deep.")
            parts.append(self._comparison())
            while depth and self._accept(")"):
                parts.append(")")
                depth -= 1
            word = self._accept("and", "or")
            if word is None:
                break
            parts.append(word.kind.upper())
        self._expect("`)`" if depth else "`and`, `or` or the end", "end" if not depth else ")")
        return Filter(" ".join(parts), tuple(self._parameters), frozenset(self._fields))

    def _comparison(self) -> str:
        field = str(self._expect("a field", "field").value)
        if symbol := self._accept(*_COMPARISONS):
            return self._compare(field, _COMPARISONS[symbol.kind])
        if self._accept("is"):
            operator = "IS NOT NULL" if self._accept("not") else "IS NULL"
            self._expect("`null`", "null")
            return f"{self._column(field)} {operator}"
        negation = "NOT " if self._accept("not") else ""
        if self._accept("like"):
            return negation + self._compare(field, "LIKE", "a pattern, such as '%2020%'")
        self._expect("a comparison, such as `= 2020`, `in (…)` or `is null`", "in")
        self._expect("`(`", "(")
        parts = [self._compare(field, "=")]
        while self._accept(","):
            parts.append(self._compare(field, "="))
        self._expect("`)`", ")")
        return f"{negation}({' OR '.join(parts)})"

    def _compare(self, field: str, operator: str, pattern: str = "") -> str:
        """Compare with the next token, as SQL that is 0 or 1: the negation of NULL would be NULL.

        Numbers compare with numbers. A string compares with any value as it is written: '007' is
        stored as text, but '2020' as a number.
        """
        if pattern:
            value = self._expect(pattern, "string").value
        else:
            value = self._expect("a number or a text in quotes", "number", "string").value
        if field == "id" and isinstance(value, float):
            value = f"{value:.15g}"  # ids are text, such as "8"
        if isinstance(value, float):
            kind = f"typeof({self._column(field)}) IN ('integer', 'real')"
            sql = f"({kind} AND {self._column(field)} {operator} ?)"
        else:
            sql = f"ifnull(CAST({self._column(field)} AS TEXT) {operator} ?, 0)"
        self._parameters.append(value)
        self._comparisons += 1
        if self._comparisons > MOST:
            raise InputError(f"--where has more than {MOST} comparisons.")
        return sql

    def _column(self, field: str) -> str:
        if field == "id":
            return "id"
        self._fields.add(field)
        self._parameters.append(f'$."{field}"')
        return "json_extract(metadata, ?)"

    def _accept(self, *kinds: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _expect(self, what: str, *kinds: str) -> _Token:
        if token := self._accept(*kinds):
            return token
        rest = self._text[self._tokens[self._next].start :]
        place = f"at {rest!r}" if rest else "at the end"
        raise InputError(
            f"--where {self._text!r}: expected {what} {place}. Example: year >= 2020 and lang = "
            "'zh'"
        )
