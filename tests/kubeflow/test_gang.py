from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import fake_cluster
import numpy as np
import pytest
import yaml

from kubeflow import gang, gang_objects, worker
from kubeflow.gang_objects import Gang, Owner
from trainer import journal, supervisor
from trainer.errors import NotFinite, SettingError, TrainingError, WorkerLost
from trainer.settings import CheckpointSettings, Job, ModelSettings, TrainingSettings, to_json

ROOT = Path(__file__).parents[2]
OWNER = Owner("trainer-pod", "0c5d")
TWO = Gang(nodes=2, max_restarts=2, image="registry.example/headrace:1", volume="data")
STUB = """
import json, os, signal, sys, time
from pathlib import Path
folder, index = Path(os.environ["HEADRACE_GANG_FOLDER"]), int(os.environ["JOB_COMPLETION_INDEX"])
attempt = int(os.environ["HEADRACE_RESTARTS"])
print("line one", flush=True)
print("line two", flush=True)
def end(status, code=0, error=None):
    place = folder / f"rank-{index}"
    place.mkdir(exist_ok=True)
    told = {"status": status, "error": error, "attempt": attempt}
    (place / "result.json").write_text(json.dumps(told))
    sys.exit(code)
"""
"""A pod that says two lines and then does what a test adds."""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a fake cluster; its pods run a script, or what their container says."""
    running = []

    def start(script=None):
        command = [sys.executable, "-c", STUB + script] if script else None
        one = fake_cluster.Cluster(tmp_path, command)
        running.append(one)
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig()))
        from kubernetes import config

        path = str(one.kubeconfig())
        monkeypatch.setattr(config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", path)
        return one

    yield start
    for one in running:
        one.close()


def lead(tmp_path, asked=TWO, *, said=None, warned=None):
    room = tmp_path / "room"
    room.mkdir(exist_ok=True)
    said = [] if said is None else said
    found = gang.Cluster("team-a", tell=said.append, poll_seconds=0.05)
    return gang.train(
        found, asked, name="headrace-1", owner=OWNER, folder=room,
        warn=[].append if warned is None else warned.append,
    )  # fmt: skip


def is_clean(cluster):
    """Nothing is left of a gang: no object, no process."""
    return not cluster.jobs and not cluster.services and all(
        one.poll() is not None for pods in cluster.pods.values() for one in pods
    )  # fmt: skip


def test_a_gang_that_ends_well_is_removed_and_its_chief_was_heard(start, tmp_path):
    cluster, said = start('time.sleep(0.3); end("ok")'), []
    assert lead(tmp_path, said=said)["attempt"] == 0
    assert is_clean(cluster)
    assert said == ["line one", "line two"]


def test_a_pod_that_dies_has_all_started_again(start, tmp_path):
    cluster, warned = start(
        """
if attempt == 0 and index == 1:
    sys.exit(137)
if attempt == 0:
    time.sleep(60)
end("ok")
"""
    ), []  # fmt: skip
    assert lead(tmp_path, warned=warned)["attempt"] == 1
    assert cluster.made == ["headrace-1-0", "headrace-1-1"]
    (told,) = warned
    assert "pod 1 of 2 died with exit code 137" in told
    assert "restart 1 of 2" in told
    assert is_clean(cluster)


def lost(rank):
    """A process that lost another one in the middle of a step, and could still tell."""
    facts = WorkerLost("another worker was lost in the middle of a step").facts()
    return f"""
    place = folder / "rank-{rank}"
    place.mkdir(exist_ok=True)
    (place / "ended.json").write_text(json.dumps({{"code": 4, "time": 5.0, "asked": False}}))
    end("failed", 4, {facts!r})
"""


def test_the_first_cause_is_told_also_when_its_consequence_is_seen_first(start, tmp_path):
    cluster, warned = start(
        f"""
if attempt == 0 and index == 0:{lost(0)}
if attempt == 0:
    time.sleep(1.5)
    place = folder / "rank-1"
    place.mkdir(exist_ok=True)
    # By a clock that is behind.
    (place / "ended.json").write_text(json.dumps({{"code": -9, "time": 9.0, "asked": False}}))
    sys.exit(137)
end("ok")
"""
    ), []  # fmt: skip
    assert lead(tmp_path, warned=warned)["attempt"] == 1
    assert "worker 1 of 2 died by signal 9, SIGKILL" in warned[0]
    assert is_clean(cluster)


def test_an_error_that_is_told_after_its_consequence_is_still_the_error(start, tmp_path):
    facts = NotFinite("the loss is not finite", where="training").facts()
    cluster = start(
        f"""
if index == 0:{lost(0)}
time.sleep(1.5)
end("failed", 4, {facts!r})
"""
    )
    with pytest.raises(NotFinite, match="not finite"):
        lead(tmp_path)
    assert len(cluster.made) == 1
    assert is_clean(cluster)


def test_a_pod_that_tells_of_nothing_is_named_by_the_one_that_waits_for_it(
    start, tmp_path, monkeypatch
):
    monkeypatch.setattr(gang, "CAUSE_SECONDS", 0.5)
    cluster, warned = start(
        f"""
if attempt == 0 and index == 0:{lost(0)}
if attempt == 0:
    time.sleep(60)
end("ok")
"""
    ), []  # fmt: skip
    assert lead(tmp_path, warned=warned)["attempt"] == 1
    assert "waits for another one in vain; still there: pod 1" in warned[0]
    assert is_clean(cluster)


def test_a_machine_that_is_drained_has_all_started_again(start, tmp_path):
    cluster = start("time.sleep(60) if attempt == 0 else end('ok')")

    def drain():
        while not cluster.made or len(cluster.pods.get(cluster.made[0], ())) < 2:
            time.sleep(0.02)
        cluster.drain(cluster.made[0], 0)

    threading.Thread(target=drain).start()
    warned = []
    assert lead(tmp_path, warned=warned)["attempt"] == 1
    assert "drained or deleted" in warned[0]
    assert is_clean(cluster)


def test_restarts_come_to_an_end(start, tmp_path):
    cluster = start("sys.exit(1)")
    with pytest.raises(WorkerLost, match="started 3 times"):
        lead(tmp_path)
    assert len(cluster.made) == 3
    assert is_clean(cluster)


def test_an_error_that_would_come_again_is_not_tried_again(start, tmp_path):
    facts = NotFinite("the loss is not finite", where="training").facts()
    cluster = start(f'end("failed", 4, {facts!r})')
    with pytest.raises(NotFinite, match="not finite"):
        lead(tmp_path)
    assert len(cluster.made) == 1
    assert is_clean(cluster)


def test_a_job_that_somebody_deletes_ends_the_training(start, tmp_path):
    cluster = start("time.sleep(60)")

    def delete():
        while not cluster.jobs:
            time.sleep(0.02)
        with cluster.lock:
            cluster.delete_job(cluster.made[0])

    threading.Thread(target=delete).start()
    with pytest.raises(WorkerLost, match="deleted"):
        lead(tmp_path, replace(TWO, max_restarts=0))
    assert is_clean(cluster)


def test_an_api_server_that_fails_for_a_moment_ends_nothing(start, tmp_path):
    cluster, said = start('time.sleep(0.5); end("ok")'), []
    cluster.faults = [500, "cut", 503, None, "cut", 429, None, "cut", 500]
    cluster.cuts = 1
    assert lead(tmp_path, said=said)["attempt"] == 0
    assert not cluster.faults
    # A log that was cut is told on from where it was.
    assert said == ["line one", "line two"]
    assert is_clean(cluster)


def test_a_task_without_the_right_says_what_grants_it(start, tmp_path):
    cluster = start("end('ok')")
    cluster.refused = (
        403,
        {"message": "services is forbidden: User pipeline-runner cannot create"},
    )
    with pytest.raises(SettingError, match=r"403 .*multi-node"):
        lead(tmp_path)
    assert is_clean(cluster)


def test_the_role_of_the_overlay_grants_all_that_a_gang_asks_for_and_no_more(start, tmp_path):
    cluster = start('time.sleep(0.3); end("ok")')
    lead(tmp_path)
    (role, _) = yaml.safe_load_all((ROOT / "kubeflow" / "cluster" / "role.yaml").read_text())
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {_permission(method, path) for method, path in cluster.requests}
    assert asked == granted


def _permission(method, path):
    """What RBAC asks for: group, resource with its subresource, verb."""
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    resource, *rest = parts[parts.index("namespaces") + 2 :]
    name, *below = rest or [""]
    verbs = {"POST": "create", "DELETE": "delete", "GET": "get" if name else "list"}
    return group, "/".join([resource, *below]), verbs[method]


def test_the_one_that_hung_is_told_from_those_that_waited_for_it(start, tmp_path):
    cluster, warned = start(
        """
if attempt == 0:
    place = folder / f"rank-{index}"
    place.mkdir(exist_ok=True)
    time.sleep(0.5 * index)
    told = {"seconds": 130.0, "beats": 7, "is_stopped": index == 1}
    (place / ".hung").write_text(json.dumps(told))
    (place / ".hung").rename(place / "hung.json")
    sys.exit(4)
end("ok")
"""
    ), []  # fmt: skip
    assert lead(tmp_path, warned=warned)["attempt"] == 1
    assert "worker 1 of 2 hung: it did no step for 130 s" in warned[0]
    assert is_clean(cluster)


SILENT = """
import os, sys, time
from trainer.pulse import Pulse
pulse = Pulse(__import__("pathlib").Path(sys.argv[1]))
for _ in range(5):
    time.sleep(0.02)
    pulse.beat(0.02)
os.kill(os.getpid(), int(sys.argv[2]))
time.sleep(60)
"""
"""Five steps, and then none."""


@pytest.mark.parametrize(
    ("number", "is_stopped"), [(signal.SIGSTOP, True), (signal.SIGCONT, False)]
)
def test_a_process_that_hangs_ends_its_pod(tmp_path, monkeypatch, number, is_stopped):
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(worker, "LOST_SECONDS", 0.2)
    monkeypatch.setenv(worker.INDEX, "1")
    monkeypatch.setenv(worker.PROCESSES, "1")
    place = worker.place_of(tmp_path, 1)
    place.mkdir()
    command = [sys.executable, "-c", SILENT, str(place), str(int(number))]
    child = subprocess.Popen(command, cwd=ROOT)
    assert worker._wait([child], tmp_path) == worker.HUNG_CODE
    assert child.poll() is not None
    told = json.loads((place / worker.HUNG).read_text())
    assert (told["beats"], told["is_stopped"]) == (5, is_stopped)
    assert told["seconds"] > 1.0


def test_a_process_that_has_done_no_step_yet_may_wait_for_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "UNKNOWN_SECONDS", 0.2)
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.1)
    monkeypatch.setenv(worker.INDEX, "0")
    monkeypatch.setenv(worker.PROCESSES, "1")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"])
    assert worker._wait([child], tmp_path) == 0


def test_an_object_that_the_server_refuses_is_told(start, tmp_path):
    cluster = start("end('ok')")
    cluster.refused = (422, {"message": "spec.template: Invalid value"})
    with pytest.raises(TrainingError, match=r"422 \(spec\.template: Invalid value\)"):
        lead(tmp_path)


def test_the_pods_are_not_root_ask_for_what_they_need_and_go_with_their_task():
    asked = Gang(
        nodes=3, gpus=4, image="registry.example/headrace:1", memory="8Gi", secret="keys",
        volume="data", shared_memory="2Gi", node_selector={"gpu": "h100"},
        tolerations=("nvidia.com/gpu:NoSchedule", "team=ml:NoExecute"),
    )  # fmt: skip
    assert gang_objects.from_text(gang_objects.to_text(asked)) == asked
    made = gang_objects.job("g-0", "g", asked, owner=OWNER, folder="/data/g", restarts=0)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "0c5d"
    spec = made["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["serviceAccountName"] == "headrace-worker"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    told = {one["name"]: one.get("value") for one in container["env"]}
    # Twelve processes, the four of a machine side by side.
    assert told["HEADRACE_WORKERS"].split(",")[:5] == [
        "g-0-0.g:2222", "g-0-0.g:2223", "g-0-0.g:2224", "g-0-0.g:2225", "g-0-1.g:2222",
    ]  # fmt: skip
    assert told["HEADRACE_WORKERS"].count(",") == 11
    import kubernetes_validate

    for version in ("1.30", "1.34", "1.37"):
        kubernetes_validate.validate(made, version, strict=True)
        kubernetes_validate.validate(gang_objects.service("g", OWNER), version, strict=True)


def test_a_pod_with_fewer_gpus_than_asked_for_says_so(tmp_path, monkeypatch, capsys):
    job = _job(tmp_path, name="gpu")
    supervisor.write_json(tmp_path / "job.json", to_json(job))
    for name, value in {
        worker.FOLDER: str(tmp_path), worker.ADDRESSES: "a:1,b:1", worker.PROCESSES: "1",
        worker.INDEX: "0", "HEADRACE_GPUS": "99",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert worker.main() == 2
    told = json.loads(worker.result_of(tmp_path, 0).read_text())
    assert told["error"]["where"] == "kubeflow.gpus_per_node"


def _job(tmp_path: Path, *, name: str, **training) -> Job:
    """A job over 24 rows with a tiny model."""
    file = Path(__file__).parents[1] / "trainer" / "conftest.py"
    described = importlib.util.spec_from_file_location("trainer_columns", file)
    columns = importlib.util.module_from_spec(described)
    described.loader.exec_module(columns)
    features = columns._write_columns(tmp_path / "train", rows=24)
    columns._write_columns(tmp_path / "eval", rows=40, seed=1)
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    return Job(
        model=ModelSettings(layers=1, width=8, heads=2),
        training=TrainingSettings(**{"global_batch": 8, "steps": 60, **training}),
        checkpoint=CheckpointSettings(every_steps=5),
        features=features,
        train=str(tmp_path / "train"),
        eval=str(tmp_path / "eval"),
        checkpoints=str(folder / "checkpoints"),
        export=str(folder / "export"),
        events=str(folder / "events.jsonl"),
        result="",
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("kill", "worker 1 of 2 died by signal 9, SIGKILL"),
        ("hang", "worker 1 of 2 hung"),
        ("kill the pod", "pod 1 of 2 died with exit code 137"),
        ("drain", "pod 1 of 2 was drained or deleted"),
    ],
)
def test_two_pods_train_as_one_process_also_when_one_is_lost(start, tmp_path, how, says):
    alone = supervisor.run(_job(tmp_path, name="alone"), tmp_path / "one", max_restarts=0)
    cluster = start()
    job = _job(tmp_path, name="shared")
    environment = {
        "KUBECONFIG": os.environ["KUBECONFIG"], "HEADRACE_NAMESPACE": "team-a",
        "HEADRACE_GANG": gang_objects.to_text(TWO), "HEADRACE_GANG_ROOM": str(tmp_path / "gang"),
        "HEADRACE_POD": OWNER.name, "HEADRACE_POD_UID": OWNER.uid,
    }  # fmt: skip
    for name, value in environment.items():
        os.environ[name] = value

    def lose():
        while not any(one["event"] == "checkpoint" for one in journal.read(job.events)[0]):
            time.sleep(0.05)
        pod = cluster.pods[cluster.made[0]][1]
        (child,) = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
        if how == "drain":
            cluster.drain(cluster.made[0], 1)
        else:
            # The training process, as when its memory runs out or it hangs; or all of the pod.
            number = signal.SIGSTOP if how == "hang" else signal.SIGKILL
            os.kill(pod.pid if how == "kill the pod" else int(child), number)

    loser = threading.Thread(target=lose)
    loser.start()
    folder = tmp_path / "leader"
    children = supervisor.start(folder, module="kubeflow.leader")
    result = supervisor.run(job, folder, max_restarts=0)
    loser.join()
    assert [one.wait(timeout=60) for one in children] == [0]
    assert len(cluster.made) == 2
    assert is_clean(cluster)
    assert result["training"]["resumed_from_step"] > 0
    np.testing.assert_allclose(
        np.load(result["predictions"]), np.load(alone["predictions"]), rtol=2e-4, atol=2e-5
    )
    # What the gang made is where the job says, and its room is gone.
    assert (Path(job.export) / "saved_model.pb").exists()
    assert not list((tmp_path / "gang").iterdir())
    told = journal.read(job.events)[0]
    assert {one["workers"] for one in told if one["event"] == "training_started"} == {2}
    (warned,) = [one["message"] for one in told if one["event"] == "warning"]
    assert says in warned
    log = (folder / supervisor.LOG).read_text()
    assert "[worker 0]" in log
