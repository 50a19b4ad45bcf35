"""The errors that headrace raises, for the whole house.

    HeadraceError
    ├── InputError            exit 2: the command line, the configuration or the input files
    │   ├── SettingError      a key and what it holds
    │   └── DataFileError     a file, and where in it
    ├── DataRefused           exit 3: the data gate said no; nothing was trained
    └── TrainingError         exit 4: a node failed, or training could not go on
        ├── MemoryExceeded
        ├── WorkerLost
        ├── NotFinite         the loss or the gradients stayed NaN or infinite
        └── CheckpointError

Each holds its facts as fields, so that the terminal and ``--json`` print the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HeadraceError(Exception):
    """Something that the person can act on, told in one line.

    Args:
        what: what is wrong, in a few words.
        where: the key, the file or ``file:line``; empty when there is no such place.
        holds: what stands there now; empty when that says nothing.
        right: what would be right, or what to do.
    """

    exit_code = 4

    def __init__(self, what: str, *, where: str = "", holds: str = "", right: str = "") -> None:
        super().__init__(what, where, holds, right)
        self.what = what
        self.where = where
        self.holds = holds
        self.right = right

    def __str__(self) -> str:
        """Return ``where: what; it holds X; what would be right`` on one line."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        parts = [head, f"it holds {self.holds}" if self.holds else "", self.right]
        return " ".join("; ".join(part for part in parts if part).split())

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process."""
        return (_rebuild, (type(self), self.facts()))

    def facts(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, to be rebuilt by `from_facts`."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "holds": self.holds,
            "right": self.right,
        }


class InputError(HeadraceError):
    """The command line, the configuration or the input files are wrong."""

    exit_code = 2


class SettingError(InputError):
    """A configuration key holds something that it cannot hold."""


class DataFileError(InputError):
    """A data file cannot be read as it is."""


class DataRefused(HeadraceError):
    """The data gate refused the data."""

    exit_code = 3


class TrainingError(HeadraceError):
    """Training, or another node, failed."""


class MemoryExceeded(TrainingError):
    """The memory that training needs is not there."""


class WorkerLost(TrainingError):
    """A training process died or stopped answering."""


class NotFinite(TrainingError):
    """The loss or the gradients are NaN or infinite, and stay so."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read."""


def _rebuild(kind: type[HeadraceError], facts: Mapping[str, Any]) -> HeadraceError:
    return kind(facts["what"], where=facts["where"], holds=facts["holds"], right=facts["right"])


def from_facts(facts: Mapping[str, Any]) -> HeadraceError:
    """Rebuild the error that `HeadraceError.facts` described, by the name of its class."""
    kinds = {kind.__name__: kind for kind in _all_kinds(HeadraceError)}
    return _rebuild(kinds.get(str(facts["type"]), TrainingError), facts)


def _all_kinds(kind: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _all_kinds(child))]
