"""How much memory the data nodes may take, and what they took: of this process, whole.

Imports of TensorFlow and TFX are most of it (850 MB). Beside them each thread holds a few copies of
a block of rows, in text, typed, encoded; measured on flight records: at most 110 MB, and 28 times
the block for each thread.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from components.csv_records import BLOCK_BYTES

FIXED_BYTES, COPIES = 110 << 20, 28
LEAST_BLOCK = 256 << 10


def block_bytes(limit: int, threads: int) -> int:
    """Return the bytes of a CSV to read at once so that the process stays within `limit`.

    Args:
        limit: of resident memory, in bytes; 0: none.
        threads: that read side by side.
    """
    if not limit:
        return BLOCK_BYTES
    left = limit - _resident_bytes() - FIXED_BYTES
    return min(max(left // (COPIES * threads), LEAST_BLOCK), BLOCK_BYTES)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def beyond(limit: int) -> Iterator[str]:
    """Yield what is to be said where the process took more than `limit` at its fullest."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if limit and peak > limit:
        yield (
            f"the data nodes took {peak / 2**20:,.0f} MiB, more than data.memory "
            f"({limit / 2**20:,.0f} MiB), of which imports are some 850"
        )
