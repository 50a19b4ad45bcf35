"""What stands in a package, for a person and for tests: the tasks' specifications as JSON."""

from __future__ import annotations

import ast
import json

import yaml


def specifications(text: str) -> dict[str, dict]:
    """What each executor that runs a node is told, by the name of the executor."""
    spec = next(yaml.safe_load_all(text))
    found = {}
    for name, one in spec["deploymentSpec"]["executors"].items():
        if said := _said(one["container"]["command"][-1]):
            found[name] = said
    return found


def readable(text: str) -> str:
    """The package with its specifications as YAML, and without digests of code and of packages."""
    documents = list(yaml.safe_load_all(text))
    executors = documents[0]["deploymentSpec"]["executors"]
    for name, told in specifications(text).items():
        for before in told.get("before", {}):
            told["before"][before] = "(digest)"
        held = told["node"]["parameters"]["parameters"]
        for one in held.values():
            ((kind, value),) = one["field_value"].items()
            one["field_value"] = {kind: _property(value)}
        executors[name]["container"]["command"][-1] = _body(
            executors[name]["container"]["command"][-1]
        )
        executors[name]["told"] = told
    return yaml.safe_dump_all(documents, sort_keys=True, width=100, allow_unicode=True)


def _property(value):
    held = json.loads(value)
    if isinstance(held, dict) and {"code", "packages"} <= set(held):
        held["code"] = "(digests)"
        held["packages"] = "(versions)"
    return held


def _call(source: str):
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "task.run":
            return one
    return None


def _said(source: str):
    call = _call(source)
    return json.loads(ast.literal_eval(call.args[0])) if call else None


def _body(source: str) -> str:
    call = _call(source)
    lines = source.splitlines()
    return "\n".join([
        *lines[: call.lineno - 1],
        "    task.run(told, arguments)",
        *lines[call.end_lineno :],
    ])
