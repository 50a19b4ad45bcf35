"""The data files of a task: paths and patterns of its machine, and addresses in object storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from components import fingerprint
from trainer.errors import DataFileError


def local_files(named: Sequence[str], scratch: Path) -> list[str]:
    """Return the files that the names stand for; those of ``s3://`` are first brought here.

    Args:
        named: paths, folders, patterns, or ``s3://bucket/key`` with or without a pattern.
        scratch: the task's own folder.

    Raises:
        InputError: a file is not there.
    """
    from components import readers

    here = [one for one in named if "://" not in one]
    there = [one for one in named if "://" in one]
    brought = [str(path) for one in there for path in _fetched(one, scratch / "data")]
    if not here:
        return brought
    found = readers.resolve(tuple(here), Path.cwd())
    return [*map(str, found.files), *brought]


def _fetched(address: str, folder: Path) -> list[Path]:
    """Bring what an ``s3://`` address stands for into the folder.

    Raises:
        DataFileError: it cannot be read, or is in another store.
    """
    if not address.startswith("s3://"):
        raise DataFileError(
            "is in a store that data cannot be read from",
            where=address,
            right="use s3://, or a path on the volume",
        )
    import s3fs

    store = s3fs.S3FileSystem()
    try:
        keys = sorted(store.glob(address)) if set("*?[") & set(address) else [address[5:]]
        paths = []
        for key in keys:
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            store.get_file(key, str(path))
            paths.append(path)
    except OSError as error:
        raise DataFileError(
            f"cannot be read ({error.strerror or type(error).__name__})",
            where=address,
            right="check the address, and the Secret that kubeflow.secret names",
        ) from error
    if not paths:
        raise DataFileError("no file is there", where=address, right="check the pattern")
    return paths


def digest(named: Sequence[str]) -> str:
    """Return a digest of the files' content and order; their places do not count."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        files = local_files(named, Path(scratch))
        held = [fingerprint.file_digest(path) for path in files]
    return fingerprint.digest(json.dumps([[Path(one).name for one in files], held]))
