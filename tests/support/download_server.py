"""A loopback file server with configurable faults, and a small released zip to serve."""

import http.server
import threading
import time
import zipfile
from contextlib import suppress

import numpy as np

NAME = "chinese_roformer-char-small"
FILE = "chinese_roformer-char_L-6_H-384_A-6.zip"
CONFIG = (
    '{"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, '
    '"vocab_size": 12000, "intermediate_size": 1536}'
)


def make_zip(path, seed=0, config=CONFIG):
    """A zip in the released layout with 1 MB of random bytes as weights."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FILE[:-4]}/bert_config.json", config)
        archive.writestr(f"{FILE[:-4]}/bert_model.ckpt.index", b"index")
        weights = np.random.default_rng(seed).bytes(1 << 20)
        archive.writestr(f"{FILE[:-4]}/bert_model.ckpt.data-00000-of-00001", weights)
    return path.read_bytes()


class Server:
    """Serve files: `with Server({"a.zip": b"…"}) as server:` at `server.url`."""

    def __init__(self, files):
        self.files = dict(files)
        self.requests = []
        """(file, Range header) of each request, with "" for a request of the whole file."""
        self.authorizations = []
        """The Authorization header of each request, or None."""
        self.cuts = []
        """For each of the next responses, the number of bytes after which the connection breaks."""
        self.statuses = []
        """For each of the next responses, an error status, or None for the file."""
        self.versions = "etag"
        """How responses identify a file's version: "etag", "weak", "date" or "nothing"."""
        self.ranges = True
        self.pause = 0.0
        """Seconds to wait before each 64 KiB."""

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"server_of_files": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/mirror"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def headers(self, content):
        tag = f'"{hash(content):x}"'
        return {
            "etag": {"ETag": tag},
            "weak": {"ETag": f"W/{tag}"},
            "date": {"Last-Modified": f"day {hash(content)}", "ETag": f"W/{tag}"},
            "nothing": {},
        }[self.versions]


class _Handler(http.server.BaseHTTPRequestHandler):
    server_of_files: Server

    def do_GET(self):
        server, name = self.server_of_files, self.path.removeprefix("/mirror/")
        if name not in server.files:
            name = name.partition("?")[0]
        requested_range = self.headers.get("Range", "")
        server.requests.append((name, requested_range))
        server.authorizations.append(self.headers.get("Authorization"))
        status = server.statuses.pop(0) if server.statuses else None
        cut = server.cuts.pop(0) if server.cuts else None
        if status or name not in server.files:
            self.send_error(status or 404)
            return
        content = server.files[name]
        headers = server.headers(content)
        start = 0
        if server.ranges and self.headers.get("If-Range") in headers.values():
            start = int(requested_range.removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        for key, value in (headers | {"Content-Length": len(content) - start}).items():
            self.send_header(key, value)
        self.end_headers()
        with suppress(ConnectionError):  # the client was killed, as intended
            self._send(content[start:][:cut])

    def _send(self, body):
        for at in range(0, len(body), 1 << 16):
            time.sleep(self.server_of_files.pause)
            self.wfile.write(body[at : at + (1 << 16)])

    def log_message(self, *_):
        pass
