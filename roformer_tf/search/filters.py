"""`--where`: conditions on metadata, such as `year >= 2020 and lang in ("zh", "en")`.

    condition  = conjunction { "or" conjunction }
    conjunction = factor { "and" factor }
    factor     = "not" factor | "(" condition ")" | comparison
    comparison = field ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
               | field [ "not" ] "in" "(" value { "," value } ")"
               | field [ "not" ] "like" string        % is any text, _ any character
               | field "is" [ "not" ] "null"

A field is a name, in `backquotes` if it has spaces; `id` is the document's id. A value is a number,
a "string" or a 'string', true or false. A document without the field satisfies only `is null`, and
what `not` makes of the other comparisons.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from roformer_tf.errors import InputError

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |"(?P<double>[^"]*)"|'(?P<single>[^']*)'
    |`(?P<quoted>[^`"]+)`|(?P<name>[^\W\d][\w.-]*)
    |(?P<symbol><=|>=|!=|<>|==|[=<>(),]))""",
    re.VERBOSE,
)
_COMPARISONS = {symbol: symbol for symbol in ("=", "!=", "<", "<=", ">", ">=")}
_COMPARISONS |= {"==": "=", "<>": "!="}
_KEYWORDS = {"and", "or", "not", "in", "like", "is", "null", "true", "false"}
DEEPEST, MOST = 50, 200
"""Levels of parentheses and `not`, and comparisons: SQLite limits the depth of an expression."""


class Filter(NamedTuple):
    """A condition as SQL with placeholders, and the values of these."""

    sql: str
    parameters: tuple[str | float, ...]
    fields: frozenset[str]
    """Names of the fields that it mentions, `id` excepted."""


class _Token(NamedTuple):
    kind: str
    """"value", "field", or the keyword or symbol itself."""
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


class _Parser:
    """Recursive descent: one method per rule; each returns SQL and collects its parameters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0
        self._depth = self._comparisons = 0
        self._parameters: list[str | float] = []
        self._fields: set[str] = set()

    def parse(self) -> Filter:
        sql = self._condition()
        if self._next < len(self._tokens):
            raise self._error("expected `and`, `or` or the end")
        return Filter(sql, tuple(self._parameters), frozenset(self._fields))

    def _split(self, text: str) -> list[_Token]:
        tokens, position = [], 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise InputError(f"--where {text!r}: cannot read {text[position:].strip()!r}.")
            kind, start = match.lastgroup or "", match.start(match.lastgroup or 0)
            value = match[kind]
            position = match.end()
            if kind == "number":
                tokens.append(_Token("value", float(value), start))
            elif kind in ("double", "single"):
                tokens.append(_Token("value", value, start))
            elif kind == "name" and value.lower() in ("true", "false"):
                tokens.append(_Token("value", float(value.lower() == "true"), start))
            elif kind == "name" and value.lower() in _KEYWORDS:
                tokens.append(_Token(value.lower(), value, start))
            elif kind in ("name", "quoted"):
                tokens.append(_Token("field", value, start))
            else:
                tokens.append(_Token(value, value, start))
        return tokens

    def _condition(self) -> str:
        parts = [self._conjunction()]
        while self._accept("or"):
            parts.append(self._conjunction())
        return f"({' OR '.join(parts)})"

    def _conjunction(self) -> str:
        parts = [self._factor()]
        while self._accept("and"):
            parts.append(self._factor())
        return f"({' AND '.join(parts)})"

    def _factor(self) -> str:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InputError(f"--where is nested more than {DEEPEST} levels deep.")
        if self._accept("not"):
            sql = f"NOT {self._factor()}"
        elif self._accept("("):
            sql = self._condition()
            self._expect(")")
        else:
            sql = self._comparison()
        self._depth -= 1
        return sql

    def _comparison(self) -> str:
        field = str(self._expect("field").value)
        token = self._peek()
        if token is not None and token.kind in _COMPARISONS:
            self._next += 1
            return self._compare(field, _COMPARISONS[token.kind], self._expect("value").value)
        if self._accept("is"):
            operator = "IS NOT NULL" if self._accept("not") else "IS NULL"
            self._expect("null")
            return f"{self._column(field)} {operator}"
        negation = "NOT " if self._accept("not") else ""
        if self._accept("in"):
            self._expect("(")
            parts = [self._compare(field, "=", self._expect("value").value)]
            while self._accept(","):
                parts.append(self._compare(field, "=", self._expect("value").value))
            self._expect(")")
            return f"{negation}({' OR '.join(parts)})"
        if self._accept("like"):
            pattern = self._expect("value").value
            if not isinstance(pattern, str):
                raise self._error("`like` needs a pattern in quotes, such as '%2020%'", back=1)
            return negation + self._compare(field, "LIKE", pattern)
        raise self._error("expected a comparison, such as `= 2020`, `in (…)` or `is null`")

    def _compare(self, field: str, operator: str, value: str | float) -> str:
        """SQL that is 0 or 1, never NULL, so that `not` gives the rest.

        Numbers compare with numbers. A string compares with any value as it is written: '007' is
        stored as text, but '2020' as a number.
        """
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

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _accept(self, kind: str) -> bool:
        token = self._peek()
        if token is None or token.kind != kind:
            return False
        self._next += 1
        return True

    def _expect(self, kind: str) -> _Token:
        token = self._peek()
        if token is None or token.kind != kind:
            expected = {
                "field": "a field",
                "value": "a number or a text in quotes",
            }.get(kind, f"`{kind}`")
            raise self._error(f"expected {expected}")
        self._next += 1
        return token

    def _error(self, problem: str, back: int = 0) -> InputError:
        place = self._next - back
        at = (
            f"at {self._text[self._tokens[place].start :]!r}"
            if place < len(self._tokens)
            else "at the end"
        )
        return InputError(
            f"--where {self._text!r}: {problem} {at}. Example: year >= 2020 and lang = 'zh'"
        )
