"""The very package, run to its end by kfp.local and with object storage, beside `headrace run`."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import kfp_launcher
import pytest
from flows import commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="a task's disk is /s3, which root alone can make"),
]
CONFIG = """
name = "flights"
[data]
files = "flights.csv"
label = "late"
ignore = ["arr_delay", "dep_delay", "dep_time", "arr_time", "air_time", "year", "time_hour"]
[model]
layers = 1
width = 8
heads = 2
[training]
epochs = 2
global_batch = 32
[checkpoint]
every_steps = 5
[kubeflow]
image = "registry.example/headrace:1"
"""
LOCAL = """
import json, sys, warnings
warnings.simplefilter("ignore")
from kfp import components, local
package, out, bad = sys.argv[1:]
pipeline = components.load_component_from_file(package)
def run(place, **parameters):
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=f"{out}/{place}")
    pipeline(**parameters)
run("good")
try:
    run("bad", data_files=[bad])
except Exception as error:
    print(f"REFUSED {error}", flush=True)
"""
BUCKET = "headrace-tests"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "planted-key",
    "AWS_SECRET_ACCESS_KEY": "planted-secret",
    "MLFLOW_TRACKING_PASSWORD": "planted-password",
}


@dataclass
class Ran:
    """What the three ways have left.

    Attributes:
        run: the folder of `headrace run`.
        local: the pipeline root of kfp.local, and what it printed.
        log: likewise.
        stored: the launcher whose pipeline root was in a bucket.
        store: that bucket's client.
    """

    run: Path
    local: Path
    log: str
    stored: kfp_launcher.Launcher
    store: object


@pytest.fixture(scope="module")
def ran(tmp_path_factory, flights_1000_rows):
    import boto3
    from moto.server import ThreadedMotoServer

    folder = tmp_path_factory.mktemp("flights")
    (folder / "pipeline.toml").write_text(CONFIG)
    (folder / "flights.csv").write_bytes(flights_1000_rows.read_bytes())
    with open(flights_1000_rows, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    place = header.index("late")
    with open(folder / "bad.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *(one for one in rows if one[place] == "0")])
    for out, *sets in (
        ("package.yaml",),
        ("remote.yaml", "--set", f"checkpoint.remote=s3://{BUCKET}/checkpoints"),
    ):
        compiled = commands.headrace("kubeflow", "compile", "--out", out, *sets, cwd=folder)
        assert compiled.code == 0, compiled.err
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        environment = {
            **PLANTED, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "x",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/kfp.db",
        }  # fmt: skip
        store = boto3.client(
            "s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="planted-key", aws_secret_access_key="planted-secret",
        )  # fmt: skip
        store.create_bucket(Bucket=BUCKET)
        store.upload_file(str(folder / "flights.csv"), BUCKET, "data/flights.csv")
        launcher = kfp_launcher.Launcher(
            folder / "remote.yaml", f"s3://{BUCKET}/runs", store, environment, _kill_first(store)
        )
        with ThreadPoolExecutor() as pool:
            local = pool.submit(_kfp_local, folder)
            said = commands.headrace("run", "--json", cwd=folder)
            assert said.code == 0, said.err
            launcher.run(data_files=[f"s3://{BUCKET}/data/flights.csv"])
            log = local.result()
        yield Ran(folder / "runs" / "flights", folder / "local", log, launcher, store)
    finally:
        server.stop()


def _kfp_local(folder):
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, "package.yaml", "local", str(folder / "bad.csv")],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def _kill_first(store):
    """As when a machine is gone: the push at once, the training once a checkpoint is stored."""

    def has_checkpoint():
        held = store.list_objects_v2(Bucket=BUCKET, Prefix="checkpoints/").get("Contents", [])
        # It is written last.
        return any(one["Key"].endswith("/manifest.json") for one in held)

    def kill(task, attempt, process):
        if attempt or task not in {"pusher", "trainer"}:
            return
        while task == "trainer" and process.poll() is None and not has_checkpoint():
            time.sleep(0.02)
        os.killpg(process.pid, 9)

    return kill


def stored(ran, suffix):
    """The content of the only object under the pipeline root whose key ends so."""
    keys = [
        one["Key"]
        for page in ran.store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        for one in page["Contents"]
        if re.search(suffix, one["Key"])
    ]
    assert len(keys) == 1, (suffix, keys)
    return ran.store.get_object(Bucket=BUCKET, Key=keys[0])["Body"].read()


def alone(folder, pattern):
    (found,) = folder.glob(pattern)
    return found.read_bytes()


WEIGHTS = "Format-Serving/variables/variables.data-00000-of-00001"
SAME = {
    "weights": ("Trainer/model/*", "trainer", WEIGHTS),
    "predictions": ("Trainer/model_run/*", "trainer", "predictions.npy"),
    "statistics": ("StatisticsGen/statistics/*", "statistics-gen", "Split-train/FeatureStats.pb"),
    "schema": ("SchemaGen/schema/*", "schema-gen", "schema.pbtxt"),
    "metrics": ("Evaluator/evaluation/*", "evaluator", "evaluation.json"),
    "verdict": ("DataGate/verdict/*", "data-gate", "anomalies.json"),
}
"""What is compared: its folder here, KFP's task, and the file."""


@pytest.mark.parametrize("name", SAME)
def test_what_is_made_is_the_same_byte_for_byte(ran, name):
    here, task, file = SAME[name]
    right = alone(ran.run, f"{here}/{file}")
    assert alone(ran.local / "good", f"*/{task}/**/{file}") == right
    assert stored(ran, rf"/{task}/.*/{re.escape(file)}$") == right


def test_refused_data_ends_at_the_gate_with_the_reason(ran):
    assert "REFUSED" in ran.log, ran.log[-3000:]
    bad = ran.log[ran.log.index("bad.csv") :] if "bad.csv" in ran.log else ran.log
    assert re.search(r"DataGate: .*late", bad), bad[-3000:]
    assert list((ran.local / "bad").glob("*/data-gate"))
    assert not list((ran.local / "bad").glob("*/trainer*"))
    # Its last line is the task's reason, and no traceback stands beside it.
    assert "Traceback" not in "\n".join(one for one in bad.splitlines() if "DataGate" in one)


def test_a_task_that_was_killed_is_tried_again_with_the_same_outputs(ran):
    assert [ran.stored.ran.count(one) for one in ("trainer", "pusher")] == [2, 2]
    assert set(ran.stored.ran) == {
        "data-digest", "example-gen", "statistics-gen", "schema-gen", "example-validator",
        "data-gate", "trainer", "evaluator", "pusher",
    }  # fmt: skip
    # The model is in the bucket once, though the task ran twice.
    assert stored(ran, r"pusher/.*saved_model\.pb") == stored(ran, r"trainer/.*saved_model\.pb")


def test_a_training_that_was_killed_goes_on_from_its_checkpoint_in_the_bucket(ran):
    # With the weights of the run that was not killed, as above.
    told = json.loads(stored(ran, r"trainer/.*model_run/result\.json$"))
    assert told["training"]["resumed_from_step"] >= 5
    assert json.loads(alone(ran.run, "Trainer/model_run/*/result.json"))["training"][
        "resumed_from_step"
    ] == 0  # fmt: skip


def test_kfp_is_told_what_its_dashboard_shows(ran):
    made = ran.stored.made
    numbers = made["evaluator"]["artifacts"]["view_metrics"]["metadata"]
    right = json.loads(alone(ran.run, "Evaluator/evaluation/*/evaluation.json"))
    assert numbers["accuracy"] == right["metrics"]["accuracy"]
    matrix = made["evaluator"]["artifacts"]["view_classification"]["metadata"]["confusionMatrix"]
    assert sum(sum(one["row"]) for one in matrix["rows"]) == len(
        (ran.run.parents[1] / "flights.csv").read_text().splitlines()
    ) - 1 - _train_rows(ran)
    page = stored(ran, r"example-validator/.*view_report").decode()
    assert page.startswith("<!doctype html>")
    assert "distance" in page


def test_the_two_tasks_that_know_numbers_have_told_mlflow(ran):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=ran.stored.environment["MLFLOW_TRACKING_URI"])
    found = client.get_experiment_by_name("flights")
    (run,) = client.search_runs([found.experiment_id])
    right = json.loads(alone(ran.run, "Evaluator/evaluation/*/evaluation.json"))
    assert run.info.status == "FINISHED"
    assert run.data.metrics["accuracy"] == right["metrics"]["accuracy"]
    assert run.data.params["training.global_batch"] == "32"


def _train_rows(ran):
    told = json.loads(alone(ran.run, "ExampleGen/examples/*/rows.json"))
    return told["examples"]["train"]


def test_no_credential_is_in_a_log_or_in_what_was_made(ran):
    logs = "\n".join(log for logs in ran.stored.logs.values() for log in logs) + ran.log
    assert "planted" not in logs
    for page in ran.store.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for one in page["Contents"]:
            body = ran.store.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
            assert b"planted" not in body, one["Key"]
