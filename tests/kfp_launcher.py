"""What Kubeflow Pipelines does around a task, on this machine and with object storage.

Written from the rules of KFP's driver and launcher (backend/src/v2):

1. Outputs get the URIs ``<pipeline root>/<task>/<uuid>/<output>``; the executor's own output is the
   file that the executor input names.
2. ``s3://`` is ``/s3/`` to the task: inputs are copied there before it, and what lies at the path
   of an output afterwards is uploaded. Only the parents of outputs are made. An output that is not
   there is a warning. Object storage keeps no empty folders.
3. A task that ends with another code than 0 has failed, and nothing but its log is kept; the retry
   policy runs it again with the same inputs and the same URIs.
4. ``{{$}}`` becomes the executor input as JSON, whose numbers went through a protobuf Struct, so
   that all of them are doubles. The executor's output must be JSON: NaN is none.

Every task begins with an empty disk, as a pod does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from google.protobuf import json_format, struct_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

MOUNT = Path("/s3")


class TaskFailed(Exception):
    def __init__(self, task, code, log):
        super().__init__(f"{task} ended with {code}: {log[-2000:]}")
        self.task, self.code, self.log = task, code, log


@dataclass
class Launcher:
    """Runs a package whose pipeline root is in a bucket.

    Attributes:
        package: file of the package.
        root: ``s3://bucket/prefix``.
        store: boto3's S3 client.
        environment: of every task, beside this process's own.
        interfere: called with (task, attempt, process) once a task runs.
        ran: names of the tasks that were started, in order.
        logs: of each attempt, by task.
    """

    package: Path
    root: str
    store: object
    environment: dict = field(default_factory=dict)
    interfere: object = lambda task, attempt, process: None
    ran: list = field(default_factory=list)
    logs: dict = field(default_factory=dict)
    made: dict = field(default_factory=dict)

    def run(self, **parameters):
        """Run all tasks, and return what each has made: artifacts and parameters by name."""
        spec = next(iter(yaml.safe_load_all(self.package.read_text())))
        pipeline = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
        held = pipeline.root.input_definitions.parameters
        values = {
            name: json_format.MessageToDict(one.default_value) for name, one in held.items()
        } | parameters
        left = dict(pipeline.root.dag.tasks)
        while left:
            name = next(
                name for name, one in left.items() if set(one.dependent_tasks) <= set(self.made)
            )
            self.made[name] = self._task(name, left.pop(name), pipeline, values)
        return self.made

    def _task(self, name, task, pipeline, values):
        component = pipeline.components[task.component_ref.name]
        executors = json_format.MessageToDict(pipeline.deployment_spec)["executors"]
        container = executors[component.executor_label]["container"]
        place = f"{self.root}/{name}/{uuid.uuid4()}"
        with tempfile.TemporaryDirectory() as local:
            told = through_struct({
                "inputs": {
                    "parameterValues": self._parameters(task, values),
                    "artifacts": self._artifacts(task),
                },
                "outputs": {
                    "artifacts": {
                        output: {"artifacts": [artifact(output, one, f"{place}/{output}")]}
                        for output, one in component.output_definitions.artifacts.items()
                    },
                    "parameters": {
                        output: {"outputFile": f"{local}/outputs/{output}"}
                        for output in component.output_definitions.parameters
                    },
                    "outputFile": f"{local}/output_metadata.json",
                },
            })
            for attempt in range(task.retry_policy.max_retry_count + 1):
                code = self._attempt(name, container, told, attempt)
                if code == 0:
                    return self._finish(told, Path(local))
        raise TaskFailed(name, code, self.logs[name][-1])

    def _parameters(self, task, values):
        found = {}
        for name, one in task.inputs.parameters.items():
            match one.WhichOneof("kind"):
                case "component_input_parameter":
                    found[name] = values[one.component_input_parameter]
                case "runtime_value":
                    found[name] = json_format.MessageToDict(one.runtime_value.constant)
                case "task_output_parameter":
                    made = self.made[one.task_output_parameter.producer_task]
                    found[name] = made["parameters"][one.task_output_parameter.output_parameter_key]
        return found

    def _artifacts(self, task):
        return {
            name: {"artifacts": [
                self.made[one.task_output_artifact.producer_task]["artifacts"][
                    one.task_output_artifact.output_artifact_key
                ]
            ]}
            for name, one in task.inputs.artifacts.items()
        }  # fmt: skip

    def _attempt(self, name, container, told, attempt):
        bucket = MOUNT / self.root.removeprefix("s3://").split("/")[0]
        shutil.rmtree(bucket, ignore_errors=True)
        for one in told["inputs"]["artifacts"].values():
            self._download(one["artifacts"][0]["uri"])
        for one in told["outputs"]["artifacts"].values():
            local_path(one["artifacts"][0]["uri"]).parent.mkdir(parents=True, exist_ok=True)
        for one in told["outputs"]["parameters"].values():
            Path(one["outputFile"]).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(told)
        command = [
            one.replace("{{$}}", text)
            for one in (*container["command"], *container.get("args", ()))
        ]
        self.ran.append(name)
        binaries = str(Path(sys.executable).parent)
        environment = {
            **os.environ, **self.environment, "PATH": f"{binaries}:{os.environ['PATH']}",
        }  # fmt: skip
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            self.interfere(name, attempt, process)
            log, _ = process.communicate()
        self.logs.setdefault(name, []).append(log)
        return process.returncode

    def _finish(self, told, local):
        """Upload the outputs; return them with what the executor says of them."""
        written = local / "output_metadata.json"
        said = json.loads(written.read_text(), parse_constant=_refuse) if written.exists() else {}
        artifacts = {}
        for name, one in told["outputs"]["artifacts"].items():
            made = one["artifacts"][0]
            for more in said.get("artifacts", {}).get(name, {}).get("artifacts", []):
                made = {**made, "uri": more.get("uri", made["uri"]),
                        "metadata": more.get("metadata", {})}  # fmt: skip
            self._upload(made["uri"])
            artifacts[name] = through_struct(made)
        parameters = said.get("parameterValues", {})
        for name, one in told["outputs"]["parameters"].items():
            if name not in parameters and Path(one["outputFile"]).exists():
                parameters[name] = Path(one["outputFile"]).read_text()
        return {"artifacts": artifacts, "parameters": parameters}

    def _upload(self, uri):
        path = local_path(uri)
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not path.exists():
            warnings.warn(f"no output at {path}", stacklevel=2)
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                rest = "" if file == path else f"/{file.relative_to(path)}"
                self.store.upload_file(str(file), bucket, key + rest)

    def _download(self, uri):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        pages = self.store.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        for page in pages:
            for one in page.get("Contents", []):
                if one["Key"] == key or one["Key"].startswith(f"{key}/"):
                    path = MOUNT / bucket / one["Key"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self.store.download_file(bucket, one["Key"], str(path))


def local_path(uri):
    return MOUNT / uri.removeprefix("s3://")


def artifact(name, described, uri):
    kind = described.artifact_type
    return {
        "name": name,
        "type": {"schemaTitle": kind.schema_title, "schemaVersion": kind.schema_version},
        "uri": uri,
        "metadata": {},
    }


def through_struct(value):
    """Return what a protobuf Struct leaves of a value: every number is a double."""
    held = struct_pb2.Struct()
    json_format.ParseDict(value, held)
    return json.loads(json_format.MessageToJson(held), parse_int=float)


def _refuse(constant):
    raise ValueError(f"{constant} is no JSON")
