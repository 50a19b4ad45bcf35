"""`submit`: a package to a Kubeflow Pipelines server as a run, and the run to its end.

What a person gives is checked here against the package's own inputs, since the server would find
a wrong parameter only when a task needs it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubeflow import connection, watching
from kubeflow.connection import Server
from kubeflow.parameters import EXACT
from trainer.errors import HeadraceError, InputError, SettingError

OnEvent = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Package:
    """A package that was compiled.

    Attributes:
        path: of the file.
        name: of the pipeline.
        kinds: KFP's type of each parameter.
        tasks: the id of each node by the task's name, in the order of the package.
    """

    path: Path
    name: str
    kinds: Mapping[str, str]
    tasks: Mapping[str, str]


def read(path: Path) -> Package:
    """Return what a package's file says of itself.

    Raises:
        InputError: it is no package.
    """
    import yaml
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    try:
        spec = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
        held = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    except (OSError, ValueError, StopIteration, yaml.YAMLError, json_format.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise InputError(
            f"is no package for Kubeflow Pipelines ({why})", where=str(path),
            right="headrace kubeflow compile writes one",
        ) from error  # fmt: skip
    kinds = pipeline_spec_pb2.ParameterType.ParameterTypeEnum
    given = held.root.input_definitions.parameters
    tasks = _ordered(held.root.dag.tasks)
    return Package(
        path=path,
        name=held.pipeline_info.name,
        kinds={name: kinds.Name(one.parameter_type) for name, one in given.items()},
        tasks={name: held.root.dag.tasks[name].task_info.name or name for name in tasks},
    )


def _ordered(tasks: Mapping[str, Any]) -> list[str]:
    """Return the tasks, each after those that it waits for; else by name."""
    left, done = sorted(tasks), []
    while left:
        ready = [one for one in left if set(tasks[one].dependent_tasks) <= set(done)] or left
        done.append(ready[0])
        left.remove(ready[0])
    return done


def parameters(given: Sequence[str], package: Package) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` as the package's parameters have them.

    Raises:
        InputError: there is no such parameter, or the value is of another type.
    """
    values: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals or name not in package.kinds:
            raise InputError(
                "is no parameter of this pipeline" if equals else "is not NAME=VALUE",
                where=f"--param {one if not equals else name}",
                right=f"the parameters are {', '.join(sorted(package.kinds))}",
            )
        values[name] = _value(name, text, package.kinds[name])
    return values


def named(values: Mapping[str, Any], run_name: str, package: Package) -> dict[str, Any]:
    """Return the values with the run's name among them, where the package asks for it."""
    if run_name and "run_name" in package.kinds:
        return {"run_name": run_name, **values}
    return dict(values)


def _value(name: str, text: str, kind: str) -> Any:
    """Return a parameter's value.

    Raises:
        SettingError: it is of another type than the package has.
    """
    readers: dict[str, tuple[Callable[[str], Any], str]] = {
        "NUMBER_INTEGER": (_whole, "a whole number less than 2**53 in size"),
        "NUMBER_DOUBLE": (_finite, "a number"),
        "BOOLEAN": (lambda text: {"true": True, "false": False}[text], "true or false"),
        "LIST": (_list, 'a JSON list such as ["a.csv", "b.csv"], or one text'),
        "STRUCT": (_mapping, "a JSON object"),
    }
    reader, right = readers.get(kind, (str, "a text"))
    try:
        return reader(text)
    except (ValueError, KeyError) as error:
        raise SettingError(
            f"must be {right}", where=f"--param {name}", holds=json.dumps(text)
        ) from error


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) >= EXACT:
        raise ValueError(text)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _list(text: str) -> list[Any]:
    if not text.startswith("["):
        return [text]
    return list(json.loads(text))


def _mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Asked:
    """What a run is to be.

    Attributes:
        experiment: that it is filed under.
        run_name: shown for it.
        values: its parameters, where they differ from the package's.
        service_account: that its pods run as; empty: the namespace's own.
    """

    experiment: str
    run_name: str
    values: Mapping[str, Any]
    service_account: str = ""


def create(server: Server, package: Package, asked: Asked) -> dict[str, Any]:
    """Make a run and return its facts.

    Raises:
        HeadraceError: the server refuses it.
    """
    with connection.asking(server, namespace=server.namespace or ""):
        experiment = server.client.create_experiment(asked.experiment, namespace=server.namespace)
    with connection.asking(server):
        made = server.client.run_pipeline(
            experiment_id=experiment.experiment_id,
            job_name=asked.run_name,
            pipeline_package_path=str(package.path),
            params=dict(asked.values),
            service_account=asked.service_account or None,
        )
    return {
        "status": "submitted",
        "pipeline": package.name,
        "run_id": made.run_id,
        "run_name": asked.run_name,
        "experiment": asked.experiment,
        "namespace": server.namespace,
        "url": server.url(made.run_id),
        "seconds": 0.0,
        "nodes": [],
        "error": None,
    }


def wait(
    server: Server,
    package: Package,
    created: Mapping[str, Any],
    *,
    on_event: OnEvent,
    poll_seconds: float = watching.POLL_SECONDS,
) -> dict[str, Any]:
    """Follow a run to its end, and return its facts with ``exit_code``.

    Ctrl-C ends the following alone: the run goes on.

    Args:
        server: that has the run.
        package: that it was made of.
        created: what `create` returned.
        on_event: told of the nodes' states, as a run on this machine tells them.
        poll_seconds: between two looks.
    """
    began = time.monotonic()
    watch = watching.Watch(
        server, str(created["run_id"]), package.tasks, on_event, poll_seconds=poll_seconds
    )
    try:
        ended = watch.follow()
    except KeyboardInterrupt:
        ended = {
            "status": "interrupted",
            "error": f"interrupted; the run goes on in the cluster: {created['url']}",
            "exit_code": 130,
        }
    except HeadraceError as lost:
        ended = {
            "status": "failed",
            "error": f"{lost}; the run may go on: {created['url']}",
            "exit_code": lost.exit_code,
        }
    return {
        **created,
        "seconds": time.monotonic() - began,
        "nodes": watch.nodes(),
        **ended,
    }
