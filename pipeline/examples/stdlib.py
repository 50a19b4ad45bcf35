"""Where the source texts of Python's standard library stand, those of the installed Python."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import InputError

PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "email",
    "http",
    "json",
    "logging",
    "re",
    "tomllib",
    "unittest",
    "urllib",
    "wsgiref",
    "zoneinfo",
)
"""Packages written by many hands in one language, and in every Python from 3.11 on."""
TESTS = ("test", "tests")


def sources(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, Path]]:
    """Yield package and file of each source that is not empty and no test, in a fixed order.

    Raises:
        InputError: this Python has no sources of them.
    """
    library = Path(sysconfig.get_path("stdlib"))
    for package in packages:
        files = sorted((library / package).rglob("*.py"))
        if not files:
            raise InputError(
                f"this Python has no sources of the package {package}",
                where="example",
                holds=str(library),
                right="install Python with its standard library: uv python install",
            )
        for path in files:
            parts = path.relative_to(library).parts
            if not set(parts) & set(TESTS) and path.stat().st_size:
                yield package, path


def relative(path: Path) -> str:
    """Return a source's path within the library."""
    return path.relative_to(sysconfig.get_path("stdlib")).as_posix()
