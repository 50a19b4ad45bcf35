from dataclasses import dataclass
from pathlib import Path

import pytest
from flows.commands import Said, flight_rows, headrace, write_config, write_rows


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


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """6,000 flights, run three times: fresh, unchanged, and with one epoch more."""
    folder = tmp_path_factory.mktemp("project")
    write_rows(folder / "flights.csv", flight_rows(6000))
    write_config(folder)
    return Project(
        folder,
        first=headrace("run", "--json", cwd=folder),
        again=headrace("run", "--json", cwd=folder),
        changed=headrace("run", "--json", "--set", "training.epochs=4", cwd=folder),
    )
