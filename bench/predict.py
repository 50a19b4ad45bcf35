"""`headrace predict` over millions of rows: memory, rate, and a Python loop over `mlflow.pyfunc`.

    uv run python bench/predict.py [--rows N] [--loop-rows N]

Trains the flights example's model on a sample, writes a CSV of N rows (the flights, over and over),
and predicts it. The loop reads the first rows with pandas in chunks of 1,000 and asks the same
model through `mlflow.pyfunc.load_model`. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import real_sets

from pipeline.examples import flights

HEADRACE = str(Path(sys.executable).with_name("headrace"))
LOOP = """
import sys, time, warnings
warnings.simplefilter("ignore")
import mlflow, pandas as pd
from pathlib import Path
from components import registry
registry.package(Path(sys.argv[1]), Path(sys.argv[2]))
model = mlflow.pyfunc.load_model(sys.argv[2])
rows, started = 0, None
for chunk in pd.read_csv(sys.argv[3], chunksize=1000, nrows=int(sys.argv[4]) + 1000):
    model.predict(chunk)
    if started is None:  # the first chunk traces the model
        started = time.monotonic()
        continue
    rows += len(chunk)
print(rows / (time.monotonic() - started))
"""
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def write(path: Path, rows: int) -> None:
    """Write the flights, over and over, until there are so many rows."""
    header, *records = flights.rows()
    lines = [",".join(one) + "\n" for one in records]
    with open(path, "w") as file:
        file.write(",".join(header) + "\n")
        file.writelines(itertools.islice(itertools.cycle(lines), rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_300_000)
    parser.add_argument("--loop-rows", type=int, default=50_000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        real_sets.write("flights", folder)
        for command in (["init", "flights.csv", "--label", "late"], ["run", "--json"]):
            subprocess.run([HEADRACE, *command], cwd=folder, check=True, capture_output=True)
        write(folder / "many.csv", told.rows)
        started = time.monotonic()
        command = [HEADRACE, "predict", "runs/flights/models", "many.csv", "--out", "out.parquet"]
        timed = [sys.executable, "-c", MEASURED, *command]
        done = subprocess.run(timed, cwd=folder, check=True, capture_output=True, text=True)
        seconds = time.monotonic() - started
        loop = subprocess.run(
            [sys.executable, "-c", LOOP, "runs/flights/models/1", "packed", "many.csv",
             str(told.loop_rows)],
            cwd=folder, check=True, capture_output=True, text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        rate = told.rows / seconds
        of_loop = float(loop.stdout.split()[-1])
        print(json.dumps({
            "rows": told.rows,
            "seconds": round(seconds, 1),
            "peak_memory_bytes": int(done.stdout.split()[-1]) * 1024,
            "rows_per_second": round(rate),
            "loop_rows_per_second": round(of_loop),
            "ratio": round(rate / of_loop, 2),
            "python": platform.python_version(),
        }))  # fmt: skip


if __name__ == "__main__":
    main()
