"""The files of a run's folder: what they are called, and how they are read.

No Keras here: `runs` answers at once, also beside runs that are still training.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json

SETTINGS, CHECKPOINTS, MODEL, BEST = "settings.yaml", "checkpoints", "model", "best"
METRICS_FILE, EVALUATIONS_FILE = "metrics.jsonl", "evaluations.jsonl"
REPORT, RESULT, TRIALS = "report.json", "result.json", "trials"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl and the like, each with a `step`; a last one that a kill cut is none.

    No lines without the file. Raises InputError for any other line that cannot be read.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last \n is cut
    return [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def read_keys(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Keys and values of a JSON or YAML file, none without one. InputError for a damaged one."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    line, problem = 1, "there are no keys with values"
    try:
        values = parse(content.decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line, problem, values = _damaged_line(error, content), "this is damaged", None
    if not isinstance(values, dict):
        raise InputError(f"{path}, line {line}: {problem}. Mend the file, or leave the run out.")
    return {str(key): value for key, value in values.items()}


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that a run was begun with; none in a new folder."""
    path = folder / SETTINGS
    return (path.exists() and yaml.safe_load(path.read_text(encoding="utf-8"))) or {}


def _read_line(text: bytes, place: str) -> dict[str, Any]:
    try:
        line = parse_json(text)
    except ValueError:
        line = None
    if not (isinstance(line, dict) and isinstance(line.get("step"), int)):
        raise InputError(
            f"{place}: this is no line of metrics: {text[:40].decode('utf-8', 'replace')!r}. "
            "Remove the line, or leave the run out."
        )
    return line


def _damaged_line(error: Exception, content: bytes) -> int:
    """The line, counted from 1, at which a reader of YAML, JSON or UTF-8 stopped."""
    if isinstance(error, UnicodeDecodeError):
        return content.count(b"\n", 0, error.start) + 1
    if isinstance(error, json.JSONDecodeError):
        return error.lineno
    if isinstance(error, yaml.reader.ReaderError):  # a control character
        return content.decode("utf-8").count("\n", 0, error.position) + 1
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else 1
