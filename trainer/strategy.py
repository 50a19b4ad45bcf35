"""Which replicas train together, and what they say to one another.

No GPU: TensorFlow's default strategy, one replica. GPUs: MultiWorkerMirroredStrategy with one
worker, a replica a GPU. With one replica every function here is the identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer import devices
from trainer.errors import SettingError


def choose() -> tf.distribute.Strategy:
    """Return the strategy for the devices that are there; call it before any other operation.

    Raises:
        SettingError: when ``TF_CONFIG`` is set and is not that of a single worker.
    """
    check_tf_config(os.environ.get("TF_CONFIG", ""))
    if not devices.gpus():
        return tf.distribute.get_strategy()
    return tf.distribute.MultiWorkerMirroredStrategy()


def check_tf_config(text: str) -> None:
    """Refuse a ``TF_CONFIG`` that would make TensorFlow wait for ever or train alone unasked.

    Raises:
        SettingError: when it is not JSON, lacks its fields, or names more than one worker.
    """
    if not text:
        return
    right = '{"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}'
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        mine = (task["type"], int(task["index"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(
            "is not a cluster description", where="TF_CONFIG", holds=text,
            right=f"unset it, or give it the form {right}",
        ) from error  # fmt: skip
    if len(workers) != 1 or mine != ("worker", 0):
        raise SettingError(
            "names more workers than this training has", where="TF_CONFIG", holds=text,
            right="one worker with index 0; unset it to train on this machine alone",
        )  # fmt: skip


def replicas(strategy: tf.distribute.Strategy) -> int:
    """Return how many replicas share a global batch."""
    return strategy.num_replicas_in_sync


def local_rows(strategy: tf.distribute.Strategy, global_batch: int) -> int:
    """Return the rows of a global batch that one replica gets, padding included."""
    return -(-global_batch // replicas(strategy))


def share(strategy: tf.distribute.Strategy, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Split a batch over the replicas; each gets `local_rows` rows, the last ones padded.

    Args:
        strategy: as `choose` returned it.
        batch: arrays or tensors [global_batch, ...]; ``weight`` is 0 for padding.
    """
    if replicas(strategy) == 1:
        return {name: tf.convert_to_tensor(value) for name, value in batch.items()}
    rows = local_rows(strategy, len(batch["weight"]))

    def part(context: tf.distribute.distribute_lib.ValueContext, value: Any) -> tf.Tensor:
        start = context.replica_id_in_sync_group * rows
        mine = tf.convert_to_tensor(value)[start : start + rows]
        missing = rows - int(mine.shape[0])
        return tf.pad(mine, [[0, missing]] + [[0, 0]] * (len(mine.shape) - 1))

    return {
        name: strategy.experimental_distribute_values_from_function(
            lambda context, value=value: part(context, value)
        )
        for name, value in batch.items()
    }


def run(strategy: tf.distribute.Strategy, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function` on every replica and return the first one's result (they agree)."""
    if replicas(strategy) == 1:
        return function(*args)
    results = strategy.run(function, args=args)
    return tf.nest.map_structure(lambda one: strategy.experimental_local_results(one)[0], results)


def replica_id() -> tf.Tensor | int:
    """Return the number of the replica that calls; 0 when there is one."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    return context.replica_id_in_sync_group


def all_reduce_sum(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sums over all replicas; called by each of them."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(tensors)
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(tensors)))


def together(function: Callable[..., None], is_so: tf.Tensor, tensors: Sequence[tf.Tensor]) -> None:
    """Call ``function(is_so, tensors)`` once for all replicas, which hold equal values.

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
    if replicas(strategy) == 1:
        function(variable, *args)
    else:
        strategy.extended.update(variable, function, args=args, group=False)
