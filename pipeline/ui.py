"""`ui`: MLflow's own server over the pipeline's store, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, Protocol

from components.tracking_names import sqlite_file, without_credentials
from pipeline import tracked_runs
from trainer.errors import HeadraceError, InputError

_HOST = "127.0.0.1"
_START_SECONDS = 180.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.2
_ENVIRONMENT = {
    # The job runner costs 1 GB of memory and seconds of start, and serves nothing that is here.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Config(Protocol):
    """What is read of a configuration (`pipeline.config.PipelineConfig`)."""

    @property
    def tracking_uri(self) -> str:
        """Where the runs are."""
        ...

    @property
    def folder(self) -> Path:
        """Where the pipeline writes."""
        ...

    @property
    def root_folder(self) -> Path:
        """What the pipelines share."""
        ...


def serve(config: Config, port: int, *, say: Callable[[Iterable[str]], Any]) -> None:
    """Serve MLflow's UI on this machine until Ctrl-C, SIGTERM or the terminal's end.

    Args:
        config: the pipeline.
        port: of 127.0.0.1.
        say: told that the server starts, which takes seconds, and the address once it answers.

    Raises:
        InputError: there is no store yet, or the port is in use.
        HeadraceError: the server did not start.
    """
    uri = config.tracking_uri
    if uri.startswith(("http://", "https://")):
        say([f"the runs are on a server already: {without_credentials(uri)}"])
        return
    file = sqlite_file(uri)
    if file is not None:
        tracked_runs.require_store(file)
    _require_free(port)
    log = Path(config.folder) / "logs" / "ui.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _ended_by_signals(),
        _server(config, port, log) as server,
    ):
        say(["starting MLflow's server"])
        _wait_for(server, port, log)
        say([f"MLflow is at http://{_HOST}:{port} until Ctrl-C"])
        code = server.wait()
        raise HeadraceError(f"the MLflow server ended with {code}", where=str(log))


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        # As the server binds: a port whose last connections are only closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise InputError(
                f"the port cannot be used ({error.strerror})",
                where="--port",
                holds=str(port),
                right="end what listens there, or name another port",
            ) from error


@contextlib.contextmanager
def _server(config: Config, port: int, log: Path) -> Generator[subprocess.Popen[bytes]]:
    # A session of its own, so that all of it can be ended: the server has children.
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", config.tracking_uri),
        *("--default-artifact-root", str(Path(config.root_folder) / "mlruns")),
        *("--no-serve-artifacts", "--host", _HOST, "--port", str(port), "--workers", "1"),
    ]
    with open(log, "wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
    try:
        yield server
    finally:
        _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    try:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(_STOP_SECONDS)
    finally:
        # Also after a second Ctrl-C during the wait.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextlib.contextmanager
def _ended_by_signals() -> Generator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server answers.

    Raises:
        HeadraceError: when it ends, or is silent for `_START_SECONDS`.
    """
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            # Without a proxy: the address is this machine's.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{_HOST}:{port}/health", timeout=5):
                return
        time.sleep(_POLL_SECONDS)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise HeadraceError("the MLflow server did not start", where=str(log), holds="".join(last))
