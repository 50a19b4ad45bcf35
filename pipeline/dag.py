"""The process that runs the nodes: ``python -m pipeline.dag FOLDER``.

It reads ``FOLDER/run.json``, runs the pipeline with TFX's LocalDagRunner and tells the journal
which node runs. What it and the libraries print goes to the log that its parent gave it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from trainer import imports, journal, supervisor
from trainer.errors import HeadraceError, TrainingError


class NodeStates(logging.Handler):
    """Turn what LocalDagRunner logs at a node's start and end into journal events."""

    def __init__(self, events: str, cached: dict[str, bool]) -> None:
        super().__init__()
        self.current = ""
        self._events = events
        self._cached = cached
        self._since = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the journal when this is one of the two messages."""
        if record.msg == "Component %s is running.":
            self.current = str(record.args[0])  # type: ignore[index]
            self._since = time.monotonic()
            self._tell("running")
        elif record.msg == "Component %s is finished.":
            self._tell("cached" if self._cached.get(self.current) else "done")

    def _tell(self, state: str) -> None:
        seconds = time.monotonic() - self._since
        journal.append(self._events, "node", id=self.current, state=state, seconds=seconds)


def run(folder: Path) -> int:
    """Run the pipeline that ``folder/run.json`` describes, and return its exit code."""
    from absl import logging as absl_logging

    plan = json.loads((folder / "run.json").read_text())
    _import_tfx()
    states = NodeStates(plan["events"], {one["id"]: one["cached"] for one in plan["nodes"]})
    logger = absl_logging.get_absl_logger()
    logger.setLevel(logging.INFO)
    logger.addHandler(states)
    try:
        _run_nodes(plan)
    except Exception as error:  # ruff: ignore[blind-except]
        traceback.print_exc()
        known = cause(error, states.current or "the pipeline", folder / "pipeline.log")
        journal.append(
            plan["events"],
            "error",
            id=states.current,
            facts=known.facts(),
            exit_code=known.exit_code,
        )
        return known.exit_code
    return 0


def _import_tfx() -> None:
    """Import TFX and TensorFlow without what they would only look at; TFDV needs pandas."""
    imports.as_namespace("tfx.components")
    with imports.without(*(name for name in imports.OF_KERAS if name != "pandas")):
        import tensorflow_data_validation
        from tfx.orchestration.local import local_dag_runner

        # They import the rest.
        del tensorflow_data_validation, local_dag_runner


def _run_nodes(plan: dict[str, Any]) -> None:
    """Build the pipeline and run it under the run's own name."""
    from tfx.dsl.compiler import compiler, constants
    from tfx.orchestration.local import local_dag_runner
    from tfx.orchestration.portable import runtime_parameter_utils

    from pipeline import definition

    steps = [
        definition.Step(
            id=one["id"],
            module=one["module"],
            inputs=one["inputs"],
            settings=one["settings"],
            fingerprint=one["fingerprint"],
        )
        for one in plan["nodes"]
    ]
    pipeline = definition.build(
        name=plan["name"], folder=Path(plan["folder"]), steps=steps, beam=plan["beam"]
    )
    representation = compiler.Compiler().compile(pipeline)
    runtime_parameter_utils.substitute_runtime_parameter(
        representation, {constants.PIPELINE_RUN_ID_PARAMETER_NAME: plan["run"]}
    )
    local_dag_runner.LocalDagRunner().run_with_ir(representation)


def cause(error: BaseException, node: str, log: Path) -> HeadraceError:
    """Return the error of ours behind an exception, or one that names node and log."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HeadraceError):
            return seen
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, OSError) and error.errno is not None:
        return TrainingError(
            f"{node} failed: {error.strerror}", where=str(error.filename or log), right=f"see {log}"
        )
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return TrainingError(f"{node} failed: {type(error).__name__}: {first}", right=f"see {log}")


def main() -> None:
    """Run, and leave at once: TensorFlow and Beam keep threads that would hold the process."""
    supervisor.die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = run(Path(sys.argv[1]))
    except SystemExit as stop:
        code = int(stop.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
