"""The journal of a run: an append-only file of JSON lines that any process may add to.

One line an event, written in one `write` call on a descriptor opened for appending, so that lines
of several processes never mix. Every event holds ``event`` (its kind) and ``time`` (seconds since
the epoch). Readers follow the file while it grows; a last line without its newline is not read.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def append(path: str | os.PathLike[str], event: str, /, **facts: Any) -> None:
    """Add one event to the journal at `path`; an empty `path` keeps nothing.

    Numbers that are not finite are written as the texts ``"nan"``, ``"inf"`` and ``"-inf"``, since
    JSON has none.
    """
    if not os.fspath(path):
        return
    line = json.dumps(_finite({"event": event, "time": time.time(), **facts})) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines after byte `offset`, and the offset of what follows them."""
    if not Path(path).exists():
        return [], offset
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data.rfind(b"\n") + 1
    return list(_lines(data[:whole])), offset + whole


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        # A disk that was full may leave part of a line; what follows it is still good.
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
