"""Runs read back from stores that the tracking process filled."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from components import untracked
from components.tracking import MlflowStore
from components.tracking_follow import Follower
from pipeline import history, tracked_runs, ui
from trainer import journal
from trainer.errors import InputError


@dataclass
class Config:
    """The little of a configuration that is read here."""

    root_folder: Path
    name: str = "flights"
    uri: str = ""

    @property
    def tracking_uri(self) -> str:
        return self.uri or f"sqlite:///{self.root_folder}/mlflow.db"

    @property
    def folder(self) -> Path:
        return self.root_folder / self.name


def statistics(delay: float, missing: int, carriers: dict[str, int]) -> bytes:
    from tensorflow_metadata.proto.v0 import statistics_pb2

    listed = statistics_pb2.DatasetFeatureStatisticsList()
    dataset = listed.datasets.add(num_examples=100)
    number = dataset.features.add()
    number.path.step.append("delay")
    number.num_stats.mean, number.num_stats.std_dev = delay, 2.0
    number.num_stats.common_stats.num_missing = missing
    number.num_stats.common_stats.num_non_missing = 100 - missing
    text = dataset.features.add()
    text.path.step.append("carrier")
    text.string_stats.common_stats.num_non_missing = sum(carriers.values())
    for carrier, count in carriers.items():
        text.string_stats.rank_histogram.buckets.add(label=carrier, sample_count=count)
    return listed.SerializeToString()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory) -> Path:
    """A sqlite store after MLflow's migrations, which take seconds."""
    root = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{root}/mlflow.db"
    MlflowStore({"tracking_uri": uri, "experiment": "other", "artifact_root": "x"}).connect()
    return root / "mlflow.db"


@pytest.fixture
def config(empty_store, tmp_path) -> Config:
    """A pipeline without runs beside a store that has none of it yet."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Config(tmp_path)


def add_run(
    config: Config,
    number: str,
    *,
    metrics: dict[str, float] | None = None,
    status: str = "succeeded",
    params: dict | None = None,
    tags: dict | None = None,
    artifacts: dict[str, bytes] | None = None,
    sha256: str = "aa",
    fingerprint: str = "",
    resume: bool = False,
    step: dict | None = None,
    evaluation: dict | None = None,
    started: dict | None = None,
) -> None:
    """Write a run's journal and store it, as `headrace run` and its tracking process do."""
    folder = config.folder / "logs" / number
    (folder / "made").mkdir(parents=True)
    paths = {}
    for name, content in (artifacts or {}).items():
        path = folder / "made" / name.replace("/", "_")
        path.write_bytes(content)
        paths[name] = str(path)
    spec = {
        "tracking_uri": config.tracking_uri,
        "artifact_root": str(config.root_folder / "mlruns"),
        "experiment": config.name,
        "run_name": number,
        "params": {"training.epochs": 2, "training.seed": 7, **(params or {})},
        "tags": {"git.commit": "c0ffee", "version.numpy": "1.26.4", **(tags or {})},
        "config_text": "",
        "fingerprint": fingerprint or f"f{number}",
        "resume": resume,
        "artifacts": paths,
    }
    spec_path = folder / "tracking.json"
    spec_path.write_text(json.dumps(spec))
    events = folder / "events.jsonl"
    journal.append(events, "run_started", run=number)
    files = [{"path": "a.csv", "rows": 100, "sha256": sha256}]
    journal.append(events, "data", examples={"train": 80, "eval": 20}, files=files)
    plan = {"steps": 10, "micro_batch": 64, "start_step": 0, **(started or {})}
    journal.append(events, "training_started", **plan)
    values = {"loss": 0.5, "learning_rate": 0.1, **(step or {})}
    journal.append(events, "train_step", step=10, epoch=1, **values)
    if evaluation:
        journal.append(events, "evaluation", step=10, epoch=1, **evaluation)
    if metrics is not None:
        journal.append(events, "metrics", metrics=metrics, baseline={"auc": 0.5}, blessed=True)
    journal.append(events, "run_ended", status=status, exit_code=0, seconds=1.0)
    marker = untracked.mark(events, spec_path)
    assert Follower(events, spec, marker, MlflowStore(spec)).follow(lambda: True)
    marker.remove()


@pytest.fixture(scope="module")
def four_runs(empty_store, tmp_path_factory) -> Config:
    """Four runs: 1 (auc 0.70), 2 (auc 0.74, 4 epochs, other data), 3 failed, 4 finished without."""
    config = Config(tmp_path_factory.mktemp("runs"))
    shutil.copy(empty_store, config.root_folder / "mlflow.db")
    schema = 'feature { name: "delay" type: FLOAT }'
    add_run(
        config, "1", metrics={"auc": 0.70, "loss": 0.4},
        artifacts={
            "statistics/train.pb": statistics(5.0, 10, {"UA": 60, "AA": 40}),
            "schema.pbtxt": schema.encode(), "plan.json": b'{"terms": {"weights": 100}}',
        },
    )  # fmt: skip
    add_run(
        config, "2", metrics={"auc": 0.74, "loss": 0.4}, params={"training.epochs": 4},
        tags={"git.commit": "beef", "version.numpy": "2.0"}, sha256="bb",
        artifacts={
            "statistics/train.pb": statistics(6.0, 30, {"UA": 50, "AA": 50}),
            "schema.pbtxt": schema.replace("FLOAT", "INT").encode(),
            "plan.json": b'{"terms": {"weights": 200}}',
        },
    )  # fmt: skip
    add_run(config, "3", metrics={"auc": 0.99}, status="failed")
    add_run(config, "4", metrics={"auc": float("nan"), "loss": 0.1})
    return config


def test_runs_are_listed_best_first_with_what_differs(four_runs):
    result = history.runs(four_runs)
    assert result["metric"] == "auc"
    # 3 failed, however good it looked; the auc of 4 was no number.
    assert [run["run"] for run in result["runs"]] == ["2", "1", "4", "3"]
    assert [run["status"] for run in result["runs"]][-1] == "failed"
    assert [run["settings"]["training.epochs"] for run in result["runs"]] == ["4", "2", "2", "2"]
    assert {len(run["settings"]) for run in result["runs"]} == {1}
    assert result["runs"][0]["metrics"]["auc"] == 0.74
    assert result["runs"][0]["baseline"] == {"auc": 0.5}


def test_the_best_run_is_the_first_of_the_list_and_the_latest_the_last_made(four_runs):
    found = tracked_runs.read(four_runs.tracking_uri, "flights")
    assert history.find(found, "best").name == "2"
    assert history.find(found, "latest").name == "4"


def test_lower_is_better_for_a_regression(config):
    for number, rmse in (("1", 3.0), ("2", 1.0), ("3", 2.0)):
        add_run(config, number, metrics={"rmse": rmse, "r2": 0.1})
    assert [run["run"] for run in history.runs(config)["runs"]] == ["2", "3", "1"]


def test_the_lines_of_runs_hold_the_setting_the_metric_and_the_compare_page(four_runs):
    text = "\n".join(history.run_lines(history.runs(four_runs)))
    for part in ("training.epochs 4", "0.74", "failed", "compare: http://127.0.0.1:5000/#/compare"):
        assert part in text


def test_a_difference_names_every_part_that_differs(four_runs):
    result = history.diff(four_runs, "1", "2")
    assert result["settings"] == {"training.epochs": {"a": "2", "b": "4"}}
    assert result["code"] == {"git.commit": {"a": "c0ffee", "b": "beef"}}
    assert result["versions"] == {"version.numpy": {"a": "1.26.4", "b": "2.0"}}
    assert result["hardware"] == {}
    assert result["plan"] == {"terms.weights": {"a": 100, "b": 200}}
    assert list(result["schema"]) == ["delay"]
    assert list(result["data"]) == ["file a.csv"]
    assert result["metrics"] == {"auc": {"a": 0.70, "b": 0.74, "change": pytest.approx(0.04)}}
    moved = [(one["feature"], one["what"], round(one["moved"], 3)) for one in result["statistics"]]
    # By hand: (6 - 5) / 2; |0.10 - 0.30|; |0.60 - 0.50|.
    assert moved == [
        ("delay", "mean", 0.5), ("delay", "missing share", 0.2), ("carrier", "share of 'AA'", 0.1),
    ]  # fmt: skip
    text = "\n".join(history.diff_lines(result))
    for part in ("training.epochs: 2 -> 4", "auc: 0.7 -> 0.74 (+0.04)", "hardware: the same"):
        assert part in text


def test_a_run_does_not_differ_from_itself(four_runs):
    result = history.diff(four_runs, "2", "2")
    parts = set(result) - {"a", "b", "compare_url"}
    assert [part for part in parts if result[part]] == []


def test_long_values_are_compared_whole(config):
    add_run(config, "1", params={"data.ignore": "x" * 7000 + "1"}, metrics={})
    add_run(config, "2", params={"data.ignore": "x" * 7000 + "2"}, metrics={})
    settings = history.diff(config, "1", "2")["settings"]
    assert settings["data.ignore"] == {"a": "x" * 7000 + "1", "b": "x" * 7000 + "2"}


def test_a_run_is_found_by_number_id_and_beginning(four_runs):
    found = tracked_runs.read(four_runs.tracking_uri, "flights")
    two = history.find(found, "2")
    assert two.name == "2"
    assert history.find(found, two.run_id) is two
    assert history.find(found, two.run_id[:12]) is two
    with pytest.raises(InputError, match=r"no such run; it holds 22; the nearest are 2 \("):
        history.find(found, "22")
    with pytest.raises(InputError, match="2 runs fit"):
        history.find([two, two], "2")


def test_before_the_first_run_it_is_said_what_to_do(tmp_path):
    with pytest.raises(InputError, match="run it first"):
        history.runs(Config(tmp_path))
    with pytest.raises(InputError, match="run it first"):
        ui.serve(Config(tmp_path), 5000, say=print)
    assert list(tmp_path.iterdir()) == []


def test_another_pipeline_of_the_same_root_has_no_runs_yet(four_runs):
    with pytest.raises(InputError, match="penguins has no tracked run yet"):
        history.runs(Config(four_runs.root_folder, "penguins"))


def test_what_is_no_store_is_named(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"something else" * 100)
    with pytest.raises(InputError, match="is not a tracking store"):
        history.runs(Config(tmp_path))
    (tmp_path / "mlflow.db").unlink()
    sqlite3.connect(tmp_path / "mlflow.db").execute("CREATE TABLE one (a)").connection.close()
    with pytest.raises(InputError, match="is not a tracking store"):
        history.runs(Config(tmp_path))


def test_a_locked_store_is_said_to_be_locked(four_runs, monkeypatch):
    monkeypatch.setattr(tracked_runs, "_SECONDS", 0.1)
    holder = sqlite3.connect(four_runs.root_folder / "mlflow.db")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(InputError, match="locked by another process"):
            history.runs(four_runs)
    finally:
        holder.rollback()
        holder.close()


def test_reading_runs_imports_nothing_heavy():
    code = (
        "import sys; from pipeline import history, ui;"
        "print([name for name in ('mlflow', 'tensorflow', 'pandas', 'numpy', 'tfx', 'sqlalchemy')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path):
    with pytest.raises(InputError) as caught:
        history.runs(Config(tmp_path, uri="http://me:secret@127.0.0.1:9"))
    assert "does not answer" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_port_in_use_is_named(four_runs):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port: .*in use.*; it holds {port}"):
            ui.serve(four_runs, port, say=print)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes_of_session(session: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.slow
def test_the_ui_is_served_until_ctrl_c_and_leaves_no_process(four_runs):
    port = free_port()
    code = (
        "import sys; from types import SimpleNamespace as Config; from pathlib import Path;"
        "from pipeline import ui; root = Path(sys.argv[1]);"
        "config = Config(tracking_uri=f'sqlite:///{root}/mlflow.db', folder=root / 'flights',"
        " root_folder=root);"
        "ui.serve(config, int(sys.argv[2]), say=lambda text: print(*text, flush=True))"
    )
    command = [sys.executable, "-c", code, str(four_runs.root_folder), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        assert served.stdout.readline() == "starting MLflow's server\n"
        assert f"http://127.0.0.1:{port}" in served.stdout.readline()
        (server,) = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
        assert len(processes_of_session(int(server))) > 1

        # What the same runs say through the server's REST interface.
        remote = Config(four_runs.root_folder, uri=f"http://127.0.0.1:{port}")
        here, there = history.runs(four_runs), history.runs(remote)
        for run in (*here["runs"], *there["runs"]):
            del run["url"]
        assert there["runs"] == here["runs"]
        parts = history.diff(remote, "1", "2")
        assert parts.pop("compare_url").startswith(f"http://127.0.0.1:{port}/#/compare-runs?")
        expected = history.diff(four_runs, "1", "2")
        del expected["compare_url"]
        assert parts == expected

        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
    deadline = time.monotonic() + 10
    while processes_of_session(int(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of_session(int(server)) == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5)


def test_the_number_that_a_run_says_is_the_one_that_runs_and_its_diff_take(config):
    """Run 2 was interrupted and goes on as run 3; run 4 trains nothing; run 5 is refused."""
    add_run(config, "1", metrics={"auc": 0.7})
    add_run(config, "2", status="interrupted", fingerprint="same")
    add_run(config, "3", metrics={"auc": 0.8}, fingerprint="same", resume=True)
    listed = {run["run"]: run for run in history.runs(config)["runs"]}
    assert set(listed) == {"1", "3"}
    training = listed["3"]["run_id"]
    for number, status, run_id in (("4", "succeeded", training), ("5", "rejected", None)):
        folder = config.folder / "logs" / number
        folder.mkdir()
        journal.append(folder / "events.jsonl", "run_started", run=number)
        result = {"status": status, "mlflow": {"run_id": run_id} if run_id else None}
        (folder / "result.json").write_text(json.dumps(result))
    result = history.runs(config)
    assert result["unlisted"] == [
        {"run": "2", "status": "unfinished", "why": "went on as run 3"},
        {"run": "4", "status": "succeeded", "why": "trained nothing; its model is that of run 3"},
        {"run": "5", "status": "rejected", "why": "is not in MLflow"},
    ]
    text = history.run_lines(result)
    assert "  run 4 (succeeded) trained nothing; its model is that of run 3" in text
    for asked in ("2", "3", "4", training):
        told = history.diff(config, "1", asked)
        assert (told["b"]["run"], told["b"]["run_id"]) == ("3", training)
    assert "run 2 went on as run 3" in history.diff_lines(history.diff(config, "1", "2"))
    assert history.diff(config, "1", "3")["b"]["status"] == "succeeded"
    with pytest.raises(InputError, match=r"is not in MLflow, .* it is rejected; it holds 5"):
        history.diff(config, "1", "5")


def test_what_the_store_has_under_two_names_is_told_once(config):
    plans = [{"steps": 360, "micro_batch": size, "global_batch": size} for size in (32, 64)]
    for number, plan, auc in zip("12", plans, (0.7, 0.8), strict=True):
        add_run(
            config,
            number,
            metrics={"auc": auc, "loss": 1 - auc},
            params={"training.global_batch": plan["global_batch"]},
            artifacts={"plan.json": json.dumps(plan).encode()},
            step={"loss": auc, "epoch_loss": auc, "examples_per_second": auc},
            evaluation={"auc": auc, "loss": 1 - auc},
            started={"global_batch": plan["global_batch"], "micro_batch": plan["micro_batch"]},
            sha256=number,
        )
    result = history.diff(config, "1", "2")
    assert set(result["metrics"]) == {"auc", "loss", "train/loss", "examples_per_second"}
    assert result["settings"] == {"training.global_batch": {"a": "32", "b": "64"}}
    assert result["plan"] == {"micro_batch": {"a": 32, "b": 64}}
    assert list(result["data"]) == ["file a.csv"]


def test_a_plan_is_compared_by_what_the_store_keeps_when_its_file_is_gone(config):
    for number, size in (("1", 32), ("2", 64)):
        add_run(config, number, metrics={}, started={"micro_batch": size})
    assert history.diff(config, "1", "2")["plan"] == {"micro_batch": {"a": 32, "b": 64}}
