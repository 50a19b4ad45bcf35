"""Which replicas train together, and what they say to one another.

Alone: without a GPU TensorFlow's default strategy, one replica; with GPUs
MultiWorkerMirroredStrategy with one worker, a replica a GPU. Several workers: each process has
one device and plain variables, and the step's own collectives (`trainer.collectives`) join them;
MultiWorkerMirroredStrategy then only starts the servers and notices when a worker is gone. With one
replica every function here is the identity.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import cluster, devices
from trainer.cluster import WAIT_SECONDS, Workers
from trainer.collectives import Channel
from trainer.errors import SettingError


@dataclass(frozen=True)
class Replicas:
    """Everybody who gets a share of the global batch.

    Attributes:
        strategy: of the devices of this process.
        workers: the processes.
        control: for what they agree on outside of the step; the same object all the time.
        server: what keeps this worker reachable.
    """

    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    workers: Workers = Workers()
    control: Channel = field(default_factory=lambda: Channel(Workers()))
    server: Any = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the place where models and states are made."""
        return self.strategy.scope()


def choose(*, wait_seconds: float = WAIT_SECONDS) -> Replicas:
    """Return who trains, by ``TF_CONFIG`` and the devices; call it before any other operation.

    Args:
        wait_seconds: how long other workers may take to start.

    Raises:
        SettingError: when ``TF_CONFIG`` cannot be; it names the field.
        WorkerLost: when another worker did not answer; it names the worker.
    """
    workers = cluster.read(os.environ.get(cluster.VARIABLE, ""))
    if workers.count > 1:
        _take_one_gpu(workers)
        cluster.wait_for_peers(workers, wait_seconds=wait_seconds)
        server = tf.distribute.MultiWorkerMirroredStrategy()
        return Replicas(workers=workers, control=Channel(workers), server=server)
    if not devices.gpus():
        return Replicas()
    return Replicas(tf.distribute.MultiWorkerMirroredStrategy())


def _take_one_gpu(workers: Workers) -> None:
    """Leave this worker one GPU, the other workers of this host another one each.

    Raises:
        SettingError: when there are fewer GPUs than workers on this host.
    """
    found = tf.config.list_physical_devices("GPU")
    if not found:
        return
    # A supervisor that shows each worker its own GPU shows it as number 0.
    place = 0 if len(found) == 1 else workers.place_on_host
    if place >= len(found):
        raise SettingError(
            f"worker {workers.rank} has no GPU of its own: this host has {len(found)}",
            where=cluster.VARIABLE, holds=str(list(workers.addresses)),
            right=f"at most {len(found)} workers on one host",
        )  # fmt: skip
    tf.config.set_visible_devices(found[place], "GPU")


def check_alone(replicas_: Replicas, *, shard: str, offload: str) -> None:
    """Refuse techniques that need a process for each device.

    Raises:
        SettingError: when one process has several devices and cuts up or moves its state.
    """
    if replicas_.strategy.num_replicas_in_sync == 1 or (shard, offload) == ("none", "none"):
        return
    name, holds = ("shard", shard) if shard != "none" else ("offload", offload)
    count = replicas_.strategy.num_replicas_in_sync
    raise SettingError(
        f"needs one process for each device, and this one has {count} GPUs",
        where=f"training.{name}", holds=holds, right=f"training.workers = {count}",
    )  # fmt: skip


def replicas(of: Replicas) -> int:
    """Return how many replicas share a global batch."""
    return of.workers.count * of.strategy.num_replicas_in_sync


def local_rows(of: Replicas, global_batch: int) -> int:
    """Return the rows of a global batch that one replica gets, padding included."""
    return -(-global_batch // replicas(of))


def own_rows(of: Replicas, global_batch: int) -> slice:
    """Return the rows of a global batch that `share` gives to this process."""
    if of.workers.count == 1:
        return slice(None)
    rows = local_rows(of, global_batch)
    return slice(of.workers.rank * rows, (of.workers.rank + 1) * rows)


def share(of: Replicas, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Split a batch over the replicas; each gets `local_rows` rows, the last ones padded.

    A replica for which no row is left gets padding alone, and takes part with the weight 0.

    Args:
        of: as `choose` returned it.
        batch: arrays or tensors [global_batch, ...]; ``weight`` is 0 for padding.
    Returns: this worker's share.
    """
    rows = local_rows(of, len(batch["weight"]))
    if of.workers.count > 1:
        return {name: _rows_of(value, of.workers.rank, rows) for name, value in batch.items()}
    if replicas(of) == 1:
        return {name: tf.convert_to_tensor(value) for name, value in batch.items()}

    def part(context: tf.distribute.distribute_lib.ValueContext, value: Any) -> tf.Tensor:
        return _rows_of(value, context.replica_id_in_sync_group, rows)

    return {
        name: of.strategy.experimental_distribute_values_from_function(
            lambda context, value=value: part(context, value)
        )
        for name, value in batch.items()
    }


def _rows_of(value: Any, place: int, rows: int) -> tf.Tensor:
    """Return the rows of one replica; rows that are missing are zeros."""
    mine = np.asarray(value)[place * rows : (place + 1) * rows]
    missing = rows - len(mine)
    return tf.convert_to_tensor(np.pad(mine, [(0, missing)] + [(0, 0)] * (mine.ndim - 1)))


def run(of: Replicas, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` on every replica of this process and return what each returned."""
    if of.strategy.num_replicas_in_sync == 1:
        return function(*args)
    return of.strategy.run(function, args=args)


def first(of: Replicas, values: Any) -> Any:
    """Return the first replica's part of what `run` returned, where they agree."""
    if of.strategy.num_replicas_in_sync == 1:
        return values
    return tf.nest.map_structure(lambda one: of.strategy.experimental_local_results(one)[0], values)


def replica_id() -> tf.Tensor | int:
    """Return the number of the replica that calls among those of its process."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    return context.replica_id_in_sync_group


def all_reduce_sum(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums over the replicas of this process; called by each of them."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(tensors)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))


def together(function: Callable[..., None], is_so: tf.Tensor, tensors: Sequence[tf.Tensor]) -> None:
    """Call ``function(is_so, tensors)`` once for all replicas of this process, which hold the same.

    Variables may be changed in it, through `update`, also inside `tf.cond`: a replica by itself
    may not do that to a mirrored variable.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        function(is_so, tensors)
        return

    def merged(strategy: tf.distribute.Strategy, is_so: Any, tensors: Any) -> None:
        function(strategy.experimental_local_results(is_so)[0], tensors)

    context.merge_call(merged, args=(is_so, list(tensors)))


def update(variable: tf.Variable, function: Callable[..., Any], *args: Any) -> None:
    """Call ``function(variable, *args)`` on each replica's copy of the variable."""
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1:
        function(variable, *args)
    else:
        strategy.extended.update(variable, function, args=args, group=False)
