"""What a training depends on, as digests that are the same wherever its files stand.

Two machines that hold the same code, data and settings have the same identity, so that one goes on
from the other's checkpoint, and workers that do not are told apart before their first step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.settings import Job

PACKAGES = ("tensorflow", "keras", "numpy")
ROOM = Path(__file__).parent
PARTS = ("code", "packages", "settings", "data")
"""What is told apart, in the order in which it is named."""


def of_job(job: Job) -> dict[str, str]:
    """Return a digest of 16 hexadecimal digits of each of `PARTS`."""
    # Any number of workers goes on from what another number saved.
    training = {**dataclasses.asdict(job.training), "max_restarts": 0, "workers": 0}
    settings = [dataclasses.asdict(job.model), training, dataclasses.asdict(job.features)]
    return {
        "code": _digest([_files(ROOM, sorted(ROOM.rglob("*.py"))), job.lineage]),
        "packages": _digest([importlib.metadata.version(one) for one in PACKAGES]),
        "settings": _digest(settings),
        "data": _digest([
            _files(Path(one), sorted(Path(one).rglob("*.*"))) for one in (job.train, job.eval)
        ]),
    }


def digest(identity: dict[str, str]) -> str:
    """Return one digest for all parts."""
    return _digest([identity[one] for one in PARTS])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _files(folder: Path, paths: Iterable[Path]) -> list[list[str]]:
    found = []
    for path in paths:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        found.append([str(path.relative_to(folder)), content])
    return found
