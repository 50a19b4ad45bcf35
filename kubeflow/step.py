"""One node of the pipeline in a process of its own: ``headrace kubeflow step REQUEST``.

TFX's portable launcher runs it against a throw-away ML Metadata that is filled from what KFP gives;
what it made is read back from there. Exit codes are those of ``headrace run``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from kubeflow import launching, task
from trainer import imports
from trainer.errors import InputError, TrainingError, WorkerLost

EVENTS = "events.jsonl"


def main(arguments: list[str]) -> int:
    """Run the node of a request, tell why it failed in the last line, and return the exit code."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    scratch, spec = Path(request["scratch"]), request["spec"]
    os.environ["HEADRACE_EVENTS"] = str(scratch / EVENTS)
    os.environ["HEADRACE_RUN_DIR"] = str(scratch)
    signal.signal(signal.SIGTERM, _asked_to_end)
    started = time.monotonic()
    try:
        response = run(request)
        (scratch / task.RESPONSE).write_text(json.dumps(response, allow_nan=False))
    except Exception as error:  # ruff: ignore[blind-except] - one line at the end, the rest above
        known = launching.cause(error)
        if known is None:
            traceback.print_exc()
            known = TrainingError(_first_line(error))
        # The last line: a person finds it at the end of the task's log.
        print(f"{spec['id']}: {known}", file=sys.stderr, flush=True)  # ruff: ignore[print]
        note(f"{spec['id']}: {known}", known.exit_code)
        return known.exit_code
    seconds = time.monotonic() - started
    print(f"{spec['id']}: done in {seconds:.1f} s", flush=True)  # ruff: ignore[print]
    return 0


def note(message: str, code: int, place: Path = task.TERMINATION) -> None:
    """Leave the reason of a failure where Kubernetes looks for it, if this is a pod.

    Args:
        message: why the node failed.
        code: the exit code of the contract.
        place: that Kubernetes has made; it keeps 4,096 bytes of it.
    """
    mark = task.EXIT_MARK.format(code)
    with contextlib.suppress(OSError):
        if place.is_file():
            place.write_text(f"{message[:1800]} [{mark}]", encoding="utf-8")


def _asked_to_end(number: int, frame: object) -> None:  # ruff: ignore[unused-function-argument]
    raise WorkerLost(
        "was asked to end by SIGTERM",
        right="KFP tries it again, and it goes on from its checkpoint",
    )


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {said[0]}"


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a node, and return what KFP is told: metadata and places by name of the output."""
    spec, given = request["spec"], request["arguments"]
    scratch = Path(request["scratch"])
    _require_gpus(spec)
    from kubeflow import parameters

    spec = parameters.bound(spec, given, scratch)
    from kubeflow import tracking, training

    with (
        tracking.tracked(spec, given, scratch),
        training.companions(spec, given, scratch),
        _light_imports(spec),
    ):
        _import_tfx()
        made = launching.launch(spec, given, scratch)
        tracking.keep(spec, given, scratch)
    from kubeflow import views

    shown = views.write(spec, given, scratch)
    return {
        "artifacts": {**{name: one["metadata"] for name, one in made.items()}, **shown},
        "uris": {name: one["uri"] for name, one in made.items() if "uri" in one},
    }


def _require_gpus(spec: Mapping[str, Any]) -> None:
    """Refuse to train on a CPU where GPUs were asked for.

    Raises:
        InputError: the pod has none.
    """
    asked = int(os.environ.get("HEADRACE_GPUS", "0") or 0)
    if not asked or ("Model" not in str(spec["outputs"]) and spec["id"] != "Trainer"):
        return
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if there < asked and not os.environ.get("HEADRACE_NODES"):
        raise InputError(
            "the pod has fewer GPUs than were asked for",
            where="kubeflow.gpus_per_node",
            holds=f"{asked}, and the pod has {there}",
            right="check the node's device plugin, or set it to what there is",
        )


@contextlib.contextmanager
def _light_imports(spec: Mapping[str, Any]) -> Generator[None, None, None]:
    """Leave out what the node does not use, where that is known."""
    logging.getLogger("absl").setLevel(logging.INFO)
    if _ours(spec):
        imports.as_namespace("tfx.components")
        with imports.without(*(name for name in imports.OF_KERAS if name != "pandas")):
            yield
    else:
        yield


def _ours(spec: Mapping[str, Any]) -> bool:
    path = json.dumps(spec.get("executor", {}))
    return '"components.' in path


def _import_tfx() -> None:
    from tfx.orchestration.portable import launcher

    del launcher


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow and Beam keep threads that would hold the pod.
    os._exit(ended)
