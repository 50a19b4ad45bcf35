from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from flows import commands

from kubeflow import manifests
from pipeline import config
from trainer import monitoring

VERSIONS = ("1.30", "1.34", "1.37")
CONFIG = """
name = "penguins"
[data]
files = "penguins.csv"
label = "species"
[tracking]
uri = "https://planted-user:planted-word@mlflow.example"
[kubeflow]
image = "registry.example/headrace:1"
namespace = "team-a"
volume = "data"
"""
ALERTS = Path(monitoring.__file__).parent / "on_call"
NODES = ["kubeflow.nodes=2", "kubeflow.gpus_per_node=4", "monitoring.port=9500"]


@pytest.fixture
def load(tmp_path):
    def load(*sets):
        path = tmp_path / "pipeline.toml"
        path.write_text(CONFIG)
        return config.load(path, list(sets))

    return load


@pytest.fixture
def written(load, tmp_path):
    def written(*sets):
        manifests.write(load(*sets), tmp_path / "manifests")
        return tmp_path / "manifests"

    return written


def objects(text):
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sets", [(), NODES], ids=["one node", "many nodes"])
def test_every_object_of_kubernetes_is_what_its_schema_says(load, version, sets):
    found = set()
    for place, text in manifests.texts(load(*sets)).items():
        for one in objects(text) if place.endswith(".yaml") else []:
            if one["apiVersion"].partition("/")[0] in {
                "monitoring.coreos.com", "kustomize.config.k8s.io",
            }:  # fmt: skip
                continue
            kubernetes_validate.validate(one, version, strict=True)
            found.add(one["kind"])
    assert {"ServiceAccount", "NetworkPolicy", "ConfigMap", "Secret", "Role", "RoleBinding",
            "PersistentVolumeClaim"} <= found  # fmt: skip


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl (Debian: kubernetes-client)")
@pytest.mark.parametrize("overlay", ["cpu", "gpu", "multi-node"])
def test_kubectl_builds_every_overlay_in_the_namespace(written, overlay):
    built = subprocess.run(
        ["kubectl", "kustomize", str(written(*NODES) / "overlays" / overlay)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "warn" not in built.stderr.lower()
    made = objects(built.stdout)
    assert {one["metadata"]["namespace"] for one in made} == {"team-a"}
    kinds = {one["kind"] for one in made}
    assert "Secret" not in kinds, "a template with empty values would wipe the real ones"
    assert ("Role" in kinds) == (overlay == "multi-node")


def test_alerts_and_dashboard_are_those_that_are_tested(written):
    folder = written() / "base"
    (rule,) = objects((folder / "rules.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((ALERTS / "alerts.yml").read_text())
    (board,) = objects((folder / "dashboard.yaml").read_text())
    assert board["data"]["headrace.json"] == (ALERTS / "dashboard.json").read_text()
    json.loads(board["data"]["headrace.json"])


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool (Debian: apt-get install prometheus)"
)
@pytest.mark.parametrize("name", ["base/rules.yaml", "overlays/gpu/dcgm-rules.yaml"])
def test_promtool_accepts_the_rules(written, tmp_path, name):
    (rule,) = objects((written() / name).read_text())
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    said = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_prometheus_finds_every_process_of_a_pod(load):
    (endpoint,) = manifests.pod_monitor(load())["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][1]["replacement"] == "$1:9480"
    many = manifests.pod_monitor(load(*NODES))["spec"]["podMetricsEndpoints"]
    ports = [one["relabelings"][1]["replacement"] for one in many]
    # trainer.monitoring: the first process of a machine at the port, the next one at the next.
    assert ports == ["$1:9500", "$1:9501", "$1:9502", "$1:9503"]


def test_no_value_of_a_secret_is_written(load):
    whole = "".join(manifests.texts(load("kubeflow.secret=keys")).values())
    assert "planted" not in whole
    (secret,) = objects(manifests.secret_template(load("kubeflow.secret=keys")))
    assert set(secret["stringData"].values()) == {""}


def test_the_image_is_pinned_and_not_root(load):
    made = manifests.texts(load())
    lines = made["image/Dockerfile"].splitlines()
    assert [one for one in lines if one.startswith("FROM ")] == [
        "FROM ${BASE} AS build",
        "FROM ${BASE}",
    ]
    assert "USER 65532:65532" in lines
    assert sum("uv sync --locked" in one for one in lines) == 2
    copies = [one.split() for one in lines if one.startswith("COPY ") and "--from" not in one]
    copied = {name for one in copies for name in one[1:-1]}
    ignored = made["image/Dockerfile.dockerignore"].splitlines()
    root = Path(manifests.__file__).parents[1]
    for name in copied:
        # What the Dockerfile copies is there, and reaches the builder.
        assert (root / name).exists()
        assert f"!{name}" in ignored


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["tpu", "x"], "cpu or gpu"), (["cpu", "x", "debian:12-slim"], "is no digest")],
)
def test_an_image_on_a_base_without_a_digest_is_not_built(written, arguments, says):
    script = written() / "image" / "build.sh"
    root = Path(manifests.__file__).parents[1]
    said = subprocess.run(["sh", str(script), *arguments], cwd=root, capture_output=True, text=True)
    assert said.returncode == 2
    assert says in said.stderr


def test_the_command_writes_and_says_what_is_next(tmp_path):
    (tmp_path / "pipeline.toml").write_text(CONFIG)
    said = commands.headrace("kubeflow", "manifests", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "next: kubectl apply -k manifests/overlays/cpu" in said.out
    assert "monitoring.port = 9480" in said.out
    (tmp_path / "manifests" / "own.yaml").write_text("")
    again = commands.headrace("kubeflow", "manifests", cwd=tmp_path)
    assert again.code == 2
    assert "own.yaml" in again.err
