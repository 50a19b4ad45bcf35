"""Runs a script that measures memory, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def in_child(script: str) -> Any:
    """Return what a script prints as JSON in its last line.

    A process of its own: the allocator counts only when told so before TensorFlow starts.
    """
    told = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
    child = subprocess.run(
        [sys.executable, "-c", script], env=told, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])
