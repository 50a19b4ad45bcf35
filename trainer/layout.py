"""What stands where in the folder of one checkpoint.

``state.npy`` holds arrays in npy format, one after the other. Where several workers hold parts of a
state, each writes its own into ``state-1-of-2.npy``. ``manifest.json`` names each file with its
SHA-256, each slot with dtype and shape, and where the slot's parts stand: ``[file, offset, first,
last]``, numbers first to last of the flat array from that byte on. So any number of workers reads
its parts of what any other number wrote, and none needs more memory than for its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import CheckpointError

FORMAT = 2
STATE = "state.npy"
MANIFEST = "manifest.json"
FILE = re.compile(r"state(?:-(\d+)-of-(\d+))?\.npy")


@dataclass(frozen=True)
class Part:
    """Numbers of one array that lie together.

    Attributes:
        values: they, flat, or the whole array.
        first: place of the first of them in the flat array.
        shape: of the whole array.
    """

    values: np.ndarray
    first: int
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, array: np.ndarray) -> Part:
        """Return the part that is the whole."""
        return cls(np.asarray(array), 0, tuple(np.shape(array)))


def file_of(rank: int, workers: int) -> str:
    """Return the name of the file that a worker writes."""
    return STATE if workers == 1 else f"state-{rank}-of-{workers}.npy"


def are_whole(names: Collection[str]) -> bool:
    """Tell whether files of these names can be a checkpoint: none is missing."""
    found = [match for match in map(FILE.fullmatch, names) if match]
    if MANIFEST not in names or not found:
        return False
    return STATE in names or len(found) == int(found[0][2])


def write(folder: Path, name: str, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Write parts into one file, flushed to the disk; return what the manifest says of it.

    Raises:
        OSError: when it cannot be written.
    """
    places = {}
    with open(folder / name, "wb") as file:
        for slot, one in parts.items():
            # Not numpy.save, whose error on a full disk does not say that the disk is full.
            values = np.asarray(one.values, order="C")
            form = np.lib.format.header_data_from_array_1_0(values)
            np.lib.format.write_array_header_1_0(file, form)
            places[slot] = [[name, file.tell(), one.first, one.first + values.size]]
            file.write(np.ascontiguousarray(values).data)
        file.flush()
        os.fsync(file.fileno())
    return {
        "sha256": {name: digest(folder / name)},
        "slots": {slot: [str(one.values.dtype), list(one.shape)] for slot, one in parts.items()},
        "parts": places,
    }


def merged(told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `write` told of several files together."""
    whole: dict[str, Any] = {"sha256": {}, "slots": {}, "parts": {}}
    for one in told:
        whole["sha256"] |= one["sha256"]
        whole["slots"] |= one["slots"]
        for slot, places in one["parts"].items():
            whole["parts"].setdefault(slot, []).extend(places)
    return whole


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, flushed to the disk.

    Raises:
        OSError: when it cannot be written.
    """
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose state is what the manifest says.

    Raises:
        CheckpointError: when it is damaged.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["sha256"]) if manifest["format"] == FORMAT else {}
        wrong = [name for name, right in files.items()
                 if not FILE.fullmatch(name) or digest(path / name) != right]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint is damaged ({type(error).__name__}: {error})", where=str(path)
        ) from error
    if wrong or not files:
        raise CheckpointError("the checkpoint is damaged", where=str(path / (wrong or [""])[0]))
    return manifest


class Stored(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint, by slot; each is read when it is asked for."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], slots: Collection[str]) -> None:
        """Take the manifest's word; nothing is read.

        Args:
            path: the checkpoint's folder.
            manifest: as `check` returned it.
            slots: those that are given.
        """
        self._path, self._manifest, self._slots = path, manifest, tuple(slots)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, slot: str) -> np.ndarray:
        shape = self._manifest["slots"][slot][1]
        return self.part(slot, 0, math.prod(shape)).reshape(shape)

    def part(self, slot: str, first: int, last: int) -> np.ndarray:
        """Return the numbers first to last of a flat array, [last - first].

        Raises:
            CheckpointError: when the files do not hold all of them.
        """
        dtype = np.dtype(self._manifest["slots"][slot][0])
        found = np.empty(last - first, dtype)
        missing = last - first
        for name, offset, begins, ends in self._manifest["parts"][slot]:
            low, high = max(first, begins), min(last, ends)
            if low >= high:
                continue
            try:
                with open(self._path / name, "rb") as file:
                    file.seek(offset + (low - begins) * dtype.itemsize)
                    missing -= file.readinto(found[low - first : high - first]) // dtype.itemsize
            except OSError as error:
                raise CheckpointError(
                    f"the checkpoint cannot be read: {error.strerror}", where=str(self._path / name)
                ) from error
        if missing:
            raise CheckpointError(
                f'the checkpoint is damaged: numbers of "{slot}" are missing', where=str(self._path)
            )
        return found
