"""Data files in object storage: found by fsspec, copied into a folder here, whole or absent.

A copy stands under the name of its address, and is taken again while the storage says that the
object is the same (by its ETag, or size and time); so there is one way of reading files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from trainer.errors import DataFileError

SCHEMES = {"s3": "s3fs", "gs": "gcsfs"}
"""Scheme to the package that reads it."""
COPY_BYTES = 8 << 20
_MARK = ".source.json"


def is_remote(spec: str) -> bool:
    """Say whether a setting names object storage."""
    return "://" in spec


def copy_here(
    spec: str, folder: Path, why_not: Callable[[str, int], str]
) -> tuple[list[Path], list[str]]:
    """Copy the objects that an address stands for.

    Args:
        spec: ``s3://bucket/key``, a prefix, or a glob.
        folder: gets ``<scheme>/<bucket>/<key>``.
        why_not: says of an object's name and size why it is no data file; empty: it is one.

    Returns: the copies, and what else the address stands for, each with the reason.

    Raises:
        DataFileError: the storage cannot be read, or there is no such object.
    """
    scheme, _, rest = spec.partition("://")
    storage = _storage(scheme, spec)
    with _explained(spec):
        found = _find(storage, rest)
        reasons = {
            key: why_not(Path(key).name, int(about.get("size") or 0))
            for key, about in found.items()
        }
        wanted = [key for key, why in reasons.items() if not why]
        for key in wanted:
            _copy(storage, key, found[key], folder / scheme / key)
    if not wanted:
        raise DataFileError(
            "it stands for no data file in the storage",
            where="data.files",
            holds=f'"{spec}"',
            right="name an object, a prefix or a glob",
        )
    skipped = [f"{scheme}://{key}: {why}" for key, why in reasons.items() if why]
    return [folder / scheme / key for key in wanted], skipped


def _storage(scheme: str, spec: str) -> Any:
    if scheme not in SCHEMES:
        raise DataFileError(
            "this kind of storage is not read", where="data.files", holds=f'"{spec}"',
            right=f"name a path of this machine, or {', '.join(f'{one}://' for one in SCHEMES)}",
        )  # fmt: skip
    import fsspec

    try:
        return fsspec.filesystem(scheme)
    except ImportError as error:
        raise DataFileError(
            f"the package {SCHEMES[scheme]} is needed to read it", where="data.files",
            holds=f'"{spec}"', right=f"uv pip install {SCHEMES[scheme]}",
        ) from error  # fmt: skip


def _find(storage: Any, rest: str) -> dict[str, dict[str, Any]]:
    """Return object to what the storage says of it."""
    storage.invalidate_cache()
    if any(mark in rest for mark in "*?["):
        found = storage.glob(rest, detail=True)
    elif storage.isdir(rest):
        found = {one["name"]: one for one in storage.ls(rest.rstrip("/"), detail=True)}
    else:
        found = {rest: storage.info(rest)} if storage.exists(rest) else {}
    return {key: about for key, about in sorted(found.items()) if about.get("type") == "file"}


def _copy(storage: Any, key: str, about: dict[str, Any], path: Path) -> None:
    mark = path.with_name(f".{path.name}{_MARK}")
    told = {
        name: str(about.get(name)) for name in ("ETag", "etag", "size", "LastModified", "mtime")
    }
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and json.loads(mark.read_text()) == told:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with storage.open(key, "rb") as source, open(part, "wb") as file:
        shutil.copyfileobj(source, file, COPY_BYTES)
    if about.get("size") is not None and part.stat().st_size != about["size"]:
        part.unlink()
        raise OSError(f"{key} changed while it was copied")
    mark.unlink(missing_ok=True)
    os.replace(part, path)
    mark.write_text(json.dumps(told))


@contextlib.contextmanager
def _explained(spec: str) -> Generator[None, None, None]:
    """Turn what the storage says into one line.

    Raises:
        DataFileError: in place of any other error.
    """
    try:
        yield
    except DataFileError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataFileError(
            f"the storage cannot be read ({first})", where="data.files", holds=f'"{spec}"',
            right="check the address, its endpoint and the credentials in the environment",
        ) from error  # fmt: skip
