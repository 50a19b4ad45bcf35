"""What TensorFlow's allocator does with requests, counted without any memory.

A best-fit allocator with coalescing, as tensorflow's ``tsl/framework/bfc_allocator.cc`` has it for
GPUs and, when ``TF_CPU_ALLOCATOR_USE_BFC`` is set, for the CPU. A free chunk that is less than
twice as large as a request is given whole, so that what is in use exceeds what was asked for:
by 10 to 25 % in the steps of small models.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass

ROUNDING = 256
FIRST_REGION = 2 * 2**20
GREATEST_WASTE = 128 * 2**20
"""Bytes; a free chunk that is larger than a request by so much is split in any case."""


@dataclass
class Chunk:
    """Bytes `start` to `start + size` of a region, between two neighbours.

    Attributes:
        start, size: in bytes; starts rise over all regions.
        term: what it is used for; empty: free.
        before, after: neighbours in the same region.
    """

    start: int
    size: int
    term: str = ""
    before: Chunk | None = None
    after: Chunk | None = None


class Arena:
    """Chunks in use and free.

    Attributes:
        in_use: bytes by term.
        peak: `in_use` when its sum was greatest.
    """

    def __init__(self) -> None:
        self.in_use: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._total = 0
        self._most = 0
        self._free: list[tuple[int, int]] = []
        self._by_start: dict[int, Chunk] = {}
        self._next_region = FIRST_REGION
        self._end = 0

    def take(self, size: int, term: str) -> Chunk:
        """Give a chunk of at least `size` bytes."""
        size = max(ROUNDING, -(-size // ROUNDING) * ROUNDING)
        place = bisect.bisect_left(self._free, (size, -1))
        if place == len(self._free):
            self._grow(size)
            place = bisect.bisect_left(self._free, (size, -1))
        _, start = self._free.pop(place)
        chunk = self._by_start.pop(start)
        if chunk.size >= 2 * size or chunk.size - size >= GREATEST_WASTE:
            self._split(chunk, size)
        chunk.term = term
        self.in_use[term] += chunk.size
        self._total += chunk.size
        if self._total > self._most:
            self._most, self.peak = self._total, self.in_use.copy()
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Free a chunk, and join it with free neighbours."""
        self.in_use[chunk.term] -= chunk.size
        self._total -= chunk.size
        chunk.term = ""
        if chunk.after is not None and not chunk.after.term:
            self._join(chunk, chunk.after)
        if chunk.before is not None and not chunk.before.term:
            before = chunk.before
            self._forget(before)
            self._absorb(before, chunk)
            chunk = before
        self._remember(chunk)

    def _grow(self, size: int) -> None:
        """Add a region: twice as large as the one before, or more where that is not enough."""
        region, has_grown = self._next_region, False
        while region < size:
            region, has_grown = region * 2, True
        self._next_region = region if has_grown else region * 2
        self._remember(Chunk(self._end, region))
        self._end += region

    def _split(self, chunk: Chunk, size: int) -> None:
        rest = Chunk(chunk.start + size, chunk.size - size, before=chunk, after=chunk.after)
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.size, chunk.after = size, rest
        self._remember(rest)

    def _join(self, chunk: Chunk, following: Chunk) -> None:
        self._forget(following)
        self._absorb(chunk, following)

    @staticmethod
    def _absorb(chunk: Chunk, following: Chunk) -> None:
        chunk.size += following.size
        chunk.after = following.after
        if chunk.after is not None:
            chunk.after.before = chunk

    def _remember(self, chunk: Chunk) -> None:
        bisect.insort(self._free, (chunk.size, chunk.start))
        self._by_start[chunk.start] = chunk

    def _forget(self, chunk: Chunk) -> None:
        self._free.pop(bisect.bisect_left(self._free, (chunk.size, chunk.start)))
        del self._by_start[chunk.start]
