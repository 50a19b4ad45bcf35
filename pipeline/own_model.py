"""A person's own model, ``model.kind = "module:function"``: found and hashed, never imported here.

The module is looked for in the configuration's folder first, then where Python looks.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path

from components import fingerprint
from trainer.errors import SettingError
from trainer.settings import BUILDER

KEY = "model.kind"


def is_own(kind: str) -> bool:
    """Say whether the kind names a function of the person's own."""
    return bool(BUILDER.fullmatch(kind))


def find(kind: str, base: Path) -> Path:
    """Return the source file of the module, once the function is seen in it.

    Args:
        kind: ``module:function``.
        base: the configuration's folder.

    Raises:
        SettingError: when there is no such module, it has no Python source or cannot be parsed, or
            no such function is defined at its top level.
    """
    module, _, function = kind.partition(":")
    path = _source(module, base)
    if path is None:
        raise SettingError(
            f"there is no module {module} in {base}, nor where Python looks",
            where=KEY,
            holds=f'"{kind}"',
            right=f"write {module.replace('.', '/')}.py beside the configuration",
        )
    names = _names(path, kind)
    if function not in names:
        from pipeline import config_file

        near = config_file.nearest(function, names)
        raise SettingError(
            f"{path} has no {function}",
            where=KEY,
            holds=f'"{kind}"',
            right=f"the nearest is {near}" if near else f"define {function} at its top level",
        )
    return path


def digests(kind: str, base: Path) -> dict[str, str]:
    """Return the digest of the module and of each module in `base` that it leads to, by name.

    Raises:
        SettingError: as `find`.
    """
    find(kind, base)
    found: dict[str, str] = {}
    waiting = [kind.partition(":")[0]]
    while waiting:
        name = waiting.pop()
        path = _source(name, base)
        is_first = not found
        if name in found or path is None or not (is_first or path.is_relative_to(base)):
            continue
        found[name] = fingerprint.file_digest(path)[:16]
        waiting.extend(_imports(path, name))
    return dict(sorted(found.items()))


def sources(kind: str, base: Path) -> list[Path]:
    """Return the files of `digests`, in its order.

    Raises:
        SettingError: as `find`.
    """
    found = (_source(name, base) for name in digests(kind, base))
    return [path for path in found if path is not None]


def _source(module: str, base: Path) -> Path | None:
    """Return a module's source without importing it, or the packages that it is in."""
    places: list[str] | None = [str(base), *sys.path]
    spec = None
    for part in _parents(module):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    origin = Path(spec.origin) if spec and spec.origin else None
    return origin if origin and origin.suffix == ".py" and origin.is_file() else None


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[: at + 1]) for at in range(len(parts)))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def _names(path: Path, kind: str) -> set[str]:
    """Return what a module defines or imports at its top level.

    Raises:
        SettingError: when it is no Python.
    """
    try:
        body = _parsed(path).body
    except (SyntaxError, ValueError, OSError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise SettingError(
            f"{path}{line} cannot be parsed ({error})",
            where=KEY,
            holds=f'"{kind}"',
            right="correct the module",
        ) from error
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).split(".")[0] for one in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found


def _imports(path: Path, module: str) -> Iterator[str]:
    """Yield the names of modules that a source may import, those of its own package whole."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from _parents(one.name)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1]
            above = ".".join([
                *(start if node.level else []),
                *([node.module] if node.module else []),
            ])
            if above:
                yield from _parents(above)
            yield from (f"{above}.{one.name}".lstrip(".") for one in node.names)
