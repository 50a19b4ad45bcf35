"""Small data and models for the engine's tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from trainer.settings import (
    CategoryFeature,
    CheckpointSettings,
    Features,
    Job,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    TrainingSettings,
)

MakeColumns = Callable[..., Features]
MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster described in the environment of the tests is not theirs."""
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root may mount a small file system")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def write_columns() -> MakeColumns:
    """Writes column files of two numbers (``row``: 0, 1, 2, ... and ``x``), a text and a label."""
    return _write_columns


def _write_columns(folder: Path, *, rows: int, seed: int = 0) -> Features:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    x = random.normal(size=rows)
    codes = random.integers(-1, 3, rows).astype(np.int32)
    label = (x + (codes == 1) + 0.3 * random.normal(size=rows) > 0).astype(np.int32)
    present = random.random(rows) > 0.1
    np.save(folder / "0.values.npy", np.arange(rows))
    np.save(folder / "0.present.npy", np.ones(rows, bool))
    np.save(folder / "1.values.npy", np.where(present, x, 0.0))
    np.save(folder / "1.present.npy", present)
    np.save(folder / "2.codes.npy", codes)
    (folder / "2.distinct.json").write_text(json.dumps(["a", "b", "never seen"]))
    np.save(folder / "label.npy", label)
    features = {
        "row": {"kind": "int", "index": 0},
        "x": {"kind": "float", "index": 1},
        "text": {"kind": "string", "index": 2},
    }
    described = {"rows": rows, "features": features, "label": {"kind": "int", "index": 3}}
    (folder / "columns.json").write_text(json.dumps(described))
    return Features(
        numbers=(
            NumberFeature("row", "int", (0.0, max(1.0, rows / 2), max(2.0, rows)), rows / 2, 1.0),
            NumberFeature("x", "float", (-2.0, -1.0, 0.0, 1.0, 2.0), 0.0, 1.0),
        ),
        categories=(CategoryFeature("text", ("a", "b")),),
        label=LabelFeature("late", "binary", "int", ("0", "1"), (0.5, 0.5)),
    )


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    """Makes a job over 20 rows (40 for eval) with a tiny model; keywords change its training."""

    def make(
        *,
        rows: int = 20,
        eval_rows: int = 40,
        name: str = "job",
        keep: int = 3,
        every_steps: int = 5,
        dropout: float = 0.0,
        **training: object,
    ) -> Job:
        features = _write_columns(tmp_path / "train", rows=rows)
        _write_columns(tmp_path / "eval", rows=eval_rows, seed=1)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return Job(
            model=ModelSettings(layers=1, width=8, heads=2, dropout=dropout),
            training=TrainingSettings(**{"global_batch": 2, "epochs": 3, **training}),
            checkpoint=CheckpointSettings(every_steps=every_steps, keep=keep),
            features=features,
            train=str(tmp_path / "train"),
            eval=str(tmp_path / "eval"),
            checkpoints=str(folder / "checkpoints"),
            export=str(folder / "export"),
            events=str(folder / "events.jsonl"),
            result=str(folder / "result.json"),
        )

    return make
