"""A worker's sign of life: a few bytes that it writes after each step, and its supervisor reads.

They are shared memory, so a beat costs no system call and a disk that hangs does not look like a
worker that does. Each says how long a step usually takes, from which the supervisor knows when the
silence is too long. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

NAME = "pulse"
FORM = struct.Struct("<Qd")
SILENT_SECONDS = 1800.0
"""A worker that has done nothing for so long waits for another one that hangs."""
LOOK_SECONDS = 5.0


class Pulse:
    """The worker's side.

    Attributes:
        count: of beats.
        slowest_seconds: of a step so far; 0: not known yet.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        path.write_bytes(FORM.pack(0, 0.0))
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), FORM.size)
        self.count = 0
        self.slowest_seconds = 0.0

    def beat(self, step_seconds: float = 0.0) -> None:
        """Say that this worker lives.

        Args:
            step_seconds: of the step that it has just done; 0: something else comes, of which
                nobody knows how long it takes (tracing, an evaluation, the export).
        """
        self.count += 1
        self.slowest_seconds = max(self.slowest_seconds, step_seconds)
        self._memory[:] = FORM.pack(self.count, self.slowest_seconds if step_seconds else 0.0)


class Silence:
    """How long a worker has given no sign of life, by whoever looks at it now and then.

    Attributes:
        beats: signs that it gave.
        seconds: since the last one, by the time that the onlooker was itself awake.
    """

    def __init__(self, look_seconds: float) -> None:
        """Begin now.

        Args:
            look_seconds: between two looks.
        """
        self.beats = 0
        self.seconds = 0.0
        self._look_seconds = look_seconds
        self._looked = time.monotonic()

    def is_due(self) -> bool:
        """Tell whether it is time to look again."""
        return time.monotonic() - self._looked >= self._look_seconds

    def look(self, beats: int) -> None:
        """Look at how many signs there are now."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        if beats != self.beats:
            self.beats, self.seconds = beats, 0.0
            return
        # A longer gap between two looks is the onlooker's own: it was stopped, as by Ctrl-Z, and
        # so were those that it looks at.
        self.seconds += min(passed, 2 * self._look_seconds)


def end_when_silent(
    one: Pulse, *, seconds: float = SILENT_SECONDS, look_seconds: float = LOOK_SECONDS
) -> None:
    """End this process, with exit code 4, once it has given no sign of life for so long.

    For a worker of several: who waits for one that hangs, but is not gone, waits for ever. Its
    supervisor knows better where there is one; on a cluster there is none for all of them.
    """

    def watch() -> None:
        silence = Silence(look_seconds)
        while silence.seconds <= seconds:
            time.sleep(look_seconds)
            silence.look(one.count)
        sys.stderr.write(f"no step was done for {silence.seconds:.0f} s: another worker hangs, ")
        sys.stderr.write("and so this one ends\n")
        sys.stderr.flush()
        os._exit(4)

    threading.Thread(target=watch, name="silence", daemon=True).start()


def read(folder: Path) -> tuple[int, float]:
    """Return the number of beats, and seconds of the slowest step (0: not known); 0 without any."""
    try:
        return FORM.unpack((folder / NAME).read_bytes())
    except (OSError, struct.error):
        return 0, 0.0
