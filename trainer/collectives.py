"""What workers compute together: sums and concatenations of a tensor of each.

The raw operations with the number of workers as a plain number, not those of a strategy, so that
one process can trace the step of any number of workers, which the planner does. With one worker
every function is the identity and makes no operation.

Every worker must call the same ones in the same order, or all wait. Inside a `tf.function` a token
(a resource that each operation seems to write) makes TensorFlow keep the order in which they were
traced, also in loops, branches and recomputed blocks. Which of them belong together is told by
keys; a channel's keys start at a number that all workers have agreed on when it is opened, so it
does no harm that one of them has traced other functions before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainer.cluster import Workers

GROUP = 7001
"""Key of the group of all workers; MultiWorkerMirroredStrategy counts its own up from 1."""
KEYS = 2**16
"""Collectives that a channel may trace."""
NO_TIMEOUT = 0.0
"""TensorFlow keeps any other by a thread for each collective that sleeps as long, done or not: some
hundred steps later a process has no thread left. `trainer.pulse` has the bound."""
BUCKET_BYTES = 2**20
"""Small tensors travel together up to this size.

A collective costs 4 ms between two processes of one machine however small it is, and 20 ms a MiB.
"""


class Channel:
    """The collectives of one training step; the same on every worker.

    Attributes:
        workers: who takes part.
        handed_out: keys that the channels opened by this one have taken.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.handed_out = KEYS
        self._traced = 0
        self._eager: dict[tuple[Any, ...], int] = {}
        if workers.count > 1:
            # Made in no function, wherever the first use is; the key is read on the host.
            self._token = tf.Variable(0.0, trainable=False, name="order")
            with tf.device("CPU:0"):
                self._first_key = tf.Variable(0, dtype=tf.int32, trainable=False, name="first_key")

    def open(self, channel: Channel) -> None:
        """Let another channel be used; called by all workers at the same moment."""
        if self.workers.count == 1:
            return
        first = int(self.largest(tf.constant(self.handed_out)))
        channel._first_key.assign(first)
        self.handed_out = first + KEYS

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum of the workers' tensors, the same bits on each."""
        return self._reduce(tensor, "Add")

    def largest(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the element-wise maximum of the workers' tensors."""
        return self._reduce(tensor, "Max")

    def smallest(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the element-wise minimum of the workers' tensors."""
        return self._reduce(tensor, "Min")

    def joined(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return [N * k]: the workers' tensors [k], by rank."""
        if self.workers.count == 1:
            return tensor
        return tf.raw_ops.CollectiveGatherV2(input=tensor, **self._place("Gather", tensor))

    def scattered(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return this worker's row [k] of the sum of the workers' tensors [N, k]."""
        if self.workers.count == 1:
            return tensor[0]
        if not tf.config.list_physical_devices("GPU"):
            # CollectiveReduceScatterV2 is made for GPUs alone. A copy, since a row of a tensor is
            # a view that keeps all of it.
            return tf.raw_ops.DeepCopy(x=self.sum(tensor)[self.workers.rank])
        part = tf.raw_ops.CollectiveReduceScatterV2(
            input=tensor, merge_op="Add", final_op="Id", **self._place("Scatter", tensor)
        )
        return part[0]

    def agree(self, flag: bool) -> bool:
        """Return whether any worker says so; not for use inside a traced function."""
        return bool(self.largest(tf.constant(int(flag))) > 0)

    def _reduce(self, tensor: tf.Tensor, operation: str) -> tf.Tensor:
        tensor = tf.convert_to_tensor(tensor)
        if self.workers.count == 1:
            return tensor
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor, merge_op=operation, final_op="Id", **self._place(operation, tensor)
        )

    def _place(self, operation: str, tensor: tf.Tensor) -> dict[str, Any]:
        number = self._number((operation, tensor.dtype, tuple(tensor.shape)))
        with tf.device("CPU:0"):
            key = self._first_key + number
        return {
            "group_size": self.workers.count,
            "group_key": GROUP,
            "instance_key": key,
            "ordering_token": [self._token.handle],
            "timeout_seconds": NO_TIMEOUT,
        }

    def _number(self, kind: tuple[Any, ...]) -> int:
        """Return which of the channel's keys this collective has.

        Outside of functions each ends before the next begins, so one key does for all of a kind;
        tensors of another shape need another one.

        Raises:
            RuntimeError: when none is left.
        """
        if tf.executing_eagerly():
            return self._eager.setdefault(kind, KEYS - 1 - len(self._eager))
        self._traced += 1
        if self._traced + len(self._eager) >= KEYS:
            raise RuntimeError(f"more than {KEYS} collectives were traced in one channel")
        return self._traced


def buckets(sizes: Sequence[int], *, limit: int = BUCKET_BYTES) -> list[list[int]]:
    """Return the places of `sizes`, in order, in groups of at most `limit` together.

    Args:
        sizes: bytes of each tensor; one above the limit is a group of its own.
        limit: bytes of a group.
    """
    groups: list[list[int]] = []
    filled = limit + 1
    for place, size in enumerate(sizes):
        if filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += size
    return groups
