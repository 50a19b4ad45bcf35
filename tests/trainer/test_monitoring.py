"""The endpoint, and that rules and dashboard speak of what it has; promtool and a real server.

Prometheus stands in Debian's package `prometheus`; `make test` says how to get it.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
import yaml

from trainer import devices, loop, monitoring
from trainer.cluster import Workers
from trainer.errors import SettingError
from trainer.loss_scale import FLOOR
from trainer.monitoring import Metrics
from trainer.settings import EarlyStopSettings, MonitoringSettings
from trainer.strategy import Replicas

ON_CALL = Path(monitoring.__file__).parent / "on_call"
NAME = re.compile(r"headrace_[a-z_]+")
PARTS = re.compile(r"_(sum|count|bucket)$")
NEEDS_PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")),
    reason="promtool and prometheus are not installed (Debian: apt-get install prometheus)",
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    one = Metrics(0, rank=1, restarts=2)
    one.begin(steps=40, done=10, tokens=3, every_steps=5, scaled=True)
    yield one
    one.close(most_seconds=0.0)


def scrape(metrics: Metrics) -> dict[str, float]:
    """Return what the endpoint shows, by name and labels but the worker's."""
    address = f"http://127.0.0.1:{metrics.address.rpartition(':')[2]}/metrics"
    text = urllib.request.urlopen(address, timeout=10).read().decode()
    lines = [one.rsplit(" ", 1) for one in text.splitlines() if not one.startswith("#")]
    assert all('worker="1"' in name for name, _ in lines)
    return {
        re.sub(r',?worker="1"', "", name).replace("{}", ""): float(value) for name, value in lines
    }


def dashboard_queries() -> list[str]:
    board = json.loads((ON_CALL / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def rule_queries() -> list[str]:
    groups = yaml.safe_load((ON_CALL / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def known_names() -> set[str]:
    return {*monitoring.GAUGES, *monitoring.GPU_GAUGES, monitoring.STEP_SECONDS}


def test_rules_and_panels_speak_of_metrics_that_there_are(metrics: Metrics) -> None:
    asked = {PARTS.sub("", name) for query in [*rule_queries(), *dashboard_queries()]
             for name in NAME.findall(query)}  # fmt: skip
    assert asked <= known_names()
    # What nobody would ever look at is not measured either.
    assert known_names() - asked == {"headrace_steps"}
    shown = {PARTS.sub("", one.partition("{")[0]) for one in scrape(metrics)}
    assert shown - {"headrace_step_seconds_created"} <= known_names()


def test_what_the_journal_is_told_is_shown(metrics: Metrics) -> None:
    metrics.take("training_started", {"planned_memory_bytes": 1000})
    metrics.take(
        "train_step",
        {"step": 12, "epoch": 2, "loss": 0.5, "learning_rate": 0.1, "gradient_norm": float("inf"),
         "loss_scale": 4.0, "skipped_steps": 1, "examples_per_second": 20.0,
         "updates_per_second": 10.0},
    )  # fmt: skip
    metrics.take("evaluation", {"step": 12, "epoch": 2, "loss": 0.7, "auc": None})
    shown = scrape(metrics)
    assert shown["headrace_training_loss"] == 0.5
    assert shown["headrace_eval_loss"] == 0.7
    assert shown["headrace_gradient_norm"] == float("inf")
    assert shown["headrace_tokens_per_second"] == 60.0  # 3 tokens an example
    assert shown["headrace_memory_planned_bytes"] == 1000
    assert shown["headrace_restarts"] == 2
    assert shown["headrace_loss_scale_floor"] == FLOOR
    assert shown["headrace_running"] == 1
    metrics.take("training_done", {})
    assert scrape(metrics)["headrace_running"] == 0


def test_steps_are_counted_and_split_into_waiting_and_computing(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.step(waiting_seconds=0.25, computing_seconds=0.75)
    shown = scrape(metrics)
    assert shown['headrace_step_seconds_count{part="waiting"}'] == 3
    assert shown['headrace_step_seconds_sum{part="waiting"}'] == pytest.approx(0.75)
    assert shown['headrace_step_seconds_sum{part="computing"}'] == pytest.approx(2.25)
    assert shown["headrace_steps"] == 13  # 10 before this process
    assert shown["headrace_progress_ratio"] == pytest.approx(13 / 40)
    assert shown["headrace_usual_step_seconds"] == pytest.approx(1.0)
    assert shown["headrace_checkpoint_interval_seconds"] == pytest.approx(5.0)
    assert 0 <= shown["headrace_seconds_since_step"] < 60
    assert shown["headrace_seconds_left"] >= 0


def test_a_port_that_is_taken_is_said_with_its_key() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match="is in use") as caught:
            Metrics(port, rank=0, restarts=0)
    assert caught.value.where == "monitoring.port"
    assert caught.value.holds == str(port)


def test_the_end_is_shown_once_more_to_whoever_looks(metrics: Metrics) -> None:
    started = time.monotonic()
    Metrics(0, rank=0, restarts=0).close()  # nobody looks: at once
    assert time.monotonic() - started < 5
    scrape(metrics)
    metrics.stop()
    closing = threading.Thread(target=metrics.close)
    closing.start()
    closing.join(timeout=0.3)
    assert closing.is_alive()
    assert scrape(metrics)["headrace_running"] == 0
    closing.join(timeout=30)
    assert not closing.is_alive()


@pytest.mark.parametrize(
    ("names", "visible", "right"),
    [
        (["GPU:0", "GPU:1"], None, ["0", "1"]),
        (["GPU:1"], None, ["1"]),
        (["GPU:0"], "3", ["3"]),
        (["GPU:1"], "2, 5", ["5"]),
        (["GPU:0"], "GPU-8932f937", ["GPU-8932f937"]),
    ],
)
def test_the_driver_s_numbers_are_those_that_the_process_was_given(
    names: list[str], visible: str | None, right: list[str]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices.driver_places(names, environ) == right


def test_prometheus_client_is_imported_in_one_file_and_only_when_it_is_used() -> None:
    rooms = Path(monitoring.__file__).parents[1]
    found = [path for room in ("trainer", "components", "pipeline")
             for path in (rooms / room).rglob("*.py")
             if "prometheus_client" in path.read_text(encoding="utf-8")]  # fmt: skip
    assert found == [Path(monitoring.__file__)]
    tree = ast.parse(found[0].read_text(encoding="utf-8"))
    at_import = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    assert not any("prometheus_client" in ast.unparse(one) for one in at_import)


def test_the_gpu_s_usual_band_is_on_the_dashboard() -> None:
    board = json.loads((ON_CALL / "dashboard.json").read_text())
    (panel,) = [one for one in board["panels"] if one["title"] == "GPU utilisation"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [(one["value"], one["color"]) for one in steps] == [
        (None, "red"), (0.5, "yellow"), (0.7, "green"), (0.95, "yellow")
    ]  # fmt: skip
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
    assert len(set(places)) == len(places)


def for_one_job(query: str) -> str:
    """Return a panel's query with the dashboard's variables filled in."""
    return query.replace("$job", ".*").replace("$worker", ".*")


@NEEDS_PROMETHEUS
def test_promtool_accepts_all_files_and_the_rules_pass_their_tests(tmp_path: Path) -> None:
    panels = tmp_path / "panels.yml"
    rules = [{"record": f"panel:{place}", "expr": for_one_job(query)}
             for place, query in enumerate(dashboard_queries())]  # fmt: skip
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for arguments in (
        ["check", "rules", "alerts.yml", str(panels)],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(
            ["promtool", *arguments], cwd=ON_CALL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((ON_CALL / "alerts_test.yml").read_text())
    alerts = yaml.safe_load((ON_CALL / "alerts.yml").read_text())["groups"][0]["rules"]
    assert all(rule["alert"] in json.dumps(tested) for rule in alerts)


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A Prometheus server of the files that are shipped; call it to scrape ports, and to ask."""
    started: list[Any] = []

    def begin(*ports: int) -> Callable[[str], list[Any]]:
        config = yaml.safe_load((ON_CALL / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
        config["rule_files"] = [str(ON_CALL / "alerts.yml")]
        targets = [f"localhost:{port}" for port in ports]
        config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        log = open(tmp_path / "log", "wb")  # ruff: ignore[open-file-with-context-handler]
        server = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}",
             f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
        started.extend([server, log])

        def query(text: str) -> list[Any]:
            what = urllib.parse.urlencode({"query": text})
            address = f"http://127.0.0.1:{port}/api/v1/query?{what}"
            try:
                answer = json.load(urllib.request.urlopen(address, timeout=10))
            except OSError:  # it has not started yet
                return []
            return answer["data"]["result"]

        return query

    yield begin
    if started:
        started[0].kill()
        started[0].wait()
        started[1].close()


def until(query: Callable[[str], list[Any]], text: str, *, seconds: float = 60) -> list[Any]:
    deadline = time.monotonic() + seconds
    while not (found := query(text)):
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
    return found


class TwoWorkers:
    """The collectives of two workers, of which the other one says the same each time."""

    def __init__(self, other: list[float]) -> None:
        self.other = tf.constant(other)

    def largest(self, mine: tf.Tensor) -> tf.Tensor:
        return tf.maximum(mine, self.other)


@pytest.mark.parametrize(("own", "other"), [(0.2, 0.5), (0.5, 0.2)])
def test_the_straggler_ratio_is_the_slowest_worker_s_seconds_over_the_fastest_s(
    metrics: Metrics, own: float, other: float
) -> None:
    control = TwoWorkers([0.0, other, -other])
    run = SimpleNamespace(
        replicas=Replicas(workers=Workers(2, 0), control=control),
        fitted=SimpleNamespace(own_seconds=own), voice=SimpleNamespace(metrics=metrics),
    )  # fmt: skip
    assert loop.Run.asked_to_stop(run, lambda: 0) == 0
    assert scrape(metrics)["headrace_straggler_ratio"] == pytest.approx(2.5)


def test_one_worker_that_is_asked_to_end_ends_all(metrics: Metrics) -> None:
    control = TwoWorkers([15.0, 0.1, -0.1])
    run = SimpleNamespace(
        replicas=Replicas(workers=Workers(2, 0), control=control),
        fitted=SimpleNamespace(own_seconds=0.1), voice=SimpleNamespace(metrics=metrics),
    )  # fmt: skip
    assert loop.Run.asked_to_stop(run, lambda: 0) == 15


@NEEDS_PROMETHEUS
@pytest.mark.slow
def test_a_real_server_scrapes_a_run_and_tells_of_three_rises(make_job: Any, ask: Any) -> None:
    # A model that learns its 20 rows by heart: the loss of the other 40 rises from then on.
    job = make_job(
        epochs=400, learning_rate=0.03, schedule="constant",
        early_stop=EarlyStopSettings(after_rises=3),
    )  # fmt: skip
    port = free_port()
    job = replace(job, monitoring=MonitoringSettings(port=port))
    query = ask(port)
    trained = loop.train(job)
    assert trained.facts["stopped_early"], "the rule that ends training is the alert's"
    assert trained.metrics is not None
    (alert,) = until(query, 'ALERTS{alertname="HeadraceLossRising", alertstate="firing"}')
    assert alert["metric"]["job"] == "headrace"
    missing = [
        one for one in dashboard_queries()
        if not query(for_one_job(one)) and "gpu" not in one and "upload" not in one
        and "rate(" not in one and "straggler" not in one
    ]  # fmt: skip
    assert missing == []
    (steps,) = query("headrace_steps")
    assert float(steps["value"][1]) == trained.facts["steps"]
    until(query, "headrace_running == 0")
    trained.metrics.close()
    until(query, 'up{job="headrace"} == 0')
    assert query('ALERTS{alertname="HeadraceWorkerDown"}') == []
