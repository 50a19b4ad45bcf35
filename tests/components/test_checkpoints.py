"""Folders of checkpoints: the last five stay, and whatever may be in use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components import checkpoints

DAY = 24 * 3600.0


def make(parent: Path, number: int, *, age: float) -> Path:
    """A folder of one checkpoint, last written `age` seconds ago."""
    folder = parent / f"{number:016x}"
    state = folder / "step-00000200" / "state.npy"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"weights")
    for path in (state, state.parent, folder):
        os.utime(path, (time.time() - age,) * 2)
    return folder


def numbers(parent: Path) -> list[int]:
    return sorted(int(one.name, 16) for one in parent.iterdir())


def test_the_five_most_recently_used_stay(tmp_path: Path) -> None:
    # Not by name: 0 is the newest.
    for number in range(8):
        make(tmp_path, number, age=DAY * (number + 1))
    checkpoints.prune(tmp_path)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


def test_a_folder_was_used_when_anything_in_it_was_written(tmp_path: Path) -> None:
    folders = [make(tmp_path, number, age=DAY * (number + 1)) for number in range(6)]
    os.utime(folders[5] / "step-00000200" / "state.npy", (time.time() - 2 * 3600,) * 2)
    checkpoints.prune(tmp_path)
    assert numbers(tmp_path) == [0, 1, 2, 3, 5]


def test_one_that_was_written_to_within_the_hour_stays(tmp_path: Path) -> None:
    for number in range(8):
        make(tmp_path, number, age=1800.0 + number)
    checkpoints.prune(tmp_path)
    assert len(numbers(tmp_path)) == 8


def test_what_is_no_fingerprints_folder_is_not_touched(tmp_path: Path) -> None:
    for number in range(6):
        make(tmp_path, number, age=DAY)
    others = ["step-00000200", "notes", "0" * 15, "0" * 17, "A" * 16]
    for name in others:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ("f" * 16)).write_text("a file")
    checkpoints.prune(tmp_path, keep=1)
    left = {one.name for one in tmp_path.iterdir()}
    assert left >= {*others, "f" * 16}
    assert len(left) == len(others) + 2


def test_one_in_use_by_another_process_stays_until_that_ends(tmp_path: Path) -> None:
    old = make(tmp_path, 9, age=9 * DAY)
    code = (
        "import sys; from pathlib import Path; from components import checkpoints\n"
        "with checkpoints.in_use(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    root = str(Path(checkpoints.__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(old)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        holder.stdout.readline()
        checkpoints.prune(tmp_path, keep=0)
        assert old.is_dir()
        holder.kill()
        holder.wait()
    checkpoints.prune(tmp_path, keep=0)
    assert not list(tmp_path.iterdir())


def test_two_may_use_one_folder_and_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "new" / ("a" * 16)
    with checkpoints.in_use(folder), checkpoints.in_use(folder):
        assert folder.is_dir()
    assert folder.is_dir()


def test_a_folder_that_is_removed_while_it_is_waited_for_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("a" * 16)
    lock, removed = checkpoints.fcntl.flock, []

    def removed_meanwhile(descriptor: int, kind: int) -> None:
        if not removed:
            folder.rmdir()
            removed.append(folder)
        lock(descriptor, kind)

    monkeypatch.setattr(checkpoints.fcntl, "flock", removed_meanwhile)
    with checkpoints.in_use(folder):
        assert removed
        assert folder.is_dir()


def test_what_a_killed_removal_left_is_removed_by_the_next(tmp_path: Path) -> None:
    rest = tmp_path / f"{checkpoints.FORGOTTEN}{9:016x}-1"
    rest.mkdir()
    (rest / "state.npy").write_bytes(b"half")
    checkpoints.prune(tmp_path)
    assert not rest.exists()
