"""The memory that the Trainer asks for: measured by the last run here, or planned, or a default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kubeflow.placement import LIGHT_MEMORY
from pipeline.config import PipelineConfig

BESIDE_BYTES = 2 * 2**30
"""TFX's own process beside the one that trains, which both import TensorFlow."""
ROOM = 1.25


def of_trainer(config: PipelineConfig) -> str:
    """Return the memory of the Trainer as Kubernetes writes it, such as ``6Gi``."""
    if config.kubeflow.memory != "auto":
        return config.kubeflow.memory
    found = [
        size
        for result in _results(config.folder / "logs")
        if (size := _process_bytes(result)) is not None
    ]
    if not found:
        return LIGHT_MEMORY
    gibibytes = -(-int(found[0] * ROOM + BESIDE_BYTES) // 2**30)
    return f"{max(gibibytes, int(LIGHT_MEMORY.removesuffix('Gi')))}Gi"


def _results(logs: Path) -> list[dict[str, Any]]:
    """Return the results of runs and plans, the newest first."""
    paths = sorted(
        logs.glob("*/result.json"), key=lambda path: (path.stat().st_mtime, path.parent.name)
    )
    return [json.loads(path.read_text(encoding="utf-8")) for path in reversed(paths)]


def _process_bytes(result: dict[str, Any]) -> int | None:
    """Return what the training process held or would hold; None: the result does not say."""
    if measured := (result.get("training") or {}).get("process_memory_bytes"):
        return int(measured)
    planned = (result.get("choice") or {}).get("process_bytes")
    return int(planned) if planned else None
