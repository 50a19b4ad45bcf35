"""Tags that say where a result comes from."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from components.provenance import collect_tags


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with one commit, as if found from inside another repository's hook."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    def git(*command: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *identity, *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "pipeline.toml").write_text("")
    git("add", ".")
    git("commit", "-qm", "one")
    return tmp_path, git


def test_the_commit_is_told_and_whether_files_differ_from_it(repository):
    folder, git = repository
    tags = collect_tags(folder)
    assert tags["git.commit"] == git("rev-parse", "HEAD")
    assert tags["git.dirty"] == "false"
    (folder / "runs").mkdir()  # what a run writes is not tracked, and makes nothing dirty
    (folder / "runs" / "a").write_text("")
    assert collect_tags(folder)["git.dirty"] == "false"
    (folder / "pipeline.toml").write_text("name = 'a'")
    assert collect_tags(folder)["git.dirty"] == "true"


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert not [name for name in collect_tags(tmp_path) if "git" in name]
    monkeypatch.setenv("PATH", "")
    assert not [name for name in collect_tags(tmp_path) if "git" in name]


def test_versions_and_hardware_are_told(tmp_path):
    tags = collect_tags(tmp_path)
    assert tags["version.numpy"] == metadata.version("numpy")
    assert {"version.tensorflow", "version.tfx", "version.headrace", "hardware.cpu"} <= set(tags)
    assert int(tags["hardware.cores"]) >= 1
    assert int(tags["hardware.memory_bytes"]) > 2**28
    assert int(tags["hardware.gpus"]) >= 0


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from components import provenance; provenance.collect_tags('.');"
        "print([name for name in ('tensorflow', 'numpy', 'mlflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
