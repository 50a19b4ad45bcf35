"""Functions of Python's standard library: which package is one from?

Each row is a function, method or class of a package that `PACKAGES` names, its source text beside
the package: some 4,000 rows from the installed Python (Python Software Foundation License).
"""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from pipeline.examples import folder, stdlib

PACKAGES = (
    "asyncio",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
)
HEADER = ["source", "package"]


def rows() -> Iterator[list[str]]:
    """Yield the header and then a row a function that stands in one package alone."""
    seen: dict[str, str] = {}
    for package, path in stdlib.sources(PACKAGES):
        for source in _functions(path.read_text(encoding="utf-8")):
            # The same text in two packages says nothing of either.
            seen[source] = package if seen.get(source, package) == package else ""
    yield HEADER
    yield from ([source, package] for source, package in seen.items() if package)


def _functions(text: str) -> Iterator[str]:
    """Yield the source text of each function and method, with its own functions in it."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "".join(lines[one.lineno - 1 : one.end_lineno])


def write(out: Path) -> list[Path]:
    """Write the functions and their configuration into a folder; return the files' paths."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows())
    return folder.write(
        out,
        {
            "functions.csv": text.getvalue().encode(),
            "pipeline.toml": folder.configuration("stdlib_packages").encode(),
        },
    )
