"""`headrace run` against the way of TFX's own template, on the same flight records.

    uv run python bench/end_to_end.py [--repeats 3] [--peer-repeats 1]

The peer is a pipeline of TFX's own components as its template has them (CsvExampleGen,
StatisticsGen, SchemaGen, ExampleValidator, a Trainer with a Keras MLP, two epochs of batches of
256), run by LocalDagRunner. Each variant is a whole process, imports included. Prints the ratio of
wall times, the difference in AUC, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEER = Path(__file__).with_name("peer_template.py")


def timed(command: list[str], folder: Path) -> tuple[float, str]:
    """Return the wall seconds of a command and its standard output."""
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ}
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return time.monotonic() - started, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-repeats", type=int, default=1)
    arguments = parser.parse_args()
    headrace = str(Path(sys.executable).with_name("headrace"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed([headrace, "example", "flights", "--out", str(folder / "flights")], folder)
        ours, peers, peer_auc, our_auc, nodes = [], [], [], [], {}
        for turn in range(max(arguments.repeats, arguments.peer_repeats)):
            if turn < arguments.peer_repeats:
                seconds, out = timed(
                    [sys.executable, str(PEER), str(folder / "flights"), str(folder / f"p{turn}")],
                    folder,
                )
                peers.append(seconds)
                peer_auc.append(json.loads(out.strip().splitlines()[-1])["auc"])
            if turn < arguments.repeats:
                root = f'--set=root="{folder / f"r{turn}"}"'
                config = str(folder / "flights" / "pipeline.toml")
                seconds, out = timed([headrace, "run", config, root, "--json"], folder)
                result = json.loads(out)
                ours.append(seconds)
                our_auc.append(result["metrics"]["auc"])
                nodes = {one["id"]: one["seconds"] for one in result["nodes"]}
        again, _ = timed([headrace, "run", config, root, "--json"], folder)
        imports, _ = timed([sys.executable, "-c", "import tensorflow, keras"], folder)
    facts = {
        "headrace_seconds": statistics.median(ours),
        "peer_seconds": statistics.median(peers),
        "ratio": statistics.median(ours) / statistics.median(peers),
        "headrace_auc": statistics.median(our_auc),
        "peer_auc": statistics.median(peer_auc),
        "unchanged_rerun_seconds": again,
        "tensorflow_import_seconds": imports,
        "nodes": nodes,
        "all": {"headrace": ours, "peer": peers},
        "cores": os.cpu_count(),
    }
    print(f"whole run: {facts['ratio']:.2f} of the template's time")
    print(f"AUC: {facts['headrace_auc'] - facts['peer_auc']:+.3f}")
    print(f"nothing changed: {again:.1f} s; import of TensorFlow alone: {imports:.1f} s")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
