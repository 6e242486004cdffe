"""One file over HTTP: what has come is kept, and a broken download goes on from there.

pooch, which is here for the cache's place and the checksums, begins every download anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import requests

from roformer_tf.files import parse_json, remove, write_text
from roformer_tf.terminal import Progress

TIMEOUT = 60
"""Seconds without an answer, or without a further byte, after which a connection is given up."""
CHUNK = 1 << 14
"""Bytes written at a time: at most so many are lost when a connection breaks."""


class TransferError(Exception):
    """A failed download; the message is the reason, as a part of a sentence."""


def fetch(url: str, part: Path) -> None:
    """Download a URL into `part`, which may hold its beginning; stderr shows a bar.

    It goes on from that beginning if the server says that its file is still the same one, and
    starts afresh otherwise. A connection that breaks is taken up again as long as each brings
    something. Raises TransferError when that ends; `part` keeps what has come.
    """
    while True:
        before = kept(part)
        try:
            return _fetch_rest(url, part)
        except requests.RequestException as error:
            if kept(part) <= before:
                raise TransferError(_reason(url, error)) from None


def kept(part: Path) -> int:
    """Bytes that have come."""
    return part.stat().st_size if part.exists() else 0


def discard(part: Path) -> None:
    """Remove what has come: the next download starts afresh."""
    remove(part)
    remove(_note(part))


def _fetch_rest(url: str, part: Path) -> None:
    headers = {"Accept-Encoding": "identity"}  # the file's own bytes, which can be counted
    if version := _version_of(part, url):
        headers |= {"Range": f"bytes={kept(part)}-", "If-Range": version}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # nothing follows what is here
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:  # from the first byte
            discard(part)
            note = {"url": url, "version": _version(response.headers)}
            write_text(_note(part), json.dumps(note))
        _append(response, part)


def _append(response: requests.Response, part: Path) -> None:
    """Append the body to the partial file, chunk by chunk."""
    here, length = kept(part), response.headers.get("Content-Length")
    with (
        part.open("ab") as file,
        Progress(
            desc=part.stem,
            initial=here,
            total=here + int(length) if length else None,
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


def _version(headers: Mapping[str, str]) -> str | None:
    """The validator of the server's version of the file; None if there is no reliable one."""
    tag = headers.get("ETag", "W/")
    return headers.get("Last-Modified") if tag.startswith("W/") else tag


def _version_of(part: Path, url: str) -> str | None:
    """The version that `part` is a beginning of; None where it is no beginning of this URL's."""
    try:
        note = parse_json(_note(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note["version"] if kept(part) and note["url"] == url else None


def _note(part: Path) -> Path:
    """The small file that records which version `part` is the beginning of."""
    return part.with_name(part.name + ".json")


def _reason(url: str, error: requests.RequestException) -> str:
    if error.response is not None:
        return f"the answer to {url} is {error.response.status_code} {error.response.reason}"
    host = urlsplit(url).netloc or url
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"{host} broke the connection off"
    if isinstance(error, requests.Timeout):
        return f"{host} has been silent for {TIMEOUT} seconds"
    return f"the connection to {host} failed ({type(error).__name__})"
