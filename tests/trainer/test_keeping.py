"""Whole trainings whose checkpoints are copied to S3 storage, and that go on from there."""

from __future__ import annotations

import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3

from trainer import identity, journal, loop, monitoring
from trainer.keeping import Keeping
from trainer.settings import Job
from trainer.strategy import Replicas

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Server]:
    with s3.serve(monkeypatch) as one:
        yield one


@pytest.fixture
def make(server: s3.Server, make_job: Any) -> Callable[..., Job]:
    """Makes a job whose checkpoints are copied."""

    def made(**given: Any) -> Job:
        job = make_job(**given)
        there = {"remote": f"s3://{s3.BUCKET}/jobs", "endpoint_url": server.url}
        return replace(job, checkpoint=replace(job.checkpoint, **there))

    return made


def _on_another_machine(job: Job, folder: Path) -> Job:
    """Return the job where all files stand elsewhere, and nothing of its state is there."""
    folder.mkdir()
    for name, place in (("train", job.train), ("eval", job.eval)):
        shutil.copytree(place, folder / name)
    return replace(
        job, train=str(folder / "train"), eval=str(folder / "eval"),
        checkpoints=str(folder / "state"), events=str(folder / "events.jsonl"),
        export=str(folder / "export"),
    )  # fmt: skip


def _stop_after(steps: int) -> Callable[[], int]:
    done = iter(range(1, 10**6))
    return lambda: signal.SIGTERM if next(done) >= steps else 0


def _unhurried(job: Job, *, first: int) -> Callable[[], int]:
    """Return what lets no step begin before the last checkpoint due is copied: none is passed over.

    Args:
        job: whose events tell of the copies.
        first: step that it goes on from.
    """
    done = iter(range(first + 1, 10**6))

    def stop() -> int:
        due = next(done) // job.checkpoint.every_steps * job.checkpoint.every_steps
        until = time.monotonic() + 60
        while due > first and due not in {one["step"] for one in _told(job, "upload")}:
            assert time.monotonic() < until, f"step {due} was never copied"
            time.sleep(0.01)
        return 0

    return stop


def _told(job: Job, kind: str) -> list[dict[str, Any]]:
    return [one for one in journal.read(job.events)[0] if one["event"] == kind]


def _assert_same(one: loop.Trained, other: loop.Trained) -> None:
    for left, right in zip(
        one.built.model.trainable_variables, other.built.model.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(left.value.numpy(), right.value.numpy())
    np.testing.assert_array_equal(one.predictions, other.predictions)
    assert one.history == other.history


def test_an_empty_machine_goes_on_from_there_to_the_very_weights_of_an_undisturbed_run(
    make: Any, server: s3.Server, tmp_path: Path
) -> None:
    job = make(seed=7, dropout=0.2)
    undisturbed = loop.train(
        replace(
            _on_another_machine(job, tmp_path / "undisturbed"),
            checkpoint=replace(job.checkpoint, remote=""),
        )
    )
    with pytest.raises(loop.Interrupted):
        loop.train(job, stop=_stop_after(14))
    uploads = [one["step"] for one in _told(job, "upload")]
    assert uploads[-1] == 14, "the last one before the end"
    other = _on_another_machine(job, tmp_path / "other")
    resumed = loop.train(other, stop=_unhurried(other, first=14))
    assert resumed.facts["resumed_from_step"] == 14
    assert resumed.facts["uploaded_step"] == 30
    fetched = {one["step"] for one in _told(other, "fetched")}
    assert 14 in fetched
    _assert_same(undisturbed, resumed)
    assert not _told(job, "warning")
    assert not _told(other, "warning")
    # and there as here: the newest three, and the best
    here = sorted(one.name for one in Path(other.checkpoints).glob("step-*"))
    there = sorted({Path(one).parent.name for one in server.objects()})
    assert there == here


def test_the_same_data_elsewhere_is_the_same_training_and_other_data_is_another(
    make: Any, tmp_path: Path
) -> None:
    job = make()
    other = _on_another_machine(job, tmp_path / "other")
    assert identity.of_job(job) == identity.of_job(other)
    values = Path(other.train) / "1.values.npy"
    numbers = np.load(values)
    numbers[3] += 1e-9
    np.save(values, numbers)
    changed = {k for k, v in identity.of_job(job).items() if identity.of_job(other)[k] != v}
    assert changed == {"data"}
    changed = replace(job, training=replace(job.training, seed=8))
    assert identity.of_job(changed)["settings"] != identity.of_job(job)["settings"]
    again = replace(job, lineage="begun anew")
    assert identity.digest(identity.of_job(again)) != identity.digest(identity.of_job(job))


ARRAYS = {"weight/a": np.arange(20, dtype=np.float32) / 7}


class Kept:
    """A training's checkpoints without a training: steps 2 (the best), 4 and 6 here and there."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.told: list[str] = []
        one = self.keeping(job)
        for step in (2, 4, 6):
            one.begin(ARRAYS, {"progress": {"best_step": 2}}, step=step, best=2)
            one.wait()
            _until(lambda: one.uploads.lag_seconds() == 0.0)
        one.finish(upload_seconds=30)

    def keeping(self, job: Job) -> Keeping:
        return Keeping(
            job, Replicas(), tell=lambda event, **facts: self.told.append(event),
            warn=self.told.append,
        )  # fmt: skip

    def restored(self, job: Job) -> int | None:
        self.told.clear()
        found = self.keeping(job).restore(ARRAYS)
        return found.step if found else None


@pytest.fixture
def kept(make: Any) -> Kept:
    return Kept(make(keep=2))


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_copy_that_is_damaged_is_named_and_passed_over(
    kept: Kept, server: s3.Server, tmp_path: Path
) -> None:
    files = server.files()
    newest = max(one for one in server.objects() if one.endswith("state.npy"))
    files.pipe_file(newest, files.cat_file(newest)[:-1] + b"x")
    other = _on_another_machine(kept.job, tmp_path / "other")
    assert kept.restored(other) == 4
    (warning,) = [one for one in kept.told if "passed over" in one]
    assert f"the copy of step 6 passed over: s3://{Path(newest).parent}" in warning
    assert "is damaged" in warning


def test_what_is_damaged_here_is_had_from_there(kept: Kept) -> None:
    state = Path(kept.job.checkpoints) / "step-00000006" / "state.npy"
    state.write_bytes(state.read_bytes()[:-5])
    assert kept.restored(kept.job) == 6
    assert "fetched" in kept.told


def test_the_best_is_had_with_the_newest(kept: Kept, tmp_path: Path) -> None:
    other = _on_another_machine(kept.job, tmp_path / "other")
    assert kept.restored(other) == 6
    here = sorted(one.name for one in Path(other.checkpoints).glob("step-*"))
    assert here == ["step-00000002", "step-00000006"]


def test_a_newer_one_there_comes_before_an_older_one_here(kept: Kept) -> None:
    for step in (4, 6):
        shutil.rmtree(Path(kept.job.checkpoints) / f"step-{step:08d}")
    assert kept.restored(kept.job) == 6


def test_a_storage_that_is_away_leaves_what_is_here(kept: Kept, server: s3.Server) -> None:
    server.stop()
    assert kept.restored(kept.job) == 6
    assert any("nobody knows which checkpoints are in" in one for one in kept.told)


def test_a_storage_that_is_slow_keeps_no_step_waiting(make: Any, server: s3.Server) -> None:
    is_over = threading.Event()

    def wait(environ: dict[str, Any], _: Callable[..., Any]) -> None:
        # No upload is answered before the last step is done.
        if environ["REQUEST_METHOD"] == "PUT":
            is_over.wait(120)

    job = make()
    server.fault = wait
    done: list[int] = []

    def stop() -> int:
        done.append(len(done))
        if len(done) == 30:
            is_over.set()
        return 0

    trained = loop.train(job, stop=stop)
    assert is_over.is_set()
    assert trained.facts["steps"] == 30
    assert trained.facts["uploaded_step"] == 30
    newest = max(int(Path(one).parent.name[5:]) for one in server.objects())
    assert newest == 30
    assert not _told(job, "warning")


def test_a_storage_that_goes_away_ends_no_training_and_the_wait_is_shown(
    make: Any, server: s3.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "UPLOAD_SECONDS", 1.0)
    job = make(epochs=10)
    run = loop.Run(job)
    run.voice.metrics = monitoring.Metrics(0, rank=0, restarts=0)
    seen: list[float] = []

    def stop() -> int:
        if run.progress.step == 30:
            server.stop()
        if run.progress.step > 30 and run.progress.step % 10 == 0:
            seen.append(_shown(run, "upload_lag_seconds"))
        return 0

    run.fitted.choose()
    run.restore()
    run.announce()
    run.go_on(stop)
    trained = run.finish()
    assert _shown(run, "upload_failures") >= 1
    run.voice.metrics.close(most_seconds=0)
    assert max(seen) > 0
    assert trained.facts["steps"] == 100
    assert (trained.facts["uploaded_step"] or 0) < 100
    first, last = (one["message"] for one in _told(job, "warning"))
    assert "the storage does not answer" in first
    assert f"the checkpoint of step 100 is not in s3://{s3.BUCKET}/jobs/" in last
    assert "\n" not in first + last
    assert (Path(job.checkpoints) / "step-00000100").exists()


def _shown(run: loop.Run, name: str) -> float:
    address = f"http://127.0.0.1:{run.voice.metrics.address.rpartition(':')[2]}/metrics"
    text = urllib.request.urlopen(address, timeout=10).read().decode()
    (line,) = [one for one in text.splitlines() if one.startswith(f"headrace_{name}{{")]
    return float(line.rpartition(" ")[2])
