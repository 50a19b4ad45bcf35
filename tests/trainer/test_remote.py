"""Checkpoints in S3 storage, against moto's server: whole or absent, and errors in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3

from trainer import checkpoint, uploading
from trainer.errors import CheckpointError
from trainer.remote import Remote, Unreachable
from trainer.settings import CheckpointSettings
from trainer.uploading import Uploads

ARRAYS = {"weight/a": np.arange(2_000, dtype=np.float32) / 7}
HOLDS = f"s3://{s3.BUCKET}/models/a"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Server]:
    with s3.serve(monkeypatch) as one:
        yield one


def _remote(server: s3.Server, place: str = HOLDS) -> Remote:
    return Remote(CheckpointSettings(remote=place, endpoint_url=server.url), key="0123")


def _save(folder: Path, step: int, *, best: int = 0, keep: int = 9) -> Path:
    facts = {"progress": {"best_step": best}}
    return checkpoint.save(folder, ARRAYS, facts, step=step, keep=keep, best_step=best)


def _fetch(remote: Remote, step: int, into: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(
        checkpoint.place(into, step, lambda aside: remote.get(step, aside)), ARRAYS
    )


def test_what_was_copied_there_comes_back_bit_for_bit(server: s3.Server, tmp_path: Path) -> None:
    remote = _remote(server)
    assert remote.steps() == []
    path = _save(tmp_path / "here", 4, best=2)
    assert remote.put(path)
    assert not remote.put(path)  # it is there
    assert remote.steps() == [4]
    assert remote.best_step(4) == 2
    assert server.objects() == [
        f"{s3.BUCKET}/models/a/0123/step-00000004/{name}" for name in ("manifest.json", "state.npy")
    ]
    found = _fetch(remote, 4, tmp_path / "elsewhere")
    np.testing.assert_array_equal(found.arrays["weight/a"], ARRAYS["weight/a"])
    assert found.facts == {"progress": {"best_step": 2}}


def test_the_manifest_comes_last_and_goes_first(server: s3.Server, tmp_path: Path) -> None:
    remote, path = _remote(server), _save(tmp_path, 4)
    remote.put(path)
    remote.remove(4)
    written = [Path(path).name for method, path in server.requests if method == "PUT"][-2:]
    removed = [Path(path).name for method, path in server.requests if method == "DELETE"]
    assert written == ["state.npy", "manifest.json"]
    assert removed == ["manifest.json", "state.npy"]
    assert remote.steps() == []


def test_another_checkpoint_of_a_step_never_stands_under_the_old_manifest(
    server: s3.Server, tmp_path: Path
) -> None:
    remote = _remote(server)
    remote.put(_save(tmp_path, 4))
    server.fault = s3.cut("manifest.json")
    with pytest.raises(CheckpointError):
        remote.put(_save(tmp_path, 4, best=2))
    server.fault = lambda *_: None
    assert remote.steps() == []


@pytest.mark.parametrize("name", ["state.npy", "manifest.json"])
def test_an_upload_that_is_cut_is_no_checkpoint(
    server: s3.Server, tmp_path: Path, name: str
) -> None:
    remote, path = _remote(server), _save(tmp_path, 4)
    server.fault = s3.cut(name)
    with pytest.raises(Unreachable, match="does not answer"):
        remote.put(path)
    server.fault = lambda *_: None
    assert remote.steps() == []
    assert remote.put(path)
    assert remote.steps() == [4]


def test_an_upload_whose_process_is_killed_is_no_checkpoint(
    server: s3.Server, tmp_path: Path
) -> None:
    path, reached, go_on = _save(tmp_path, 4), threading.Event(), threading.Event()

    def hold(environ: dict[str, Any], _: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith("manifest.json"):
            reached.set()
            go_on.wait(30)
            return [b""]
        return None

    server.fault = hold
    code = (
        "from pathlib import Path; from trainer.remote import Remote\n"
        "from trainer.settings import CheckpointSettings\n"
        f"settings = CheckpointSettings(remote={HOLDS!r}, endpoint_url={server.url!r})\n"
        f"Remote(settings, key='0123').put(Path({str(path)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert reached.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        go_on.set()
    server.fault = lambda *_: None
    assert [Path(one).name for one in server.objects()] == ["state.npy"]
    assert _remote(server).steps() == []


def test_a_large_state_is_cut_into_parts_and_leaves_none_behind(
    server: s3.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"weight/a": np.random.default_rng(0).normal(size=5_000_000).astype(np.float32)}
    path = checkpoint.save(tmp_path, arrays, {}, step=1, keep=1)
    remote = _remote(server)
    remote.put(path)
    assert sum(method == "PUT" for method, _ in server.requests) > 3
    into = checkpoint.place(tmp_path / "new", 1, lambda aside: remote.get(1, aside))
    np.testing.assert_array_equal(
        checkpoint.load(into, arrays).arrays["weight/a"], arrays["weight/a"]
    )


def test_a_checkpoint_that_is_removed_here_meanwhile_is_copied_whole(
    server: s3.Server, tmp_path: Path
) -> None:
    path = _save(tmp_path, 4)

    def remove(environ: dict[str, Any], _: Callable[..., Any]) -> None:
        for one in path.glob("*") if environ["REQUEST_METHOD"] == "PUT" else ():
            one.unlink()

    server.fault = remove
    remote = _remote(server)
    remote.put(path)
    assert _fetch(remote, 4, tmp_path / "new").step == 4


# What cannot be reached


def _said(remote: Remote) -> str:
    with pytest.raises(CheckpointError) as caught:
        remote.reach()
    text = str(caught.value)
    assert s3.SECRET not in text
    assert s3.KEY_ID not in text
    assert "\n" not in text
    chain = caught.value.__cause__, caught.value.__suppress_context__
    assert chain == (None, True), "a log would hold what the storage said"
    return text


def test_a_bucket_that_answers_is_reached_and_nothing_is_left_there(server: s3.Server) -> None:
    _remote(server).reach()
    assert server.objects() == []


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (s3.refuse("403 Forbidden", "AccessDenied"), "the storage refuses (AccessDenied)"),
        (s3.refuse("403 Forbidden", "InvalidAccessKeyId"), "refuses (InvalidAccessKeyId)"),
        (s3.refuse("403 Forbidden", "SignatureDoesNotMatch"), "refuses (SignatureDoesNotMatch)"),
        (s3.refuse("500 Internal Server Error", "InternalError"), "fails (InternalError)"),
        (s3.refuse("503 Service Unavailable", "SlowDown"), "fails (SlowDown)"),
    ],
)
def test_what_the_storage_refuses_is_said_in_one_line_without_a_secret(
    server: s3.Server, fault: s3.Fault, what: str
) -> None:
    server.fault = fault
    assert what in _said(_remote(server))


def test_a_bucket_that_may_only_be_read_is_found_out(server: s3.Server) -> None:
    refuse = s3.refuse("403 Forbidden", "AccessDenied")
    server.fault = lambda environ, start: (
        refuse(environ, start) if environ["REQUEST_METHOD"] == "POST" else None
    )
    assert "the storage refuses (AccessDenied)" in _said(_remote(server))


def test_a_bucket_that_is_missing_is_named(server: s3.Server) -> None:
    said = _said(_remote(server, "s3://not-there/x"))
    assert "there is no bucket not-there" in said
    assert "it holds s3://not-there/x" in said
    with pytest.raises(CheckpointError, match="no bucket not-there"):
        _remote(server, "s3://not-there/x").steps()


def test_no_credentials_are_said(server: s3.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "there are no credentials for it" in _said(_remote(server))


def test_a_server_that_is_not_there_is_said_soon(server: s3.Server) -> None:
    server.stop()
    began = time.monotonic()
    said = _said(_remote(server))
    assert time.monotonic() - began < 10
    assert "does not answer (EndpointConnectionError)" in said
    assert "AWS_ENDPOINT_URL" in said


# Beside training


class Told:
    def __init__(self) -> None:
        self.uploads: list[dict[str, Any]] = []
        self.warnings: list[str] = []


@pytest.fixture
def told() -> Told:
    return Told()


def _uploads(server: s3.Server, folder: Path, told: Told, *, keep: int = 2) -> Uploads:
    return Uploads(
        _remote(server), folder, keep=keep,
        tell=lambda **facts: told.uploads.append(facts), warn=told.warnings.append,
    )  # fmt: skip


def test_the_newest_and_the_best_stay_there(server: s3.Server, tmp_path: Path, told: Told) -> None:
    uploads = _uploads(server, tmp_path, told)
    for step in range(1, 6):
        _save(tmp_path, step, best=min(step, 2), keep=2)
        uploads.offer(step, min(step, 2))
        _until(lambda: uploads.lag_seconds() == 0.0)
    uploads.finish(30)
    assert _remote(server).steps() == [5, 4, 2]
    assert [one["step"] for one in told.uploads] == [1, 2, 3, 4, 5]
    assert told.uploads[-1]["path"] == f"{HOLDS}/0123/step-00000005"
    assert (uploads.uploaded_step, uploads.failures, told.warnings) == (5, 0, [])


def test_a_storage_that_fails_for_a_while_gets_the_newest_once_it_is_back(
    server: s3.Server, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "FIRST_PAUSE_SECONDS", 0.05)
    server.fault = s3.refuse("500 Internal Server Error", "InternalError")
    uploads = _uploads(server, tmp_path, told)
    for step in (1, 2, 3):
        _save(tmp_path, step, keep=1)
        began = time.monotonic()
        uploads.offer(step)
        assert time.monotonic() - began < 0.5, "training waited"
    _until(lambda: uploads.failures >= 3)
    assert uploads.lag_seconds() > 0.1
    server.fault = lambda *_: None
    uploads.finish(30)
    assert _remote(server).steps() == [3]
    assert [one["step"] for one in told.uploads] == [3]
    first, last = told.warnings  # each said once, however often it was tried
    assert "the storage fails (500)" in first
    assert last == f"checkpoints are copied to {HOLDS}/0123 again"


def test_a_storage_that_stays_away_is_waited_for_no_longer_than_told(
    server: s3.Server, tmp_path: Path, told: Told
) -> None:
    server.stop()
    uploads = _uploads(server, tmp_path, told)
    _save(tmp_path, 7)
    uploads.offer(7)
    _until(lambda: uploads.failures)
    began = time.monotonic()
    uploads.finish(0.5)
    assert time.monotonic() - began < 5
    assert told.warnings[-1].startswith(
        f"the checkpoint of step 7 is not in {HOLDS}/0123, but in {tmp_path} alone: "
        "checkpoint.remote: the storage does not answer"
    )
    assert uploads.uploaded_step is None


def test_an_offer_that_is_gone_here_is_passed_over(
    server: s3.Server, tmp_path: Path, told: Told
) -> None:
    uploads = _uploads(server, tmp_path, told)
    uploads.offer(1)
    uploads.finish(30)
    assert (told.uploads, told.warnings) == ([], [])


def _until(holds: Callable[[], Any]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_s3fs_is_imported_only_where_it_is_needed() -> None:
    code = "import sys, trainer.uploading; print('s3fs' in sys.modules, 'botocore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
