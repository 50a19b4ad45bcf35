"""A pushed model through MLflow's registry: what comes back answers the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from components import registry
from components.tracking import MlflowStore
from trainer import journal
from trainer.errors import InputError

pytestmark = pytest.mark.slow


class Answers(tf.Module):
    """Answers as a pushed model of two classes does, from a number and a text."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.float64, name="dist"),
            tf.TensorSpec([None], tf.string, name="carrier"),
        ]
    )
    def columns(self, dist, carrier):
        known = tf.cast(carrier == b"UA", tf.float64) + 2 * tf.cast(carrier == b"\xff", tf.float64)
        logit = tf.where(tf.math.is_nan(dist), tf.constant(0.5, tf.float64), dist / 1000) - known
        one = tf.cast(tf.sigmoid(logit), tf.float32)
        classes = tf.tile(tf.constant([["no", "yes"]]), [tf.shape(dist)[0], 1])
        return {
            "probabilities": tf.stack([1 - one, one], axis=1),
            "classes": classes,
            "prediction": tf.where(one > 0.5, "yes", "no"),
        }


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "1"
    module = Answers()
    tf.saved_model.save(module, str(folder), signatures={"columns": module.columns})
    (folder / "assets").mkdir(exist_ok=True)
    columns = [{"column": "dist (km)", "key": "dist", "kind": "int"},
               {"column": "carrier", "key": "carrier", "kind": "string"}]  # fmt: skip
    described = {"columns": columns, "label": {"column": "late", "task": "binary"}}
    (folder / "assets" / "columns.json").write_text(json.dumps(described))
    (folder / "metrics.json").write_text(json.dumps({"classes": ["no", "yes"]}))
    example = {"dist (km)": [100, None], "carrier": ["UA", None]}
    (folder / "input_example.json").write_text(json.dumps(example))
    return folder


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> dict:
    """A real sqlite store; what the tracking process is told of it."""
    root = tmp_path_factory.mktemp("store")
    return {
        "tracking_uri": f"sqlite:///{root}/mlflow.db",
        "experiment": "flights",
        "artifact_root": str(root / "mlruns"),
    }


def new_run(spec: dict) -> tuple[mlflow.MlflowClient, str]:
    MlflowStore(spec).connect()
    uri = spec["tracking_uri"]
    # A registry that was set before, as by `fetch`, would be taken instead of this one.
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name(spec["experiment"])
    return client, client.create_run(experiment.experiment_id).info.run_id


def expected(dist: list, carrier: list) -> list[float]:
    found = []
    for number, text in zip(dist, carrier, strict=True):
        logit = (0.5 if number is None else number / 1000) - {"UA": 1, None: 2}.get(text, 0)
        found.append(1 / (1 + np.exp(-logit)))
    return found


def test_what_is_loaded_back_predicts_the_same_from_frames_dicts_and_gaps(pushed, spec):
    client, run_id = new_run(spec)
    address = registry.register(client, run_id, name="flights", folder=pushed)
    assert address == "models:/flights/1"
    # Done again for the same run and model, it stays one version.
    assert registry.register(client, run_id, name="flights", folder=pushed) == address
    mlflow.set_tracking_uri(spec["tracking_uri"])
    model = mlflow.pyfunc.load_model(address)
    assert {one.name for one in model.metadata.signature.inputs} == {"dist (km)", "carrier"}
    assert model.input_example is None or len(model.input_example)
    dist, carrier = [100, 2000, 5], ["UA", "never seen", "AA"]
    frame = pd.DataFrame({"extra": 1, "carrier": carrier, "dist (km)": dist}, index=[7, 8, 9])
    found = model.predict(frame)
    assert found.index.tolist() == [7, 8, 9]
    # float32 probabilities.
    assert found["probability:yes"].tolist() == pytest.approx(expected(dist, carrier), rel=1e-5)
    assert found["prediction"].tolist() == ["no", "yes", "yes"]
    gaps = model.predict(pd.DataFrame({"dist (km)": [100, None], "carrier": ["UA", None]}))
    assert gaps["probability:yes"].tolist() == pytest.approx(
        expected([100, None], ["UA", None]), rel=1e-5
    )
    missing = model.predict(pd.DataFrame({"carrier": ["UA"]}))
    assert missing["probability:yes"].tolist() == pytest.approx(expected([None], ["UA"]), rel=1e-5)
    for one in ({"dist (km)": 100, "carrier": "UA"}, [{"dist (km)": 100.0, "carrier": "UA"}]):
        said = model.predict(one)
        assert said["probability:yes"].tolist() == pytest.approx(expected([100], ["UA"]), rel=1e-5)
    with pytest.raises(ValueError, match=r"dist \(km\) must hold numbers"):
        model.predict(pd.DataFrame({"dist (km)": ["far"]}))


def test_a_registered_version_is_fetched_as_the_pushed_folder(pushed, spec, tmp_path):
    client, run_id = new_run(spec)
    address = registry.register(client, run_id, name="fetched", folder=pushed)
    found = registry.fetch(address, spec["tracking_uri"], tmp_path)
    for name in ("saved_model.pb", "metrics.json", "assets/columns.json"):
        assert (found / name).read_bytes() == (pushed / name).read_bytes()
    with pytest.raises(InputError, match="the registry does not give it") as refused:
        registry.fetch("models:/fetched/9", spec["tracking_uri"], tmp_path)
    assert refused.value.where == "models:/fetched/9"


def tracked_run(folder: Path, number: str, spec: dict, pushed: Path) -> list[str]:
    """Write the journal of a run that has pushed a model; return what follows it."""
    events = folder / "flights" / "logs" / number / "events.jsonl"
    events.parent.mkdir(parents=True)
    journal.append(events, "run_started", run=number, pipeline="flights")
    journal.append(events, "pushed", version=1, path=str(pushed))
    journal.append(events, "run_ended", status="succeeded", exit_code=0)
    told = {**spec, "run_name": number, "fingerprint": number, "resume": False, "register": "both"}
    (events.parent / "tracking.json").write_text(json.dumps(told))
    return [sys.executable, "-m", "components.tracking", str(events),
            str(events.parent / "tracking.json")]  # fmt: skip


def test_two_runs_that_register_at_the_same_time_make_two_versions(pushed, spec, tmp_path):
    commands = [tracked_run(tmp_path, number, spec, pushed) for number in ("1", "2")]
    both = [subprocess.Popen(one, stderr=subprocess.PIPE, text=True) for one in commands]
    said = [one.communicate(timeout=300)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    client = mlflow.MlflowClient(tracking_uri=spec["tracking_uri"])
    found = client.search_model_versions("name = 'both'")
    assert sorted(int(one.version) for one in found) == [1, 2]
    assert len({one.run_id for one in found}) == 2
    for number in ("1", "2"):
        events, _ = journal.read(tmp_path / "flights" / "logs" / number / "events.jsonl")
        (made,) = [one["model"] for one in events if one["event"] == "registered"]
        assert made in {"models:/both/1", "models:/both/2"}


def test_a_registry_that_refuses_ends_no_run_and_is_told_once(spec, tmp_path):
    from components.tracking_held import Held
    from components.tracking_record import Record

    _, run_id = new_run(spec)
    store = MlflowStore({**spec, "register": "flights"})
    store.connect()
    record = Record(pushed=str(tmp_path))  # a folder without a model
    store._register(Held(run_id), record)
    assert len(record.warnings) == 1
    assert record.warnings[0].startswith("the model is not in the registry as flights: ")
    assert record.tags["headrace.registered"].startswith("not registered: ")
    assert not record.registered


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real MLflow server over a sqlite store, which keeps the artifacts, too."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "server.log", "ab") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=environment
        )
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 180
    while time.monotonic() < until and started.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                break
        except OSError:
            time.sleep(0.2)
    yield address
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def test_a_server_registers_and_gives_back_what_was_pushed(server, pushed, tmp_path):
    client, run_id = new_run({"tracking_uri": server, "experiment": "flights"})
    first = registry.register(client, run_id, name="flights", folder=pushed)
    _, other = new_run({"tracking_uri": server, "experiment": "flights"})
    second = registry.register(client, other, name="flights", folder=pushed)
    # A slow server is asked twice, and a number may then be left out.
    numbers = [int(one.removeprefix("models:/flights/")) for one in (first, second)]
    assert numbers[0] < numbers[1]
    assert len(client.search_model_versions("name = 'flights'")) == 2
    found = registry.fetch(second, server, tmp_path)
    assert (found / "saved_model.pb").read_bytes() == (pushed / "saved_model.pb").read_bytes()
    mlflow.set_tracking_uri(server)
    said = mlflow.pyfunc.load_model(first).predict([{"dist (km)": 100}])
    assert said["probability:yes"].tolist() == pytest.approx(expected([100], [None]), rel=1e-5)


class AskedTwice:
    """An MLflow client whose request for a version is sent again, as after a late answer."""

    def __init__(self, client) -> None:
        self.client = client

    def __getattr__(self, name: str):
        return getattr(self.client, name)

    def create_model_version(self, *arguments, **named):
        self.client.create_model_version(*arguments, **named)
        return self.client.create_model_version(*arguments, **named)


def test_a_request_that_was_sent_twice_leaves_one_version(pushed, spec):
    client, run_id = new_run(spec)
    address = registry.register(AskedTwice(client), run_id, name="twice", folder=pushed)
    assert address == "models:/twice/1"
    (kept,) = client.search_model_versions("name = 'twice'")
    assert (int(kept.version), kept.run_id) == (1, run_id)
