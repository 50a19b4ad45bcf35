"""The table ``[kubeflow]``: where and how the pipeline runs on a cluster.

Only shapes are checked here; what a cluster needs beside them is asked for by `kubeflow.checks`,
when a package is made.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from trainer.settings import FORBID_UNKNOWN_KEYS, key, require

ACCELERATORS = (0, 1, 2, 4, 8, 16)
"""Numbers of GPUs that the kfp SDK takes for a task."""
QUANTITY = re.compile(r"[0-9]+(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)?")
CPU = re.compile(r"([0-9]*[.])?[0-9]+|[0-9]+m")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
TOLERATION = re.compile(
    r"[A-Za-z0-9./_-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|NoExecute|PreferNoSchedule)"
)


@dataclass(frozen=True)
class KubeflowSettings:
    """How the pipeline runs on Kubeflow Pipelines."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    image: str = key("", "the container image that every node runs in; must be set to compile")
    namespace: str = key("kubeflow", "namespace of the runs")
    pipeline_root: str = key(
        "", "s3://bucket/prefix, minio://, gs:// or oci:// for all artifacts; empty: the cluster's"
    )
    nodes: int = key(1, "machines that train together")
    gpus_per_node: int = key(0, "GPUs of each of them: 0, 1, 2, 4, 8 or 16")
    secret: str = key(
        "", "name of the Secret whose AWS_* and MLFLOW_* entries reach the nodes; empty: none"
    )
    volume: str = key("", "name of a PersistentVolumeClaim with the data files; empty: none")
    mount: str = key("/data", "folder that the volume is mounted at")
    cpu: str = key("2", "processor cores that a node asks for")
    memory: str = key(
        "auto",
        'memory of the Trainer, such as "8Gi"; auto: by the last run or plan on this machine',
    )
    shared_memory: str = key(
        "", 'size of /dev/shm of the Trainer, such as "2Gi"; empty: the default'
    )
    retries: int = key(2, "times that a node that failed is tried again")
    node_selector: dict[str, str] = key(dict, "labels of the machines that the Trainer runs on")
    tolerations: tuple[str, ...] = key(
        (), 'taints that the Trainer bears, such as "nvidia.com/gpu=present:NoSchedule"'
    )

    def __post_init__(self) -> None:
        require(
            bool(LABEL.fullmatch(self.namespace)),
            "namespace",
            f"must be made of a-z 0-9 and -, at most 63; it holds {json.dumps(self.namespace)}",
        )
        require(self.nodes >= 1, "nodes", f"must be at least 1; it holds {self.nodes}")
        require(self.retries >= 0, "retries", f"must be 0 or more; it holds {self.retries}")
        require(
            self.gpus_per_node in ACCELERATORS,
            "gpus_per_node",
            f"must be one of {', '.join(map(str, ACCELERATORS))}; it holds {self.gpus_per_node}",
        )
        require(
            bool(CPU.fullmatch(self.cpu)),
            "cpu",
            f'must be a number of cores such as "2" or "500m"; it holds {json.dumps(self.cpu)}',
        )
        for name, other in (("memory", "auto"), ("shared_memory", "")):
            value = getattr(self, name)
            require(
                value == other or bool(QUANTITY.fullmatch(value)),
                name,
                f'must be {json.dumps(other)} or a size such as "8Gi"; '
                f"it holds {json.dumps(value)}",
            )
        require(
            self.mount.startswith("/") and self.mount != "/",
            "mount",
            f"must be the full path of a folder; it holds {json.dumps(self.mount)}",
        )
        for one in self.tolerations:
            require(
                bool(TOLERATION.fullmatch(one)),
                "tolerations",
                'must be texts such as "nvidia.com/gpu=present:NoSchedule", or without the value, '
                f'"nvidia.com/gpu:NoSchedule"; it holds {json.dumps(one)}',
            )
