"""An S3 server, moto's, that can be told to fail: for tests of what is copied there."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "checkpoints"
SECRET = "a-very-secret-value"
KEY_ID = "AKIDNOTTOBESEEN"
Fault = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes] | None]


class Server:
    """What is in the buckets, and how requests are answered.

    Attributes:
        fault: asked before each request; what it returns is the answer, None leaves it to moto.
        requests: method and path of each, in order.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.fault: Fault = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.files().call_s3("create_bucket", Bucket=BUCKET)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        answer = self.fault(environ, start)
        return self._moto(environ, start) if answer is None else answer

    def files(self) -> Any:
        """Return what reads and writes there without the product."""
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY_ID, secret=SECRET, endpoint_url=self.url, use_listings_cache=False,
            skip_instance_cache=True,
        )  # fmt: skip

    def objects(self) -> list[str]:
        """Return the names of all objects, in order."""
        return sorted(self.files().find(BUCKET))

    def stop(self) -> None:
        """Be gone: nobody listens there any more."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serve(monkeypatch: pytest.MonkeyPatch) -> Generator[Server, None, None]:
    """Serve an empty bucket, with credentials for it in the environment."""
    from moto.backends import get_backend

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    one = Server()
    try:
        yield one
    finally:
        one.stop()
        get_backend("s3").reset()


def refuse(status: str, code: str) -> Fault:
    """Return a fault: every request gets this status and S3's error code."""

    def fault(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        _read(environ)
        # As some servers do: it tells what should not be seen.
        text = f"<Error><Code>{code}</Code><Message>{SECRET} {KEY_ID}</Message></Error>"
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))]
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        start(status, headers[:1] if is_head else headers)
        return [b""] if is_head else [text.encode()]

    return fault


def cut(name: str) -> Fault:
    """Return a fault: a file of this name is taken half, then the connection is closed."""

    def fault(environ: dict[str, Any], _: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] != "PUT" or not environ["PATH_INFO"].endswith(name):
            return None
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]) // 2)
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return [b""]

    return fault


def _read(environ: dict[str, Any]) -> None:
    if length := int(environ.get("CONTENT_LENGTH") or 0):
        environ["wsgi.input"].read(length)
