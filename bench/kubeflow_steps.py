"""The penguins' package by kfp.local: each step importing only what its node needs, and plainly.

    uv run python bench/kubeflow_steps.py [--rounds N]

Both ways alternate in one run, on the same package; plainly, a step imports TFX and TensorFlow as
anybody would. Prints the seconds of each node (medians), their sums' ratio, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HEADRACE = str(Path(sys.executable).with_name("headrace"))
RUN = """
import sys, warnings
warnings.simplefilter("ignore")
from kfp import components, local
local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2])
components.load_component_from_file(sys.argv[1])(epochs=2)
"""
PLAIN = """
import contextlib
from trainer import imports
imports.as_namespace = lambda *names: None
imports.without = lambda *names: contextlib.nullcontext()
"""
"""Read by every Python of the plain way, before anything else."""
DONE = re.compile(r"(\w+): done in ([0-9.]+) s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    found: dict[str, list[dict[str, float]]] = {"light": [], "plain": []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        said(["example", "penguins"], place)
        said(["kubeflow", "compile", "penguins/pipeline.toml", "--set", "kubeflow.image=x"], place)
        (place / "plain").mkdir()
        (place / "plain" / "sitecustomize.py").write_text(PLAIN)
        for number in range(rounds):
            for way, runs in found.items():
                runs.append(seconds_by_node(place, way, f"{way}-{number}"))
    medians = {
        way: {node: statistics.median(run[node] for run in runs) for node in runs[0]}
        for way, runs in found.items()
    }
    for node, seconds in medians["light"].items():
        print(f"{node:<18} {seconds:6.1f} s, plainly {medians['plain'][node]:6.1f} s")
    sums = {way: sum(nodes.values()) for way, nodes in medians.items()}
    ratio = sums["light"] / sums["plain"]
    print(f"together {sums['light']:.0f} s of {sums['plain']:.0f} s: {ratio:.2f}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({"claim": "kubeflow", "ratio": ratio, "seconds": medians, **machine}))


def said(arguments: list[str], folder: Path) -> None:
    subprocess.run([HEADRACE, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def seconds_by_node(folder: Path, way: str, out: str) -> dict[str, float]:
    environment = {**os.environ, "COLUMNS": "400"}
    if way == "plain":
        environment["PYTHONPATH"] = str(folder / "plain")
    done = subprocess.run(
        [sys.executable, "-c", RUN, "package.yaml", out],
        cwd=folder, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout[-3000:])
    return {node: float(seconds) for node, seconds in DONE.findall(done.stdout)}


if __name__ == "__main__":
    main()
