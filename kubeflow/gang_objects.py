"""What a gang is to Kubernetes: a headless Service and an Indexed Job, one pod a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeflow.placement import LABELS, SECRET_KEYS, TRAINER_LABEL

GANG_LABEL = "headrace/gang"
PORT = 2222
"""Of the first training process of a pod; the next one has the next."""
GRACE_SECONDS = 120
"""What a pod may take to save its state when its machine is drained."""
USER = 65532
"""Of the image's, which is not root."""
FOLDER, ADDRESSES, PROCESSES = "HEADRACE_GANG_FOLDER", "HEADRACE_WORKERS", "HEADRACE_PROCESSES"


@dataclass(frozen=True)
class Gang:
    """A training on several machines, as the package asks for it.

    Attributes:
        nodes: machines.
        gpus: of each; a process each. 0: one process on the CPU.
        max_restarts: times that all are started again.
        image, cpu, memory: of a pod.
        secret, volume, mount: as in `kubeflow.placement.Placement`.
        shared_memory, node_selector, tolerations: likewise.
    """

    nodes: int
    gpus: int = 0
    max_restarts: int = 3
    image: str = ""
    cpu: str = "2"
    memory: str = "4Gi"
    secret: str = ""
    volume: str = ""
    mount: str = "/data"
    shared_memory: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """Training processes of each machine: one a device."""
        return max(self.gpus, 1)


@dataclass(frozen=True)
class Owner:
    """The pod that the gang belongs to: when it goes, Kubernetes removes the gang."""

    name: str
    uid: str

    def references(self) -> list[dict[str, Any]]:
        """Return the ``ownerReferences``; none where the pod is not known."""
        if not self.uid:
            return []
        return [{"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}]


def service(name: str, owner: Owner) -> dict[str, Any]:
    """Return the headless Service by which the pods find one another, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "labels": {**LABELS, GANG_LABEL: name},
            "ownerReferences": owner.references(),
        },
        "spec": {
            "clusterIP": "None",
            # They wait for one another before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {GANG_LABEL: name},
            "ports": [{"name": "workers", "port": PORT}],
        },
    }


def addresses(job: str, name: str, gang: Gang) -> list[str]:
    """Return ``host:port`` of each training process, those of a machine one after another."""
    return [
        f"{job}-{node}.{name}:{PORT + process}"
        for node in range(gang.nodes)
        for process in range(gang.processes)
    ]


def job(
    job_name: str, name: str, gang: Gang, *, owner: Owner, folder: str, restarts: int
) -> dict[str, Any]:
    """Return the Indexed Job of one attempt.

    It never starts a pod again by itself: one alone cannot join those that are in the middle of a
    step.

    Args:
        job_name: of this attempt.
        name: of the Service.
        gang: what to start.
        owner: the pod that it belongs to.
        folder: that all meet in, on the shared volume.
        restarts: attempts before this one.
    """
    labels = {**LABELS, **TRAINER_LABEL, GANG_LABEL: name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name,
            "labels": {**LABELS, GANG_LABEL: name},
            "ownerReferences": owner.references(),
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": gang.nodes,
            "parallelism": gang.nodes,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(name, gang, _environment(job_name, name, gang, folder, restarts)),
            },
        },
    }


def _environment(
    job_name: str, name: str, gang: Gang, folder: str, restarts: int
) -> list[dict[str, Any]]:
    plain = {
        FOLDER: folder,
        ADDRESSES: ",".join(addresses(job_name, name, gang)),
        PROCESSES: str(gang.processes),
        "HEADRACE_GPUS": str(gang.gpus),
        "HEADRACE_RESTARTS": str(restarts),
        "HOME": "/tmp",
    }
    made: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in plain.items()]
    if gang.secret:
        made += [
            {"name": key, "valueFrom": {"secretKeyRef": {"name": gang.secret, "key": key}}}
            for key in SECRET_KEYS
        ]
    return made


def _pod(name: str, gang: Gang, environment: list[dict[str, Any]]) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "requests": {"cpu": gang.cpu, "memory": gang.memory},
        "limits": {"memory": gang.memory},
    }
    if gang.gpus:
        resources["limits"]["nvidia.com/gpu"] = str(gang.gpus)
    shm: dict[str, Any] = {"medium": "Memory"}
    if gang.shared_memory:
        shm["sizeLimit"] = gang.shared_memory
    return {
        "subdomain": name,
        "serviceAccountName": "headrace-worker",
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": dict(gang.node_selector),
        "tolerations": [tolerated(one) for one in gang.tolerations],
        # One pod a machine, where there are so many.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {GANG_LABEL: name}},
            }
        ],
        "containers": [
            {
                "name": "main",
                "image": gang.image,
                "command": ["python", "-m", "kubeflow.worker"],
                "env": environment,
                "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "shared", "mountPath": gang.mount},
                    {"name": "tmp", "mountPath": "/tmp"},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": gang.volume}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": shm},
        ],
    }


def tolerated(text: str) -> dict[str, str]:
    """Return a toleration of ``key=value:Effect`` or ``key:Effect``."""
    taint, _, effect = text.rpartition(":")
    key, equals, value = taint.partition("=")
    found = {"key": key, "effect": effect}
    return found | ({"operator": "Equal", "value": value} if equals else {"operator": "Exists"})


def to_text(gang: Gang) -> str:
    """Return a gang as the text that a task's environment holds."""
    facts = {name: getattr(gang, name) for name in gang.__dataclass_fields__}
    return json.dumps({**facts, "node_selector": dict(gang.node_selector)}, sort_keys=True)


def from_text(text: str) -> Gang:
    """Return what `to_text` wrote."""
    facts = json.loads(text)
    return Gang(**{**facts, "tolerations": tuple(facts["tolerations"])})
