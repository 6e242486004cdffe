"""Models of the Hugging Face hub as sources: `owner/name`, or `owner/name@revision`.

CACHE/hub/OWNER/NAME.json          revision → commit, written when all files of the commit are there
CACHE/hub/OWNER/COMMIT/NAME/       its files

A model is downloaded once; later uses need no network. `checkpoints download` asks the hub again.
As in huggingface_hub, HF_ENDPOINT is the URL of a mirror, and HF_TOKEN the token of an account.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.archives import BERT_CONFIG, CONFIG, PICKLE, SHARDS, WEIGHTS
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, write_json

_SOURCE = re.compile(r"(\w[\w.-]*)/(\w[\w.-]*)(?:@([\w.-][\w./-]*))?", re.ASCII)
_FILE = re.compile(r"[\w.-]+", re.ASCII)
# Configs, vocabularies and other files that are read besides the weights.
_SMALL = (".json", ".txt", ".npz", "README.md")
# Names of files, not of models: a wrong path is not looked up.
_PATHS = (".zip", ".txt", ".safetensors")


class HubModel(NamedTuple):
    """A model of the hub, at a revision: a branch, a tag or a commit."""

    owner: str
    name: str
    revision: str = "main"

    @classmethod
    def parse(cls, source: str | Path) -> "HubModel | None":
        """The model that a source names; None for a path that exists, and for any other text."""
        text = source.as_posix() if isinstance(source, Path) else source
        match = _SOURCE.fullmatch(text)
        if match is None or text.endswith(_PATHS) or os.path.exists(source):  # noqa: PTH110
            return None
        return cls(*(part for part in match.groups() if part))

    @property
    def id(self) -> str:
        """Its name at the hub."""
        return f"{self.owner}/{self.name}"

    @property
    def commits(self) -> Path:
        """The file with the commits of its downloaded revisions."""
        return registry.folder() / "hub" / self.owner / f"{self.name}.json"

    def folder(self, commit: str) -> Path:
        """The folder of a commit. It has the model's name, which says if it is a GPT."""
        return self.commits.parent / commit / self.name


def locate(source: str | Path) -> Path:
    """The path of a source, as `registry.locate`; a model of the hub is downloaded if necessary."""
    if not isinstance(source, str | Path):
        raise InputError(f"{source!r} is no model. Give a path or a name as a str, or a Path.")
    if (model := HubModel.parse(source)) is None:
        return registry.locate(source)
    return _cached(model) or download(model, again=False)


def download(model: HubModel, *, again: bool = True) -> Path:
    """Download a model into the cache, unless it is there and not wanted `again`; → its folder.

    Files that are there already are only checked. Raises InputError for a failed download, a model
    that does not exist, is not public or has no weights, and a cache that cannot be written.
    """
    file = str(model.commits.relative_to(registry.folder()))
    with registry.reserved(file, model.id):
        return (None if again else _cached(model)) or _download(model)


def _cached(model: HubModel) -> Path | None:
    commit = _commits(model).get(model.revision)
    folder = model.folder(str(commit))
    return folder if commit and folder.is_dir() else None


def _commits(model: HubModel) -> dict[str, str]:
    try:
        return dict(parse_json(model.commits.read_bytes()))
    except (OSError, ValueError, TypeError):  # not downloaded, or damaged: it is written again
        return {}


def _download(model: HubModel) -> Path:
    from roformer_tf.checkpoints import transfer

    commit, files = _listing(model)
    folder = model.folder(commit)
    folder.mkdir(parents=True, exist_ok=True)
    for name, properties in files.items():
        url, path = f"{_endpoint()}/{model.id}/resolve/{commit}/{quote(name)}", folder / name
        if _is_right(path, properties):
            continue
        try:
            transfer.fetch(url, path, _account())
        except transfer.TransferError as error:
            raise InputError(
                f"cannot download {model.id}: {error}. Try again to continue, or give a folder "
                f"with its files. {_ADVICE}"
            ) from None
        if _is_right(path, properties) is False:
            transfer.discard(path)
            raise InputError(f"{url} is not the file that the hub lists. Try again.")
        transfer.finish(path)
    # Last: without it, the files of a download that was stopped are not used.
    commits = _commits(model) | {model.revision: commit}
    write_json(model.commits, commits)
    return folder


_ADVICE = (
    "HF_ENDPOINT can name a mirror, such as https://hf-mirror.com, and HF_TOKEN the token of an "
    "account that may read the model."
)


def _listing(model: HubModel) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """The commit of a revision, and the files to download with what the hub knows of each."""
    import requests

    from roformer_tf.checkpoints import transfer

    source = model.id if model.revision == "main" else f"{model.id}@{model.revision}"
    url = f"{_endpoint()}/api/models/{model.id}/revision/{quote(model.revision, safe='')}"
    try:
        response = requests.get(
            url, {"blobs": "true"}, headers=_account(), timeout=(10, transfer.TIMEOUT)
        )
        response.raise_for_status()
        values = response.json()
        commit, entries = values["sha"], {x["rfilename"]: x for x in values["siblings"]}
        if not _FILE.fullmatch(commit):
            raise ValueError(commit)
    except (requests.HTTPError, requests.ConnectionError, requests.Timeout) as error:
        # The hub does not distinguish a model that does not exist from one that is private.
        is_refused = error.response is not None and error.response.status_code in (401, 403, 404)
        why = (
            "The hub has no such model, or none that is public"
            if is_refused
            else "Nor can it be found at the hub"
        )
        raise InputError(
            f"{registry.unknown(source)} {why}: {transfer.reason(url, error)}. {_ADVICE}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{url} does not describe a model. {_ADVICE}") from None
    chosen = set(_wanted(set(entries)))
    if not any(name.endswith((PICKLE, ".safetensors", ".index")) for name in chosen):
        raise InputError(
            f"{source} has no checkpoint: neither {CONFIG} with {WEIGHTS}, nor {BERT_CONFIG}. "
            f"It has {', '.join(sorted(entries)) or 'no files'}. Give another model."
        )
    return commit, {name: entries[name] for name in sorted(chosen)}


def _wanted(names: set[str]) -> Iterator[str]:
    """The files that are read: one form of the weights, and small files; none in folders."""
    if BERT_CONFIG in names:
        weights = r".+\.(index|data-\d+-of-\d+)"
    elif CONFIG not in names:
        return
    elif WEIGHTS in names:
        weights = re.escape(WEIGHTS)
    else:
        weights = r"model-\d+-of-\d+\.safetensors" if SHARDS in names else re.escape(PICKLE)
    for name in filter(_FILE.fullmatch, names):
        if re.fullmatch(weights, name) or name.endswith(_SMALL):
            yield name


def _is_right(path: Path, properties: Mapping[str, Any]) -> bool | None:
    """Whether a file is there, with the size and checksum that the hub lists; None if it has none.

    The checksum is SHA-256, or for small files git's own.
    """
    size, git = properties.get("size"), properties.get("blobId")
    checksum = (properties.get("lfs") or {}).get("sha256") or git
    if not path.is_file() or (size is not None and path.stat().st_size != size):
        return False
    if checksum is None:
        return None
    start = b"blob %d\0" % path.stat().st_size if checksum == git else b""
    digest = hashlib.new("sha1" if checksum == git else "sha256", start, usedforsecurity=False)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest() == checksum


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _account() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}
