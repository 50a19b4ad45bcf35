"""The imitated allocator: chunks, splits, joins."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trainer.arena import ROUNDING, Arena


def test_requests_are_rounded_up_to_256_bytes() -> None:
    arena = Arena()
    assert [arena.take(size, "a").size for size in (1, 256, 257)] == [256, 256, 512]
    assert sum(arena.peak.values()) == 1024


def test_a_free_chunk_of_less_than_twice_the_size_is_given_whole() -> None:
    arena = Arena()
    first, _ = arena.take(1024, "a"), arena.take(256, "keeps them apart")
    arena.give_back(first)
    assert arena.take(768, "b").size == 1024
    assert arena.in_use["b"] == 1024


def test_one_of_twice_the_size_is_split() -> None:
    arena = Arena()
    first, _ = arena.take(1024, "a"), arena.take(256, "keeps them apart")
    arena.give_back(first)
    assert [arena.take(512, "b").start, arena.take(512, "b").start] == [0, 512]


def test_the_smallest_that_is_large_enough_is_given() -> None:
    arena = Arena()
    chunks = [arena.take(size, "a") for size in (4096, 256, 2048, 256, 1024, 256)]
    for chunk in chunks[::2]:
        arena.give_back(chunk)
    assert arena.take(1500, "b").start == chunks[2].start


def test_free_neighbours_are_joined() -> None:
    arena = Arena()
    one, two, three, _ = (arena.take(1024, "a") for _ in range(4))
    for chunk in (one, three, two):
        arena.give_back(chunk)
    assert arena.take(3072, "b").start == 0


@given(data=st.data())
def test_nothing_overlaps_and_all_comes_back(data: st.DataObject) -> None:
    arena, held = Arena(), []
    sizes = data.draw(st.lists(st.integers(0, 5_000_000), max_size=30))
    for size in sizes:
        if size % 3 == 0 and held:
            arena.give_back(held.pop(size % len(held)))
        else:
            held.append(arena.take(size, "a"))
        places = sorted((one.start, one.start + one.size) for one in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        assert sum(arena.in_use.values()) == sum(one.size for one in held)
        assert all(one.size % ROUNDING == 0 for one in held)
    for chunk in held:
        arena.give_back(chunk)
    assert sum(arena.in_use.values()) == 0
