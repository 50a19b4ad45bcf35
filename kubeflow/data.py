"""The data files of a task: paths and patterns of its machine, and addresses in object storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from components import fingerprint


def local_files(named: Sequence[str], scratch: Path) -> list[str]:
    """Return the files that the names stand for, in their order; object storage is copied here.

    Args:
        named: paths, folders, patterns, or addresses of object storage, as ``data.files``.
        scratch: the task's own folder.

    Raises:
        DataFileError: a file is not there, or a storage cannot be read.
    """
    from components import readers

    return [*map(str, readers.resolve(named, Path.cwd(), scratch / "data").files)]


def digest(named: Sequence[str]) -> str:
    """Return a digest of the files' content and order; their places do not count."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        files = local_files(named, Path(scratch))
        held = [fingerprint.file_digest(path) for path in files]
    return fingerprint.digest(json.dumps([[Path(one).name for one in files], held]))
