"""Journals into real MLflow stores: sqlite files, and a server on this machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from tracked import track

from components import untracked
from components.tracking import MlflowStore
from components.tracking_follow import Follower
from trainer import journal


@pytest.fixture(autouse=True)
def no_mlflow_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """A sqlite store after MLflow's migrations, which take seconds."""
    root = tmp_path_factory.mktemp("store")
    spec = {
        "tracking_uri": f"sqlite:///{root}/mlflow.db",
        "experiment": "other",
        "artifact_root": "x",
    }
    MlflowStore(spec).connect()
    return root / "mlflow.db"


class Pipeline:
    """A pipeline's folder: runs with their journals and SPECs."""

    def __init__(self, root: Path, name: str = "flights") -> None:
        self.root = root
        self.name = name
        self.uri = f"sqlite:///{root}/mlflow.db"

    def run(self, number: str, **changes) -> tuple[Path, Path]:
        """Make the folder of a run whose journal only began."""
        folder = self.root / self.name / "logs" / number
        folder.mkdir(parents=True)
        spec = {
            "tracking_uri": self.uri,
            "artifact_root": str(self.root / "mlruns"),
            "experiment": self.name,
            "run_name": number,
            "params": {"training.epochs": 2, "data.files": ["a.csv"]},
            "tags": {"git.commit": "c0ffee"},
            "config_text": "name = 'flights'\n",
            "fingerprint": f"f{number}",
            "resume": False,
            "artifacts": {"report.html": str(folder / "report.html")},
            **changes,
        }
        (folder / "tracking.json").write_text(json.dumps(spec))
        journal.append(folder / "events.jsonl", "run_started", run=number, pipeline=self.name)
        return folder / "events.jsonl", folder / "tracking.json"

    def store(self, events: Path, *, is_over=lambda: True) -> bool:
        """Follow a journal in this process, as the tracking process does."""
        spec_path = events.parent / "tracking.json"
        spec = json.loads(spec_path.read_text())
        marker = untracked.mark(events, spec_path)
        is_stored = Follower(events, spec, marker, MlflowStore(spec)).follow(is_over)
        if is_stored:
            marker.remove()
        else:
            marker.release()
        return is_stored

    def runs(self) -> list:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.uri)
        experiment = client.get_experiment_by_name(self.name)
        return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])

    def steps(self, run, name: str) -> list[int]:
        from mlflow import MlflowClient

        history = MlflowClient(tracking_uri=self.uri).get_metric_history(run.info.run_id, name)
        return sorted(point.step for point in history)

    def markers(self) -> list[str]:
        return sorted(path.name for path in (self.root / self.name / "untracked").glob("*"))


@pytest.fixture
def pipeline(empty_store, tmp_path) -> Pipeline:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Pipeline(tmp_path)


def train(events: Path, first: int, last: int, **values) -> None:
    for number in range(first, last + 1):
        journal.append(
            events, "train_step", step=number, epoch=1, **{"loss": 1 / (number + 1), **values}
        )


def end(events: Path, status: str = "succeeded", code: int = 0) -> None:
    journal.append(events, "run_ended", status=status, exit_code=code, seconds=1.0)


def told(events: Path, kind: str) -> list[dict]:
    return [event for event in journal.read(events)[0] if event["event"] == kind]


def test_a_run_is_stored_whole(pipeline):
    events, _ = pipeline.run("1")
    (events.parent / "report.html").write_text("<p>report")
    journal.append(
        events, "data", examples={"train": 80, "eval": 20}, rows_read=101, rows_refused=1, files=[]
    )
    journal.append(
        events, "training_started", steps=3, start_step=0, micro_batch=8, precision="float32"
    )
    train(events, 1, 3, learning_rate=0.1)
    journal.append(events, "training_done", steps=3, peak_memory_bytes=10**9)
    journal.append(events, "metrics", metrics={"auc": 0.8}, baseline={"auc": 0.5}, blessed=True)
    end(events)
    assert pipeline.store(events)

    (run,) = pipeline.runs()
    assert (run.info.run_name, run.info.status) == ("1", "FINISHED")
    assert run.info.end_time == int(told(events, "run_ended")[0]["time"] * 1000)
    assert run.info.start_time == int(told(events, "run_started")[0]["time"] * 1000)
    assert run.data.params == {
        "training.epochs": "2", "data.files": '["a.csv"]',
        "resolved.steps": "3", "resolved.micro_batch": "8", "resolved.precision": "float32",
    }  # fmt: skip
    assert run.data.metrics == {
        "train/loss": 0.25, "learning_rate": 0.1, "peak_memory_bytes": 1e9, "auc": 0.8,
        "baseline/auc": 0.5,
    }  # fmt: skip
    assert pipeline.steps(run, "train/loss") == [1, 2, 3]
    expected = {"git.commit": "c0ffee", "headrace.status": "succeeded", "data.examples.train": "80"}
    assert expected.items() <= run.data.tags.items()
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert artifacts.is_relative_to(pipeline.root / "mlruns" / "flights")
    assert sorted(path.name for path in artifacts.iterdir()) == [
        "data.json",
        "pipeline.toml",
        "report.html",
    ]
    assert (artifacts / "report.html").read_text() == "<p>report"
    assert pipeline.markers() == []
    (said,) = told(events, "tracking")
    assert said["stored"] is True
    assert said["run_id"] == run.info.run_id


def test_storing_the_same_journal_again_changes_nothing(pipeline):
    events, _ = pipeline.run("1")
    train(events, 1, 5, learning_rate="nan")
    end(events)
    assert pipeline.store(events)
    (before,) = pipeline.runs()
    assert pipeline.store(events)
    (after,) = pipeline.runs()
    assert after.data.to_dictionary() == before.data.to_dictionary()
    assert pipeline.steps(after, "train/loss") == [1, 2, 3, 4, 5]


def test_nan_and_infinity_are_never_stored_as_numbers(pipeline):
    events, _ = pipeline.run("1")
    train(events, 1, 2)
    train(events, 3, 3, loss=float("inf"))
    train(events, 4, 5, loss=float("nan"))
    journal.append(events, "metrics", metrics={"auc": float("nan"), "loss": None}, baseline={})
    end(events)
    assert pipeline.store(events)
    (run,) = pipeline.runs()
    assert run.data.metrics == {"train/loss": pytest.approx(1 / 3)}
    assert run.data.tags["nonfinite_train/loss"] == "3"
    assert run.data.tags["nonfinite_auc"] == run.data.tags["nonfinite_loss"] == "1"
    warnings = [event["message"] for event in told(events, "warning")]
    assert len(warnings) == 3
    assert "train/loss was inf at step 3" in warnings[0]


def test_long_values_and_odd_names_lose_nothing(pipeline):
    columns = [f"feature_{index:03d}_abcdefgh" for index in range(400)]
    params = {"data.ignore": columns, **{f"p.{name}": "é" * 6000 for name in columns}}
    tags = {"tag": "x" * 8001, "yes/no?": "1", "../x": "2"}
    events, _ = pipeline.run("1", params=params, tags=tags)
    metrics = {"recall/<=50K": 0.1, "recall/>50K": 0.2, "MAP@k": 0.3, "Jitter(%)": 0.4}
    journal.append(events, "metrics", metrics=metrics, baseline={})
    end(events)
    assert pipeline.store(events)
    (run,) = pipeline.runs()
    assert len(run.data.params) == 401
    assert run.data.params["data.ignore"].startswith('["feature_000_abcdefgh", ')
    assert "...(truncated, " in run.data.params["data.ignore"]
    assert run.data.params["p.feature_399_abcdefgh"] == "é" * 6000
    assert sorted(run.data.metrics.values()) == [0.1, 0.2, 0.3, 0.4]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    whole = json.loads((artifacts / "long_values.json").read_text())
    assert json.loads(whole["data.ignore"]) == columns
    assert whole["tag"] == "x" * 8001


def test_what_mlflow_refuses_takes_nothing_else_with_it(pipeline):
    events, spec_path = pipeline.run("1")
    spec = json.loads(spec_path.read_text())
    follower = Follower(events, spec, untracked.mark(events, spec_path), MlflowStore(spec))
    follower.read()
    assert follower.store_pending() is not None
    # As if another process had stored other values a moment ago.
    run_id = follower.held.run_id
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=pipeline.uri).log_param(run_id, "b", "else")
    for name in "abc":
        follower.record.add_param(name, "here")
    assert follower.store_pending() is not None
    (run,) = pipeline.runs()
    assert {name: run.data.params[name] for name in "abc"} == {
        "a": "here",
        "b": "else",
        "c": "here",
    }
    (warning,) = told(events, "warning")
    assert "MLflow refused b" in warning["message"]
    follower.marker.release()


def test_a_resumed_training_goes_on_in_the_same_run(pipeline):
    events, _ = pipeline.run("1", fingerprint="same")
    train(events, 1, 250)
    assert pipeline.store(events)  # killed: no end was written
    (killed,) = pipeline.runs()
    assert killed.info.status == "KILLED"

    again, _ = pipeline.run(
        "2", fingerprint="same", resume=True,
        params={"training.epochs": 4, "data.files": ["a.csv"]}, tags={"git.commit": "beef"},
    )  # fmt: skip
    train(again, 201, 300)
    end(again)
    assert pipeline.store(again)
    (run,) = pipeline.runs()
    assert run.info.run_id == killed.info.run_id
    assert run.info.status == "FINISHED"
    assert pipeline.steps(run, "train/loss") == list(range(1, 301))
    assert run.data.params["training.epochs"] == "2"
    assert run.data.tags["resume_1/training.epochs"] == "4"
    assert run.data.tags["git.commit"] == "c0ffee"
    assert run.data.tags["resume_1/git.commit"] == "beef"
    assert run.data.tags["headrace.error"] == ""


def test_a_new_training_of_the_same_settings_is_a_new_run(pipeline):
    for number, resume in (("1", False), ("2", False), ("3", True)):
        events, _ = pipeline.run(number, fingerprint="same", resume=resume)
        end(events)
        assert pipeline.store(events)
    # The third goes on from a checkpoint of a run that finished: there is nothing to go on with.
    assert [run.info.run_name for run in pipeline.runs()] == ["1", "2", "3"]


def test_failed_and_refused_runs_are_failed_with_the_reason(pipeline):
    for number, status, code in (
        ("1", "failed", 4),
        ("2", "rejected", 3),
        ("3", "interrupted", 130),
    ):
        events, _ = pipeline.run(number)
        facts = {"type": "DataRefused", "what": "bad rows", "where": "a.csv:3"}
        journal.append(events, "error", id="DataGate", facts=facts, exit_code=code)
        end(events, status, code)
        assert pipeline.store(events)
    runs = pipeline.runs()
    assert [run.info.status for run in runs] == ["FAILED", "FAILED", "KILLED"]
    assert [run.data.tags["headrace.status"] for run in runs] == [
        "failed",
        "rejected",
        "interrupted",
    ]
    assert runs[1].data.tags["headrace.error"] == "a.csv:3: bad rows"


@pytest.mark.slow
def test_a_store_that_is_locked_is_said_once_and_caught_up_later(pipeline):
    holder = sqlite3.connect(pipeline.root / "mlflow.db", check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    events, _ = pipeline.run("1")
    train(events, 1, 3)
    end(events)
    assert not pipeline.store(events)
    holder.rollback()
    holder.close()
    (said,) = told(events, "tracking")
    assert said["stored"] is False
    assert "the record is kept" in said["message"]
    assert pipeline.markers() == ["1.json"]

    second, _ = pipeline.run("2")
    end(second)
    assert pipeline.store(second)
    assert [run.info.status for run in pipeline.runs()] == ["FINISHED", "FINISHED"]
    assert pipeline.steps(pipeline.runs()[0], "train/loss") == [1, 2, 3]
    assert pipeline.markers() == []


def test_what_is_no_store_is_said_and_left_alone(pipeline):
    (pipeline.root / "mlflow.db").write_bytes(b"a person's own file" * 100)
    events, _ = pipeline.run("1")
    end(events)
    assert not pipeline.store(events)
    (said,) = told(events, "tracking")
    assert "not a database" in said["message"]
    assert (pipeline.root / "mlflow.db").read_bytes().startswith(b"a person's")


def test_an_experiment_that_a_person_deleted_comes_back(pipeline):
    from mlflow import MlflowClient

    events, _ = pipeline.run("1")
    end(events)
    assert pipeline.store(events)
    client = MlflowClient(tracking_uri=pipeline.uri)
    client.delete_experiment(client.get_experiment_by_name("flights").experiment_id)
    second, _ = pipeline.run("2")
    end(second)
    assert pipeline.store(second)
    assert "2" in [run.info.run_name for run in pipeline.runs()]


def test_a_live_marker_is_not_taken_by_another_process(tmp_path):
    pipeline = Pipeline(tmp_path)
    marks = [untracked.mark(*pipeline.run(number)) for number in ("1", "2", "3")]
    assert list(untracked.left_behind(marks[0])) == []
    marks[1].release()
    (left,) = untracked.left_behind(marks[0])
    assert left.path.name == "2.json"
    left.remove()
    marks[2].release()
    marks[2].journal.unlink()
    assert list(untracked.left_behind(marks[0])) == []
    assert pipeline.markers() == ["1.json"]
    marks[0].release()


# Forked from a process that imported MLflow: an import a process would take longer than the test.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([
    "components.tracking",
    "mlflow.store.tracking.sqlalchemy_store",
])


def start_tracking(events: Path) -> multiprocessing.process.BaseProcess:
    process = PROCESSES.Process(target=track, args=(events,))
    process.start()
    return process


def ended(process: multiprocessing.process.BaseProcess, seconds: float) -> int | None:
    process.join(seconds)
    return process.exitcode


def wait_for(condition, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while not (holds := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.1)
    return holds


@pytest.mark.slow
def test_eight_new_runs_at_once_make_one_store_and_one_experiment(tmp_path):
    pipeline = Pipeline(tmp_path)
    journals = [pipeline.run(str(number))[0] for number in range(8)]
    for events in journals:
        train(events, 1, 20)
        end(events)
    # All reach the empty folder at once.
    running = [start_tracking(events) for events in journals]
    assert [ended(process, 300) for process in running] == [0] * 8
    assert pipeline.markers() == []
    runs = pipeline.runs()
    assert len(runs) == 8
    assert all(run.info.status == "FINISHED" for run in runs)
    assert all(pipeline.steps(run, "train/loss") == list(range(1, 21)) for run in runs)
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert store.execute(
            "SELECT count(*) FROM experiments WHERE name = 'flights'"
        ).fetchone() == (1,)
    assert not list(tmp_path.glob(".mlflow.db*"))


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_killed_in_mlflow(pipeline):
    events, spec_path = pipeline.run("1")
    runner = subprocess.Popen(["sleep", "600"])
    spec_path.write_text(
        json.dumps({**json.loads(spec_path.read_text()), "parent_pid": runner.pid})
    )
    process = start_tracking(events)
    train(events, 1, 3)
    wait_for(lambda: told(events, "tracking"))
    # Neither Ctrl-C nor a closed terminal ends the record before the run's end.
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGHUP)
    (run,) = pipeline.runs()
    assert run.info.status == "RUNNING"
    train(events, 4, 4)
    runner.kill()
    runner.wait()
    assert ended(process, 60) == 0
    (run,) = pipeline.runs()
    assert run.info.status == "KILLED"
    assert pipeline.steps(run, "train/loss") == [1, 2, 3, 4]


@pytest.mark.slow
def test_what_a_killed_tracking_process_left_is_ended_by_the_next(pipeline):
    events, _ = pipeline.run("1")
    process = start_tracking(events)
    train(events, 1, 3)
    wait_for(lambda: told(events, "tracking"))
    process.kill()
    assert ended(process, 60) == -signal.SIGKILL
    train(events, 4, 5)
    end(events, "failed", 4)
    assert pipeline.runs()[0].info.status == "RUNNING"
    second, _ = pipeline.run("2")
    end(second)
    assert pipeline.store(second)
    first = pipeline.runs()[0]
    assert first.info.status == "FAILED"
    assert pipeline.steps(first, "train/loss") == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_tracking_process_that_is_told_to_end_waits_for_the_end_of_the_run(pipeline):
    events, _ = pipeline.run("1")
    process = start_tracking(events)
    wait_for(lambda: told(events, "tracking"))
    os.kill(process.pid, signal.SIGTERM)
    threading.Timer(2.0, end, (events, "interrupted", 143)).start()
    assert ended(process, 30) == 0
    assert pipeline.runs()[0].data.tags["headrace.exit_code"] == "143"
    # It prints nothing, and leaves nothing where it was started.
    assert (events.parent / "out").read_bytes() == b""
    assert sorted(path.name for path in events.parent.iterdir()) == [
        "events.jsonl", "out", "tracking.json", "tracking.log",
    ]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(folder: Path, port: int) -> subprocess.Popen:
    with open(folder / "server.log", "ab") as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
                *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"),
                *("--artifacts-destination", str(folder / "files"), "--port", str(port)),
            ],
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            start_new_session=True,
        )
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
    return server


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_a_server_that_is_away_keeps_no_run_waiting_and_gets_all_of_it_later(
    pipeline, tmp_path_factory
):
    port = free_port()
    pipeline.uri = f"http://127.0.0.1:{port}"
    events, _ = pipeline.run("1", params={"long": "x" * 9000, "é": "é" * 6000, "empty": ""})
    train(events, 1, 3, loss=float("nan"))
    train(events, 4, 6)
    started = time.monotonic()
    end(events)
    assert ended(start_tracking(events), 120) == 1
    assert time.monotonic() - started < 60
    (said,) = told(events, "tracking")
    assert said["stored"] is False
    assert f"127.0.0.1:{port}" in said["message"]
    assert pipeline.markers() == ["1.json"]

    folder = tmp_path_factory.mktemp("server")
    shutil.copy(pipeline.root / "mlflow.db", folder)
    server = start_server(folder, port)
    try:
        second, _ = pipeline.run("2")
        end(second)
        assert ended(start_tracking(second), 120) == 0
        first, other = pipeline.runs()
        assert (first.info.run_name, other.info.run_name) == ("1", "2")
        assert first.info.status == other.info.status == "FINISHED"
        assert pipeline.steps(first, "train/loss") == [4, 5, 6]
        assert first.data.tags["nonfinite_train/loss"] == "3"
        assert first.data.params["empty"] == ""
        assert first.data.params["é"] == "é" * 6000
        assert pipeline.markers() == []
        assert list((folder / "files").rglob("long_values.json"))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_mlflow_is_imported_in_two_files_only():
    house = Path(__file__).parents[2]
    importing = [
        str(path.relative_to(house))
        for room in ("pipeline", "components", "trainer", "kubeflow")
        for path in (house / room).rglob("*.py")
        if re.search(r"^\s*(import|from) mlflow\b", path.read_text(), re.MULTILINE)
    ]
    assert sorted(importing) == ["components/registry.py", "components/tracking.py"]
