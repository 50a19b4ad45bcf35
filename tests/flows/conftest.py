import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from flows.commands import (
    HEADRACE,
    Said,
    flight_rows,
    headrace,
    processes_of,
    write_config,
    write_rows,
)


@dataclass
class Project:
    """A folder with flight records and a configuration, and what its runs answered."""

    folder: Path
    first: Said
    again: Said
    changed: Said

    @property
    def pipeline(self) -> Path:
        return self.folder / "runs" / "flights"


@dataclass
class Killed:
    """A pipeline whose first run was killed in training, and what its second one answered."""

    folder: Path
    runs: Path
    left: list[str]
    again: Said


@dataclass
class Both:
    """Two pipelines with the same data under one root, which ran at the same time."""

    project: Project
    killed: Killed


@pytest.fixture(scope="session")
def both(tmp_path_factory) -> Both:
    """6,000 flights, run three times: fresh, unchanged, and with one epoch more.

    Beside the first run another pipeline's is killed, beside the third that one is run again.
    """
    folder, other = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("killed")
    for one in (folder, other):
        write_rows(one / "flights.csv", flight_rows(6000))
    write_config(folder)
    write_config(other, name="killed", root=folder / "runs")
    runs = folder / "runs" / "killed"
    with started(folder) as first:
        left = kill_in_training(other, runs)
        said = said_by(first)
    unchanged = headrace("run", "--json", cwd=folder)
    with started(folder, "--set", "training.epochs=4") as changed:
        again = headrace("run", "--json", cwd=other)
        project = Project(folder, said, unchanged, said_by(changed))
    return Both(project, Killed(other, runs, left, again))


@pytest.fixture(scope="session")
def project(both) -> Project:
    return both.project


@pytest.fixture(scope="session")
def killed(both) -> Killed:
    return both.killed


def started(folder: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [HEADRACE, "run", "--json", *options],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def said_by(process: subprocess.Popen) -> Said:
    out, err = process.communicate(timeout=500)
    return Said(process.returncode, out, err)


def kill_in_training(folder: Path, runs: Path) -> list[str]:
    """Run, kill once a checkpoint is written; return the processes that did not end with it."""
    journal = runs / "logs" / "1" / "events.jsonl"
    with started(folder) as run:
        until = time.monotonic() + 300
        while time.monotonic() < until and run.poll() is None:
            if journal.exists() and '"event": "checkpoint"' in journal.read_text():
                break
            time.sleep(0.01)
        run.kill()
        run.communicate()
    # The tracking process imports MLflow yet, to say that the run was lost.
    until = time.monotonic() + 90
    while (left := processes_of(runs)) and time.monotonic() < until:
        time.sleep(0.1)
    return left
