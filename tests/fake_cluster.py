"""A Kubernetes API server on a real socket, as far as a gang uses it, and what a node does with it.

Services and Jobs are checked by the schemas of Kubernetes when they are made. A pod is a process of
this machine, with the environment of its container; what DNS would do, the pods' names are replaced
by, a port each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from trainer import cluster

ROOT = Path(__file__).parents[1]
SCHEMA = "1.34"


class Cluster:
    """The state of the cluster.

    Attributes:
        jobs, services: bodies that are there, by name.
        made: names of all Jobs that ever were, in order.
        pods: processes by Job's name, by index.
        faults: what the next requests get instead of an answer: a status, or "cut".
        cuts: times that a followed log is cut after its first line.
        command: what a pod runs, where that is not the container's own.
    """

    def __init__(self, folder: Path, command=None) -> None:
        self.folder, self.command = folder, command
        self.jobs, self.services, self.pods = {}, {}, {}
        self.made, self.requests = [], []
        self.faults, self.cuts = [], 0
        self.draining, self.refused = set(), None
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.held = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self) -> Path:
        """Write what the official client reads."""
        path = self.folder / "kubeconfig"
        address = f"http://127.0.0.1:{self.server.server_port}"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": address}}],
            "users": [{"name": "me", "user": {"token": "planted-token"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
        }))  # fmt: skip
        return path

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for pods in self.pods.values():
            for one in pods:
                one.kill()
                one.wait()

    def create(self, kind: str, body) -> None:
        kubernetes_validate.validate(body, SCHEMA, strict=True)
        name = body["metadata"]["name"]
        if kind == "services":
            self.services[name] = body
            return
        self.jobs[name] = body
        self.made.append(name)
        spec = body["spec"]["template"]["spec"]
        container = spec["containers"][0]
        ports = cluster.free_addresses(int(body["spec"]["completions"]) * 2)
        self.pods[name] = [
            self._start(name, container, index, ports)
            for index in range(body["spec"]["completions"])
        ]

    def _start(self, job: str, container, index: int, ports) -> subprocess.Popen[bytes]:
        told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        names = told["HEADRACE_WORKERS"].split(",")
        service = self.jobs[job]["spec"]["template"]["spec"]["subdomain"]
        # Every name is one that the Service would answer for.
        assert all(re.fullmatch(rf"{job}-\d+\.{service}:\d+", one) for one in names)
        assert service in self.services
        told["HEADRACE_WORKERS"] = ",".join(ports[: len(names)])
        environment = {
            **os.environ, **told, "JOB_COMPLETION_INDEX": str(index), "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", "HOME": os.environ["HOME"],
        }  # fmt: skip
        command = self.command or [sys.executable, *container["command"][1:]]
        with open(self.log(f"{job}-{index}"), "wb") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT
            )

    def log(self, pod: str) -> Path:
        return self.folder / f"{pod}.log"

    def delete_job(self, name: str) -> None:
        self.jobs.pop(name)
        for one in self.pods[name]:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in self.pods[name]:
            try:
                one.wait(timeout=60)
            except subprocess.TimeoutExpired:
                one.kill()

    def drain(self, job: str, index: int) -> None:
        """What `kubectl drain` does to a pod."""
        self.draining.add(f"{job}-{index}")
        self.pods[job][index].send_signal(signal.SIGTERM)

    def pod(self, job: str, index: int):
        code = self.pods[job][index].poll()
        phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
        state = {"running": {}} if code is None else {
            "terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": "Error"}
        }  # fmt: skip
        name = f"{job}-{index}"
        metadata = {
            "name": name, "labels": {"job-name": job},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        }  # fmt: skip
        if name in self.draining:
            metadata["deletionTimestamp"] = "2026-08-01T12:00:00Z"
        ready = {"name": "main", "state": state, "ready": code is None, "restartCount": 0,
                 "image": "x", "imageID": "x"}  # fmt: skip
        return {
            "metadata": metadata,
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": phase, "containerStatuses": [ready]},
        }

    def job(self, name: str):
        codes = [one.poll() for one in self.pods[name]]
        failed = sum(code not in {None, 0} for code in codes)
        status = {"succeeded": codes.count(0), "failed": failed, "active": codes.count(None)}
        if failed:
            status["conditions"] = [
                {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
            ]
        return {**self.jobs[name], "status": status}


class Gone(Exception):
    pass


class Handler(BaseHTTPRequestHandler):
    """Answers for the cluster of its server."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def do_DELETE(self):
        self.answer("DELETE")

    def answer(self, method):
        held = self.server.held
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        held.requests.append((method, parts.path))
        fault = held.faults.pop(0) if held.faults else None
        if fault == "cut":
            self.close_connection = True
            return None
        if fault:
            return self.send(fault, {"message": f"fault {fault}"})
        if held.refused and method == "POST":
            return self.send(*held.refused)
        if parts.path.endswith("/log"):
            return self.stream(held, parts.path.split("/")[-2])
        try:
            with held.lock:
                found = _respond(held, method, parts, body)
        except Gone:
            return self.send(404, {"message": "not found", "code": 404})
        return self.send(200, found)

    def send(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def stream(self, held, pod):
        job, _, index = pod.rpartition("-")
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.close_connection = True
        process = held.pods[job][int(index)]
        with open(held.log(pod), "rb") as log:
            while True:
                ended = process.poll() is not None
                for line in log:
                    self.wfile.write(line)
                    self.wfile.flush()
                    if held.cuts:
                        held.cuts -= 1
                        return
                if ended:
                    return
                time.sleep(0.02)


def _respond(held: Cluster, method, parts, body):
    match parts.path.split("/")[1:]:
        case [*_, "namespaces", "team-a", ("services" | "jobs") as kind] if method == "POST":
            held.create(kind, json.loads(body))
            return json.loads(body)
        case [*_, "services", name] if method == "DELETE":
            return held.services.pop(name) if name in held.services else _gone()
        case [*_, "jobs", name] if method == "DELETE":
            if name not in held.jobs:
                _gone()
            held.delete_job(name)
            return {"kind": "Status", "status": "Success"}
        case [*_, "jobs", name] if method == "GET":
            return held.job(name) if name in held.jobs else _gone()
        case [*_, "pods"]:
            wanted = parse_qs(parts.query)["labelSelector"][0].removeprefix("job-name=")
            count = len(held.pods[wanted]) if wanted in held.jobs else 0
            return {"items": [held.pod(wanted, index) for index in range(count)]}
    return _gone()


def _gone():
    raise Gone
