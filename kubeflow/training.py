"""What runs beside the Trainer's node: the training process, early, and its log in the task's."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from kubeflow.parameters import property_text
from trainer import supervisor


@contextlib.contextmanager
def companions(
    spec: Mapping[str, Any],
    given: Mapping[str, Any],  # ruff: ignore[unused-function-argument]
    scratch: Path,
) -> Generator[None, None, None]:
    """Start the training process while this one imports TFX; end it with the block."""
    children: list[subprocess.Popen[bytes]] = []
    if spec["id"] == "Trainer" and property_text(spec, "settings"):
        has_gang = bool(os.environ.get("HEADRACE_GANG"))
        module = "kubeflow.leader" if has_gang else "trainer.worker"
        children = supervisor.start(scratch / "training", module=module)
    try:
        yield
    finally:
        for one in children:
            if one.poll() is None:
                one.terminate()
                one.wait()
