"""What runs in KFP's own process: hands a node to a process of its own, and back what it made.

KFP writes its result after the component's function returns, while TensorFlow and Beam leave
threads behind that would hold the process; so they run in a child, which ends hard. Standard
library only: this process waits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REQUEST, RESPONSE = "request.json", "response.json"
EXIT_MARK = "headrace exit code {}"
"""How a task's last line gives the exit code, which KFP's launcher replaces by its own."""
TERMINATION = Path("/dev/termination-log")
"""Kubernetes hands what stands there on as the pod's message, and so does Argo."""
TFX_KEY = "tfx_artifact"
"""Of an artifact's metadata: what TFX must know of it, as JSON text, since KFP's own metadata
turns whole numbers into fractions."""


def run(spec: str, arguments: Mapping[str, Any]) -> None:
    """Run a node.

    Args:
        spec: JSON text of `kubeflow.tasks.Task.spec`.
        arguments: of the component's function: artifacts and parameters by name.

    Raises:
        SystemExit: with the node's exit code; its last line of output says why.
    """
    told = json.loads(spec)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        scratch = Path(folder)
        request = {"spec": told, "arguments": _plain(arguments), "scratch": folder}
        (scratch / REQUEST).write_text(json.dumps(request))
        code = _child(scratch / REQUEST)
        if code:
            sys.exit(code if code > 0 else 128 - code)
        response = json.loads((scratch / RESPONSE).read_text())
    for name, metadata in response["artifacts"].items():
        arguments[name].metadata.update(metadata)
    for name, uri in response.get("uris", {}).items():
        arguments[name].uri = uri


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON values; an artifact as its place and its metadata."""
    return {
        name: {"path": value.path, "metadata": dict(value.metadata)}
        if hasattr(value, "metadata")
        else value
        for name, value in arguments.items()
    }


def _child(request: Path) -> int:
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    child = subprocess.Popen(
        [sys.executable, "-m", "kubeflow.step", str(request)],
        stdin=subprocess.DEVNULL,
        env=environment,
    )

    def forward(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
        child.send_signal(number)

    before = {one: signal.signal(one, forward) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        return child.wait()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
