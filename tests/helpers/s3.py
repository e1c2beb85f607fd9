"""A small S3 server over a local folder: what s3fs asks when it lists and reads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 7  # names in an answer: real servers send 1,000


class _Handler(BaseHTTPRequestHandler):
    folder: Path  # of the buckets
    asked: list[str]  # method and path of all requests
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(content=True)

    def do_HEAD(self) -> None:
        self._answer(content=False)

    def _answer(self, content: bool) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path).strip("/")
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.asked.append(f"{self.command} {path}")
        if "Authorization" not in self.headers:
            self._send(403, _error("AccessDenied"), content)
        elif not (self.folder / path.split("/")[0]).is_dir():
            self._send(404, _error("NoSuchBucket"), content)
        elif "/" not in path:
            self._send(200, self._names(self.folder / path, query), content)
        elif not (self.folder / path).is_file():
            self._send(404, _error("NoSuchKey"), content)
        else:
            self._send(200, (self.folder / path).read_bytes(), content)

    def _names(self, bucket: Path, query: dict[str, str]) -> bytes:
        files = sorted(p for p in bucket.rglob("*") if p.is_file())
        keys = {p.relative_to(bucket).as_posix(): p for p in files}
        start = query.get("continuation-token", "")
        left = [k for k in keys if k.startswith(query.get("prefix", "")) and k > start]
        entries = "".join(
            f"<Contents><Key>{escape(k)}</Key><Size>{keys[k].stat().st_size}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{hashlib.md5(keys[k].read_bytes()).hexdigest()}&quot;</ETag></Contents>"
            for k in left[:PAGE]
        )
        more = left[PAGE:]
        token = f"<NextContinuationToken>{left[PAGE - 1]}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
            f"<KeyCount>{len(left[:PAGE])}</KeyCount>{token}{entries}</ListBucketResult>"
        ).encode()

    def _send(self, status: int, body: bytes, content: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        self.end_headers()
        if content:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextmanager
def s3_server(folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The environment that leads s3fs to a server whose buckets are the subfolders of `folder`, and
    the requests that it gets.
    """
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"folder": folder, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        yield environment, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
