"""Servers with the URLs of the Hugging Face hub and of ModelScope."""

import hashlib
import json
from urllib.parse import unquote, urlsplit

from tests.support.download_server import Server

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class HubServer(Server):
    """Serve files by model and revision: {"owner/name": {"main": {"config.json": b"…"}}}.

    `Server` removes the /mirror/ of its `url` from the paths of requests.
    """

    def __init__(self, models, *, checksums=True):
        files = {}
        for model, revisions in models.items():
            for revision, contents in revisions.items():
                commit = COMMITS[revision]
                listing = {
                    "sha": commit,
                    "siblings": [entry(*item, checksums) for item in contents.items()],
                }
                for name in (revision, commit):
                    files[f"api/models/{model}/revision/{name}"] = json.dumps(listing).encode()
                for name, content in contents.items():
                    files[f"{model}/resolve/{commit}/{name}"] = content
        super().__init__(files)

    def downloads(self):
        """The names of the requested files, without listings."""
        names = [unquote(urlsplit(path).path) for path, _ in self.requests]
        return [name.rpartition("/")[2] for name in names if "/resolve/" in name]


def entry(name, content, checksums):
    """An entry of a listing: SHA-256 for large files, git's checksum for the rest."""
    if not checksums:
        return {"rfilename": name}
    git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    values = {"rfilename": name, "size": len(content), "blobId": git}
    if name.endswith((".safetensors", ".bin")):
        values["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return values


class ModelScopeServer(Server):
    """Like `HubServer`, but listings have no commit.

    Without `Recursive=True` a listing has folders instead of the files in them.
    """

    def __init__(self, models):
        files = {}
        for model, revisions in models.items():
            start = f"api/v1/models/{model}/repo"
            for revision, contents in revisions.items():
                entries = [
                    {
                        "Path": name,
                        "Type": "blob",
                        "Size": len(content),
                        "Sha256": hashlib.sha256(content).hexdigest(),
                    }
                    for name, content in contents.items()
                ]
                folders = {name.split("/")[0] for name in contents if "/" in name}
                trees = [{"Path": name, "Type": "tree"} for name in sorted(folders)]
                at_top = [entry for entry in entries if "/" not in entry["Path"]]
                for option, listed in (("", at_top), ("&Recursive=True", entries)):
                    listing = {"Code": 200, "Data": {"Files": [*trees, *listed]}}
                    url = f"{start}/files?Revision={revision}{option}"
                    files[url] = json.dumps(listing).encode()
                for name, content in contents.items():
                    files[f"{start}?Revision={revision}&FilePath={name}"] = content
        super().__init__(files)

    def downloads(self):
        """The names of the requested files, without listings."""
        names = [path.partition("&FilePath=")[2] for path, _ in self.requests]
        return [name for name in names if name]
