"""A server process that speaks the REST API of Kubeflow Pipelines v2beta1, as far as it is used.

    python kfp_server.py        prints its port, and ends with its standard input

Every answer is one of kfp's own client models, turned into JSON by kfp's client, and every request
is read back through them, so that the names of the fields are kfp's and not ours. The first part
of the path says what is played: ``http://127.0.0.1:PORT/gate`` is a server whose run stops at the
gate. ``/<play>/requests`` returns what was asked so far.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
import zlib
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import kfp_server_api as api
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

TOKEN = "planted-token"
NAMESPACE = "team-a"
MULTI_USER = {"users"}
BEGAN = datetime.datetime(2026, 8, 1, 12, tzinfo=datetime.UTC)
CLIENT = api.ApiClient(api.Configuration())
REFUSED = (
    "main: Error (exit code 1): DataGate: later.csv:2: column species holds values that the schema "
    "does not list [headrace exit code 3]"
)


class Held:
    """What one play was asked, and what it made."""

    def __init__(self):
        self.requests = []
        self.experiments = []
        self.runs = {}
        self.looks = 0


HELD = defaultdict(Held)
REFUSALS = {
    "old": (404, "Not Found", 5),
    "broken": (500, "Internal Server Error: no database", 13),
    "forbidden": (403, "User mallory is not authorized", 7),
}


class Refusal(Exception):
    def __init__(self, status, message, code=0):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def answer(self, method):
        parts = urlsplit(self.path)
        _, play, *rest = parts.path.split("/")
        path = "/" + "/".join(rest)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        held = HELD[play]
        if path == "/requests":
            return self.send(200, json.dumps(held.requests))
        held.requests.append({
            "method": method, "path": path, "query": query, "body": body.decode(),
            "authorization": self.headers.get("Authorization"),
        })  # fmt: skip
        if play == "login":
            return self.send(200, "<html>log in</html>", kind="text/html")
        try:
            found = respond(play, held, method, path, query=query, body=body, headers=self.headers)
        except Refusal as refused:
            told = {"error": refused.message, "code": refused.code, "message": refused.message}
            return self.send(refused.status, json.dumps(told))
        return self.send(200, json.dumps(CLIENT.sanitize_for_serialization(found)))

    def send(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def respond(play, held, method, path, *, query, body, headers):
    if play in REFUSALS:
        raise Refusal(*REFUSALS[play])
    if play == "closed" and headers.get("Authorization") != f"Bearer {TOKEN}":
        raise Refusal(401, "Request header error: there is no user identity header.", 16)
    if path == "/apis/v2beta1/healthz":
        return api.V2beta1GetHealthzResponse(multi_user=play in MULTI_USER)
    if path == "/apis/v2beta1/experiments":
        return experiments(play, held, method, query, body)
    if path == "/apis/v2beta1/runs" and method == "POST":
        return create_run(play, held, body)
    name = path.removeprefix("/apis/v2beta1/runs/")
    if name in held.runs:
        held.looks += 1
        if play == "away" and held.looks == 2:
            raise Refusal(503, "upstream connect error", 14)
        if play == "expired" and held.looks == 2:
            raise Refusal(401, "token is expired", 16)
        return look(play, held, name)
    raise Refusal(404, f"Run {name} not found", 5)


def read(body, kind):
    """Read a request's JSON as kfp's client reads an answer."""

    class Answer:
        data = body

    return CLIENT.deserialize(Answer, kind)


def experiments(play, held, method, query, body):
    asked = read(body, "V2beta1Experiment") if method == "POST" else None
    namespace = (asked.namespace if asked else query.get("namespace")) or ""
    if play in MULTI_USER and namespace != NAMESPACE:
        raise Refusal(403, f"User is not authorized to list experiments in {namespace}", 7)
    if play not in MULTI_USER and namespace:
        raise Refusal(400, "In single-user mode, the namespace must be empty", 3)
    if asked:
        asked.experiment_id = f"experiment-{len(held.experiments) + 1}"
        held.experiments.append(asked)
        return asked
    (wanted,) = json.loads(query["filter"])["predicates"]
    assert wanted["key"] == "display_name"
    found = [one for one in held.experiments if one.display_name == wanted["stringValue"]]
    return api.V2beta1ListExperimentsResponse(experiments=found, total_size=len(found))


def create_run(play, held, body):
    asked = read(body, "V2beta1Run")
    known = {one.experiment_id for one in held.experiments}
    if asked.experiment_id not in known:
        raise Refusal(404, "no such experiment", 5)
    spec = asked.pipeline_spec
    # Unknown fields are refused by both.
    json_format.ParseDict(spec.get("pipeline_spec", spec), pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(spec.get("platform_spec", {}), pipeline_spec_pb2.PlatformSpec())
    asked.run_id = f"run-{len(held.runs) + 1}"
    asked.created_at = BEGAN
    asked.state = "PENDING"
    held.runs[asked.run_id] = asked
    return asked


PLAYS = {
    "gate": [("data-gate", "FAILED", REFUSED)],
    "silent": [("data-gate", "FAILED", "")],
    "lost": [("data-gate", "SUCCEEDED", ""), ("trainer", "FAILED", "OOMKilled (exit code 137)")],
    "cancelled": [("data-gate", "CANCELED", "")],
}
LAST = {"cancelled": "CANCELED", **dict.fromkeys(("gate", "silent", "lost"), "FAILED")}


def look(play, held, name):
    run = held.runs[name]
    run.state = "RUNNING"
    tasks = [task("example-gen", "RUNNING", at=1)]
    if held.looks >= 3:
        ends = PLAYS.get(play, [("data-gate", "SUCCEEDED", ""), ("trainer", "SUCCEEDED", "")])
        tasks = [
            *cached("example-gen", at=1),
            task("data-digest", "SUCCEEDED", at=0),
            *(
                task(one, state, at=2 + at, error=error)
                for at, (one, state, error) in enumerate(ends)
            ),
        ]
        run.state = LAST.get(play, "SUCCEEDED")
        run.finished_at = BEGAN + datetime.timedelta(minutes=1)
    run.run_details = api.V2beta1RunDetails(task_details=tasks)
    return run


def task(name, state, *, at, error="", **more):
    return api.V2beta1PipelineTaskDetail(
        task_id=f"{at}-of-the-database",
        # As Argo has them: the name of a pod ends with the number of its node.
        pod_name=f"penguins-x7-system-container-{number(name)}",
        display_name=name,
        create_time=BEGAN + datetime.timedelta(seconds=at),
        start_time=BEGAN + datetime.timedelta(seconds=at),
        end_time=None if state == "RUNNING" else BEGAN + datetime.timedelta(seconds=at + 7),
        state=state,
        error=api.GooglerpcStatus(code=2, message=error) if error else None,
        **more,
    )


def number(name):
    return zlib.crc32(name.encode())


def cached(name, *, at):
    """A task that KFP took from its cache: it succeeded, and the pod that works was skipped."""
    children = [
        api.PipelineTaskDetailChildTask(pod_name=f"penguins-x7-{number(one)}")
        for one in (f"{name}-driver", "executor")
    ]
    return [
        task(name, "SUCCEEDED", at=at, child_tasks=children),
        task(f"{name}-driver", "SUCCEEDED", at=at),
        task("executor", "SKIPPED", at=at),
    ]


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
