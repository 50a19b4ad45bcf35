"""What a node's result depends on: data, settings, code and packages, as content hashes.

A fingerprint is a mapping that can be read by a person and compared part by part, so that a run
can say why a node ran again: ``{"data": {path: sha256}, "settings": {key: value},
"code": {module: digest}, "packages": {name: version}, "upstream": {node: digest},
"generation": n}``. The generation counts up when a node is made to run though nothing changed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOMS = ("pipeline", "components", "trainer", "kubeflow")
PACKAGES = (
    "apache-beam",
    "keras",
    "numpy",
    "pyarrow",
    "tensorflow",
    "tensorflow-data-validation",
    "tfx",
)
"""Packages whose version changes what a node makes."""

Fingerprint = dict[str, Any]


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that stand for a JSON-ready value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_state(whole: Fingerprint) -> str:
    """Return the digest that names the checkpoints of a training with this fingerprint.

    Any number of workers goes on from what another number saved, as `trainer.identity` has it for
    remote storage.
    """
    settings = whole.get("settings", {})
    kept = {key: value for key, value in settings.items() if key != "training.workers"}
    return digest({**whole, "settings": kept})


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a file's content, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_digests(files: Iterable[str]) -> dict[str, str]:
    """Return the content hash of each file; sizes and times are not looked at."""
    return {str(path): file_digest(path) for path in files}


@functools.cache
def package_versions() -> Mapping[str, str]:
    """Return the installed version of each of `PACKAGES`."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """Return a digest of each of our modules that these import, directly or not.

    Imports are read from the source text, those inside functions included; nothing is imported.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in found or path is None:
            continue
        code, imports = _read(path)
        found[name] = code
        waiting.extend(imports)
    return dict(sorted(found.items()))


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """Return in words what differs between two fingerprints of a node, most telling first."""
    return [
        *_changed_data(before.get("data", {}), after.get("data", {})),
        *_changed_values(before.get("settings", {}), after.get("settings", {})),
        *_changed_names("code changed", before.get("code", {}), after.get("code", {})),
        *_changed_values(before.get("packages", {}), after.get("packages", {})),
        *(
            f"{name} ran again"
            for name, value in after.get("upstream", {}).items()
            if before.get("upstream", {}).get(name) != value
        ),
    ]


def _changed_data(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    said = []
    for path in sorted(before.keys() | after.keys()):
        name = Path(path).name
        if path not in before:
            said.append(f"{name} is new")
        elif path not in after:
            said.append(f"{name} is gone")
        elif before[path] != after[path]:
            said.append(f"{name} changed")
    return said


def _changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {_short(before.get(key))} → {_short(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _changed_names(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    if not names:
        return []
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{what}: {shown}"]


def _short(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    text = text.strip('"')
    return text if len(text) <= 60 else text[:57] + "..."


def _source(module: str) -> Path | None:
    """Return the file of one of our modules; None for other packages and for names in a module."""
    room, *rest = module.split(".")
    if room not in ROOMS:
        return None
    base = Path(__file__).resolve().parent.parent.joinpath(room, *rest)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@functools.cache
def _read(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a source file and the modules that it imports."""
    text = path.read_bytes()
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return hashlib.sha256(text).hexdigest()[:16], tuple(names)
