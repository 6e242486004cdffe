"""`--where`: conditions on metadata, such as `year >= 2020 and lang in ("zh", "en")`.

A condition is comparisons with `and`, `or`, `not` and parentheses, which bind as in SQL:

    field ( = | != | < | <= | > | >= ) value
    field [ not ] in ( value, … )
    field [ not ] like string          % is any text, _ any character
    field is [ not ] null

A field is a name, in `backquotes` if it has spaces; `id` is the document's id. A value is a number,
a "string" or a 'string', true or false, which may be in quotes. A document without the field
satisfies only `is null`, and `not` of any other comparison.
"""

import re
from collections.abc import Collection
from contextlib import closing

from roformer_tf.errors import InputError
from roformer_tf.search.database import sqlite3

_STRING = r"""(?:"[^"]*"|'[^']*')"""
# After a number no letter may follow: 12ab is neither a number nor a text.
_VALUE = rf"(?:{_STRING}|[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?!\w)|(?:true|false)\b)"
# A comparison, or what joins comparisons.
_PART = re.compile(
    rf"""\s*(?:
    (?P<joint>[()]|(?:and|or|not)\b)
    |(?P<field>`[^`"]+`|[^\W\d][\w.-]*(?![\w.-]))\s*(?:
        (?P<operator><=|>=|!=|<>|==|[=<>])\s*(?P<value>{_VALUE})
        |is\s+(?P<null>(?:not\s+)?null)\b
        |(?P<not>not\s+)?(?:
            like\s*(?P<pattern>{_STRING})
            |in\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)
        )
    ))""",
    re.VERBOSE | re.IGNORECASE,
)
_EXAMPLE = "Example: year >= 2020 and lang = 'zh'"


def parse_filter(text: str, known: Collection[str] | None = None) -> tuple[str, list[str | float]]:
    """Parse a condition: its SQL with placeholders, and the values of these.

    Raises InputError for a wrong one, and for fields that are not `known`.
    """
    sql, parameters, fields, end = list[str](), list[str | float](), set[str](), 0
    while text[end:].strip():
        part = _PART.match(text, end)
        if part is None:
            raise InputError(f"where is {text!r}: cannot read {text[end:].strip()!r}. {_EXAMPLE}")
        end = part.end()
        # Parentheses, `and`, `or` and `not` are SQL as they are.
        sql.append(part["joint"] or _comparison(part, parameters, fields))
    condition = " ".join(sql)
    # SQLite checks how comparisons are joined, and how deep they are nested.
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE documents (id, metadata)")
        try:
            database.execute(f"SELECT 1 FROM documents WHERE {condition}", parameters)
        except sqlite3.Error as error:
            raise InputError(f"where is {text!r}, no condition: {error}. {_EXAMPLE}") from None
    if known is not None and (unknown := sorted(fields.difference(known))):
        names = ", ".join(["id", *sorted(known)])
        raise InputError(
            f"where is {text!r}: no document has the field {unknown[0]!r}. The index has: {names}."
        )
    return condition, parameters


def _comparison(part: re.Match[str], parameters: list[str | float], fields: set[str]) -> str:
    """A comparison as SQL that is 0 or 1: the negation of NULL would be NULL.

    No text of a condition becomes SQL: fields and values are added to the parameters. Numbers
    compare with numbers, and with texts of numbers, such as '19.90'; '007' is none. A string
    compares with any value as it is written. True and false are so in quotes, too, as JSON's and
    as the TRUE of a table: a condition finds the same documents in a file of any kind.
    """
    field = part["field"].strip("`")

    def column() -> str:
        if field == "id":
            return "id"
        fields.add(field)
        # A path of SQLite's JSON; _PART accepts no field with a double quote.
        parameters.extend([f'$."{field}"'] * 2)
        # json_extract reads true and false as 1 and 0, which are other values.
        return (
            "CASE json_type(metadata, ?) WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' "
            "ELSE json_extract(metadata, ?) END"
        )

    def compare(sign: str, word: str) -> str:
        text = word[1:-1] if word[0] in "'\"" else word
        if text.lower() in ("true", "false") and field != "id":
            # Spreadsheets and CSV have them as text, in capitals.
            sql = f"ifnull(lower({column()}) {sign} ?, 0)"
            parameters.append(text.lower())
        # Ids are text, such as "8", which is equal as it is written, but less than 10 as a number.
        elif text != word or (field == "id" and sign not in ("<", "<=", ">", ">=")):
            sql = f"ifnull(CAST({column()} AS TEXT) {sign} ?, 0)"
            parameters.append(text)
        else:
            # Each call of `column` appends the same path to the parameters; the value comes last.
            # The text of a number is valid JSON: the price 19.90 of a CSV, but not the code 007.
            number = f"json_type({column()}) IN ('integer', 'real') AND {column()} + 0 {sign} ?"
            sql = f"CASE WHEN json_valid({column()}) THEN {number} ELSE 0 END"
            # SQLite's integers have 64 bits.
            exact = word.lstrip("+-").isdecimal() and abs(float(word)) < 2**63
            parameters.append(int(word) if exact else float(word))
        return sql

    if part["null"]:
        return f"({column()} IS {part['null']})"
    if part["operator"]:
        return compare(part["operator"], part["value"])
    if part["pattern"]:
        sql = compare("LIKE", part["pattern"])
    else:
        sql = " OR ".join(compare("=", word) for word in re.findall(_VALUE, part["values"]))
    return f"{part['not'] or ''}({sql})"
