"""TF_CONFIG: every field is checked, and a worker that is not there is named."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest

from trainer import cluster
from trainer.cluster import Workers
from trainer.errors import SettingError, WorkerLost


def _text(workers: Any, index: Any = 0, kind: Any = "worker", **jobs: Any) -> str:
    return json.dumps({
        "cluster": {"worker": workers, **jobs}, "task": {"type": kind, "index": index}
    })  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}, "task": {}}', "3",
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'],
)  # fmt: skip
def test_what_is_no_cluster_description_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="TF_CONFIG: is not a cluster description"):
        cluster.read(text)


# cases/distributed.md, distributed-5
@pytest.mark.parametrize(
    ("text", "where"),
    [
        (_text(["a:1", "b:1"], 2), "task.index"),
        (_text(["a:1", "b:1"], -1), "task.index"),
        (_text(["a:1"], "x"), "task.index"),
        (_text(["a:1"], True), "task.index"),
        (_text(["a:1"], 0.5), "task.index"),
        (_text(["a:1"], kind="ps"), "task.type"),
        (_text(["a:1"], chief=["b:1"]), "cluster.chief"),
        (_text("a:1"), "cluster.worker"),
        (_text([]), "cluster.worker"),
        (_text(["a:1", "a:1"]), "cluster.worker[1]"),
        (_text(["a:1", "b"]), "cluster.worker[1]"),
        (_text(["a:0"]), "cluster.worker[0]"),
        (_text(["a:65536"]), "cluster.worker[0]"),
        (_text(["a:x"]), "cluster.worker[0]"),
        (_text([":1"]), "cluster.worker[0]"),
        (_text([7]), "cluster.worker[0]"),
    ],
)
def test_a_field_that_cannot_be_is_named(text: str, where: str) -> None:
    with pytest.raises(SettingError) as caught:
        cluster.read(text)
    assert caught.value.where == f"TF_CONFIG: {where}"


def test_what_can_be_is_read() -> None:
    assert cluster.read("") == Workers()
    assert cluster.read(_text(["a:1", "b:1"], "1")) == Workers(2, 1, ("a:1", "b:1"))
    assert cluster.read(cluster.describe(["a:1", "b:2"], 1)) == Workers(2, 1, ("a:1", "b:2"))


def test_workers_of_a_host_are_counted_from_0() -> None:
    addresses = ("a:1", "b:1", "a:2", "b:2", "b:3")
    assert [Workers(5, rank, addresses).place_on_host for rank in range(5)] == [0, 0, 1, 1, 2]


def test_workers_that_start_one_after_the_other_find_one_another() -> None:
    addresses = tuple(cluster.free_addresses(3))
    failed: list[Exception] = []

    def wait(rank: int) -> None:
        time.sleep(0.1 * rank)
        try:
            cluster.wait_for_peers(Workers(3, rank, addresses), wait_seconds=20)
            # what TensorFlow does next: its own server, at the same address
            own = addresses[rank].rpartition(":")[2]
            with socket.create_server(("", int(own))):
                done.wait()
        except (SettingError, WorkerLost, OSError, threading.BrokenBarrierError) as error:
            failed.append(error)
            done.abort()

    done = threading.Barrier(3, timeout=20)
    threads = [threading.Thread(target=wait, args=(rank,)) for rank in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_a_worker_that_does_not_answer_is_named() -> None:
    addresses = tuple(cluster.free_addresses(2))
    with pytest.raises(WorkerLost, match=rf"worker 1 at {addresses[1]} did not answer in 0.3 s"):
        cluster.wait_for_peers(Workers(2, 0, addresses), wait_seconds=0.3)


def test_a_port_that_is_taken_is_named() -> None:
    # also what the second of two processes with the same index meets
    with socket.create_server(("", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingError, match="cannot be listened at") as caught:
            cluster.wait_for_peers(Workers(2, 0, (address, "127.0.0.1:9")), wait_seconds=1)
    assert caught.value.where == "TF_CONFIG: cluster.worker[0]"
