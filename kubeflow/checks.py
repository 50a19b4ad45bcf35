"""What a package asks of the configuration, refused when it is made and not when it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pipeline.config import PipelineConfig
from trainer.errors import SettingError

STORES = ("s3://", "gs://", "minio://", "oci://")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def check(config: PipelineConfig) -> None:
    """Refuse a configuration that no cluster can run.

    Raises:
        SettingError: the first key at fault, with what it holds and what would be right.
    """
    for refused in _wrong(config):
        raise refused


def _wrong(config: PipelineConfig) -> Iterator[SettingError]:
    yield from _image(config)
    yield from _root(config)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", config.name):
        yield _refused(
            config, "name", "is no name that Kubeflow Pipelines takes", "use a-z, 0-9 and - alone"
        )
    settings = config.kubeflow
    if config.training.precision == "mixed_float16" and not settings.gpus_per_node:
        yield _refused(
            config,
            "kubeflow.gpus_per_node",
            'must be 1 or more where training.precision is "mixed_float16", which needs a GPU',
            'set it, or take training.precision = "auto"',
        )
    if settings.nodes > 1:
        yield from _many_nodes(config)


def _many_nodes(config: PipelineConfig) -> Iterator[SettingError]:
    if not config.kubeflow.volume:
        yield _refused(
            config,
            "kubeflow.volume",
            "must be set where kubeflow.nodes is 2 or more: its machines share checkpoints",
            "name a PersistentVolumeClaim that many machines may write to (ReadWriteMany)",
        )
    if config.training.workers > 1:
        yield _refused(
            config,
            "training.workers",
            "must be 1 where kubeflow.nodes is 2 or more",
            "leave it out: each machine has a process for each of kubeflow.gpus_per_node",
        )


def _image(config: PipelineConfig) -> Iterator[SettingError]:
    image = config.kubeflow.image
    if not image:
        yield _refused(
            config,
            "kubeflow.image",
            "must be set",
            "name one that holds headrace, as registry/name:tag or registry/name@sha256:...",
        )
    if not IMAGE.fullmatch(image):
        yield _refused(
            config, "kubeflow.image", "is no name of an image", "write registry/name:tag"
        )


def _root(config: PipelineConfig) -> Iterator[SettingError]:
    root = config.kubeflow.pipeline_root
    if root and not root.startswith(STORES):
        yield _refused(
            config,
            "kubeflow.pipeline_root",
            "must be in a store that every node of the cluster reaches",
            f"begin it with one of {', '.join(STORES)}, or leave it out for the cluster's own",
        )
    if "@" in root.partition("/")[2]:
        yield _refused(
            config,
            "kubeflow.pipeline_root",
            "must not hold credentials",
            "put them into a Secret and name that as kubeflow.secret",
        )


def _refused(config: PipelineConfig, name: str, what: str, right: str) -> SettingError:
    value: Any = config.flat()[name]
    return SettingError(what, where=config.where(name), holds=json.dumps(value), right=right)
