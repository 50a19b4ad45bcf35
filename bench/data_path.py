"""ExampleGen and StatisticsGen against TFX's CsvExampleGen and StatisticsGen on flight records.

    uv run python bench/data_path.py [--repeats 3] [--peer-repeats 3] [--copies 10]

Each variant is a TFX pipeline of the two nodes in a child process, run by LocalDagRunner with
Beam's FnApiRunner; its time begins after the imports. Variants alternate. Prints how many times
faster ours is, by row too when the file holds many copies of the records, how much more memory the
copies take, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

RUNNER = ["--runner=FnApiRunner", "--direct_num_workers=1"]
NULLS = ["", "NA", "NaN", "null"]


def ours(data: Path):
    from components import example_gen
    from components import statistics as own_statistics

    settings = {
        "files": [str(path) for path in sorted(data.iterdir())],
        "label": "late",
        "null_values": NULLS,
        "split": {"by": "hash", "column": "", "eval": 0.2},
    }
    examples = example_gen.ExampleGen(settings=json.dumps(settings), fingerprint="{}")
    return [
        examples,
        own_statistics.StatisticsGen(
            examples=examples.outputs["examples"], settings="{}", fingerprint="{}"
        ),
    ]


def peer(data: Path):
    from tfx.components import CsvExampleGen, StatisticsGen

    examples = CsvExampleGen(input_base=str(data))
    return [examples, StatisticsGen(examples=examples.outputs["examples"])]


def child(variant: str, data: Path, root: Path) -> None:
    """Run one pipeline and print its seconds and the peak of resident memory."""
    from tfx.orchestration import metadata, pipeline
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    nodes = {"ours": ours, "peer": peer}[variant](data)
    made = pipeline.Pipeline(
        pipeline_name=variant,
        pipeline_root=str(root),
        components=nodes,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(str(root / "db")),
        beam_pipeline_args=RUNNER,
        enable_cache=False,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, processor = time.monotonic(), time.process_time()
    LocalDagRunner().run(made)
    facts = {
        "seconds": time.monotonic() - started,
        "processor_seconds": time.process_time() - processor,
        "imported_bytes": before * 1024,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(facts))


def measure(variant: str, data: Path, work: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=work) as root:
        command = [sys.executable, __file__, "--child", variant, str(data), root]
        path = os.pathsep.join([
            str(Path(__file__).parent.parent),
            os.environ.get("PYTHONPATH", ""),
        ])
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_flights(folder: Path, copies: int) -> Path:
    """Write one CSV that holds the records this many times, and return its folder."""
    import csv

    from pipeline.examples import flights

    data = folder / f"copies-{copies}"
    data.mkdir()
    with open(data / "flights.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for copy in range(copies):
            rows = flights.rows()
            header = next(rows)
            writer.writerows([header] if not copy else [])
            writer.writerows(rows)
    return data


def median(measured: list[dict[str, float]], name: str = "seconds") -> float:
    return statistics.median(one[name] for one in measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-repeats", type=int, default=3)
    parser.add_argument("--copies", type=int, default=10)
    arguments = parser.parse_args()
    measured: dict[str, list[dict[str, float]]] = {"peer": [], "ours": [], "copies": []}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        once, many = write_flights(work, 1), write_flights(work, arguments.copies)
        for turn in range(max(arguments.repeats, arguments.peer_repeats)):
            if turn < arguments.peer_repeats:
                measured["peer"].append(measure("peer", once, work))
            if turn < arguments.repeats:
                measured["ours"].append(measure("ours", once, work))
                measured["copies"].append(measure("ours", many, work))
    report(measured, arguments.copies)


def report(measured: dict[str, list[dict[str, float]]], copies: int) -> None:
    peers, own, many = (median(measured[name]) for name in ("peer", "ours", "copies"))
    grown = median(measured["copies"], "peak_bytes") - median(measured["ours"], "peak_bytes")
    print(f"peer: {peers:.1f} s; ours: {own:.1f} s; {peers / own:.1f} times faster")
    print(f"{copies} copies: {many:.1f} s; {copies * peers / many:.1f} times faster by row")
    print(f"peak memory grows by {grown / 1e6:.0f} MB from 1 copy to {copies}")
    facts = {
        "peer_seconds": peers,
        "seconds": own,
        "ratio": peers / own,
        "copies": copies,
        "copies_seconds": many,
        "ratio_by_row": copies * peers / many,
        "memory_grown_bytes": grown,
        "all": measured,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("tfx", "apache-beam", "pyarrow")},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
