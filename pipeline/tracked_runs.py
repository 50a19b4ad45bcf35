"""Runs as the tracking store holds them, read without MLflow.

Importing MLflow takes 6 s, which is too long to wait for a list of runs. A sqlite store is read by
SQL, from columns that MLflow's migrations have kept since its first version and read-only; a server
by MLflow's REST interface, which is public.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.tracking_names import sqlite_file, without_credentials
from trainer.errors import InputError

_SECONDS = 10.0
_PAGE = 1000
# MLflow's SQL stores keep infinity as the largest double.
_LARGEST = 1.7976931348623157e308


@dataclass
class TrackedRun:
    """One run.

    Attributes:
        run_id, name, experiment_id: as MLflow names them; `name` is the run's number.
        numbers: of the runs here that wrote to it, the last one last (`pipeline.run_numbers`).
        status: RUNNING, FINISHED, FAILED or KILLED.
        started, ended: milliseconds since the epoch; 0 when unknown.
        artifact_uri: where its artifacts are.
        params, tags: texts by name.
        metrics: the last value of each by name, finite ones only.
    """

    run_id: str
    name: str
    experiment_id: str
    status: str
    started: int
    ended: int
    artifact_uri: str
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)


def read(uri: str, experiment: str) -> list[TrackedRun]:
    """Return the runs of `experiment`, newest first; none when there is no such experiment.

    Raises:
        InputError: the store is not there, is locked or is no store.
    """
    if uri.startswith(("http://", "https://")):
        return _read_server(uri.rstrip("/"), experiment)
    file = sqlite_file(uri)
    if file is None:
        raise InputError(
            "runs can be listed from sqlite or from an MLflow server only",
            where="tracking.uri",
            holds=without_credentials(uri),
            right="start `mlflow server` over that database and name its address",
        )
    require_store(file)
    try:
        return _read_sqlite(file, experiment)
    except sqlite3.DatabaseError as error:
        is_locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        raise InputError(
            "the store is locked by another process"
            if is_locked
            else f"is not a tracking store of MLflow ({error})",
            where=str(file),
            right="try again, or end the process that writes to it"
            if is_locked
            else "move it away, or name another in tracking.uri",
        ) from error


def require_store(file: Path) -> None:
    """Refuse a store that no run has made yet.

    Raises:
        InputError: when `file` does not exist.
    """
    if not file.exists():
        raise InputError(
            "no run is tracked yet",
            where=str(file),
            right="run it first: headrace run, with this configuration",
        )


def _read_sqlite(file: Path, experiment: str) -> list[TrackedRun]:
    # rw, so that what a killed writer left is rolled back first; never created, never written.
    address = f"file:{urllib.parse.quote(str(file))}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_SECONDS)) as store:
        store.execute("PRAGMA query_only = 1")
        store.execute("BEGIN")
        found = store.execute(
            "SELECT run_uuid, runs.name, experiments.experiment_id, status, start_time, end_time,"
            " artifact_uri FROM runs JOIN experiments USING (experiment_id)"
            " WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'"
            " ORDER BY start_time DESC, run_uuid",
            (experiment,),
        )
        runs = {
            row[0]: TrackedRun(
                row[0], row[1] or "", str(row[2]), row[3], row[4] or 0, row[5] or 0, row[6] or ""
            )
            for row in found
        }
        for table, value in (("params", "value"), ("tags", "value"), ("latest_metrics", "value")):
            rows = store.execute(
                f"SELECT one.run_uuid, one.key, one.{value} FROM {table} AS one"
                " JOIN runs USING (run_uuid) JOIN experiments USING (experiment_id)"
                " WHERE experiments.name = ? AND runs.lifecycle_stage = 'active'"
                + (" AND NOT one.is_nan" if table == "latest_metrics" else ""),
                (experiment,),
            )
            for run_id, key, holds in rows:
                getattr(runs[run_id], table.removeprefix("latest_"))[key] = holds
    for run in runs.values():
        run.metrics = _finite(run.metrics.items())
    return list(runs.values())


def _finite(metrics: Iterable[tuple[str, Any]]) -> dict[str, float]:
    values = {name: float(value) for name, value in metrics}
    return {
        name: value
        for name, value in values.items()
        if math.isfinite(value) and abs(value) < _LARGEST
    }


def _read_server(uri: str, experiment: str) -> list[TrackedRun]:
    name = urllib.parse.quote(experiment, safe="")
    found = _ask(uri, f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}")
    if found is None:
        return []
    wanted = {
        "experiment_ids": [json.loads(found)["experiment"]["experiment_id"]],
        "max_results": _PAGE,
        "order_by": ["attributes.start_time DESC"],
    }
    runs: list[TrackedRun] = []
    while True:
        page = json.loads(_ask(uri, "/api/2.0/mlflow/runs/search", wanted) or b"{}")
        runs += [_from_json(one["info"], one.get("data", {})) for one in page.get("runs", [])]
        if not page.get("next_page_token"):
            return runs
        wanted["page_token"] = page["next_page_token"]


def _from_json(info: dict[str, Any], data: dict[str, Any]) -> TrackedRun:
    return TrackedRun(
        run_id=info["run_id"],
        name=info.get("run_name", ""),
        experiment_id=info["experiment_id"],
        status=info["status"],
        started=int(info.get("start_time", 0)),
        ended=int(info.get("end_time", 0)),
        artifact_uri=info.get("artifact_uri", ""),
        params={one["key"]: one.get("value", "") for one in data.get("params", [])},
        tags={one["key"]: one.get("value", "") for one in data.get("tags", [])},
        metrics=_finite((one["key"], one.get("value", 0.0)) for one in data.get("metrics", [])),
    )


def _ask(
    uri: str, path: str, body: Any = None, *, missing: tuple[int, ...] = (404,)
) -> bytes | None:
    """Return a server's answer; None when it has no such thing, which the codes `missing` say.

    Raises:
        InputError: when there is no answer, or a refusal.
    """
    data = None if body is None else json.dumps(body).encode()
    address, secret = _address_and_secret(uri)
    headers = {"Content-Type": "application/json", **secret}
    asked = urllib.request.Request(address + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        if error.code in missing:
            return None
        reason = f"{error.code} {error.reason}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
    raise InputError(
        f"the MLflow server does not answer ({reason})",
        where="tracking.uri",
        holds=without_credentials(uri),
        right="start the server, or name another",
    )


def _address_and_secret(uri: str) -> tuple[str, dict[str, str]]:
    """Return the address without credentials, and the header that holds them, as MLflow does."""
    parts = urllib.parse.urlsplit(uri)
    user = parts.username or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = parts.password or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    place = parts.netloc.rpartition("@")[2]
    address = urllib.parse.urlunsplit(parts._replace(netloc=place))
    if user:
        both = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        return address, {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
    return address, {"Authorization": f"Bearer {token}"} if token else {}


def artifact(uri: str, run: TrackedRun, name: str) -> bytes | None:
    """Return one artifact of a run; None when the run has none of that name, or it is not here."""
    if uri.startswith(("http://", "https://")):
        path = urllib.parse.quote(name, safe="")
        # Stores of artifacts differ in what they answer when one is absent.
        return _ask(
            uri.rstrip("/"),
            f"/get-artifact?path={path}&run_uuid={run.run_id}",
            missing=(400, 404, 500),
        )
    place = run.artifact_uri
    if place.startswith("file:"):
        place = urllib.parse.unquote(urllib.parse.urlsplit(place).path)
    if "://" in place:
        return None
    try:
        return (Path(place) / name).read_bytes()
    except OSError:
        return None
