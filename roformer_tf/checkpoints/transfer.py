"""Download of a file over HTTP that resumes after a broken connection.

pooch and `urllib` would always start again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import requests

from roformer_tf.files import parse_json, remove, write_text
from roformer_tf.terminal import Progress

TIMEOUT = 60
"""Seconds without a response, or without a further byte, after which a connection is closed."""
CHUNK = 1 << 14
"""Bytes written at a time: the maximum that is lost when a connection breaks."""


class TransferError(Exception):
    """A failed download; the message is the reason, as a part of a sentence."""


def fetch(url: str, part: Path, headers: Mapping[str, str] | None = None) -> None:
    """Download a URL into `part`, with a progress bar on stderr; `headers`: of the request.

    `part` can contain the beginning of the file. The download resumes from there if the server
    confirms that its file has not changed, and starts again otherwise. A broken connection is
    repeated as long as each one brings some bytes. Then TransferError is raised, and `part` stays.
    """
    while True:
        before = size(part)
        try:
            return _fetch_rest(url, part, headers or {})
        except requests.RequestException as error:
            # Progress resets the patience: on a bad line, a large file needs many connections.
            if size(part) <= before:
                raise TransferError(reason(url, error)) from None


def size(part: Path) -> int:
    """Bytes that were received so far."""
    return part.stat().st_size if part.exists() else 0


def discard(part: Path) -> None:
    """Remove a partial download: the next one starts again."""
    remove(part)
    finish(part)


def finish(part: Path) -> None:
    """Forget that a file was a partial download."""
    remove(_note(part))


def _fetch_rest(url: str, part: Path, headers: Mapping[str, str]) -> None:
    headers = {
        **headers,
        "Accept-Encoding": "identity",
    }  # a compressed response cannot be resumed by bytes
    if version := _version_of(part, url):
        headers |= {"Range": f"bytes={size(part)}-", "If-Range": version}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            return  # the file is complete
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:  # it starts at the first byte
            discard(part)
            # Written before the first byte: without the note, the bytes cannot be trusted.
            note = {"url": url, "version": _version(response.headers)}
            write_text(_note(part), json.dumps(note))
        _append(response, part)


def _append(response: requests.Response, part: Path) -> None:
    """Append the body to the partial file, chunk by chunk."""
    start, length = size(part), response.headers.get("Content-Length")
    with (
        part.open("ab") as file,
        Progress(
            desc=part.stem,
            initial=start,
            total=start + int(length) if length else None,
            unit="B",
            unit_scale=True,
        ) as bar,
    ):
        for chunk in response.iter_content(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


def _version(headers: Mapping[str, str]) -> str | None:
    """The validator of the server's version of the file; None if there is no reliable one."""
    tag = headers.get("ETag", "W/")  # a weak tag, W/"…", does not promise the same bytes
    return headers.get("Last-Modified") if tag.startswith("W/") else tag


def _version_of(part: Path, url: str) -> str | None:
    """The version of the file of which `part` is the beginning; None if it is of another URL."""
    try:
        note = parse_json(_note(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note["version"] if size(part) and note["url"] == url else None


def _note(part: Path) -> Path:
    """The small file that records URL and version of a partial download."""
    return part.with_name(part.name + ".json")


def reason(url: str, error: requests.RequestException) -> str:
    """Why a request failed, as a part of a sentence."""
    if error.response is not None:
        return f"{url} responds with {error.response.status_code} {error.response.reason}"
    host = urlsplit(url).netloc or url
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"{host} closed the connection too early"
    if isinstance(error, requests.Timeout):
        return f"{host} has sent nothing for {TIMEOUT} seconds"
    return f"the connection to {host} failed ({type(error).__name__})"
