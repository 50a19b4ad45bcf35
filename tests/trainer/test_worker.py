"""The training process itself: killed at random, resumed, and what it leaves behind."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import journal, supervisor
from trainer.errors import NotFinite, SettingError
from trainer.settings import Job, to_json
from trainer.worker import failed

pytestmark = pytest.mark.slow
KILLS = 10

ZYGOTE = """
import json, os, sys
os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
from pathlib import Path
from trainer import export, loop, worker       # imports alone: no thread of TensorFlow runs yet
from trainer.settings import job_from_json
for line in sys.stdin:
    job = job_from_json(json.loads(Path(line.strip()).read_text()))
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        result = worker.do(job, Path(job.result).parent, stop=lambda: 0)
        Path(job.result).write_text(json.dumps(result))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks a process a job, so that ten deaths do not cost ten imports of TensorFlow."""


class Zygote:
    def __init__(self, log: Path) -> None:
        self.log = open(log, "ab")  # ruff: ignore[open-file-with-context-handler]
        self.process = subprocess.Popen(
            [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, text=True,
        )  # fmt: skip

    def begin(self, job: Job) -> int:
        path = Path(job.result).with_name("job.json")
        path.write_text(json.dumps(to_json(job)))
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        return int(self.process.stdout.readline())


@pytest.fixture
def zygote(tmp_path: Path) -> Any:
    one = Zygote(tmp_path / "zygote.log")
    yield one
    one.process.stdin.close()
    one.process.stdout.close()
    one.process.kill()
    one.process.wait()
    one.log.close()


def _elsewhere(job: Job, folder: Path) -> Job:
    folder.mkdir()
    return replace(
        job, checkpoints=str(folder / "checkpoints"), export=str(folder / "export"),
        events=str(folder / "events.jsonl"), result=str(folder / "result.json"),
    )  # fmt: skip


def _weights(job: Job) -> dict[str, bytes]:
    newest = max(Path(job.checkpoints).glob("step-*"))
    manifest = json.loads((newest / "manifest.json").read_text())
    return {"step": manifest["step"], "sha256": manifest["sha256"]}


def _count(job: Job) -> int:
    return sum(one["event"] == "train_step" for one in journal.read(job.events)[0])


@pytest.mark.long
def test_killed_at_ten_random_moments_it_ends_with_the_same_weights(
    zygote: Zygote, tmp_path: Path, make_job: Any
) -> None:
    job = make_job(rows=1200, global_batch=4, steps=900, every_steps=20, dropout=0.1)
    zygote.begin(job)
    assert zygote.end() == 0
    whole = json.loads(Path(job.result).read_text())
    killed = _elsewhere(job, tmp_path / "killed")
    moments, deaths = random.Random(5), 0
    for _ in range(KILLS):
        before = _count(killed)
        pid = zygote.begin(killed)
        # So many steps on, whatever a step takes here: a checkpoint is written every 20 of them.
        enough = before + moments.randint(1, 100)
        while _count(killed) < enough and not Path(killed.result).exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.05))  # while it saves or evaluates, too
        try:
            subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
        finally:
            deaths += zygote.end() == -signal.SIGKILL
    zygote.begin(killed)
    assert zygote.end() == 0
    result = json.loads(Path(killed.result).read_text())
    assert deaths >= KILLS // 2, "training was too short to be killed often"
    assert _weights(killed) == _weights(job)
    np.testing.assert_array_equal(np.load(result["predictions"]), np.load(whole["predictions"]))
    assert result["history"] == whole["history"]
    assert result["training"]["resumed_from_step"] > 0


def test_a_worker_that_is_killed_is_started_again_and_ends_the_same(
    tmp_path: Path, make_job: Any
) -> None:
    job = make_job(rows=1200, global_batch=4, steps=600, every_steps=50)
    job = replace(job, result="")
    folder = tmp_path / "worker"
    # The first one waits; it is killed once it has done steps, from beside this process.
    (waiting,) = supervisor.start(folder)
    killer = subprocess.Popen([
        sys.executable, "-c",
        f"""
import os, time
from trainer import journal
while not any(e["event"] == "checkpoint" for e in journal.read({job.events!r})[0]):
    time.sleep(0.01)
os.kill({waiting.pid}, 9)
""",
    ])  # fmt: skip
    result = supervisor.run(job, folder, max_restarts=2)
    assert killer.wait(timeout=60) == 0
    waiting.wait(timeout=60)
    assert waiting.returncode == -9
    assert result["status"] == "ok"
    assert result["training"]["steps"] == 600
    assert result["training"]["resumed_from_step"] >= 50
    # the allocator's own count, and what was foreseen of it
    assert result["training"]["peak_memory_bytes"] > 0
    assert Path(job.export, "saved_model.pb").exists()
    predictions = np.load(result["predictions"])
    assert predictions.shape == (40, 1)
    again = supervisor.run(
        replace(job, result=str(tmp_path / "again.json")), tmp_path / "second", max_restarts=0
    )
    assert again["training"]["resumed_from_step"] == 600
    np.testing.assert_array_equal(np.load(again["predictions"]), predictions)
    assert again["history"] == result["history"]


@pytest.mark.long
def test_three_workers_end_as_one_also_when_one_of_them_is_killed(
    tmp_path: Path, make_job: Any
) -> None:
    # 11 rows over 3 workers: 4, 4 and 3; the last 2 of an epoch leave two workers with none.
    alone = make_job(rows=24, global_batch=11, steps=40, every_steps=5, name="alone")
    alone = replace(alone, training=replace(alone.training, micro_batch=2))
    one = supervisor.run(alone, tmp_path / "one", max_restarts=0)
    shared = replace(_elsewhere(alone, tmp_path / "shared"), result="")
    shared = replace(shared, training=replace(shared.training, workers=3, shard="gradients"))
    folder = tmp_path / "three"
    waiting = supervisor.start(folder, workers=3)
    killer = subprocess.Popen([
        sys.executable, "-c",
        f"""
import os, time
from trainer import journal
while not any(e["event"] == "checkpoint" for e in journal.read({shared.events!r})[0]):
    time.sleep(0.01)
os.kill({waiting[1].pid}, 9)
""",
    ])  # fmt: skip
    three = supervisor.run(shared, folder, max_restarts=2)
    assert killer.wait(timeout=60) == 0
    assert [one.wait(timeout=60) for one in waiting][1] == -signal.SIGKILL
    assert three["training"]["resumed_from_step"] > 0
    told = journal.read(shared.events)[0]
    assert {e["workers"] for e in told if e["event"] == "training_started"} == {3}
    np.testing.assert_allclose(
        np.load(three["predictions"]), np.load(one["predictions"]), rtol=2e-4, atol=2e-5
    )
    losses = [[e["train_loss"] for e in run["history"]] for run in (one, three)]
    np.testing.assert_allclose(*losses, rtol=2e-4)


def test_sigterm_saves_and_ends_with_143(tmp_path: Path, make_job: Any) -> None:
    job = make_job(rows=2000, global_batch=4, steps=100_000, every_steps=10_000)
    folder = tmp_path / "worker"
    (worker,) = supervisor.start(folder)
    supervisor.write_json(folder / supervisor.JOB, to_json(job))
    while _count(job) < 2:
        assert worker.poll() is None
        time.sleep(0.05)
    worker.terminate()
    assert worker.wait(timeout=60) == 143
    (saved,) = [one for one in journal.read(job.events)[0] if one["event"] == "checkpoint"]
    assert 0 < saved["step"] < 100_000
    assert not Path(job.result).exists()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"cluster"', "TF_CONFIG"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
         "TF_CONFIG: task.index"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
         "TF_CONFIG: cluster.worker[1]"),
        ('{"cluster": {"worker": ["a:99999", "b:1"]}, "task": {"type": "worker", "index": 0}}',
         "TF_CONFIG: cluster.worker[0]"),
        # What the second of two processes with the same index meets, and any other port in use.
        ('{"cluster": {"worker": ["a:1", "localhost:PORT"]}, "task": {"type": "worker", '
         '"index": 1}}', "TF_CONFIG: cluster.worker[1]"),
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_is_named_before_the_imports(
    tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch, text: str, where: str
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TF_CONFIG", text.replace("PORT", str(port)))
        began = time.monotonic()
        with pytest.raises(SettingError) as caught:
            supervisor.run(make_job(), tmp_path / "worker", max_restarts=3)
    assert caught.value.where == where
    assert time.monotonic() - began < 5, "importing TensorFlow alone takes longer"


def test_an_error_goes_into_the_result_as_facts_and_into_the_log_in_full(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    ours = NotFinite("loss is not finite at step 3", where="training")
    assert failed(ours, log)["error"] == ours.facts()
    told = failed(ValueError("no such thing"), log)["error"]
    assert told["type"] == "TrainingError"
    assert "ValueError: no such thing" in told["what"]
    assert told["where"] == str(log)
    assert failed(MemoryError(), log)["error"]["type"] == "MemoryExceeded"
    assert "ValueError: no such thing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line", "one line"),
        ("one line\n\n\tand its stack", "one line"),
        (
            "Graph execution error:\n\nDetected at node div defined at (most recent call last):\n"
            '  File "model.py", line 3\nInteger division by zero\n\t [[{{node div}}]] [Op:x]',
            "Integer division by zero",
        ),
        (
            'in user code:\n\n    File "model.py", line 9, in call  *\n        x @ y\n\n'
            "    ValueError: Shapes (3, 4) and (5, 6) are incompatible\n",
            "ValueError: Shapes (3, 4) and (5, 6) are incompatible",
        ),
        ("", ""),
    ],
)
def test_what_is_told_of_tensorflows_errors_is_what_happened(
    text: str, line: str, tmp_path: Path
) -> None:
    told = failed(ValueError(text), tmp_path / "worker.log")["error"]["what"]
    assert told == f"training failed: ValueError: {line}"


def test_tensorflows_own_error_is_told_by_what_happened(tmp_path: Path) -> None:
    import tensorflow as tf

    divide = tf.function(lambda x: x // tf.zeros_like(x))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        divide(tf.constant(3))
    told = failed(caught.value, tmp_path / "worker.log")["error"]["what"]
    assert "Integer division by zero" in told
    assert "Graph execution error" not in told
