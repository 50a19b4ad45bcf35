"""The files of a checkpoint: parts that some workers wrote, read by any other number of them."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer import checkpoint, layout
from trainer.checkpoint import Writers
from trainer.errors import CheckpointError
from trainer.layout import Part

ARRAYS = {
    "first/000/kernel": np.arange(35, dtype=np.float32).reshape(5, 7) / 3,
    "first/001/scalar": np.asarray(1.5, np.float32),
}


def _cut(arrays: dict[str, np.ndarray], rank: int, count: int) -> dict[str, Part]:
    """Return a worker's part of each: ceil(n / N) numbers, the last ones fewer or none."""
    parts = {}
    for name, whole in arrays.items():
        size = -(-whole.size // count)
        first, last = min(whole.size, rank * size), min(whole.size, (rank + 1) * size)
        parts[name] = Part(whole.reshape(-1)[first:last], first, whole.shape)
    return parts


def _save(folder: Path, arrays: dict[str, np.ndarray], count: int, *, step: int = 1) -> Path:
    """Have all but the first write, then the first, which makes it a checkpoint."""
    for rank in range(1, count):
        writers = Writers(count, rank, token=7)
        checkpoint.contribute(folder, _cut(arrays, rank, count), step=step, writers=writers)
    return checkpoint.save(
        folder, _cut(arrays, 0, count), {"loss": 0.5}, step=step, keep=3,
        writers=Writers(count, 0, token=7),
    )  # fmt: skip


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_number_of_workers_reads_what_any_other_number_wrote(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shapes = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4))
    writers, readers = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    random = np.random.default_rng(0)
    arrays = {f"first/{place}": random.normal(size=shape) for place, shape in enumerate(shapes)}
    path = _save(tmp_path_factory.mktemp("state"), arrays, writers)
    found = checkpoint.load(path, arrays)
    assert found.facts == {"loss": 0.5}
    for name, whole in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], whole)
        for rank in range(readers):
            part = _cut(arrays, rank, readers)[name]
            last = part.first + part.values.size
            np.testing.assert_array_equal(found.arrays.part(name, part.first, last), part.values)


def test_who_reads_a_part_holds_no_more_than_that(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).normal(size=2**21)
    path = _save(tmp_path, {"first/000": whole}, 2)
    tracemalloc.start()
    try:
        part = checkpoint.load(path, {"first/000": whole}).arrays.part("first/000", 9, 9 + 2**19)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(part, whole[9 : 9 + 2**19])
    assert part.nbytes <= peak < 1.5 * part.nbytes


def test_nothing_has_the_name_before_all_have_written(tmp_path: Path) -> None:
    writers = Writers(2, 0, token=7)
    with pytest.raises(CheckpointError, match="worker 1 did not write its part") as caught:
        checkpoint.save(
            tmp_path, _cut(ARRAYS, 0, 2), {}, step=4, keep=3, writers=writers,
            until=lambda: time.monotonic() - 1,
        )  # fmt: skip
    assert "earlier checkpoints are intact" in caught.value.right
    assert checkpoint.found(tmp_path) == []


def test_what_a_gang_left_behind_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    _save(tmp_path, ARRAYS, 2, step=1)
    checkpoint.contribute(tmp_path, _cut(ARRAYS, 1, 2), step=9, writers=Writers(2, 1, token=5))
    assert [step for step, _ in checkpoint.found(tmp_path)] == [1]
    _save(tmp_path, ARRAYS, 3, step=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_workers_file_that_is_damaged_is_named(tmp_path: Path, damage: str) -> None:
    # cases/distributed.md, distributed-3: a missing shard
    path = _save(tmp_path, ARRAYS, 3)
    file = path / layout.file_of(1, 3)
    assert file.exists()
    file.unlink() if damage == "gone" else file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is damaged") as caught:
        checkpoint.load(path, ARRAYS)
    assert "state-1-of-3.npy" in str(caught.value)


def test_a_slot_of_which_a_part_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    parts = {name: one for name, one in _cut(ARRAYS, 0, 2).items() if "kernel" in name}
    path = checkpoint.save(tmp_path, parts, {}, step=1, keep=1)
    with pytest.raises(CheckpointError, match='lacks a part of the slot "first/000/kernel"'):
        checkpoint.load(path, {"first/000/kernel": ARRAYS["first/000/kernel"]})


@pytest.mark.parametrize(
    ("names", "right"),
    [
        ({"manifest.json", "state.npy"}, True),
        ({"manifest.json", "state-0-of-2.npy", "state-1-of-2.npy"}, True),
        ({"manifest.json", "state-1-of-2.npy"}, False),
        ({"state.npy"}, False),
        ({"manifest.json"}, False),
    ],
)
def test_whether_all_files_are_there_is_told_by_their_names(names: set[str], right: bool) -> None:
    assert layout.are_whole(names) is right


def test_numpy_reads_a_file_of_the_whole_state_by_itself(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, ARRAYS, {}, step=1, keep=1)
    with open(path / "state.npy", "rb") as file:
        for value in ARRAYS.values():
            np.testing.assert_array_equal(np.load(file), value)
