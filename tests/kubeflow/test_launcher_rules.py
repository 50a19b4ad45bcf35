"""The stand-in for KFP's launcher against the rules that it stands for."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings

import kfp_launcher
import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="a task's disk is /s3, which root alone can make"
)
BUCKET = "headrace-rules"
SOURCE = """
from kfp import dsl

made = dict(base_image="x", install_kfp_package=False)

@dsl.component(**made)
def write(made: dsl.Output[dsl.Artifact], unused: dsl.Output[dsl.Artifact], count: int):
    import json, os
    os.makedirs(made.path + "/empty")
    with open(made.path + "/file", "w") as file:
        file.write("held")
    made.metadata["count"] = count
    print("URI " + made.uri)

@dsl.component(**made)
def read(held: dsl.Input[dsl.Artifact], value: float, found: dsl.Output[dsl.Artifact]) -> str:
    import os
    assert os.listdir(held.path) == ["file"], os.listdir(held.path)
    assert type(held.metadata["count"]) is float
    with open(found.path, "w") as file:
        file.write("partly")
    if value < 0:
        raise SystemExit(3)
    found.metadata["value"] = value if value < 9 else float("nan")
    return "said"

@dsl.pipeline(name="rules")
def rules(count: int = 3, value: float = 0.0):
    one = write(count=count).set_retry(2)
    read(held=one.outputs["made"], value=value)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    from kfp import compiler

    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules_of_kfp.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rules_of_kfp

        compiler.Compiler().compile(rules_of_kfp.rules, str(folder / "package.yaml"))
    sys.path.remove(str(folder))
    return folder / "package.yaml"


@pytest.fixture(scope="module")
def store():
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    made = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
        aws_access_key_id="x", aws_secret_access_key="x",
    )  # fmt: skip
    made.create_bucket(Bucket=BUCKET)
    yield made
    server.stop()


def launch(package, store, root, interfere=lambda *_: None, **values):
    one = kfp_launcher.Launcher(package, f"s3://{BUCKET}/{root}", store, interfere=interfere)
    with pytest.warns(UserWarning, match=r"no output at .*unused"):
        ended = _end(one, values)
    return one, ended


def _end(launcher, values):
    try:
        return launcher.run(**values)
    except (kfp_launcher.TaskFailed, ValueError) as error:
        return error


def keys(store, prefix):
    return [one["Key"] for one in
            store.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]  # fmt: skip


def test_artifacts_go_through_the_bucket_and_numbers_through_doubles(package, store):
    _, made = launch(package, store, "good", count=7)
    held = made["write"]["artifacts"]["made"]
    assert re.fullmatch(rf"s3://{BUCKET}/good/write/[0-9a-f-]{{36}}/made", held["uri"])
    assert json.dumps(held["metadata"]) == '{"count": 7.0}'
    assert made["read"]["parameters"] == {"Output": "said"}
    # An empty folder is not kept.
    assert [one.rpartition("/")[2] for one in keys(store, "good/write")] == ["file"]


def test_a_task_that_is_killed_runs_again_with_the_same_uris(package, store):
    seen = []

    def kill(task, attempt, process):
        seen.append((task, attempt))
        if task == "write" and attempt == 0:
            os.killpg(process.pid, 9)

    one, _ = launch(package, store, "killed", kill)
    assert seen == [("write", 0), ("write", 1), ("read", 0)]
    assert len({line for log in one.logs["write"] for line in log.splitlines()
                if line.startswith("URI")}) == 1  # fmt: skip


def test_of_a_task_that_failed_nothing_is_kept(package, store):
    _, error = launch(package, store, "failed", value=-1.0)
    assert (error.task, error.code) == ("read", 3)
    assert not keys(store, "failed/read")


def test_a_metric_that_is_no_number_fails_a_task_whose_work_was_done(package, store):
    _, error = launch(package, store, "nan", value=10.0)
    assert str(error) == "NaN is no JSON"
