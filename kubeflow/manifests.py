"""`manifests`: what a cluster needs beside the package, as a Kustomize base with overlays.

    base/                 account of the training pods, NetworkPolicy, Prometheus, Grafana, volume
    overlays/cpu          the base
    overlays/gpu          and alerts by NVIDIA's DCGM exporter
    overlays/multi-node   and the right to make a gang of training pods
    secret.template.yaml  names of the credentials, never values; not part of any overlay
    image/                Dockerfile and what builds it

Alerts and dashboard are made from the files in `trainer/on_call`, which ``promtool`` tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from kubeflow.package import write_whole
from kubeflow.placement import LABELS, SECRET_KEYS, TRAINER_LABEL
from pipeline.config import PipelineConfig
from trainer.errors import SettingError

MONITORING_PORT = 9480
"""Where Prometheus looks when the configuration names no port."""
STATIC = {
    "base/worker-account.yaml": "worker-account.yaml",
    "base/network-policy.yaml": "network-policy.yaml",
    "overlays/gpu/dcgm-rules.yaml": "dcgm-rules.yaml",
    "overlays/multi-node/role.yaml": "role.yaml",
    "image/Dockerfile": "Dockerfile",
    "image/Dockerfile.dockerignore": "Dockerfile.dockerignore",
    "image/build.sh": "build.sh",
}
"""Files that are the same for everyone, by where they go."""
VOLUME_SIZE = "50Gi"


def write(config: PipelineConfig, folder: Path) -> list[Path]:
    """Write the manifests for a configuration, and return the files.

    Raises:
        SettingError: the folder cannot be written.
    """
    written = []
    for name, text in sorted(texts(config).items()):
        write_whole(folder / name, text)
        written.append(folder / name)
    return written


def texts(config: PipelineConfig) -> dict[str, str]:
    """Return the text of each file by its place; the same for the same configuration."""
    own = resources.files("kubeflow").joinpath("cluster")
    made = {place: own.joinpath(name).read_text("utf-8") for place, name in STATIC.items()}
    base = {
        "pod-monitor.yaml": pod_monitor(config),
        "rules.yaml": rules(),
        "dashboard.yaml": dashboard(),
    }
    if config.kubeflow.volume:
        base["volume.yaml"] = volume(config)
    made |= {f"base/{name}": _yaml(value) for name, value in base.items()}
    held = sorted(place.removeprefix("base/") for place in made if place.startswith("base/"))
    made["base/kustomization.yaml"] = _yaml(
        _kustomization(held, namespace=config.kubeflow.namespace, labels=LABELS)
    )
    for name, over, more in (
        ("cpu", "../../base", []),
        ("gpu", "../../base", ["dcgm-rules.yaml"]),
        ("multi-node", "../gpu" if config.kubeflow.gpus_per_node else "../../base", ["role.yaml"]),
    ):
        made[f"overlays/{name}/kustomization.yaml"] = _yaml(
            _kustomization([over, *more], namespace=config.kubeflow.namespace)
        )
    made["secret.template.yaml"] = secret_template(config)
    return made


def _kustomization(
    held: list[str], *, namespace: str, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": held,
    }
    if labels:
        made["labels"] = [{"pairs": dict(labels)}]
    return made


def pod_monitor(config: PipelineConfig) -> dict[str, Any]:
    """Return what has Prometheus scrape every training pod.

    A pod of KFP declares no ports, so that targets are made from its address; each process of a
    pod has a port of its own.
    """
    first = config.monitoring.port or MONITORING_PORT
    count = max(config.kubeflow.gpus_per_node, 1) if config.kubeflow.nodes > 1 else 1
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "headrace"},
        "spec": {
            "selector": {"matchLabels": dict(TRAINER_LABEL)},
            "podMetricsEndpoints": [_endpoint(first + place) for place in range(count)],
        },
    }


def _endpoint(port: int) -> dict[str, Any]:
    return {
        "path": "/metrics",
        "interval": "15s",
        "relabelings": [
            # KFP's own containers stand in the same pod.
            {
                "sourceLabels": ["__meta_kubernetes_pod_container_name"],
                "regex": "main",
                "action": "keep",
            },
            {
                "sourceLabels": ["__meta_kubernetes_pod_ip"],
                "regex": "(.+)",
                "replacement": f"$1:{port}",
                "targetLabel": "__address__",
                "action": "replace",
            },
            # The alerts ask for this job.
            {"targetLabel": "job", "replacement": "headrace", "action": "replace"},
        ],
    }


def rules() -> dict[str, Any]:
    """Return the alerts that ``promtool`` tests, for the Prometheus operator."""
    import yaml

    text = _on_call("alerts.yml")
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "headrace"},
        "spec": {"groups": yaml.safe_load(text)["groups"]},
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard with the label that Grafana's sidecar looks for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "headrace-dashboard", "labels": {"grafana_dashboard": "1"}},
        "data": {"headrace.json": _on_call("dashboard.json")},
    }


def volume(config: PipelineConfig) -> dict[str, Any]:
    """Return the claim that holds data, checkpoints and models; many machines write to it."""
    mode = "ReadWriteMany" if config.kubeflow.nodes > 1 else "ReadWriteOnce"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": config.kubeflow.volume},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": VOLUME_SIZE}},
        },
    }


def secret_template(config: PipelineConfig) -> str:
    """Return a Secret to be filled in, whose values are empty here.

    It is no part of the overlays: applied as it is, it would replace the values by nothing.
    """
    name = config.kubeflow.secret or "headrace"
    keys = "\n".join(f'  {one}: ""' for one in SECRET_KEYS)
    return (
        "# Credentials of the tasks. Fill in a copy outside of version control, or make it by\n"
        f"#   kubectl create secret generic {name} --namespace {config.kubeflow.namespace} "
        "--from-env-file=FILE\n"
        f'# and set kubeflow.secret = "{name}". Every key must be there, empty where unused.\n'
        "apiVersion: v1\nkind: Secret\n"
        f"metadata:\n  name: {name}\n  namespace: {config.kubeflow.namespace}\n"
        f"type: Opaque\nstringData:\n{keys}\n"
    )


def notes(config: PipelineConfig) -> list[str]:
    """Return what a person should know of these manifests."""
    told = []
    if not config.monitoring.port:
        told.append(
            f"the trainer answers Prometheus only with monitoring.port = {MONITORING_PORT}, which "
            "is not set"
        )
    if config.kubeflow.volume:
        told.append(
            f"base/volume.yaml asks for {VOLUME_SIZE}; leave it out where the claim is there"
        )
    return told


def overlay(config: PipelineConfig) -> str:
    """Return the overlay that this configuration needs."""
    if config.kubeflow.nodes > 1:
        return "multi-node"
    return "gpu" if config.kubeflow.gpus_per_node else "cpu"


def _on_call(name: str) -> str:
    return resources.files("trainer").joinpath("on_call", name).read_text("utf-8")


def _yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, width=100, allow_unicode=True)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds other things, which an overlay would not take but a person would.

    Raises:
        SettingError: it holds files that are none of these.
    """
    known = {"base", "overlays", "image", "secret.template.yaml"}
    others = sorted(
        one.name for one in (folder.iterdir() if folder.is_dir() else ()) if one.name not in known
    )
    if others:
        raise SettingError(
            "holds other files", where=f"--out {folder}", holds=json.dumps(others[:3]),
            right="name a folder of its own",
        )  # fmt: skip
