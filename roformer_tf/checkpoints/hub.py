"""Models of two hubs as sources, each with an optional `@revision`.

owner/name               Hugging Face
modelscope:owner/name    ModelScope

CACHE/hub/OWNER/NAME.json          revision → commit, written when all files of the commit are there
CACHE/hub/OWNER/COMMIT/NAME/       its files; those of ModelScope are in CACHE/modelscope

A model is downloaded once; later uses need no network. `checkpoints download` asks the hub again.
As in huggingface_hub, HF_ENDPOINT is the URL of a mirror, and HF_TOKEN the token of an account; as
in ModelScope's package, MODELSCOPE_ENDPOINT is its URL. Its private models are not supported.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.archives import BERT_CONFIG, CONFIG, PICKLE, SHARDS, WEIGHTS
from roformer_tf.errors import InputError
from roformer_tf.files import hash_file, parse_json, write_json

_MODELSCOPE = "modelscope:"
_BRANCHES = {"": "main", _MODELSCOPE: "master"}  # of a source without a revision, by its prefix
_SOURCE = re.compile(rf"({_MODELSCOPE})?(\w[\w.-]*)/(\w[\w.-]*)(?:@([\w.-][\w./-]*))?", re.ASCII)
_FILE = re.compile(r"(1_Pooling/)?\w[\w.-]*", re.ASCII)  # not ".."
# Configs, vocabularies and other files that are read besides the weights.
_SMALL = (".json", ".txt", ".npz", "README.md")
# Names of files, not of models: a wrong path is not looked up.
_PATHS = (".zip", ".txt", ".safetensors")


class HubModel(NamedTuple):
    """A model of a hub, at a revision: a branch, a tag or a commit."""

    source: str
    """What a user types."""
    owner: str
    name: str
    revision: str
    is_modelscope: bool

    @classmethod
    def parse(cls, source: str | Path) -> "HubModel | None":
        """The model that a source names; None for a path that exists, and for any other text."""
        text = source.as_posix() if isinstance(source, Path) else source
        match = _SOURCE.fullmatch(text)
        if match is None or text.endswith(_PATHS) or os.path.exists(source):  # noqa: PTH110
            return None
        prefix, owner, name, revision = match.groups(default="")
        return cls(text, owner, name, revision or _BRANCHES[prefix], prefix == _MODELSCOPE)

    @property
    def id(self) -> str:
        """Its name at the hub."""
        return f"{self.owner}/{self.name}"

    @property
    def endpoint(self) -> str:
        """The URL of its hub."""
        if self.is_modelscope:
            url = os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn"
        else:
            url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        return url.rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """Of each request: the account that may read the model."""
        token = None if self.is_modelscope else os.environ.get("HF_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def advice(self) -> str:
        """What a user can do if the hub does not give the model."""
        if self.is_modelscope:
            return "MODELSCOPE_ENDPOINT can name another address of ModelScope."
        return (
            "HF_ENDPOINT can name a mirror, such as https://hf-mirror.com, and HF_TOKEN the token "
            "of an account that may read the model."
        )

    @property
    def commits(self) -> Path:
        """The file with the commits of its downloaded revisions."""
        folder = registry.folder() / ("modelscope" if self.is_modelscope else "hub")
        return folder / self.owner / f"{self.name}.json"

    def folder(self, commit: str) -> Path:
        """The folder of a commit. It has the model's name, which says if it is a GPT."""
        return self.commits.parent / commit / self.name


class HubFile(NamedTuple):
    """A file of a model, with what the hub lists of it."""

    url: str
    size: int | None
    sha256: str | None
    git: str | None = None
    """Git's own checksum, which Hugging Face lists for small files in place of SHA-256."""


def locate(source: str | Path) -> Path:
    """The path of a source, as `registry.locate`; a model of a hub is downloaded if necessary."""
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
    commit, files = _listing(model)
    folder = model.folder(commit)
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_right(path, file):
            continue
        try:
            registry.fetch(file.url, path, model.headers)
        except registry.TransferError as error:
            raise InputError(
                f"cannot download {model.id}: {error}. Try again to continue, or give a folder "
                f"with its files. {model.advice}"
            ) from None
        # None would mean that the hub lists nothing to compare with.
        if _is_right(path, file) is False:
            registry.discard(path)
            raise InputError(f"{file.url} is not the file that the hub lists. Try again.")
        registry.finish(path)
    # Last: without it, the files of a download that was stopped are not used.
    commits = _commits(model) | {model.revision: commit}
    write_json(model.commits, commits)
    return folder


def _listing(model: HubModel) -> tuple[str, dict[str, HubFile]]:
    """The commit of a revision, and the files to download."""
    import requests

    revision = quote(model.revision, safe="")
    if model.is_modelscope:
        read = _modelscope_files
        query = f"Revision={revision}&Recursive=True"
        url = f"{model.endpoint}/api/v1/models/{model.id}/repo/files?{query}"
    else:
        read = _huggingface_files
        url = f"{model.endpoint}/api/models/{model.id}/revision/{revision}?blobs=true"
    try:
        response = requests.get(url, headers=model.headers, timeout=(10, registry.TIMEOUT))
        response.raise_for_status()
        commit, files = read(model, response.json())
        # The commit becomes the name of a folder in the cache.
        if not _FILE.fullmatch(commit):
            raise ValueError(commit)
    except (requests.HTTPError, requests.ConnectionError, requests.Timeout) as error:
        why = "Nor can it be found at the hub"
        # The hub does not distinguish a model that does not exist from one that is private.
        if error.response is not None and error.response.status_code in (401, 403, 404):
            why = "The hub has no such model, or none that is public"
        raise InputError(
            f"{registry.unknown(model.source)} {why}: {registry.reason(url, error)}. {model.advice}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{url} does not describe a model. {model.advice}") from None
    chosen = set(_wanted(set(files)))
    if not any(name.endswith((PICKLE, ".safetensors", ".index")) for name in chosen):
        raise InputError(
            f"{model.source} has no checkpoint: neither {CONFIG} with {WEIGHTS}, nor "
            f"{BERT_CONFIG}. It has {', '.join(sorted(files)) or 'no files'}. Give another model."
        )
    return commit, {name: files[name] for name in sorted(chosen)}


def _huggingface_files(model: HubModel, listing: Any) -> tuple[str, dict[str, HubFile]]:
    commit, start = listing["sha"], f"{model.endpoint}/{model.id}/resolve/{listing['sha']}/"
    return commit, {
        x["rfilename"]: HubFile(
            start + quote(x["rfilename"]),
            x.get("size"),
            (x.get("lfs") or {}).get("sha256"),
            x.get("blobId"),
        )
        for x in listing["siblings"]
    }


def _modelscope_files(model: HubModel, listing: Any) -> tuple[str, dict[str, HubFile]]:
    """The listing has no commit: a digest of the files' checksums takes its place."""
    start = f"{model.endpoint}/api/v1/models/{model.id}/repo?Revision={quote(model.revision)}"
    files = {
        x["Path"]: HubFile(f"{start}&FilePath={quote(x['Path'])}", x.get("Size"), x.get("Sha256"))
        for x in listing["Data"]["Files"]
        if x.get("Type") != "tree"
    }
    # Sorted, so that the digest does not depend on the order of the listing.
    contents = "\n".join(f"{name} {files[name].sha256}" for name in sorted(files))
    return hashlib.sha1(contents.encode(), usedforsecurity=False).hexdigest(), files


def _wanted(names: set[str]) -> Iterator[str]:
    """The files that are read: one form of the weights, and small files; in folders the pooling."""
    names = set(filter(_FILE.fullmatch, names))
    if BERT_CONFIG in names and any(name.endswith(".index") for name in names):
        weights = r".+\.(index|data-\d+-of-\d+)"
    elif CONFIG not in names:
        return
    elif WEIGHTS in names:
        weights = re.escape(WEIGHTS)
    else:
        weights = r"model-\d+-of-\d+\.safetensors" if SHARDS in names else re.escape(PICKLE)
    for name in names:
        if re.fullmatch(weights, name) or name.endswith(_SMALL):
            yield name


def _is_right(path: Path, file: HubFile) -> bool | None:
    """Whether a file has the size and checksum that the hub lists; None if it lists no checksum."""
    if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
        return False
    if file.sha256:
        digest = hashlib.sha256()
    elif file.git:
        start = b"blob %d\0" % path.stat().st_size
        digest = hashlib.sha1(start, usedforsecurity=False)
    else:
        return None
    return hash_file(path, digest) == (file.sha256 or file.git)
