"""A task's specification with this run's parameters in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubeflow import data
from kubeflow.tasks import KINDS
from trainer.errors import SettingError

VALUES = {str: "string_value", int: "int_value", float: "double_value"}
"""Of TFX's values, by Python's type."""


def bound(spec: Mapping[str, Any], given: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Return a specification whose execution properties hold the parameters.

    Args:
        spec: of the task.
        given: the arguments of the task.
        scratch: the task's own folder, which files of the package are written into.

    Raises:
        SettingError: a parameter holds what it cannot hold.
    """
    spec = copy.deepcopy(dict(spec))
    kinds = spec["kinds"]
    values = {name: cast(name, given[name], kinds[name]) for name in kinds}
    # Tasks after those that read the files take them for their cache key alone.
    read = {one["name"] for one in spec["parameters"] if not one["as_given"]}
    here = {
        name: data.local_files(values[name], scratch)
        for name in sorted(read)
        if kinds[name] == "files"
    }
    for one in spec["parameters"]:
        given_value = values[one["name"]]
        value = given_value if one["as_given"] else here.get(one["name"], given_value)
        if one["property"]:
            _put(spec, one["property"], one["path"], value)
    for place, text in spec["texts"].items():
        _write_text(spec, place, text, scratch)
    for place in spec["scratch"]:
        _into_scratch(spec, place, scratch)
    return spec


EXACT = 2**53
"""From here on, not every whole number comes through KFP as it was: its numbers are float64."""


def cast(name: str, value: Any, kind: str) -> Any:
    """Return a parameter's value as its kind has it: 20.0 is no whole number to Python, 1 no float.

    Raises:
        SettingError: it is none of that kind.
    """
    wanted = KINDS[kind]
    if wanted is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if wanted is int and isinstance(value, int) and abs(value) >= EXACT:
        raise SettingError(
            "must be less than 2**53 in size, since Kubeflow's numbers are float64",
            where=f"parameter {name}",
            holds=str(value),
            right="set it in the configuration, which is handed on as text",
        )
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise SettingError(
            f"must be of type {wanted.__name__}",
            where=f"parameter {name}",
            holds=json.dumps(value),
        )
    return value


def property_text(spec: Mapping[str, Any], name: str) -> str:
    """Return a text property of the node; empty: it has none of that name."""
    held = spec["node"].get("parameters", {}).get("parameters", {}).get(name, {})
    return held.get("field_value", {}).get("string_value", "")


def _put(spec: dict[str, Any], name: str, path: list[str], value: Any) -> None:
    """Set an execution property, or a place in its JSON text."""
    if path:
        whole = json.loads(property_text(spec, name))
        inner = whole
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
        value = json.dumps(whole, sort_keys=True)
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, str | int | float):
        value = json.dumps(value)
    # Protobuf's JSON writes int64 as text.
    held = str(value) if isinstance(value, int) else value
    properties = spec["node"].setdefault("parameters", {}).setdefault("parameters", {})
    properties[name] = {"field_value": {VALUES[type(value)]: held}}


def _write_text(spec: dict[str, Any], place: str, text: str, scratch: Path) -> None:
    """Write a file of the package; a place ``property/key`` is then its path."""
    kind, _, rest = place.partition("/")
    path = scratch / (rest if kind == "file" else f"package/{rest}.pbtxt")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if kind != "file":
        _put(spec, kind, rest.split("/"), str(path))


def _into_scratch(spec: dict[str, Any], place: str, scratch: Path) -> None:
    name, _, rest = place.partition("/")
    value = json.loads(property_text(spec, name)).get(rest, "")
    if value and not value.startswith("/"):
        _put(spec, name, [rest], str(scratch / value))
