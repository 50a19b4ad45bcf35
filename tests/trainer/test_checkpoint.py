"""Checkpoints: whole or absent, and what happens to those that a disk or a person damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer import checkpoint
from trainer.errors import CheckpointError

ARRAYS = {
    "weight/a": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "updates": np.asarray(3, dtype=np.int64),
}


def _save(folder: Path, step: int, *, keep: int = 10, best_step: int | None = None) -> Path:
    arrays = {**ARRAYS, "updates": np.asarray(step)}
    return checkpoint.save(
        folder, arrays, {"loss": 0.1, "nan": float("nan")}, step=step, keep=keep,
        best_step=best_step,
    )  # fmt: skip


def _restore(folder: Path) -> tuple[checkpoint.Checkpoint | None, list[str]]:
    warnings: list[str] = []
    return checkpoint.restore(folder, ARRAYS, warn=warnings.append), warnings


def _steps(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = _save(tmp_path, 4)
    found, warnings = _restore(tmp_path)
    assert (found.step, found.path, warnings) == (4, path, [])
    assert found.facts["loss"] == 0.1
    np.testing.assert_array_equal(found.arrays["weight/a"], ARRAYS["weight/a"])
    assert found.arrays["updates"].dtype == np.int64


def test_an_empty_or_absent_folder_restores_nothing(tmp_path: Path) -> None:
    assert _restore(tmp_path) == (None, [])
    assert _restore(tmp_path / "absent") == (None, [])


def test_the_newest_are_kept_and_the_best_however_old(tmp_path: Path) -> None:
    for step in range(1, 6):
        _save(tmp_path, step, keep=2, best_step=2)
    assert _steps(tmp_path) == ["step-00000002", "step-00000004", "step-00000005"]


def _truncate(path: Path) -> None:
    with open(path / "state.npy", "r+b") as file:
        file.truncate((path / "state.npy").stat().st_size // 2)


def _flip_a_byte(path: Path) -> None:
    data = bytearray((path / "state.npy").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "state.npy").write_bytes(data)


DAMAGES = {
    "state cut in half": _truncate,
    "a byte flipped": _flip_a_byte,
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "manifest emptied": lambda path: (path / "manifest.json").write_text(""),
    "manifest of something else": lambda path: (path / "manifest.json").write_text("[1]"),
    "no state": lambda path: (path / "state.npy").unlink(),
    "state is a folder": lambda path: ((path / "state.npy").unlink(), (path / "state.npy").mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_one_is_named_and_passed_over(tmp_path: Path, damage: object) -> None:
    # cases/training.md, training-13, its first three ways
    for step in (2, 4, 6):
        path = _save(tmp_path, step)
    damage(path)
    found, warnings = _restore(tmp_path)
    assert found.step == 4
    assert len(warnings) == 1
    assert "step 6" in warnings[0]
    assert str(path) in warnings[0]


def test_what_is_no_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    (tmp_path / "columns").mkdir()
    (tmp_path / "step-last").write_text("6")
    (tmp_path / f"{checkpoint.UNFINISHED}00000009-1").mkdir()
    found, warnings = _restore(tmp_path)
    assert (found.step, warnings) == (2, [])
    _save(tmp_path, 4)
    assert _steps(tmp_path) == ["columns", "step-00000002", "step-00000004", "step-last"]


def test_a_missing_slot_is_refused_by_name(tmp_path: Path) -> None:
    # training-11
    path = checkpoint.save(tmp_path, {"weight/a": ARRAYS["weight/a"]}, {}, step=1, keep=1)
    with pytest.raises(CheckpointError, match='lacks the slot "updates"'):
        checkpoint.load(path, ARRAYS)


def test_a_slot_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="weight/a"):
        checkpoint.load(path, {**ARRAYS, "weight/a": np.zeros((4, 4), np.float32)})


def test_a_save_that_dies_half_way_leaves_the_others(tmp_path: Path) -> None:
    _save(tmp_path, 2)
    code = f"""
import os
import numpy as np
from trainer import checkpoint, layout
layout.digest = lambda path: os.kill(os.getpid(), 9)
checkpoint.save({str(tmp_path)!r}, {{"weight/a": np.ones(3)}}, {{}}, step=4, keep=1)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    found, warnings = _restore(tmp_path)
    assert (found.step, warnings) == (2, [])


def test_a_full_disk_is_named_and_earlier_ones_are_intact(small_disk: Path) -> None:
    # training-13, the full disk
    _save(small_disk, 2)
    with pytest.raises(CheckpointError, match="no space left") as caught:
        checkpoint.save(small_disk, {"weight/a": np.ones(2**19)}, {}, step=4, keep=1)
    assert caught.value.where == str(small_disk / "step-00000004")
    assert _steps(small_disk) == ["step-00000002"]
    assert _restore(small_disk)[0].step == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        _save(tmp_path / "file" / "checkpoints", 2)


def test_the_manifest_says_what_is_inside(tmp_path: Path) -> None:
    manifest = json.loads((_save(tmp_path, 3) / "manifest.json").read_text())
    assert manifest["slots"]["weight/a"] == ["float32", [3, 4]]
    assert manifest["step"] == 3
