"""The training node around the training itself: what it keeps and what it removes."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components import checkpoints, training
from trainer.errors import WorkerLost
from trainer.settings import (
    CheckpointSettings,
    Features,
    LabelFeature,
    ModelSettings,
    TrainingSettings,
    to_json,
)

LABEL = LabelFeature("late", "binary", "int", ("0", "1"), (0.5, 0.5))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the node on columns and a training that are there already; `job` is told of the job."""
    predictions = tmp_path / "predictions.npy"
    np.save(predictions, np.full((4, 1), 0.5, np.float32))

    def write_columns(folder: Path, **_: Any) -> Features:
        (folder / "eval").mkdir(parents=True)
        np.save(folder / "eval" / "label.npy", np.array([0, 1, 0, 1], np.int32))
        return Features((), (), LABEL)

    def start(fingerprint: str, train=lambda _: None, **changed: Any) -> None:
        def supervised(job: Any, *_: Any, **__: Any) -> dict[str, Any]:
            train(job)
            return {"predictions": str(predictions), "training": {"steps": 3}}

        monkeypatch.setattr(training.supervisor, "run", supervised)
        training.run_fn(
            examples="", statistics="", schema="",
            model=str(tmp_path / "model"), model_run=str(tmp_path / "run"),
            settings={
                "model": to_json(ModelSettings()),
                "training": to_json(TrainingSettings()),
                "checkpoint": to_json(CheckpointSettings()),
                "checkpoints": str(tmp_path / "checkpoints"),
            },
            fingerprint=json.dumps({"code": {"a": fingerprint}, "settings": dict(changed)}),
        )  # fmt: skip

    monkeypatch.setattr(training, "write_columns", write_columns)
    return start


def age(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (0, 0))


def test_the_folders_of_old_fingerprints_go_once_a_training_ended_well(run, tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    for number in range(checkpoints.KEPT + 2):
        run(str(number))
        age(folder)

    def fail(_: Any) -> None:
        raise WorkerLost("died")

    (folder / ("a" * 16)).mkdir()
    age(folder)
    with pytest.raises(WorkerLost):
        run("98", train=fail)
    assert len(list(folder.iterdir())) == checkpoints.KEPT + 2
    age(folder)
    run("99")
    assert len(list(folder.iterdir())) == checkpoints.KEPT


def test_the_folder_is_marked_while_training_runs(run) -> None:
    seen: list[str] = []

    def look(job: Any) -> None:
        descriptor = os.open(job.checkpoints, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seen.append(job.checkpoints)
        finally:
            os.close(descriptor)

    run("1", train=look)
    assert len(seen) == 1


def test_the_record_holds_what_the_evaluator_reads_and_the_columns_are_gone(run, tmp_path) -> None:
    run("1")
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert kept == {"features.json", "label.npy", "predictions.npy", "result.json", "shares.json"}
    (state,) = (tmp_path / "checkpoints").iterdir()
    assert not list(state.iterdir())


def test_another_number_of_workers_finds_the_checkpoints_and_another_seed_does_not(run) -> None:
    places: list[str] = []
    for changed in (
        {"training.workers": 2, "training.seed": 7},
        {"training.workers": 3, "training.seed": 7},
        {"training.workers": 2, "training.seed": 8},
    ):
        run("1", train=lambda job: places.append(job.checkpoints), **changed)
    assert places[0] == places[1]
    assert places[2] != places[0]
