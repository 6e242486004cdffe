"""The files of a tokenizer, read from a source: its vocabulary and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.archives import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY
from roformer_tf.checkpoints.hub import HubModel
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.files import json_object
from roformer_tf.tokenizers.huggingface import SEGMENTS
from roformer_tf.tokenizers.vocabulary import check_special_tokens, parse_vocabulary


@contextmanager
def open_vocabulary(source: str | Path) -> Iterator[OpenedSource]:
    """Open a source, or a vocabulary file with any name, to read its vocabulary.

    Raises InputError if it does not exist.
    """
    try:
        if not (registry.is_name(source) or HubModel.parse(source)):
            Path(source).stat()
    except OSError as error:
        raise _unreadable(Path(source), error) from None
    with OpenedSource(source) as opened:
        yield opened


def read_vocabulary(source: str | Path) -> dict[str, int]:
    """Token → id, from a vocabulary file, a folder or zip with one, or a released name.

    transformers 5 saves no `vocab.txt`: there the vocabulary is in `tokenizer.json`.

    Raises InputError if there is no such file, or if it is no vocabulary.
    """
    with open_vocabulary(source) as opened:
        return vocabulary_of(opened)


def vocabulary_of(source: OpenedSource) -> dict[str, int]:
    """Read the vocabulary of a source that is open already, as `read_vocabulary` does."""
    path = source.path / VOCABULARY if source.path.is_dir() else source.path
    try:
        content = path.read_bytes() if _is_vocabulary(source) else source.read(VOCABULARY)
        vocabulary = _wordpieces(source) if content is None else parse_vocabulary(content.decode())
        if vocabulary is None:
            raise InputError(
                f"{source.path} contains no {VOCABULARY}. Give a folder or zip with one."
            )
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text at byte {error.start}. Give a vocab.txt, one token a line."
        ) from None
    check_special_tokens(vocabulary, str(path))
    return vocabulary


def has_vocabulary(source: OpenedSource) -> bool:
    """Whether a folder or zip has a `vocab.txt`, or a `tokenizer.json` with a vocabulary."""
    return source.read(VOCABULARY) is not None or _wordpieces(source) is not None


def tokenizer_settings(source: OpenedSource) -> dict[str, Any]:
    """Content of the `tokenizer_config.json` in a folder or zip; empty if there is none."""
    return {} if _is_vocabulary(source) else _json_object(source, TOKENIZER_CONFIG)


def gives_segments(source: OpenedSource) -> bool:
    """Whether transformers gives a model in this folder `token_type_ids`.

    Since its version 5, which writes the key `backend`, only if the tokenizer's settings name them.
    """
    settings = tokenizer_settings(source)
    usual = () if "backend" in settings else (SEGMENTS,)
    return SEGMENTS in settings.get("model_input_names", usual)


def _wordpieces(source: OpenedSource) -> dict[str, int] | None:
    """Token → id of a `tokenizer.json`; None without one, and for other models than WordPiece."""
    model = None if _is_vocabulary(source) else _json_object(source, TOKENIZER).get("model")
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        return None
    return dict(model.get("vocab", {}))


def _json_object(source: OpenedSource, name: str) -> dict[str, Any]:
    """Content of a JSON file in a folder or zip; empty if there is none."""
    content = source.read(name)
    file = f"{source.path}: {name}"
    return {} if content is None else json_object(content, file, "Fix or remove it.")


def _is_vocabulary(source: OpenedSource) -> bool:
    """Whether the path is a vocabulary file itself: a file that is no zip."""
    return source.path.is_file() and not source.is_zip


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot read the vocabulary {path}: {error.strerror}. "
        "Give a vocab.txt, a folder or released zip that contains one, or a released name."
    )
