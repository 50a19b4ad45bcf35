"""An example's folder: data from an installed package, and a configuration with comments."""

from __future__ import annotations

import importlib.resources
import importlib.util
import os
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from trainer.errors import InputError

COMMENT_COLUMN = 32
LINE_LENGTH = 100


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package, without importing the package.

    Raises:
        InputError: the package, or the file in it, is not there.
    """
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin or "").parent / name if spec else Path(name)
    if spec is None or not path.is_file():
        raise InputError(
            f"the package {package} is not installed, or has no {name}",
            where="example",
            right=f"install it with: uv pip install {package}",
        )
    return path


def configuration(name: str) -> str:
    """Return ``name.toml`` of this folder with each key explained by its own declaration."""
    template = importlib.resources.files(__package__ or "pipeline.examples") / f"{name}.toml"
    return explained(template.read_text(encoding="utf-8"))


def explained(text: str) -> str:
    """Add to each key of a TOML text the sentence that its declaration holds.

    The sentence stands behind the value where there is room, else above it. A line that has a
    comment keeps it.
    """
    from pipeline import config, config_file

    known = config.declared()
    at = {line: config_file.dotted(key) for key, line in config_file.key_lines(text).items()}
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        name = at.get(number, "")
        if name not in known or line.startswith("[") or "#" in line:
            lines.append(line)
            continue
        behind = f"{line:<{COMMENT_COLUMN}} # {known[name].help}"
        if len(behind) <= LINE_LENGTH and not line.rstrip().endswith("["):
            lines.append(behind)
        else:
            above = textwrap.wrap(known[name].help, LINE_LENGTH - 2)
            lines += [*(f"# {part}" for part in above), line]
    return "\n".join(lines)


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, or folders of it, each whole or not at all.

    Returns: their paths.

    Raises:
        InputError: one of them is there and differs, in which case none is written, or the folder
            cannot be written to.
    """
    paths = [folder / name for name in files]
    try:
        for path, content in zip(paths, files.values(), strict=True):
            _refuse_other(path, content)
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, files.values(), strict=True):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_whole(path, content)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or folder),
            right="name another folder with --out",
        ) from None
    return paths


def _refuse_other(path: Path, content: bytes) -> None:
    if path.exists() and (path.is_dir() or path.read_bytes() != content):
        raise InputError(
            "is there already and differs from what the example would write",
            where=str(path),
            right="move it away, or name another folder with --out",
        )


def _write_whole(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
