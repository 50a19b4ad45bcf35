"""What a training depends on, as digests that are the same wherever its files stand.

Two machines that hold the same code, data and settings have the same identity, so that one goes on
from the other's checkpoint, and workers that do not are told apart before their first step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainer.cluster import Workers
from trainer.errors import InputError
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


def numbers(identity: dict[str, str]) -> list[int]:
    """Return the digests as whole numbers of 63 bits, so that workers can tell them one another."""
    return [int(identity[one], 16) >> 1 for one in PARTS]


def check_same(told: Sequence[Sequence[int]], workers: Workers) -> None:
    """Refuse a worker that would train something else than worker 0.

    Args:
        told: `numbers` of each worker, by rank.
        workers: who they are.

    Raises:
        InputError: naming the first such worker, and what it holds.
    """
    for rank, mine in enumerate(told):
        if list(mine) != list(told[0]):
            others = [
                part for part, one, first in zip(PARTS, mine, told[0], strict=True) if one != first
            ]
            raise InputError(
                f"worker {rank} at {workers.addresses[rank]} has other {' and '.join(others)} than "
                "worker 0",
                where="training", right="give all workers the same code, packages, settings and "
                "data files; nothing was trained",
            )  # fmt: skip


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _files(folder: Path, paths: Iterable[Path]) -> list[list[str]]:
    found = []
    for path in paths:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        found.append([str(path.relative_to(folder)), content])
    return found
