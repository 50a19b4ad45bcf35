"""The data nodes at scale: time and peak memory of ExampleGen and StatisticsGen on flight records.

    uv run python bench/data_scale.py [--copies 10 100] [--repeats 1] [--work DIR]

Inputs are copies of the 327,346 flight records as files of one folder, made by links. Each
variant is the two nodes, run by LocalDagRunner with Beam's FnApiRunner in a process whose time
begins after the imports: CSV on both cores and on one, Parquet, and the most copies for the memory.
The limit is what pyarrow takes to read the same CSV and TFDV to compute its statistics in memory,
on the same cores. Prints a line a claim and one JSON line.
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
ROWS = 327_346


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def nodes(data: Path, root: Path) -> dict[str, float]:
    """Run both nodes over a folder; return seconds and the peak of resident memory."""
    from tfx.orchestration import metadata, pipeline
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    from components import example_gen
    from components import statistics as own_statistics

    told = {
        "files": [str(path) for path in sorted(data.iterdir())],
        "label": "late",
        "null_values": NULLS,
        "memory_bytes": 1 << 30,
        "split": {"by": "hash", "column": "", "eval": 0.2},
    }
    examples = example_gen.ExampleGen(settings=json.dumps(told), fingerprint="{}")
    counted = own_statistics.StatisticsGen(
        examples=examples.outputs["examples"], settings="{}", fingerprint="{}"
    )
    made = pipeline.Pipeline(
        pipeline_name="scale",
        pipeline_root=str(root),
        components=[examples, counted],
        metadata_connection_config=metadata.sqlite_metadata_connection_config(str(root / "db")),
        beam_pipeline_args=RUNNER,
        enable_cache=False,
    )
    imported, started, processor = peak(), time.monotonic(), time.process_time()
    LocalDagRunner().run(made)
    return {
        "seconds": time.monotonic() - started,
        "processor_seconds": time.process_time() - processor,
        "imported_bytes": imported,
        "peak_bytes": peak(),
    }  # fmt: skip


def limit(data: Path, _: Path) -> dict[str, float]:
    """Return the seconds of pyarrow's read of a folder and of TFDV's statistics in memory."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import tensorflow_data_validation as tfdv
    from tensorflow_data_validation.statistics import stats_impl

    started = time.monotonic()
    tables = [pa_csv.read_csv(path) for path in sorted(data.iterdir())]
    read = time.monotonic() - started
    options = tfdv.StatsOptions()
    batches = [
        pa.RecordBatch.from_arrays([as_lists(column) for column in batch.columns],
                                   batch.schema.names)
        for batch in pa.concat_tables(tables).combine_chunks().to_batches(1 << 16)
    ]  # fmt: skip
    started = time.monotonic()
    partial = [stats_impl.generate_partial_statistics_in_memory(
        batch, options, generators := stats_impl.get_generators(options, in_memory=True)
    ) for batch in batches]  # fmt: skip
    merged = [one.merge_accumulators(list(parts)) for one, parts in
              zip(generators, zip(*partial, strict=True), strict=True)]  # fmt: skip
    for one, whole in zip(generators, merged, strict=True):
        one.extract_output(whole)
    counted = time.monotonic() - started
    return {"read_seconds": read, "tfdv_seconds": counted, "seconds": read + counted}


def as_lists(column):
    import numpy as np
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        column = column.cast(pa.string()).cast(pa.large_binary())
    there = np.asarray(column.is_valid())
    offsets = np.concatenate([[0], np.cumsum(there)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), column.drop_null())


def child(variant: str, data: Path, root: Path, cores: int) -> None:
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))
    sys.path.insert(0, str(Path(__file__).parent.parent))
    print(json.dumps({"nodes": nodes, "limit": limit}[variant](data, root)))


def measure(variant: str, data: Path, work: Path, *, cores: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=work) as root:
        command = [sys.executable, __file__, "--child", variant, str(data), root, str(cores)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"  {variant} {data.name} on {cores}: {told}", file=sys.stderr, flush=True)
    return told


def write_inputs(folder: Path, copies: list[int]) -> dict[str, Path]:
    """Write the records once as CSV and once as Parquet, and folders of links to them."""
    import csv

    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    from pipeline.examples import flights

    once = folder / "flights.csv"
    with open(once, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(flights.rows())
    table = folder / "flights.parquet"
    pq.write_table(pa_csv.read_csv(once), table, row_group_size=1 << 16)
    found = {}
    for count in copies:
        for path in (once, table):
            place = folder / f"{path.suffix[1:]}-{count}"
            place.mkdir()
            for number in range(count):
                os.link(path, place / f"flights-{number:03}{path.suffix}")
            found[place.name] = place
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--work", default=None)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent))
    few, *many = arguments.copies
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=arguments.work) as name:
        work = Path(name)
        data = write_inputs(work, arguments.copies)
        csv_few, parquet_few = data[f"csv-{few}"], data[f"parquet-{few}"]
        variants = {
            "csv": ("nodes", csv_few, cores), "one core": ("nodes", csv_few, 1),
            "parquet": ("nodes", parquet_few, cores), "limit": ("limit", csv_few, cores),
        }  # fmt: skip
        measured: dict[str, list[dict[str, float]]] = {one: [] for one in variants}
        for _ in range(arguments.repeats):
            for one, (variant, place, count) in variants.items():
                measured[one].append(measure(variant, place, work, cores=count))
        for count in many:
            told = measure("nodes", data[f"csv-{count}"], work, cores=cores)
            measured[f"csv {count}"] = [told]
    report(measured, few, many)


def report(measured: dict[str, list[dict[str, float]]], few: int, many: list[int]) -> None:
    def median(name: str, figure: str = "seconds") -> float:
        return statistics.median(one[figure] for one in measured[name])

    own = median("csv")
    print(f"{few * ROWS:,} rows of CSV: {own:.1f} s, {few * ROWS / own:,.0f} rows/s")
    print(f"  {own / median('limit'):.2f} times pyarrow's read and TFDV's statistics in memory "
          f"({median('limit', 'read_seconds'):.1f} + "
          f"{median('limit', 'tfdv_seconds'):.1f} s)")  # fmt: skip
    print(
        f"  one core {median('one core'):.1f} s: two are {median('one core') / own:.2f} times one"
    )
    print(f"  Parquet {median('parquet'):.1f} s: {own / median('parquet'):.2f} times faster")
    for count in many:
        grown = median(f"csv {count}", "peak_bytes") / median("csv", "peak_bytes")
        print(f"{count * ROWS:,} rows: {median(f'csv {count}'):.1f} s, peak "
              f"{median(f'csv {count}', 'peak_bytes') / 2**20:.0f} MiB, {grown:.3f} times that of "
              f"{few * ROWS:,} ({median('csv', 'peak_bytes') / 2**20:.0f} MiB; "
              f"{median('csv', 'imported_bytes') / 2**20:.0f} MiB of it imports)")  # fmt: skip
    versions = {name: version(name) for name in ("tfx", "apache-beam", "pyarrow")}
    facts = {"all": measured, "cores": os.cpu_count(), "machine": platform.machine()}
    facts |= {"versions": versions}
    print(json.dumps(facts))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
