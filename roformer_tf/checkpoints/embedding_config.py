"""embedding.json: how the model in a folder computes sentence vectors. No Keras here."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from roformer_tf.errors import InputError, check_choice, check_type_and_number
from roformer_tf.files import json_object, json_text, write_text

FILE = "embedding.json"
_PUT_BACK = "Put back the file that the model came with."

Pooling = Literal["pooler", "mean", "cls"]
"""The output of the linear pooler, the mean of all tokens, or the first token."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """How sentence vectors were computed in training."""

    pooling: Pooling
    max_length: int
    """Maximum tokens of a text, including [CLS] and [SEP]; the rest is cut."""
    dimensions: tuple[int, ...] | None = None
    """Lengths to which vectors can be cut, in rising order. None: not trained for that."""
    fingerprint: str | None = None
    """Of an export: `TextEmbedder.fingerprint` of the model that it was made from."""

    def __post_init__(self) -> None:
        # The class is frozen, hence object.__setattr__.
        if self.dimensions is not None:
            object.__setattr__(self, "dimensions", tuple(sorted(self.dimensions)))
        check_choice("pooling", self.pooling, get_args(Pooling))
        # The file can have been edited by hand, so that types are checked, too.
        check_type_and_number("max_length", self.max_length, whole=True, at_least=3)
        if self.dimensions == ():
            raise InputError("dimensions are none, but must be one or more.")
        for length in self.dimensions or ():
            check_type_and_number("one of the dimensions", length, whole=True, at_least=1)

    def as_json(self) -> str:
        """Content of the file."""
        values = asdict(self)
        return json_text({k: x for k, x in values.items() if k != "fingerprint" or x is not None})

    def save(self, folder: str | Path) -> None:
        """Write embedding.json into a model's folder."""
        write_text(Path(folder) / FILE, self.as_json())


def parse(content: bytes, name: str) -> EmbeddingConfig:
    """Read the content of an embedding.json. Raises InputError, with its name, if it is damaged."""
    values = json_object(content, name, _PUT_BACK)
    # A required key that is missing is refused as None.
    settings: dict[str, Any] = {x.name: values.get(x.name) for x in fields(EmbeddingConfig)}
    try:
        return EmbeddingConfig(**settings)
    except (InputError, TypeError) as error:
        raise InputError(f"{name}: {error} {_PUT_BACK}") from None
