"""`headrace runs` over a store of 1,000 runs: seconds of the command, and of Python's own start.

    uv run python bench/runs.py [--runs N]

The store is a sqlite file of MLflow's own schema, filled through MLflow; a run has 70 settings of
which three differ, 60 metrics with slices among them, and 30 tags. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param, RunTag

HEADRACE = str(Path(sys.executable).with_name("headrace"))
TOML = 'name = "flights"\n[data]\nfiles = "flights.csv"\nlabel = "late"\n'


def fill(uri: str, runs: int) -> None:
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("flights")
    for number in range(runs):
        run = client.create_run(experiment, run_name=str(number)).info.run_id
        params = [Param(f"training.setting_{at}", "7") for at in range(67)]
        params += [Param("training.epochs", str(number % 9)), Param("model.width", str(number % 5)),
                   Param("training.seed", str(number))]  # fmt: skip
        metrics = [Metric(f"slice/carrier/c{at}/auc", 0.7, 1, 0) for at in range(50)]
        names = ("auc", "loss", "accuracy", "baseline/auc", "baseline/loss")
        metrics += [Metric(name, 0.6 + number % 97 / 1000, 1, 0) for name in names]
        tags = [RunTag(f"hardware.part_{at}", "the same") for at in range(29)]
        client.log_batch(run, metrics, params, [*tags, RunTag("headrace.task", "binary")])
        client.set_terminated(run, "FINISHED")


def seconds(command: list[str], folder: Path) -> tuple[float, str]:
    started = time.monotonic()
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return time.monotonic() - started, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "pipeline.toml").write_text(TOML)
        (folder / "runs").mkdir()
        fill(f"sqlite:///{folder / 'runs' / 'mlflow.db'}", told.runs)
        taken = sorted(seconds([HEADRACE, "runs", "--json"], folder)[0] for _ in range(5))
        start = sorted(seconds([HEADRACE, "--help"], folder)[0] for _ in range(5))
        listed = json.loads(seconds([HEADRACE, "runs", "--json"], folder)[1])
        values = [one["metrics"]["auc"] for one in listed["runs"]]
        print(json.dumps({
            "runs": len(listed["runs"]),
            "is_best_first": values == sorted(values, reverse=True),
            "settings": sorted({name for one in listed["runs"] for name in one["settings"]}),
            "seconds": round(taken[2], 2),
            "start_seconds": round(start[2], 2),
            "python": platform.python_version(),
        }))  # fmt: skip


if __name__ == "__main__":
    main()
