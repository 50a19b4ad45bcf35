"""Files whose columns differ: read together they make one table with holes, which must be said.

Light: knows names of files and columns alone, so that it serves before a run and in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.verdict import Anomaly

SHOWN = 5
"""Most columns or files that a message names."""


@dataclass(frozen=True)
class File:
    """A file of the data.

    Attributes:
        name: as a person is told it.
        columns: its own.
        rows: how many it has; 0 where that is not known.
    """

    name: str
    columns: Collection[str]
    rows: int = 0


def short_name(path: str | Path, files: Sequence[str]) -> str:
    """Return a file's path as seen from the folder that all files are in."""
    if not files:
        return str(path)
    return os.path.relpath(path, os.path.commonpath([str(Path(one).parent) for one in files]))


def short_names(paths: Iterable[str | Path], files: Sequence[str]) -> list[str]:
    """Return `short_name` of each path; the folder is found once, as there may be many."""
    folder = os.path.commonpath([str(Path(one).parent) for one in files]) if files else ""
    return [os.path.relpath(one, folder) if folder else str(one) for one in paths]


def differing(files: Iterable[File], *, but: Iterable[str]) -> Iterator[Anomaly]:
    """Yield an anomaly for the files of each set of columns that lacks some of the others'.

    Args:
        files: all files, in order.
        but: the label, and the column that names the split: they say nothing of whether the files
            are parts of one table.
    """
    groups: dict[frozenset[str], list[File]] = {}
    for file in files:
        groups.setdefault(frozenset(file.columns), []).append(file)
    every = list(dict.fromkeys(name for group in groups.values() for name in group[0].columns))
    occurs = Counter(name for columns in groups for name in columns - set(but))
    for columns, group in groups.items():
        lacks = [name for name in every if name not in columns]
        if not lacks:
            continue
        alone = [name for name in every if name in columns and occurs[name] == 1]
        if any(occurs[name] > 1 for name in columns):
            yield _lacking(group, lacks)
        else:
            yield _unrelated(group, alone)


def _lacking(group: list[File], lacks: list[str]) -> Anomaly:
    are = "column {} is" if len(lacks) == 1 else "columns {} are"
    return Anomaly(
        "",
        "FILES_DIFFER",
        "",
        f"{are.format(_some(lacks))} not in {_files(group)}, and so missing there",
        rows=sum(file.rows for file in group),
        where=tuple(file.name for file in group[:SHOWN]),
    )


def _unrelated(group: list[File], alone: list[str]) -> Anomaly:
    share = "shares" if len(group) == 1 else "share"
    only = f"only here are {_some(alone)}" if alone else "there is no other here"
    return Anomaly(
        "",
        "FILES_UNRELATED",
        "",
        f"{_files(group)} {share} no column but the label with the other files; {only}",
        where=tuple(file.name for file in group[:SHOWN]),
    )


def _files(group: list[File]) -> str:
    return f"{'file' if len(group) == 1 else 'files'} {_some([file.name for file in group])}"


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
