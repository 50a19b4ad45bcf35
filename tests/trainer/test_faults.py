"""What happens to two real workers: stopped, killed, alone, and with something else to train."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gang
import numpy as np
import pytest

from trainer import checkpoint, journal, layout, loop, supervisor
from trainer.errors import CheckpointError, HeadraceError
from trainer.settings import (
    CheckpointSettings,
    Job,
    LabelFeature,
    ModelSettings,
    TrainingSettings,
    job_from_json,
    to_json,
)

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
CASES = ("nan", "data", "code", "disk")
WAIT_SECONDS = 240


# Two workers, each with its own idea of what to train


def each_case() -> dict[str, Any]:
    """Run on each worker: what came of each case."""
    from trainer import strategy as replicated

    replicas = replicated.choose()
    return {case: _one_case(case, replicas) for case in CASES}


def _one_case(case: str, replicas: Any) -> Any:
    place = Path(os.environ["CASES"]) / f"{case}-{replicas.workers.rank}.json"
    run = loop.Run(job_from_json(json.loads(place.read_text())), replicas=replicas)
    try:
        run.compare()
        run.fitted.choose()
        run.restore()
        run.announce()
        run.go_on(lambda: 0)
        facts = run.finish().facts
        weights = b"".join(one.numpy().tobytes() for one in run.fitted.state.variables().values())
        return facts["skipped_steps"], facts["steps"], weights
    except HeadraceError as error:
        return error.facts()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Any]:
    folder = tmp_path_factory.mktemp("cases")
    write = _columns_writer(request)
    features = write(folder / "train", rows=24)
    write(folder / "eval", rows=20, seed=1)
    shutil.copytree(folder / "train", folder / "other")
    shutil.copytree(folder / "train", folder / "nan")
    _set(folder / "other" / "1.values.npy", 3, 0.125)
    # A number that is NaN counts as missing; a label that is makes the loss NaN.
    np.save(folder / "nan" / "label.npy", np.arange(24.0))
    _set(folder / "nan" / "label.npy", 5, np.nan)
    shutil.copytree(folder / "eval", folder / "nan-eval")
    np.save(folder / "nan-eval" / "label.npy", np.arange(20.0))
    of_numbers = replace(
        features, label=LabelFeature("late", "regression", "float", mean=10.0, scale=5.0)
    )
    for case in CASES:
        for rank in range(2):
            job = _job(folder, features, case)
            if case in {"nan", "disk"}:
                job = replace(
                    job, train=str(folder / "nan"), eval=str(folder / "nan-eval"),
                    features=of_numbers,
                )  # fmt: skip
            if rank and case == "data":
                job = replace(job, train=str(folder / "other"))
            if rank and case == "code":
                job = replace(job, lineage="of other code")
            if case == "disk":
                job = replace(job, checkpoints=str(folder / "nan-state"))
            if rank and case == "disk":
                job = replace(job, checkpoints=str(folder / "a-disk-of-its-own"))
            (folder / f"{case}-{rank}.json").write_text(json.dumps(to_json(job)))
    ended = gang.end(each_case, workers=2, environment={"CASES": str(folder)})
    for one in ended:
        assert one.code == 0, one.output[-4000:]
    return [one.value for one in ended]


def _columns_writer(request: pytest.FixtureRequest) -> Any:
    conftest = request.config.pluginmanager.getplugin(str(Path(__file__).with_name("conftest.py")))
    return conftest._write_columns


def _set(path: Path, row: int, value: float) -> None:
    values = np.load(path)
    values[row] = value
    np.save(path, values)


def _job(folder: Path, features: Any, name: str, **training: Any) -> Job:
    place = folder / name
    place.mkdir(exist_ok=True)
    return Job(
        model=ModelSettings(layers=1, width=8, heads=2, dropout=0.1),
        training=TrainingSettings(**{"global_batch": 4, "epochs": 2, "micro_batch": 2, **training}),
        checkpoint=CheckpointSettings(every_steps=5),
        features=features,
        train=str(folder / "train"),
        eval=str(folder / "eval"),
        checkpoints=str(folder / f"{name}-state"),
        export=str(place / "export"),
        events=str(place / "events.jsonl"),
        result=str(place / "result.json"),
    )


def test_a_row_of_nan_on_one_worker_is_one_skipped_step_on_all(cases: list[Any]) -> None:
    (skipped, steps, weights), other = (one["nan"] for one in cases)
    assert (skipped, steps) == (2, 12), "the row is read once an epoch"
    assert other == (skipped, steps, weights)


@pytest.mark.parametrize("what", ["data", "code"])
def test_a_worker_that_would_train_something_else_is_named_before_the_first_step(
    cases: list[Any], what: str
) -> None:
    for one in cases:
        assert one[what]["type"] == "InputError"
        assert one[what]["what"].startswith("worker 1 at 127.0.0.1:")
        assert one[what]["what"].endswith(f"has other {what} than worker 0")


def test_a_worker_that_cannot_see_the_checkpoint_is_named(cases: list[Any]) -> None:
    # cases/distributed.md, distributed-2
    for one in cases:
        assert one["disk"]["type"] == "CheckpointError"
        assert one["disk"]["what"].startswith("worker 1 cannot see the checkpoint of step 12")


# A gang and its supervisor

STEPS = 1200


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    return Story(tmp_path_factory.mktemp("story"), _columns_writer(request))


class Story:
    """One training that is left alone, and one to which all of it happens."""

    def __init__(self, folder: Path, write: Any) -> None:
        self.folder = folder
        features = write(folder / "train", rows=600)
        write(folder / "eval", rows=40, seed=1)
        shared = {"workers": 2, "shard": "parameters", "global_batch": 5, "epochs": 10}
        self.alone = self._kept(_job(folder, features, "alone", **shared))
        self.job = self._kept(_job(folder, features, "disturbed", **shared))

    def _kept(self, job: Job) -> Job:
        return replace(job, result="", checkpoint=replace(job.checkpoint, every_steps=40))

    def pids(self, folder: Path) -> list[int]:
        return [json.loads((one / supervisor.WAITING).read_text())["pid"]
                for one in supervisor.places(folder, 2)]  # fmt: skip


def _steps(job: Job) -> int:
    told = [one["step"] for one in journal.read(job.events)[0] if one["event"] == "checkpoint"]
    return max(told, default=0)


def _until(holds: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def test_no_worker_outlives_a_supervisor_that_is_killed(story: Any) -> None:
    folder = story.folder / "first"
    spec = story.folder / "job.json"
    spec.write_text(json.dumps(to_json(story.job)))
    code = (
        "import json; from trainer import supervisor; from trainer.settings import job_from_json\n"
        f"job = job_from_json(json.load(open({str(spec)!r})))\n"
        f"supervisor.run(job, {str(folder)!r}, max_restarts=0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=gang.ROOT)
    try:
        _until(lambda: _steps(story.job) or parent.poll() is not None, "no checkpoint")
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    pids = story.pids(folder)
    _until(lambda: not any(map(supervisor._start_time, pids)), "a worker is still there")
    assert 0 < _steps(story.job) < STEPS
    for name in ("three", "one"):
        shutil.copytree(story.job.checkpoints, story.folder / f"{name}-state")


def test_one_that_is_stopped_and_two_that_are_killed_change_nothing(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = supervisor.run(story.alone, story.folder / "alone-gang", max_restarts=2)
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 15.0)
    folder, done = story.folder / "second", []

    def disturb() -> None:
        before = _steps(story.job)
        _until(lambda: _steps(story.job) > before, "no step before the stop")
        first = story.pids(folder)
        os.kill(first[1], signal.SIGSTOP)
        _until(lambda: story.pids(folder)[1] != first[1], "the stopped one was not found")
        before = _steps(story.job)
        _until(lambda: _steps(story.job) > before, "no step before the kill")
        for pid in story.pids(folder):
            os.kill(pid, signal.SIGKILL)
        done.append(first)

    thread = threading.Thread(target=disturb)
    thread.start()
    result = supervisor.run(story.job, folder, max_restarts=3)
    thread.join()
    assert done, "the training was over too soon"
    said = [one["message"] for one in journal.read(story.job.events)[0]
            if one["event"] == "warning"]  # fmt: skip
    stopped, killed = (one for one in said if "restart" in one)
    assert "worker 1 of 2 hung: it did no step for" in stopped
    assert "of 2 died by signal 9, SIGKILL" in killed
    assert "restart 2 of 3" in killed
    _assert_bitwise(story.alone, whole, story.job, result)
    assert not any(map(supervisor._start_time, done[0]))


def _assert_bitwise(one: Job, first: Any, other: Job, second: Any) -> None:
    digests = [layout.check(checkpoint.found(Path(job.checkpoints))[0][1])["sha256"]
               for job in (one, other)]  # fmt: skip
    assert digests[0] == digests[1]
    assert first["history"] == second["history"]
    predictions = [np.load(result["predictions"]) for result in (first, second)]
    np.testing.assert_array_equal(*predictions)


@pytest.mark.parametrize(("name", "workers"), [("one", 1), ("three", 3)])
def test_what_two_workers_saved_in_parts_is_gone_on_from_by_one_and_by_three(
    story: Any, name: str, workers: int
) -> None:
    if not (story.folder / f"{name}-state").exists():
        pytest.fail("the test before this one saved nothing")
    job = replace(
        story.job, checkpoints=str(story.folder / f"{name}-state"),
        events=str(story.folder / f"{name}.jsonl"), export=str(story.folder / f"{name}-export"),
        training=replace(
            story.job.training, workers=workers, shard="parameters" if workers > 1 else "none"
        ),
    )  # fmt: skip
    result = supervisor.run(job, story.folder / f"{name}-gang", max_restarts=2)
    whole = json.loads((story.folder / "alone-gang" / "result.json").read_text())
    assert result["training"]["resumed_from_step"] > 0
    assert result["training"]["steps"] == STEPS
    losses = [[one["loss"] for one in run["history"]] for run in (result, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-3)


# A disk that is full


def test_a_disk_that_is_full_ends_training_in_one_line_and_room_lets_it_go_on(
    small_disk: Path, make_job: Any
) -> None:
    whole = loop.train(make_job(seed=7))
    job = replace(make_job(seed=7, name="full"), checkpoints=str(small_disk / "state"))
    steps = iter(range(1, 1000))

    def fill() -> int:
        if next(steps) == 7:
            room = shutil.disk_usage(small_disk).free
            (small_disk / "ballast").write_bytes(bytes(room))
        return 0

    with pytest.raises(CheckpointError, match="no space left to save the checkpoint"):
        loop.train(job, stop=fill)
    assert [one for one, _ in checkpoint.found(small_disk / "state")] == [5]
    (small_disk / "ballast").unlink()
    resumed = loop.train(job)
    assert resumed.facts["resumed_from_step"] == 5
    np.testing.assert_array_equal(whole.predictions, resumed.predictions)
    assert resumed.history == whole.history
