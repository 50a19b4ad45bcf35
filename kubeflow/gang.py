"""A gang on a cluster: started, watched, started again as a whole, and removed whatever happens.

The state is asked for every two seconds and not watched: a watch that is cut loses events, and of
these few objects nothing is saved by one. An API server that is away for some minutes ends nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeflow import gang_objects, losses
from kubeflow.gang_objects import Gang, Owner
from kubeflow.losses import DRAINED
from kubeflow.worker import HUNG, LOST, NOTE, place_of, result_of
from trainer.errors import HeadraceError, SettingError, TrainingError, WorkerLost, from_facts

POLL_SECONDS = 2.0
PATIENCE_SECONDS = 300.0
"""How long the API server may be away."""
REMOVAL_SECONDS = 180.0
"""How long pods may take to be gone: longer than their grace."""
UNSTARTABLE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
"""Why a pod waits that will not start by waiting."""
START_SECONDS = 120.0
HANG_SECONDS = 5.0
"""How long after the first pod of a gang that hangs the last one finds it out."""
NOT_FOUND, FORBIDDEN, CONFLICT = 404, 403, 409
CAUSE_SECONDS = 10.0
"""How long after a loss that may be another's consequence that other one is looked for."""
GRANT = "apply the overlay multi-node that `headrace kubeflow manifests` writes"


@dataclass
class Cluster:
    """A namespace of a cluster, by the official client.

    Attributes:
        namespace: of all objects.
        tell: takes the lines that the chief's pod writes.
        poll_seconds: between two looks.
    """

    namespace: str
    tell: Callable[[str], None]
    poll_seconds: float = POLL_SECONDS
    _core: Any = field(init=False, repr=False)
    _batch: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from kubernetes import client, config

        try:
            config.load_incluster_config()
        except config.ConfigException:
            config.load_kube_config()
        self._core, self._batch = client.CoreV1Api(), client.BatchV1Api()

    def ask(self, function: Callable[[], Any]) -> Any:
        """Call until the server answers; return None for what is not there.

        Raises:
            SettingError: the task may not do that.
            TrainingError: the server refuses, or stays away.
        """
        import urllib3
        from kubernetes.client import ApiException

        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return function()
            except ApiException as error:
                status = int(error.status or 0)
                if status == NOT_FOUND:
                    return None
                if status in {401, FORBIDDEN}:
                    raise SettingError(
                        f"the task may not do that: {status} ({_said(error)})",
                        where="kubeflow.nodes", right=GRANT,
                    ) from error  # fmt: skip
                is_passing = status >= 500 or status == 429 or not status
                if not is_passing or time.monotonic() > until:
                    raise TrainingError(
                        f"the cluster refuses: {status} ({_said(error)})", where="kubeflow.nodes"
                    ) from error
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if time.monotonic() > until:
                    raise TrainingError(
                        f"the cluster's API server stays away ({error})", where="kubeflow.nodes"
                    ) from error
            time.sleep(self.poll_seconds)

    def create(self, kind: str, body: dict[str, Any]) -> None:
        """Create a Service or a Job; one that is there already is ours, of a lost answer.

        Raises:
            SettingError: the namespace is not there.
            ApiException: never: it is what one request of several raised.
        """
        from kubernetes.client import ApiException

        create = {
            "Service": self._core.create_namespaced_service,
            "Job": self._batch.create_namespaced_job,
        }[kind]

        def once() -> Any:
            try:
                return create(self.namespace, body)
            except ApiException as error:
                if error.status == CONFLICT:
                    return True
                raise

        if self.ask(once) is None:
            raise SettingError(
                "is no namespace of this cluster", where="kubeflow.namespace",
                holds=json.dumps(self.namespace),
            )  # fmt: skip

    def remove(self, service: str, job: str) -> None:
        """Delete what is there of a gang, and wait until its pods are gone."""
        if job:
            self.ask(
                lambda: self._batch.delete_namespaced_job(
                    job, self.namespace, propagation_policy="Foreground"
                )
            )
            until = time.monotonic() + REMOVAL_SECONDS
            while time.monotonic() < until and self.job(job) is not None:
                time.sleep(self.poll_seconds)
        if service:
            self.ask(lambda: self._core.delete_namespaced_service(service, self.namespace))

    def job(self, name: str) -> Any:
        """Return a Job; None: it is not there."""
        return self.ask(lambda: self._batch.read_namespaced_job(name, self.namespace))

    def pods(self, job: str) -> list[Any]:
        """Return the pods of a Job by their index."""
        found = self.ask(
            lambda: self._core.list_namespaced_pod(self.namespace, label_selector=f"job-name={job}")
        )
        return sorted(found.items if found else [], key=losses.index)

    def follow(self, pod: str, stop: threading.Event) -> None:
        """Tell what a pod writes, until `stop`; a connection that is cut is made again."""
        told = 0
        while not stop.is_set():
            with contextlib.suppress(Exception):
                answer = self._core.read_namespaced_pod_log(
                    pod, self.namespace, follow=True, _preload_content=False
                )
                for number, line in enumerate(answer):
                    # Made again it begins from the first line.
                    if number >= told:
                        self.tell(line.decode("utf-8", "replace").rstrip("\n"))
                        told = number + 1
            stop.wait(self.poll_seconds)


def _said(error: Any) -> str:
    try:
        return " ".join(str(json.loads(error.body)["message"]).split())[:300]
    except (ValueError, TypeError, KeyError):
        return str(error.reason)


def train(
    cluster: Cluster,
    gang: Gang,
    *,
    name: str,
    owner: Owner,
    folder: Path,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Have a gang do the job that lies in `folder`, and return its first worker's result.

    Args:
        cluster: where.
        gang: what.
        name: of the Service; Jobs are called by it and the number of the attempt.
        owner: the pod that it belongs to.
        folder: on the shared volume, with ``job.json``.
        warn: told of every restart.

    Raises:
        from_facts: the error that a worker told of.
        WorkerLost: pods were lost more often than `gang.max_restarts`, or the Job was deleted.
    """
    job = ""
    try:
        cluster.create("Service", gang_objects.service(name, owner))
        for attempt in range(gang.max_restarts + 1):
            job = f"{name}-{attempt}"
            _forget(folder, gang)
            body = gang_objects.job(
                job, name, gang, owner=owner, folder=str(folder), restarts=attempt
            )
            cluster.create("Job", body)
            lost = _attempt(cluster, gang, job, folder)
            result = _result(folder, gang)
            if result is not None:
                return result
            lost = _hung(folder, gang) or lost
            if DRAINED not in lost:
                (folder / LOST).touch()
            cluster.remove("", job)
            if attempt < gang.max_restarts:
                warn(
                    f"{lost}; all {gang.nodes} pods are started again and go on from the last "
                    f"checkpoint (restart {attempt + 1} of {gang.max_restarts})"
                )
        raise WorkerLost(
            f"{lost}, and training was started {gang.max_restarts + 1} times",
            where=f"Job {job}", right="run again to go on from the last checkpoint",
        )  # fmt: skip
    finally:
        # Also when this process was asked to end: pods get SIGTERM and save their state.
        cluster.remove(name, job)


def _forget(folder: Path, gang: Gang) -> None:
    (folder / LOST).unlink(missing_ok=True)
    for rank in range(gang.nodes * gang.processes):
        for path in (
            result_of(folder, rank),
            *(place_of(folder, rank) / one for one in (HUNG, NOTE)),
        ):
            path.unlink(missing_ok=True)


def _hung(folder: Path, gang: Gang) -> str:
    """Return which process hung; empty: none did.

    All are silent, since they wait for one another: the one that hangs was stopped, or is behind.
    """
    places = [place_of(folder, rank) / HUNG for rank in range(gang.nodes * gang.processes)]
    if not any(one.exists() for one in places):
        return ""
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until and not all(one.exists() for one in places):
        time.sleep(0.1)
    told = {
        rank: json.loads(one.read_text(encoding="utf-8"))
        for rank, one in enumerate(places)
        if one.exists()
    }
    rank = min(told, key=lambda one: (not told[one]["is_stopped"], told[one]["beats"]))
    return f"worker {rank} of {len(places)} hung: it did no step for {told[rank]['seconds']:.0f} s"


def _result(folder: Path, gang: Gang) -> dict[str, Any] | None:
    """Return the result of the first worker; None: there is none, and training may go on.

    Raises:
        from_facts: the error that a worker told of, which would come again.
    """
    for facts in losses.errors(folder, gang):
        failure: HeadraceError = from_facts(facts)
        raise failure
    path = result_of(folder, 0)
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return told if told.get("status") == "ok" else None


def _attempt(cluster: Cluster, gang: Gang, job: str, folder: Path) -> str:
    """Wait until a Job has ended; return what was lost, empty when nothing was.

    Raises:
        WorkerLost: it was deleted by somebody else.
        TrainingError: a pod cannot start.
    """
    stop = threading.Event()
    log: threading.Thread | None = None
    waits_since: float | None = None
    try:
        while True:
            found = cluster.job(job)
            if found is None:
                raise WorkerLost(
                    "the Job was deleted from outside", where=f"Job {job}",
                    right="run again to go on from the last checkpoint",
                )  # fmt: skip
            pods = cluster.pods(job)
            for pod in pods:
                if log is None and losses.index(pod) == 0 and pod.status.phase != "Pending":
                    log = threading.Thread(
                        target=cluster.follow, args=(pod.metadata.name, stop), daemon=True
                    )
                    log.start()
            if losses.seen(pods, folder, gang) or _failure(found):
                return _cause(cluster, gang, job, folder) or _failure(found)
            if (found.status.succeeded or 0) >= gang.nodes:
                return ""
            waits_since = _check_starts(pods, waits_since)
            time.sleep(cluster.poll_seconds)
    finally:
        if log is not None:
            # The last lines are on their way.
            log.join(timeout=cluster.poll_seconds)
        stop.set()


def _failure(job: Any) -> str:
    """Return why the Job says that it failed; empty: it does not."""
    for one in job.status.conditions or []:
        if one.type == "Failed" and one.status == "True":
            return f"the Job failed ({one.reason}: {one.message})"
    return ""


def _cause(cluster: Cluster, gang: Gang, job: str, folder: Path) -> str:
    """Return which pod or process was lost first and how; empty: no pod tells."""
    until = time.monotonic() + CAUSE_SECONDS
    while True:
        pods = cluster.pods(job)
        found = losses.seen(pods, folder, gang)
        is_over = all(one.status.phase in {"Failed", "Succeeded"} for one in pods)
        is_known = bool(found) and not found[0].is_consequence
        if is_known or is_over or losses.errors(folder, gang) or time.monotonic() > until:
            break
        time.sleep(cluster.poll_seconds)
    if not found:
        return ""
    first = found[0]
    silent = [losses.index(one) for one in pods if one.status.phase == "Running"]
    if not (first.is_consequence and silent):
        return first.what
    told = ", ".join(map(str, silent))
    return f"{first.what}, as when it waits for another one in vain; still there: pod {told}"


def _check_starts(pods: list[Any], since: float | None) -> float | None:
    """Return since when a pod waits for what it will not get.

    Raises:
        TrainingError: it has waited long enough.
    """
    waiting = [
        one.state.waiting
        for pod in pods
        for one in pod.status.container_statuses or []
        if one.state and one.state.waiting and one.state.waiting.reason in UNSTARTABLE
    ]
    if not waiting:
        return None
    since = since or time.monotonic()
    if time.monotonic() - since > START_SECONDS:
        raise TrainingError(
            f"a pod cannot start: {waiting[0].reason} ({waiting[0].message})",
            where="kubeflow.image", right="check its name, and that the cluster may pull it",
        )  # fmt: skip
    return since


def describe(error: BaseException) -> dict[str, Any]:
    """Return the content of ``result.json`` for an error."""
    known = error if isinstance(error, HeadraceError) else TrainingError(
        f"the gang could not be led: {type(error).__name__}: {error}", where="kubeflow.nodes"
    )  # fmt: skip
    return {
        "status": "failed",
        "error": known.facts(),
        "training": None,
        "predictions": None,
        "history": [],
    }
