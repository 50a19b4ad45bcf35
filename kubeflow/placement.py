"""Where the tasks of a package run and what they ask the cluster for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeflow.tasks import Task

SECRET_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
)
"""Entries of the Secret that a node finds in its environment; a missing one is left empty."""
LIGHT_MEMORY = "4Gi"
"""What TFX with TensorFlow and Beam takes, with some room for the data's batches."""
FIELDS = {
    "HEADRACE_KFP_RUN": "metadata.labels['pipeline/runid']",
    "HEADRACE_POD": "metadata.name",
    "HEADRACE_POD_UID": "metadata.uid",
    "HEADRACE_NAMESPACE": "metadata.namespace",
}
"""What a pod is told of itself; no parameters, since they would be part of the cache key."""
LABELS = {"app.kubernetes.io/part-of": "headrace"}
TRAINER_LABEL = {"headrace/trainer": "true"}
"""Of pods that train, which Prometheus looks for."""


@dataclass(frozen=True)
class Placement:
    """What the cluster is asked for.

    Attributes:
        image: of every task.
        pipeline_root: where KFP keeps what tasks make; empty: its own place.
        cpu: cores that a task asks for.
        memory: of every task but the trainer.
        trainer_memory: of the trainer.
        gpus: of the trainer; 0: none are asked for.
        shared_memory: size of the trainer's /dev/shm; empty: the cluster's default.
        node_selector: labels of the machines that the trainer runs on.
        tolerations: ``key=value:Effect`` or ``key:Effect``, of the trainer.
        retries: times that a task is tried again.
        secret: name of the Secret with credentials; empty: none.
        volume: name of the PersistentVolumeClaim with data; empty: none.
        mount: where it is mounted.
        environment: of every task; no secrets.
        trainer_environment: of the trainer, where others train for it; empty: it does so itself.
    """

    image: str
    pipeline_root: str = ""
    cpu: str = "2"
    memory: str = LIGHT_MEMORY
    trainer_memory: str = LIGHT_MEMORY
    gpus: int = 0
    shared_memory: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    retries: int = 2
    secret: str = ""
    volume: str = ""
    mount: str = "/data"
    environment: Mapping[str, str] = field(default_factory=dict)
    trainer_environment: Mapping[str, str] = field(default_factory=dict)

    def place_digest(self, task: Any) -> None:
        """Place the task that reads the data files for their digest."""
        task.set_display_name("data digest")
        self._ask(task, "500m", "512Mi")

    def place(self, task: Any, of: Task) -> None:
        """Place the task of a node."""
        task.set_display_name(of.id)
        self._ask(task, self.cpu, self.trainer_memory if of.trains else self.memory)
        if of.trains:
            self._place_trainer(task)

    def _ask(self, task: Any, cpu: str, memory: str) -> None:
        from kfp import kubernetes

        task.set_cpu_request(cpu)
        # A limit of memory as high as the request: a node is told early, not killed late.
        task.set_memory_request(memory)
        task.set_memory_limit(memory)
        if self.retries:
            task.set_retry(
                self.retries, backoff_duration="10s", backoff_factor=2, backoff_max_duration="300s"
            )
        for name, value in sorted(self.environment.items()):
            task.set_env_variable(name, str(value))
        for name, path in FIELDS.items():
            kubernetes.use_field_path_as_env(task, name, path)
        for name, value in LABELS.items():
            kubernetes.add_pod_label(task, name, value)
        if self.secret:
            kubernetes.use_secret_as_env(task, self.secret, {name: name for name in SECRET_KEYS})
        if self.volume:
            kubernetes.mount_pvc(task, self.volume, self.mount)

    def _place_trainer(self, task: Any) -> None:
        from kfp import kubernetes

        for name, value in self.trainer_environment.items():
            task.set_env_variable(name, value)
        # Of a gang the pods that train are watched, and not this task.
        for name, value in () if self.trainer_environment else TRAINER_LABEL.items():
            kubernetes.add_pod_label(task, name, value)
        if self.gpus:
            task.set_accelerator_type("nvidia.com/gpu")
            task.set_accelerator_limit(self.gpus)
        for name, value in sorted(self.node_selector.items()):
            kubernetes.add_node_selector(task, name, value)
        for one in self.tolerations:
            _tolerate(task, one)
        if self.shared_memory:
            kubernetes.empty_dir_mount(
                task, "shm", "/dev/shm", medium="Memory", size_limit=self.shared_memory
            )


def _tolerate(task: Any, text: str) -> None:
    from kfp import kubernetes

    taint, _, effect = text.rpartition(":")
    name, equals, value = taint.partition("=")
    facts: dict[str, Any] = {"key": name, "effect": effect}
    facts |= {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    kubernetes.add_toleration(task, **facts)
