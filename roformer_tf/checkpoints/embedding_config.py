"""embedding.json: how a model's folder gives sentence vectors. No Keras here."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, write_text

FILE = "embedding.json"

Pooling = Literal["pooler", "mean", "cls"]
"""A vector is the linear pooler's output, the mean of all tokens, or the first token."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """What was settled when the model learned to give vectors."""

    pooling: Pooling
    max_length: int
    """Most tokens of a text, [CLS] and [SEP] included; the rest is cut."""
    dimensions: tuple[int, ...] | None = None
    """Lengths that vectors may be cut to, rising; none where they were not trained for it."""

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            object.__setattr__(self, "dimensions", tuple(sorted(self.dimensions)))
        if self.pooling not in get_args(Pooling):
            raise InputError(
                f"pooling is {self.pooling!r}, but must be one of {', '.join(get_args(Pooling))}."
            )
        if not _is_count(self.max_length) or self.max_length < 3:
            raise InputError(f"max_length is {self.max_length!r}, but must be at least 3.")
        if self.dimensions is not None and not (
            self.dimensions and all(map(_is_count, self.dimensions))
        ):
            raise InputError(
                f"dimensions are {list(self.dimensions)}, but must be numbers of at least 1."
            )

    def as_json(self) -> str:
        """Content of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def save(self, folder: str | Path) -> None:
        """Write embedding.json into a model's folder."""
        write_text(Path(folder) / FILE, self.as_json())


def load(folder: str | Path) -> EmbeddingConfig | None:
    """Read a model's folder; None where it has no embedding.json. Raises InputError for a bad one.

    What more stands in the file, as a later version may write it, is left aside.
    """
    path = Path(folder) / FILE
    return parse(path.read_bytes(), str(path)) if path.is_file() else None


def parse(content: bytes, name: str) -> EmbeddingConfig:
    """Read the content of an embedding.json. Raises InputError, with its name, for a bad one."""
    try:
        values: Any = parse_json(content)
    except ValueError:
        values = None
    if not isinstance(values, Mapping) or not {"pooling", "max_length"} <= values.keys():
        raise InputError(f"{name} is damaged: put back the file that the model came with.")
    dimensions = values.get("dimensions")
    given = dimensions if isinstance(dimensions, list) else [dimensions]
    try:
        cuts = None if dimensions is None else tuple(given)
        return EmbeddingConfig(values["pooling"], values["max_length"], cuts)
    except (InputError, TypeError) as error:
        raise InputError(f"{name}: {error} Put back the file that the model came with.") from None


def _is_count(value: Any) -> bool:
    """Whether it is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
