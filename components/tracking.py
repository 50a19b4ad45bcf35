"""Tracking: `python -m components.tracking JOURNAL SPEC.json` tells MLflow what a journal says.

Its own process, so that MLflow's imports, migrations and slow servers never touch a training step.
The runner starts it when a training is going to happen; it follows the run's journal until
``run_ended``, or until its parent is gone, and writes in batches. The journal is the record: while
a run is not wholly in MLflow, a marker names it (untracked.py) and the next tracking process
stores it first. Storing the same journal twice changes nothing. The only file that imports mlflow,
beside registry.py.

SPEC.json: ``tracking_uri``, ``artifact_root`` (for a sqlite store), ``experiment``, ``run_name``,
``params`` {dotted key: value}, ``tags`` {name: value}, ``config_text``, ``fingerprint`` (the
training's), ``resume`` (whether training goes on from a checkpoint), ``artifacts`` {name: path},
``register`` (name in the model registry; empty: none), ``trained_before`` (whether an earlier run
trained the model that this one pushes), and, when the parent is not the runner itself,
``parent_pid``; where somebody else has made the experiment, its ``experiment_id``.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from components import registry, untracked
from components.tracking_follow import Follower, Spec, first_line
from components.tracking_held import Held
from components.tracking_names import sqlite_file
from components.tracking_record import SESSIONS, Record
from trainer.errors import InputError

_ENVIRONMENT = {
    # No look-ups in the network, nothing on standard output, bounded waits.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A registered model must not take the lock file of the folder that the person stands in.
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
# So that MLflow's pages open on training runs, not on language models' traces.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_LOCK_SECONDS = 120.0
# After SIGTERM the run has this long to say how it ended.
_GRACE_SECONDS = 10.0
_MOST_ENTITIES = {"metrics": 500, "params": 100, "tags": 100}
_BATCH_CHARACTERS = 50_000
_FINGERPRINT = "headrace.fingerprint"
_MOST_SESSIONS = 500


def main(arguments: Sequence[str]) -> int:
    """Follow the journal named first with the SPEC named second; 0 when all of it is stored."""
    journal, spec_path = (Path(argument).absolute() for argument in arguments)
    os.dup2(2, 1)
    os.nice(10)
    asked: list[float] = []
    # Ctrl-C and a closed terminal reach the whole group; the runner says what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    parent = spec.get("parent_pid") or os.getppid()

    def is_over() -> bool:
        is_late = bool(asked) and time.monotonic() > asked[0] + _GRACE_SECONDS
        return is_late or not _is_alive(parent)

    follower = Follower(journal, spec, untracked.mark(journal, spec_path), MlflowStore(spec))
    is_stored = None
    try:
        is_stored = follower.follow(is_over)
    finally:
        if is_stored is None:
            follower.tell("the tracking process failed; its log says why")
    if is_stored:
        follower.marker.remove()
    return 0 if is_stored else 1


def _is_alive(process: int) -> bool:
    if os.getppid() == process:
        return True
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    # A process that died and was not waited for yet still has its number.
    return stat.rpartition(")")[2].split()[0] != "Z"


class MlflowStore:
    """MLflow's tracking store as `tracking_follow.Store` describes it."""

    failures: tuple[type[Exception], ...] = (OSError, ImportError)

    def __init__(self, spec: Spec) -> None:
        self._uri = spec["tracking_uri"]
        self._experiment = spec["experiment"]
        self._given_id = spec.get("experiment_id", "")
        self._artifact_root = spec.get("artifact_root", "")
        self._register_as = spec.get("register", "")
        self._client: Any = None
        self._experiment_id = ""

    def connect(self) -> None:
        """Open the store; a sqlite store and the experiment are made when absent.

        Several processes may do so at once: for a sqlite store they take turns on ``<file>.lock``,
        since MLflow's schema migrations and its look-up-then-create of an experiment do not.
        """
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.failures = (*MlflowStore.failures, *_mlflow_failures())
        import mlflow

        file = sqlite_file(self._uri)
        if file is None:
            self._client = mlflow.MlflowClient(tracking_uri=self._uri)
            self._find_experiment(None)
            return
        with untracked.locked(file.with_name(f"{file.name}.lock"), wait_seconds=_LOCK_SECONDS):
            if not file.exists():
                _create(file)
            self._client = mlflow.MlflowClient(tracking_uri=self._uri)
            location = Path(self._artifact_root).absolute() / self._experiment
            self._find_experiment(location.as_uri())

    def _find_experiment(self, location: str | None) -> None:
        from mlflow.exceptions import MlflowException

        if self._given_id:
            self._experiment_id = self._given_id
            return
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            # On a server, another process may be faster.
            try:
                self._client.create_experiment(
                    self._experiment, artifact_location=location, tags=_EXPERIMENT_TAGS
                )
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._client.get_experiment_by_name(self._experiment)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        self._experiment_id = found.experiment_id

    def attach(self, spec: Spec, record: Record, *, session: str) -> Held:
        """Return the run of this session: the one it wrote to, the one it goes on with, or new.

        A resumed training goes on with the newest run of its fingerprint if that did not finish.
        """
        client, fingerprint = self._client, spec["fingerprint"]
        same = client.search_runs(
            [self._experiment_id],
            f"tags.`{_FINGERPRINT}` = '{fingerprint}'",
            order_by=["attributes.start_time DESC"],
            max_results=1000,
        )
        again = [run for run in same if session in _sessions(run)]
        if again:
            return self._held(again[0], session)
        is_unfinished = spec["resume"] and same and same[0].info.status != "FINISHED"
        if is_unfinished or (spec.get("trained_before") and same):
            return self._go_on(same[0], session)
        made = client.create_run(
            self._experiment_id,
            start_time=record.started,
            run_name=spec["run_name"],
            tags={_FINGERPRINT: fingerprint, SESSIONS: session, **_source()},
        )
        return self._held(made, session)

    def _go_on(self, run: Any, session: str) -> Held:
        run_id = run.info.run_id
        sessions = ",".join([*_sessions(run), session][-_MOST_SESSIONS:])
        self._client.set_tag(run_id, SESSIONS, sessions)
        self._client.update_run(run_id, status="RUNNING")
        held = self._held(self._client.get_run(run_id), session)
        counts = {
            name: int(value) for name, value in held.tags.items() if name.startswith("nonfinite_")
        }
        held.nonfinite_before.update(counts)
        return held

    def _held(self, run: Any, session: str) -> Held:
        run_id, tags = run.info.run_id, dict(run.data.tags)
        held = Held(run_id, _sessions(run).index(session), dict(run.data.params), tags)
        for name in run.data.metrics:
            history = self._client.get_metric_history(run_id, name)
            newest = max(history, key=lambda point: (point.step, point.timestamp))
            held.last[name] = (newest.step, newest.value)
        return held

    def write(self, held: Held, record: Record) -> None:
        """Store what `record` has pending and empty it; what is there already is not sent again."""
        from mlflow.entities import Metric, Param, RunTag

        tags = [RunTag(*tag) for tag in held.new_tags(record).items()]
        params = [Param(*param) for param in held.new_params(record).items()]
        points = [
            Metric(one.name, one.value, one.time, one.step) for one in held.new_points(record)
        ]
        for kind, entities in (("params", params), ("metrics", points), ("tags", tags)):
            for batch in _batches(entities, most=_MOST_ENTITIES[kind]):
                self._log(held, record, kind=kind, batch=batch)
        record.points.clear()
        record.params.clear()
        record.tags.clear()

    def _log(self, held: Held, record: Record, *, kind: str, batch: list[Any]) -> None:
        """Log one batch; of a batch that MLflow refuses, only what is at fault is left out.

        Raises:
            MlflowException: when it is not the batch that is at fault.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(held.run_id, **{kind: batch})
        except MlflowException as error:
            if not self._is_refused(held, error):
                raise
            if len(batch) == 1:
                record.warnings.append(f"MLflow refused {batch[0].key}: {first_line(error)}")
                return
            half = len(batch) // 2
            self._log(held, record, kind=kind, batch=batch[:half])
            self._log(held, record, kind=kind, batch=batch[half:])
        else:
            _remember(held, kind, batch)

    def _is_refused(self, held: Held, error: Any) -> bool:
        # A run that a person deleted refuses everything with the same code.
        return error.error_code == "INVALID_PARAMETER_VALUE" and (
            self._client.get_run(held.run_id).info.lifecycle_stage == "active"
        )

    def finish(self, held: Held, record: Record) -> None:
        """Store the rest, the artifacts, the registered model, and how the run ended."""
        status, ended = record.end()
        self._log_artifacts(held, record)
        self._register(held, record)
        self.write(held, record)
        self._client.set_terminated(held.run_id, status=status, end_time=ended)

    def _register(self, held: Held, record: Record) -> None:
        """Make a version of what was pushed; a registry that refuses ends no run."""
        if not (self._register_as and record.pushed):
            return
        file = sqlite_file(self._uri)
        lock = file.with_name(f"{file.name}.lock") if file else None
        try:
            # MLflow's next version is look-up-then-create, too.
            with untracked.locked(lock, wait_seconds=_LOCK_SECONDS) if lock else nullcontext():
                address = registry.register(
                    self._client, held.run_id, name=self._register_as, folder=Path(record.pushed)
                )
        except (*self.failures, InputError) as error:
            record.add_tag("headrace.registered", f"not registered: {first_line(error)}")
            record.warnings.append(
                f"the model is not in the registry as {self._register_as}: {first_line(error)}"
            )
        else:
            record.registered = address
            record.add_tag("headrace.registered", address)

    def _log_artifacts(self, held: Held, record: Record) -> None:
        with tempfile.TemporaryDirectory() as staged:
            for name, text in record.documents.items():
                (Path(staged) / name).write_text(text, encoding="utf-8")
            for name, path in record.files.items():
                if Path(path).is_file():
                    (Path(staged) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(staged) / name).symlink_to(Path(path).absolute())
            try:
                self._client.log_artifacts(held.run_id, staged)
            except self.failures as error:
                # A store without room for files still gets the numbers and the run's end.
                record.add_tag("headrace.artifacts", f"not stored: {first_line(error)}")
                record.warnings.append(f"the artifacts are not in MLflow: {first_line(error)}")


def _mlflow_failures() -> tuple[type[Exception], ...]:
    """What a store that is away, locked, full or of another version raises."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, CommandError)


def _create(file: Path) -> None:
    # Whole or absent: a store whose migrations were cut short can never be opened again.
    import mlflow

    unfinished = file.with_name(f".{file.name}.unfinished")
    for left in file.parent.glob(f"{unfinished.name}*"):
        left.unlink()
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{unfinished}").search_experiments(max_results=1)
    os.replace(unfinished, file)


def _sessions(run: Any) -> list[str]:
    return [one for one in run.data.tags.get(SESSIONS, "").split(",") if one]


def _source() -> dict[str, str]:
    tags = {"mlflow.source.name": "headrace run", "mlflow.source.type": "LOCAL"}
    # A container's user may have no name.
    with suppress(KeyError, OSError):
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _batches(entities: list[Any], *, most: int) -> list[list[Any]]:
    """Split by MLflow's limits: so many entities, and a megabyte of JSON a request."""
    batches, characters = [], 0
    for entity in entities:
        size = len(entity.key) + len(str(entity.value))
        if not batches or len(batches[-1]) >= most or characters + size > _BATCH_CHARACTERS:
            batches.append([])
            characters = 0
        batches[-1].append(entity)
        characters += size
    return batches


def _remember(held: Held, kind: str, batch: list[Any]) -> None:
    for one in batch:
        if kind == "metrics":
            held.last[one.key] = (one.step, one.value)
        elif kind == "params":
            held.params[one.key] = one.value
        else:
            held.tags[one.key] = one.value


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Everything is stored: taking MLflow's modules apart would only keep the runner waiting.
    os._exit(code)
