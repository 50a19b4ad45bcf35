"""From TOML text to tables: ``${NAME}``, ``--set``, the line of each key, the nearest key.

What a value may hold is not known here but in `pipeline.config`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.errors import InputError, SettingError

Key = tuple[str, ...]

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
"""``${NAME}`` and ``${NAME:-default}``; as in a shell the default also stands for an empty one."""


@dataclass(frozen=True)
class Source:
    """A configuration as it was written, and where each key stands.

    Attributes:
        path: the file, as the person named it.
        tables: the file's tables with every ``--set`` in them and ``${NAME}`` expanded.
        lines: line of each key of the file, counted from 1.
        sets: keys that ``--set`` gave.
        loose: keys whose text may also be read as a TOML value, since the command line and the
            environment hold nothing but text: those of ``--set`` without quotes, and those that
            are one whole ``${NAME}``.
    """

    path: str
    tables: dict[str, Any]
    lines: Mapping[Key, int] = field(default_factory=dict)
    sets: frozenset[Key] = frozenset()
    loose: frozenset[Key] = frozenset()

    def where(self, key: Key) -> str:
        """Return ``file:line: key``, or ``--set key``, or ``file: key`` for a key not written."""
        if any(key[: len(one)] == one for one in self.sets):
            return f"--set {dotted(key)}"
        if key not in self.lines:
            # A table that only a longer key of --set has made.
            for one in sorted(self.sets):
                if one[: len(key)] == key:
                    return f"--set {dotted(one)}"
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return f"{self.path}:{self.lines[key[:length]]}: {dotted(key)}"
        return f"{self.path}: {dotted(key)}"


def read(path: str, sets: Sequence[str] = ()) -> Source:
    """Read a configuration file and what ``--set`` gives.

    Raises:
        InputError: there is no such file, or it is no TOML.
        SettingError: a key stands twice, a ``--set`` is none, or a ``${NAME}`` is not defined.
    """
    text = _text(path)
    tables = _parse(text, path)
    source = Source(path=path, tables=tables, lines=key_lines(text))
    for one in sets:
        source = _with_set(source, one)
    loose = set(source.loose)
    tables = _expanded(source.tables, (), source=source, loose=loose)
    return Source(
        path=path,
        tables=tables,
        lines=source.lines,
        sets=source.sets,
        loose=frozenset(loose),
    )


def dotted(key: Iterable[str | int]) -> str:
    """Write a key as TOML has it: ``data.split.by``; parts that need quotes get them."""
    written = ""
    for part in key:
        if isinstance(part, int):
            written += f"[{part}]"
            continue
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", part)
        written += ("." if written else "") + (part if plain else json.dumps(part))
    return written


def toml_value(text: str) -> Any:
    """Return the value that a text is in TOML.

    Raises:
        ValueError: it is none.
    """
    tables = tomllib.loads(f"value = {text}")
    if set(tables) != {"value"}:
        raise ValueError(text)
    return tables["value"]


def nearest(key: str, keys: Iterable[str]) -> str:
    """Return the key of `keys` that was most likely meant, or an empty text.

    A right last part in the wrong table counts as near: ``epochs`` for ``training.epochs``.
    """
    known = list(keys)
    last = key.rsplit(".", 1)[-1]
    for one in known:
        if one.rsplit(".", 1)[-1] == last:
            return one
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    lasts = {one.rsplit(".", 1)[-1]: one for one in known}
    close = difflib.get_close_matches(last, lasts, n=1, cutoff=0.75)
    return lasts[close[0]] if close else ""


def key_lines(text: str) -> dict[Key, int]:
    """Return the line, counted from 1, on which each key of a TOML text is first written."""
    lines: dict[Key, int] = {}
    for key, line in _statements(text):
        lines.setdefault(key, line)
    return lines


def _text(path: str) -> str:
    if Path(path).is_dir():
        inside = Path(path) / "pipeline.toml"
        raise InputError("is a folder, not a file", where=path, right=f"name a file: {inside}")
    try:
        # Some editors put a byte order mark in front, which TOML does not know.
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            "no such file",
            where=path,
            right="name a configuration, or write one with: headrace example flights",
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"byte {error.start} is not UTF-8", where=f"{path}:{line}", right="save it as UTF-8"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", where=path, right="name a file that can be"
        ) from None
    return text.replace("\r\n", "\n")


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = _written_twice(text)
        if twice:
            key, first, second = twice
            raise SettingError(
                "stands twice",
                where=f"{path}:{second}: {dotted(key)}",
                right=f"keep this one or the one on line {first}",
            ) from None
        found = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        what = re.sub(r" \(at .*\)$", "", str(error))
        line = _blamed(text, int(found[1]) if found else 0)
        raise InputError(
            f"this is not TOML ({what[:1].lower()}{what[1:]})",
            where=f"{path}:{line}",
            holds=_shown(text.split("\n")[line - 1]),
            right='write key = value, with texts in double quotes, such as label = "late"',
        ) from None


def _shown(line: str) -> str:
    """Return a line as a message shows it; nothing of a blank one."""
    return f"`{line.strip()}`" if line.strip() else ""


def _blamed(text: str, line: int) -> int:
    """Return the line to show: that of the error, or where what has no end begins.

    Args:
        text: no TOML.
        line: where tomllib says that the error is; 0 at the text's end.
    """
    whole = text.split("\n")
    if line and whole[line - 1].strip():
        return line
    # Up to the last line that ends a statement the text is TOML; after it, this one has no end.
    ended = max((last for _, _, last in _spans(text)), default=0)
    begun = [number for number, one in enumerate(whole, 1) if number > ended and one.strip()]
    return begun[0] if begun else max(line, 1)


def _written_twice(text: str) -> tuple[Key, int, int] | None:
    seen: dict[Key, int] = {}
    for key, line in _statements(text):
        if key in seen:
            return key, seen[key], line
        seen[key] = line
    return None


def _statements(text: str) -> Iterator[tuple[Key, int]]:
    """Yield each key with its line; stop where a statement never becomes TOML."""
    return ((key, first) for key, first, _ in _spans(text) if key)


def _spans(text: str) -> Iterator[tuple[Key, int, int]]:
    """Yield each key, and () for a line without one, with the statement's first and last line.

    A statement ends with the first line at which it is TOML by itself, so tomllib's own grammar
    decides about quotes, nested brackets and texts of several lines.
    """
    table: Key = ()
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        start = start if statement else number
        statement += line + "\n"
        try:
            tables = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if statement.lstrip().startswith("["):
            table = _leaves(tables)[0]
            yield table, start, number
        else:
            keys = [table + key for key in _leaves(tables)]
            yield from ((key, start, number) for key in keys or [()])
        statement = ""


def _leaves(tables: Mapping[str, Any]) -> list[Key]:
    leaves: list[Key] = []
    for name, value in tables.items():
        inner = _leaves(value) if isinstance(value, dict) else []
        leaves += [(name, *key) for key in inner] or [(name,)]
    return leaves


def _with_set(source: Source, argument: str) -> Source:
    name, equals, text = argument.partition("=")
    where = f"--set {argument}"
    if not equals:
        raise SettingError(
            "has no value", where=where, right="write KEY=VALUE, such as training.epochs=4"
        )
    try:
        key = _leaves(tomllib.loads(f"{name.strip()} = 0"))[0]
    except (tomllib.TOMLDecodeError, IndexError):
        raise SettingError(
            "is no key", where=where, holds=json.dumps(name), right="write KEY=VALUE"
        ) from None
    loose = source.loose - {key}
    try:
        value = toml_value(text)
        if not isinstance(value, str):
            value = value if isinstance(value, dict | list) else text
            loose |= {key}
    except ValueError:
        value = text
        loose |= {key}
    return Source(
        path=source.path,
        tables=_replaced(source.tables, key, value, where=where),
        lines=source.lines,
        sets=source.sets | {key},
        loose=loose,
    )


def _replaced(tables: dict[str, Any], key: Key, value: Any, *, where: str) -> dict[str, Any]:
    if len(key) == 1:
        return {**tables, key[0]: value}
    inner = tables.get(key[0], {})
    if not isinstance(inner, dict):
        raise SettingError(
            f"{key[0]} is no table, so it has no keys",
            where=where,
            holds=json.dumps(inner),
            right=f"set {key[0]} itself, or name a key of a table",
        )
    return {**tables, key[0]: _replaced(inner, key[1:], value, where=where)}


def _expanded(value: Any, key: Key, *, source: Source, loose: set[Key]) -> Any:
    if isinstance(value, dict):
        return {
            name: _expanded(one, (*key, name), source=source, loose=loose)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_expanded(one, key, source=source, loose=loose) for one in value]
    if not isinstance(value, str):
        return value
    if PLACEHOLDER.fullmatch(value):
        loose.add(key)
    return PLACEHOLDER.sub(lambda found: _variable(found, source.where(key)), value)


def _variable(found: re.Match[str], where: str) -> str:
    name, default = found[1], found[2]
    value = os.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise SettingError(
            f"the environment has no {name}",
            where=where,
            holds=json.dumps(found[0]),
            right=f"set {name}, or write ${{{name}:-default}}",
        )
    return value
