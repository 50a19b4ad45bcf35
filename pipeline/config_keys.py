"""What is declared about each configuration key, and what is said when a value does not fit."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from components.tracking_names import without_credentials
from pipeline import config_file
from pipeline.config_file import Key
from trainer.errors import SettingError


@dataclass(frozen=True)
class Words:
    """What a key holds, in words, where its type says it badly; stands in ``Annotated``."""

    text: str


@dataclass(frozen=True)
class Declared:
    """A key or a table.

    Attributes:
        annotation: its type.
        default: its default; None when it must be set.
        required: whether it must be set.
        help: the sentence that explains it.
        is_leaf: whether it is a key and not a table.
    """

    annotation: Any
    default: Any
    required: bool
    help: str
    is_leaf: bool


@cache
def declared(model: type[BaseModel]) -> Mapping[str, Declared]:
    """Return the keys and tables of a model by dotted name, in order of declaration."""
    found: dict[str, Declared] = {}
    for name, one in model.model_fields.items():
        inner = dataclasses.is_dataclass(one.annotation)
        required = one.is_required()
        found[name] = Declared(
            annotation=one.annotation,
            default=None if required or inner else one.get_default(),
            required=required,
            help=one.description or "",
            is_leaf=not inner,
        )
        if inner:
            found.update(_declared_in(one.annotation, f"{name}."))
    return found


def _declared_in(kind: Any, prefix: str) -> dict[str, Declared]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, Declared] = {}
    for one in dataclasses.fields(kind):
        inner = dataclasses.is_dataclass(hints[one.name])
        missing = one.default is dataclasses.MISSING
        required = missing and one.default_factory is dataclasses.MISSING
        made = None if required or not missing else one.default_factory()  # type: ignore[misc]
        found[prefix + one.name] = Declared(
            annotation=hints[one.name],
            default=made if missing else one.default,
            required=required,
            help=one.metadata.get("help", ""),
            is_leaf=not inner,
        )
        if inner:
            found.update(_declared_in(hints[one.name], f"{prefix}{one.name}."))
    return found


def leaves(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted key; an empty table is a value."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        key = prefix + config_file.dotted((name,))
        if isinstance(value, Mapping) and value:
            found.update(leaves(value, f"{key}."))
        else:
            found[key] = value
    return found


def redacted(value: Any) -> Any:
    """Return a value with the user and password of an address replaced by ``***``."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, list | tuple):
        return [redacted(one) for one in value]
    return value


def toml_text(value: Any) -> str:
    """Return how a value is written in TOML; long tables are only named."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(redacted(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_text(one) for one in value) + "]"
    if isinstance(value, Mapping):
        return "a table" if value else "{}"
    return "nothing" if value is None else str(value)


def wanted(annotation: Any) -> str:
    """Say in words what a key of this type holds."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(wanted(one) for one in arguments)
    if origin is typing.Literal:
        choices = [toml_text(one) for one in arguments]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if origin is typing.Annotated:
        words = [one.text for one in arguments[1:] if isinstance(one, Words)]
        return words[0] if words else wanted(arguments[0])
    if origin is tuple:
        return "a list of texts"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return words.get(annotation, "a table")


def from_loose(text: str, annotation: Any) -> Any:
    """Read a text of the command line or the environment as its key's type wants it.

    A key that holds nothing but texts takes it as it is, so that ``--set data.label=1`` names the
    column ``1``; every other key takes the TOML value that it is, if it is one.
    """
    if _only_texts(annotation):
        return text
    try:
        return config_file.toml_value(text)
    except ValueError:
        return text


def _only_texts(annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return all(isinstance(one, str) for one in arguments)
    if origin in {typing.Union, types.UnionType}:
        return all(_only_texts(one) for one in arguments)
    return annotation is str


def refusal(
    error: ErrorDetails, known: Mapping[str, Declared], tables: Mapping[str, Any]
) -> tuple[Key, SettingError]:
    """Translate one of pydantic's findings.

    Args:
        error: the finding.
        known: what is declared.
        tables: what was validated.

    Returns: the key, and the error without its ``where``.
    """
    at, rest = _key_of(error["loc"], known)
    if error["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return (*at, *rest), _unknown((*at, *rest), error["input"], known)
    if error["type"] == "value_error":
        return _own(at, str(error["ctx"]["error"]), known, error["input"])  # type: ignore[typeddict-item]
    one = known[config_file.dotted(at)]
    if error["type"].startswith("missing"):
        return _missing(at, known)
    value = _value(tables, at)
    if rest and isinstance(value, Mapping):
        at, value = (*at, str(rest[0])), value[str(rest[0])]
        choices = typing.get_args(one.annotation)[1]
        return at, SettingError(f"must be {wanted(choices)}", holds=toml_text(value))
    return at, SettingError(
        f"must be {wanted(one.annotation)}", holds=toml_text(value), right=_hint(at, value, known)
    )


def _hint(at: Key, value: Any, known: Mapping[str, Declared]) -> str:
    """Return how such a value is written right, where that is known."""
    one = known[config_file.dotted(at)]
    if isinstance(value, str) and typing.get_origin(one.annotation) is tuple:
        return f"write {toml_text([value])}"
    name = config_file.dotted(at)
    inside = [key.removeprefix(f"{name}.") for key in known if key.startswith(f"{name}.")]
    keys = [key for key in inside if "." not in key]
    return f"its keys are {', '.join(keys)}" if keys else ""


def _missing(at: Key, known: Mapping[str, Declared]) -> tuple[Key, SettingError]:
    """Say which key must be set; for a table, the first of its keys that must."""
    name = config_file.dotted(at)
    inner = [one for one, facts in known.items() if one.startswith(f"{name}.") and facts.required]
    name = inner[0] if inner else name
    return tuple(name.split(".")), SettingError("must be set", right=f"it is {known[name].help}")


def _key_of(loc: tuple[int | str, ...], known: Mapping[str, Declared]) -> tuple[Key, Key]:
    """Split a place into the declared key and the rest, such as the branch of a union."""
    parts = tuple(str(one) for one in loc)
    for length in range(len(parts), 0, -1):
        if config_file.dotted(parts[:length]) in known:
            return parts[:length], parts[length:]
    return (), parts


def _value(tables: Mapping[str, Any], at: Key) -> Any:
    value: Any = tables
    for part in at:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _unknown(at: Key, value: Any, known: Mapping[str, Declared]) -> SettingError:
    name = config_file.dotted(at)
    holds = toml_text(value)
    near = config_file.nearest(name, known)
    right = f"the nearest key is {near}" if near else "the keys are listed in the README"
    return SettingError("unknown key", holds=holds, right=right)


def _own(
    at: Key, message: str, known: Mapping[str, Declared], value: Any
) -> tuple[Key, SettingError]:
    """Take apart what a declaration of ours said: ``key: what; it holds X``."""
    name, colon, rest = message.partition(": ")
    if colon and config_file.dotted((*at, name)) in known:
        at, message = (*at, name), rest
        value = None
    what, _, holds = message.partition("; it holds ")
    if not holds and value is not None:
        holds = toml_text(value)
    return at, SettingError(what, holds=holds)
