"""What TensorFlow's best-fit allocator holds for a sequence of requests.

It gives a free chunk whole to a request of more than half its size, so it may hold a good deal
more than what was asked for: up to a quarter of a peak. Which chunk is free when hangs on all
requests before, so it is imitated, chunk by chunk.

Source: xla/tsl/framework/bfc_allocator.cc (`FindChunkPtr`, `Extend`, `TryToCoalesce`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

UNIT = 256
"""Bytes; requests are rounded up to a multiple of it."""
LAST_BIN = 20
FIRST_REGION = 2 * 2**20
"""Bytes asked of the system first; each time twice as much."""
GREATEST_REST = 128 * 2**20
"""Bytes that a chunk may be larger than the request that it is given to, at the most."""


def rounded(size: int) -> int:
    """Return the bytes that a request of `size` bytes counts as."""
    return -(-size // UNIT) * UNIT


@dataclass(eq=False, slots=True)
class Chunk:
    """A part of a region: `size` bytes at `address`, next to its neighbours."""

    size: int
    address: int
    before: Chunk | None = None
    after: Chunk | None = None
    is_used: bool = False


class Allocator:
    """Gives out chunks as `BFCAllocator` with `allow_growth` does.

    Attributes:
        in_use: bytes of the chunks that are given out.
        peak: the most that it was.
    """

    def __init__(self) -> None:
        self.in_use = 0
        self.peak = 0
        self._region = FIRST_REGION
        self._end = 0
        self._bins: list[list[tuple[int, int, Chunk]]] = [[] for _ in range(LAST_BIN + 1)]

    def take(self, size: int) -> Chunk:
        """Return a chunk of at least `size` bytes, at least 1."""
        size = rounded(size)
        chunk = self._find(size)
        if chunk is None:
            self._extend(size)
            chunk = self._find(size)
            assert chunk is not None
        if chunk.size >= 2 * size or chunk.size - size >= GREATEST_REST:
            self._split(chunk, size)
        chunk.is_used = True
        self.in_use += chunk.size
        self.peak = max(self.peak, self.in_use)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Free a chunk that was taken."""
        self.in_use -= chunk.size
        chunk.is_used = False
        for near in (chunk.after, chunk.before):
            if near is not None and not near.is_used:
                self._remove(near)
                first, second = (near, chunk) if near is chunk.before else (chunk, near)
                first.size += second.size
                first.after = second.after
                if first.after is not None:
                    first.after.before = first
                chunk = first
        self._insert(chunk)

    def _find(self, size: int) -> Chunk | None:
        for chunks in self._bins[_bin(size) :]:
            place = bisect_left(chunks, (size,))
            if place < len(chunks):
                return chunks.pop(place)[2]
        return None

    def _extend(self, size: int) -> None:
        is_increased = False
        while self._region < size:
            self._region *= 2
            is_increased = True
        # The system places each below the one before it. Regions are never neighbours: chunks of
        # two are not joined.
        self._end -= self._region + UNIT
        self._insert(Chunk(self._region, self._end))
        if not is_increased:
            self._region *= 2

    def _split(self, chunk: Chunk, size: int) -> None:
        rest = Chunk(chunk.size - size, chunk.address + size, chunk, chunk.after)
        if rest.after is not None:
            rest.after.before = rest
        chunk.size, chunk.after = size, rest
        self._insert(rest)

    def _insert(self, chunk: Chunk) -> None:
        insort(self._bins[_bin(chunk.size)], (chunk.size, chunk.address, chunk))

    def _remove(self, chunk: Chunk) -> None:
        chunks = self._bins[_bin(chunk.size)]
        del chunks[bisect_left(chunks, (chunk.size, chunk.address))]


def _bin(size: int) -> int:
    return min((size // UNIT).bit_length() - 1, LAST_BIN)
