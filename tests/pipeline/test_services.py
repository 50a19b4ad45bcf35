"""What `check` says of the storage and the ports around a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3

from pipeline import config, services
from trainer import cluster


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Server]:
    with s3.serve(monkeypatch) as one:
        yield one


@pytest.fixture
def problems(tmp_path: Path):
    def check(*sets: str) -> list[tuple[str, str, str]]:
        path = tmp_path / "pipeline.toml"
        path.write_text('[data]\nfiles = "a.csv"\nlabel = "late"\n')
        return list(services.problems(config.load(path, sets)))

    return check


def _at(server: s3.Server, remote: str = f"s3://{s3.BUCKET}/x") -> tuple[str, str]:
    return f"checkpoint.remote={remote}", f"checkpoint.endpoint_url={server.url}"


def test_a_bucket_that_can_be_used_is_no_problem(problems, server: s3.Server) -> None:
    assert problems(*_at(server)) == []
    assert server.objects() == []


def test_a_bucket_that_is_missing_is_an_error_in_one_line(problems, server: s3.Server) -> None:
    ((severity, where, words),) = problems(*_at(server, "s3://not-there/x"))
    assert (severity, where) == ("error", "--set checkpoint.remote")
    assert words == (
        "there is no bucket not-there; it holds s3://not-there/x; make it, or name another one"
    )


def test_a_refusal_is_an_error_and_tells_no_secret(problems, server: s3.Server) -> None:
    server.fault = s3.refuse("403 Forbidden", "AccessDenied")
    ((severity, _, words),) = problems(*_at(server))
    assert severity == "error"
    assert words.startswith("the storage refuses (AccessDenied)")
    assert s3.SECRET not in words
    assert s3.KEY_ID not in words


def test_a_storage_that_is_away_is_a_warning(problems, server: s3.Server) -> None:
    sets = _at(server)
    server.stop()
    ((severity, _, words),) = problems(*sets)
    assert severity == "warning"
    assert "does not answer" in words
    assert words.endswith("until then checkpoints stay on this machine alone")


def test_a_port_that_is_taken_is_an_error_also_of_the_last_worker(problems) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        ((severity, where, words),) = problems(f"monitoring.port={port}")
        assert (severity, where) == ("error", "--set monitoring.port")
        assert words.startswith(f"port {port} cannot be listened at: Address already in use")
        sets = f"monitoring.port={port - 1}", "training.workers=2"
        assert any(f"port {port} cannot" in words for _, _, words in problems(*sets))
    assert problems(f"monitoring.port={port}") == []


def test_a_port_beyond_the_last_one_is_said(problems) -> None:
    ((_, _, words),) = problems("monitoring.port=65535", "training.workers=2")
    assert words.startswith("port 65536 cannot be listened at: there is no such port")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{", "TF_CONFIG"),
        ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
         "TF_CONFIG: cluster.worker[1]"),
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
         "TF_CONFIG: task.index"),
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_is_an_error_before_anything_runs(
    problems, monkeypatch, text: str, where: str
) -> None:
    # cases/distributed.md, distributed-5
    monkeypatch.setenv("TF_CONFIG", text)
    assert ("error", where) in [one[:2] for one in problems()]


def test_a_worker_s_port_that_is_taken_is_an_error(problems, monkeypatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("TF_CONFIG", cluster.describe([address, "127.0.0.1:9"], 0))
        ((severity, where, _),) = problems()
    assert (severity, where) == ("error", "TF_CONFIG: cluster.worker[0]")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote", "bucket/x"),
        ("remote", "s3://"),
        ("remote", "s3://B/x"),
        ("remote", "s3://user:secret@bucket/x"),
        ("endpoint_url", "minio:9000"),
        ("endpoint_url", "http://user:secret@minio:9000"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_login(problems, key, value) -> None:
    with pytest.raises(config.SettingError) as caught:
        problems(f"checkpoint.{key}={value}")
    assert caught.value.where == f"--set checkpoint.{key}"
    assert "secret" not in str(caught.value)
