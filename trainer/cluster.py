"""The processes that train together, as ``TF_CONFIG`` names them: checked, and waited for.

TensorFlow waits for ever, without a word, for a peer that is not there. So every field is checked,
and each worker listens at its own address until all the others have answered, before TensorFlow is
told of any of them. Standard library only: what is wrong here is told before TensorFlow is loaded.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import SettingError, WorkerLost

VARIABLE = "TF_CONFIG"
RESTARTS = "HEADRACE_RESTARTS"
"""The environment's variable that tells how often the workers of a run were started again."""
RIGHT = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
WAIT_SECONDS = 600.0
"""How long the other workers may take to start."""
PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Workers:
    """Who trains: each worker is one process with one device.

    Attributes:
        count: of workers.
        rank: which of them this process is, from 0.
        addresses: ``host:port`` of each, by rank; empty for one worker that needs none.
    """

    count: int = 1
    rank: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def on_this_host(self) -> int:
        """How many workers run on the host of this one, itself included."""
        hosts = [one.rpartition(":")[0] for one in self.addresses]
        return hosts.count(hosts[self.rank]) if hosts else self.count

    @property
    def place_on_host(self) -> int:
        """How many workers of lower rank run on the same host as this one."""
        hosts = [one.rpartition(":")[0] for one in self.addresses]
        return sum(host == hosts[self.rank] for host in hosts[: self.rank])


def read(text: str) -> Workers:
    """Return the workers that a ``TF_CONFIG`` describes; one for an empty text.

    Raises:
        SettingError: naming the field, when one is missing or cannot be.
    """
    if not text:
        return Workers()
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        addresses, kind, index = cluster["worker"], task["type"], task["index"]
    except (ValueError, KeyError, TypeError) as error:
        failure: SettingError = _refused("", "is not a cluster description", text)
        raise failure from error
    _check_jobs(cluster, kind)
    _check_addresses(addresses)
    return Workers(len(addresses), _rank(index, len(addresses)), tuple(addresses))


def _refused(field: str, what: str, holds: Any) -> SettingError:
    where = f"{VARIABLE}: {field}" if field else VARIABLE
    text = holds if isinstance(holds, str) else json.dumps(holds)
    return SettingError(
        what, where=where, holds=text, right=f"unset it to train alone, or give it the form {RIGHT}"
    )


def _check_jobs(cluster: Mapping[str, Any], kind: Any) -> None:
    others = sorted(set(cluster) - {"worker"})
    if others:
        raise _refused(
            f"cluster.{others[0]}", "training has workers alone; worker 0 leads", cluster[others[0]]
        )
    if kind != "worker":
        raise _refused("task.type", 'must be "worker"', kind)


def _check_addresses(addresses: Any) -> None:
    if not isinstance(addresses, list) or not addresses:
        raise _refused("cluster.worker", "must be a list of addresses", addresses)
    seen: dict[Any, int] = {}
    for place, address in enumerate(addresses):
        field = f"cluster.worker[{place}]"
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise _refused(field, "must be host:port, the port 1 to 65535", address)
        if address in seen:
            raise _refused(field, f"is the address of worker {seen[address]} too", address)
        seen[address] = place


def _rank(index: Any, count: int) -> int:
    is_number = isinstance(index, int) and not isinstance(index, bool)
    if not is_number and not (isinstance(index, str) and index.isdecimal()):
        raise _refused("task.index", "must be a whole number", index)
    if not 0 <= int(index) < count:
        raise _refused("task.index", f"must be 0 to {count - 1}: there are {count} workers", index)
    return int(index)


def check(workers: Workers) -> None:
    """Refuse a port of this worker that cannot be listened at.

    Raises:
        SettingError: naming it.
    """
    if workers.count > 1:
        _listener(workers, int(workers.addresses[workers.rank].rpartition(":")[2])).close()


def wait_for_peers(workers: Workers, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Return when every other worker has answered at its address.

    Raises:
        SettingError: when this worker's own port is taken.
        WorkerLost: naming the first worker that did not answer in time.
    """
    deadline = time.monotonic() + wait_seconds
    port = int(workers.addresses[workers.rank].rpartition(":")[2])
    with _listener(workers, port):
        for rank, address in enumerate(workers.addresses):
            if rank != workers.rank and not _answers(address, deadline):
                raise WorkerLost(
                    f"worker {rank} at {address} did not answer in {wait_seconds:g} s",
                    where=f"worker {workers.rank}",
                    right=f"start all {workers.count} workers, each with its own task.index, "
                    "and let them reach one another",
                )


def _listener(workers: Workers, port: int) -> socket.socket:
    # Connections wait in the backlog, one of each peer: nobody needs to accept them.
    try:
        return socket.create_server(("", port), backlog=max(128, workers.count))
    except OSError as error:
        raise SettingError(
            f"port {port} of this worker cannot be listened at: {error.strerror}",
            where=f"{VARIABLE}: cluster.worker[{workers.rank}]",
            holds=workers.addresses[workers.rank],
            right="another port, and one process for each task.index",
        ) from error


def _answers(address: str, deadline: float) -> bool:
    host, _, port = address.rpartition(":")
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=min(left, 5.0)).close()
        except OSError:  # not there yet, or its name is not known yet
            time.sleep(min(PAUSE_SECONDS, max(left, 0.0)))
        else:
            return True
    return False


def free_addresses(count: int) -> Sequence[str]:
    """Return `count` addresses of this machine whose ports are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def describe(addresses: Sequence[str], rank: int) -> str:
    """Return the ``TF_CONFIG`` of one of several workers."""
    return json.dumps({
        "cluster": {"worker": list(addresses)},
        "task": {"type": "worker", "index": rank},
    })
