"""What a run needs around it: the tracking server, the storage, a port; asked by `check`."""

from __future__ import annotations

import os
import socket
import urllib.parse
from collections.abc import Iterator
from typing import Literal

from components.tracking_names import sqlite_file
from pipeline import config_keys
from pipeline.config import PipelineConfig
from trainer import cluster
from trainer.errors import HeadraceError

Problem = tuple[Literal["error", "warning"], str, str]
"""How bad it is, the key with its place, and what is wrong and would be right."""

ANSWER_SECONDS = 2.0


def problems(config: PipelineConfig) -> Iterator[Problem]:
    """Yield what cannot be had, in the order of the configuration."""
    yield from _cluster()
    yield from _storage(config)
    yield from _tracking(config)
    yield from _ports(config)


def _cluster() -> Iterator[Problem]:
    """Yield why the workers that the environment names cannot be."""
    try:
        cluster.check(cluster.read(os.environ.get(cluster.VARIABLE, "")))
    except HeadraceError as error:
        yield "error", error.where, _words(error)


def _storage(config: PipelineConfig) -> Iterator[Problem]:
    """Yield why checkpoints cannot be copied; a storage that is away for now stops no run."""
    if not config.checkpoint.remote:
        return
    from trainer import remote

    try:
        remote.Remote(config.checkpoint).reach()
    except HeadraceError as error:
        is_away = isinstance(error, remote.Unreachable)
        words = _words(error)
        if is_away:
            words += "; until then checkpoints stay on this machine alone"
        where = config.where(error.where or "checkpoint.remote")
        yield "warning" if is_away else "error", where, words


def _words(error: HeadraceError) -> str:
    return str(HeadraceError(error.what, holds=error.holds, right=error.right))


def _tracking(config: PipelineConfig) -> Iterator[Problem]:
    address = urllib.parse.urlsplit(config.tracking_uri)
    where = config.where("tracking.uri")
    if file := sqlite_file(config.tracking_uri):
        parent = next(one for one in file.parents if one.exists())
        if config.tracking.uri and not os.access(parent, os.W_OK):
            yield "warning", where, f"{parent} cannot be written to; runs are kept locally"
    elif address.scheme in {"http", "https"} and not _answers(address):
        shown = config_keys.redacted(config.tracking_uri)
        yield "warning", where, f"{shown} does not answer; runs are kept and stored there later"


def _answers(address: urllib.parse.SplitResult) -> bool:
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        with socket.create_connection((address.hostname or "", port), ANSWER_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _ports(config: PipelineConfig) -> Iterator[Problem]:
    """Yield which port of the endpoints is taken."""
    first = config.monitoring.port
    # Of a cluster from outside, one worker runs here.
    count = 1 if cluster.VARIABLE in os.environ else config.training.workers
    for port in range(first, first + count) if first else ():
        if why := _why_not(port):
            words = (
                f"port {port} cannot be listened at: {why}; it holds {first}; take one that is "
                "free, and as many after it as there are workers; 0 is off"
            )
            yield "error", config.where("monitoring.port"), words


def _why_not(port: int) -> str:
    """Return why a port cannot be listened at; empty: it can."""
    if port >= 2**16:
        return "there is no such port"
    try:
        socket.create_server(("0.0.0.0", port)).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
