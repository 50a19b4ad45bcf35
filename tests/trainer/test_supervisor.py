"""The supervisor, with workers that are shell scripts: no TensorFlow, so that it is quick."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer import journal, supervisor
from trainer.errors import MemoryExceeded, SettingError, WorkerLost
from trainer.pulse import Pulse
from trainer.settings import Job

TAKE = 'while [ ! -e "$3/job.json" ]; do sleep 0.02; done; mv "$3/job.json" "$3/job.taken.json"\n'
ANSWER = 'echo \'{"status": "ok", "answer": 1}\' > "$RESULT.part"; mv "$RESULT.part" "$RESULT"\n'
COUNT = 'echo x >> "$3/starts"\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_SECONDS", (0.0,))


@pytest.fixture
def fake(tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes (job, folder, python): a "python" that runs a script as the worker."""
    job = replace(make_job(), result=str(tmp_path / "result.json"))
    monkeypatch.setenv("RESULT", job.result)

    def make(script: str) -> tuple[Job, Path, str]:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\n" + COUNT + script)
        python.chmod(0o755)
        return job, tmp_path / "worker", str(python)

    return make


def _starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


def test_the_result_comes_back(fake: Any) -> None:
    job, folder, python = fake(TAKE + ANSWER)
    result = supervisor.run(job, folder, max_restarts=0, python=python)
    assert result == {"status": "ok", "answer": 1}
    taken = json.loads((folder / supervisor.TAKEN).read_text())
    assert taken["result"] == job.result


def test_without_a_place_the_result_stands_in_the_folder(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder, python = fake(TAKE + ANSWER)
    monkeypatch.setenv("RESULT", str(folder / "result.json"))
    assert supervisor.run(replace(job, result=""), folder, max_restarts=0, python=python)


def test_a_waiting_worker_takes_the_job(fake: Any) -> None:
    job, folder, python = fake(TAKE + ANSWER)
    (waiting,) = supervisor.start(folder, python=python)
    assert supervisor.run(job, folder, max_restarts=0, python=python)["answer"] == 1
    waiting.wait(timeout=10)
    assert _starts(folder) == 1


def test_a_worker_that_died_while_it_waited_is_replaced(fake: Any) -> None:
    job, folder, python = fake(TAKE + ANSWER)
    (waiting,) = supervisor.start(folder, python=python)
    waiting.kill()
    while _is_running(waiting.pid):  # it stays a zombie, which is not alive
        time.sleep(0.01)
    assert supervisor.run(job, folder, max_restarts=0, python=python)["answer"] == 1
    waiting.wait(timeout=10)


def test_a_worker_that_dies_is_started_again(fake: Any) -> None:
    script = TAKE + '[ "$(wc -l < "$3/starts")" -lt 3 ] && kill -9 $$\n' + ANSWER
    job, folder, python = fake(script)
    assert supervisor.run(job, folder, max_restarts=2, python=python)["answer"] == 1
    assert _starts(folder) == 3


def test_one_that_dies_too_often_is_lost_with_its_signal_and_log(fake: Any) -> None:
    job, folder, python = fake(TAKE + "echo the reason; kill -9 $$\n")
    with pytest.raises(
        WorkerLost, match="died 2 times, the last time by signal 9, SIGKILL"
    ) as caught:
        supervisor.run(job, folder, max_restarts=1, python=python)
    assert "the reason" in Path(caught.value.where).read_text()
    assert _starts(folder) == 2


def test_the_first_cause_is_told_beside_the_last(fake: Any) -> None:
    script = TAKE + '[ "$(wc -l < "$3/starts")" -lt 2 ] && exit 7\nkill -9 $$\n'
    job, folder, python = fake(script)
    with pytest.raises(WorkerLost, match="the last time by signal 9, SIGKILL") as caught:
        supervisor.run(job, folder, max_restarts=1, python=python)
    assert "the first time the training process died with exit code 7" in caught.value.right
    assert caught.value.where == str(folder / supervisor.LOG)


def test_one_that_ends_without_a_result_is_lost_with_its_exit_code(fake: Any) -> None:
    job, folder, python = fake(TAKE + "exit 7\n")
    with pytest.raises(WorkerLost, match="with exit code 7"):
        supervisor.run(job, folder, max_restarts=0, python=python)


def test_an_error_that_it_told_of_is_raised_and_not_tried_again(fake: Any) -> None:
    error = MemoryExceeded("ran out", where="training.micro_batch", holds="1024", right="512")
    told = json.dumps({"status": "failed", "error": error.facts()})
    job, folder, python = fake(TAKE + f"echo '{told}' > \"$RESULT\"; exit 4\n")
    with pytest.raises(MemoryExceeded) as caught:
        supervisor.run(job, folder, max_restarts=3, python=python)
    assert caught.value.facts() == error.facts()
    assert _starts(folder) == 1


def test_an_old_result_is_not_taken_for_a_new_one(fake: Any) -> None:
    job, folder, python = fake(TAKE + "exit 1\n")
    error = SettingError("of the last run").facts()
    Path(job.result).write_text(json.dumps({"status": "failed", "error": error}))
    with pytest.raises(WorkerLost):
        supervisor.run(job, folder, max_restarts=0, python=python)


@pytest.mark.parametrize(("code", "name"), [(143, "SIGTERM"), (130, "SIGINT")])
def test_one_that_was_asked_to_end_is_not_started_again(fake: Any, code: int, name: str) -> None:
    job, folder, python = fake(TAKE + f"exit {code}\n")
    with pytest.raises(WorkerLost, match=f"asked to end by {name}"):
        supervisor.run(job, folder, max_restarts=3, python=python)
    assert _starts(folder) == 1


BEAT = """
cat > "$3/beat.py" <<'END'
import sys, time
from pathlib import Path
from trainer import pulse
one = pulse.Pulse(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    one.beat(0.05)
    time.sleep(0.05)
END
"""
BEATS = BEAT + f'"{sys.executable}" "$3/beat.py" "$3" '


def test_one_that_is_stopped_hangs_and_is_started_again_though_it_takes_no_signal(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.2)
    once = '[ "$(wc -l < "$3/starts")" -lt 2 ] && kill -STOP $$\n'
    job, folder, python = fake(TAKE + BEATS + "3\n" + once + ANSWER)
    assert supervisor.run(job, folder, max_restarts=1, python=python)["answer"] == 1
    assert _starts(folder) == 2
    (said,) = journal.read(job.events)[0]
    assert said["event"] == "warning"
    assert "the training process hung: it did no step for" in said["message"]
    assert "restart 1 of 1" in said["message"]


def test_one_that_hangs_too_often_is_lost_and_it_is_said_that_it_hung(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.2)
    job, folder, python = fake(TAKE + BEATS + "3\nexec sleep 60\n")
    with pytest.raises(WorkerLost, match=r"hung: it did no step for .* started 1 times"):
        supervisor.run(job, folder, max_restarts=0, python=python)


def test_one_that_does_steps_for_longer_than_that_does_not_hang(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.2)
    job, folder, python = fake(TAKE + BEATS + "60\n" + ANSWER)
    assert supervisor.run(job, folder, max_restarts=0, python=python)["answer"] == 1


def test_a_silence_is_not_counted_while_the_supervisor_was_stopped_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    Pulse(tmp_path).beat(1.0)
    silence = supervisor.Silence()
    now += 2.0
    assert not silence.is_too_long(tmp_path)
    now += 10_000.0  # Ctrl-Z, and fg hours later
    assert not silence.is_too_long(tmp_path)
    for _ in range(200):
        now += supervisor.LOOK_SECONDS
        silence.is_too_long(tmp_path)
    assert silence.is_too_long(tmp_path) or silence.seconds > supervisor.SILENT_SECONDS


def test_an_interrupt_ends_the_worker_too(fake: Any) -> None:
    job, folder, python = fake(TAKE + 'echo $$ > "$3/pid"; exec sleep 60\n')

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            supervisor.run(job, folder, max_restarts=0, python=python)
    finally:
        signal.signal(signal.SIGALRM, before)
    pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    child = (
        "from trainer import supervisor; import time; supervisor.die_with_parent(); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"one = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(one.pid))\n"
        "time.sleep(1)\n"
    )
    subprocess.run([sys.executable, "-c", parent], check=True)
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while _is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    return bool(supervisor._start_time(pid))


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, trainer.supervisor; "
        "print([one for one in ('tensorflow', 'numpy', 'keras') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
