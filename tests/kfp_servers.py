"""Starts the server of `tests/kubeflow/kfp_server.py` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

SCRIPT = Path(__file__).parent / "kubeflow" / "kfp_server.py"


@contextlib.contextmanager
def running():
    """Give the address of a server that ends with the block."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(timeout=20)


def asked(address):
    """Return what a play of the server was asked so far."""
    with urllib.request.urlopen(f"{address}/requests") as answer:
        return json.load(answer)
