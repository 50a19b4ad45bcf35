"""Saves beside training: in order, whole, and an error that is not lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import checkpoint, layout
from trainer.errors import CheckpointError
from trainer.saving import Saves

ARRAYS = {"weight/a": np.arange(6, dtype=np.float32)}


def _steps(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.glob("step-*"))


def test_saves_are_whole_in_order_and_the_newest_are_kept(tmp_path: Path) -> None:
    told: list[tuple[int, bool]] = []
    saves = Saves(
        str(tmp_path), keep=2,
        tell=lambda step, path, _: told.append((step, (path / layout.MANIFEST).exists())),
    )  # fmt: skip
    for step in range(1, 6):
        saves.begin(ARRAYS, {}, step=step, best_step=2)
    saves.wait()
    assert told == [(step, True) for step in range(1, 6)]
    assert _steps(tmp_path) == ["step-00000002", "step-00000004", "step-00000005"]
    np.testing.assert_array_equal(
        checkpoint.load(tmp_path / "step-00000005", ARRAYS).arrays["weight/a"], ARRAYS["weight/a"]
    )


def test_training_goes_on_while_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_flush, flush = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert may_flush.wait(30)
        flush(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", slow)
    saves = Saves(str(tmp_path), keep=3, tell=lambda *_: None)
    saves.begin(ARRAYS, {}, step=1, best_step=None)
    saves.check()  # does not wait
    assert _steps(tmp_path) == []  # and nothing has the name before it is whole
    may_flush.set()
    saves.wait()
    assert _steps(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("asked", ["check", "wait", "begin"])
def test_a_failed_write_is_raised_once_where_training_next_looks(
    tmp_path: Path, asked: str
) -> None:
    (tmp_path / "file").write_text("")
    told: list[Any] = []
    saves = Saves(str(tmp_path / "file" / "checkpoints"), keep=1, tell=lambda *a: told.append(a))
    saves.begin(ARRAYS, {}, step=1, best_step=None)
    saves._last.exception(timeout=30)
    again = {"begin": lambda: saves.begin(ARRAYS, {}, step=2, best_step=None),
             "check": saves.check, "wait": saves.wait}  # fmt: skip
    with pytest.raises(CheckpointError, match="cannot be saved"):
        again[asked]()
    saves.check()
    saves.wait()
    assert told == []
