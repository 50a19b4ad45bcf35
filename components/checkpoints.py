"""Folders of checkpoints, one a fingerprint: marked while in use, the oldest removed.

A training whose data, settings or code changed starts anew in another folder, and nobody comes
back to the one before but by undoing the change.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import shutil
import time
from collections.abc import Generator
from pathlib import Path

KEPT = 5
"""Folders of a pipeline that stay, the one in use among them."""
LEAST_AGE_SECONDS = 3600.0
"""A folder that was written to since then stays, whoever may be using it."""
NAME = re.compile(r"[0-9a-f]{16}")
"""Of a folder: what `components.fingerprint.digest` returns."""
FORGOTTEN = ".forgotten-"


@contextlib.contextmanager
def in_use(folder: Path) -> Generator[None, None, None]:
    """Make the folder and keep `prune` away from it; the mark ends with the process."""
    descriptor = _open_marked(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_marked(folder: Path) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        # Without locks on this file system the folder's age alone protects it.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        # While this one waited, it may have been removed.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        os.close(descriptor)


def prune(parent: Path, *, keep: int = KEPT) -> None:
    """Remove the folders that were not used for longest; what cannot be removed stays.

    Args:
        parent: of one pipeline's folders.
        keep: the most recently used ones that stay.
    """
    for rest in parent.glob(f"{FORGOTTEN}*"):
        shutil.rmtree(rest, ignore_errors=True)
    folders = [one for one in parent.iterdir() if NAME.fullmatch(one.name) and one.is_dir()]
    used = sorted(((_last_used(one), one) for one in folders), reverse=True)
    for when, folder in used[keep:]:
        if time.time() - when >= LEAST_AGE_SECONDS:
            _remove_unless_in_use(folder)


def _last_used(folder: Path) -> float:
    """Return when anything in the folder was last written, in seconds since the epoch.

    One that cannot be looked at, or that another process removes meanwhile, counts as new.
    """
    try:
        return max(
            os.lstat(path).st_mtime
            for place, _, files in os.walk(folder)
            for path in (place, *(os.path.join(place, name) for name in files))
        )
    except (OSError, ValueError):
        return math.inf


def _remove_unless_in_use(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Gone at once under its name: half of it would look like checkpoints.
            aside = folder.with_name(f"{FORGOTTEN}{folder.name}-{os.getpid()}")
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(descriptor)
