"""A worker's sign of life: a few bytes that it writes after each step, and its supervisor reads.

They are shared memory, so a beat costs no system call and a disk that hangs does not look like a
worker that does. Each says how long a step usually takes, from which the supervisor knows when the
silence is too long. Standard library only.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

NAME = "pulse"
FORM = struct.Struct("<Qd")


class Pulse:
    """The worker's side.

    Attributes:
        slowest_seconds: of a step so far; 0: not known yet.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        path.write_bytes(FORM.pack(0, 0.0))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), FORM.size)
        self._count = 0
        self.slowest_seconds = 0.0

    def beat(self, step_seconds: float = 0.0) -> None:
        """Say that this worker lives.

        Args:
            step_seconds: of the step that it has just done; 0: something else comes, of which
                nobody knows how long it takes (tracing, an evaluation, the export).
        """
        self._count += 1
        self.slowest_seconds = max(self.slowest_seconds, step_seconds)
        self._memory[:] = FORM.pack(self._count, self.slowest_seconds if step_seconds else 0.0)


def read(folder: Path) -> tuple[int, float]:
    """Return the number of beats, and seconds of the slowest step (0: not known); 0 without any."""
    try:
        return FORM.unpack((folder / NAME).read_bytes())
    except (OSError, struct.error):
        return 0, 0.0
