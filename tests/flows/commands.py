"""The commands as a person runs them, and small real data for them."""

import csv
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADRACE = str(Path(sys.executable).with_name("headrace"))

TINY = """
name = "{name}"
root = "{root}"
[data]
files = "{files}"
label = "late"
ignore = ["arr_delay", "dep_delay", "dep_time", "arr_time", "air_time", "year", "time_hour"]
{data}
[model]
layers = 1
width = 8
heads = 2
[training]
epochs = 3
global_batch = 128
learning_rate = 1e-2
[checkpoint]
every_steps = 5
{more}
"""


@dataclass
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def headrace(*arguments, cwd=None, timeout=400) -> Said:
    """Run the installed command in a process of its own, as a person does."""
    done = subprocess.run(
        [HEADRACE, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def processes_of(folder: Path, *, seconds: float = 10) -> list[str]:
    """Return the other processes that have the folder in their command line or environment.

    One that was killed is there until its memory has been given back: `seconds` are waited for it.
    """
    until = time.monotonic() + seconds
    while found := _processes_of(folder):
        if time.monotonic() > until:
            return found
        time.sleep(0.1)
    return []


def _processes_of(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told and int(path.name) != os.getpid():
            found.append(path.name)
    return found


def flight_rows(rows: int, *, start: int = 0) -> list[list[str]]:
    """Return a header and flight records of the installed package, spread over its year."""
    from pipeline.examples import flights

    every = 327_346 // (rows + start) - 1
    header, *kept = itertools.islice(flights.rows(), 0, None, every)
    return [header, *kept[start : start + rows]]


def write_rows(path: Path, rows: list[list[str]]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def write_config(
    folder: Path, *, name="flights", root="runs", files="flights.csv", data="", more=""
):
    path = folder / "pipeline.toml"
    path.write_text(TINY.format(name=name, root=root, files=files, data=data, more=more))
    return path
