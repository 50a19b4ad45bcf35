"""The operations of a traced function run one after another, as they were written.

TensorFlow starts whatever is ready, two operations at once and in an order that changes from run
to run. Memory then hangs on luck: gradients of weights, for which nobody waits, are left for the
end, and keep the activations of all layers until then; a recomputed block is computed while the
one before it still stands. In the order in which Python wrote them a layer's activations are
followed by all that reads them, so each is freed as early as it can be, and the peak is the same
in every run, known from the graph alone. Each kernel still uses all cores (or the GPU).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

SMALL = 4096
"""Bytes; operations on smaller tensors run whenever they are ready."""

FREE = frozenset({"Const", "Placeholder", "NoOp", "ReadVariableOp", "VarHandleOp"})
"""Operations that make nothing."""

CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "While": "body",
         "StatelessWhile": "body", "If": "then_branch", "StatelessIf": "then_branch"}  # fmt: skip
"""Operations that run another graph, and the attribute that names it.

Of two branches the first is followed: it is the one that applies the update.
"""

GREATEST_CONSTANT = 10 * 2**20
"""Bytes; larger results are made anew each time (common_runtime/constant_folding.cc)."""


def keep_graphs() -> None:
    """Have TensorFlow run graphs as they were traced; for all functions called after it.

    Its graph optimizer finds that a recomputed block repeats the block, and keeps the results of
    the first run after all: 115 MB instead of 85 for two blocks of a language model, in equal time
    (with and without it a step of six takes 0.54 s). Of GPUs it still chooses the layout of images.
    """
    options: dict[str, Any] = {"disable_meta_optimizer": True}
    if tf.config.list_physical_devices("GPU"):
        options = {"arithmetic_optimization": False, "remapping": False,
                   "common_subgraph_elimination": False}  # fmt: skip
    tf.config.optimizer.set_experimental_options(options)


def in_program_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that, traced into a graph, runs its operations in the order it made them.

    It has to be the body of the graph (what `tf.function` or `tf.while_loop` traces): all that is
    in its graph when it returns is put in order. Operations of several devices are put in order on
    each device by itself; collectives wait for their inputs alone. Called eagerly it does nothing.
    """

    def ordered(*arguments: Any) -> Any:
        result = function(*arguments)
        if not tf.executing_eagerly():
            operations = tf.compat.v1.get_default_graph().get_operations()
            _chain(
                needed(operations, [one for one in tf.nest.flatten(result) if tf.is_tensor(one)])
            )
        return result

    return ordered


def fresh_zeros(shape: Any, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Return zeros that a loop may write into; their memory is free again when nobody needs them.

    `tf.zeros` would be a constant, which TensorFlow keeps for good and copies to write into it.
    """
    return tf.raw_ops.Empty(shape=tf.convert_to_tensor(shape, tf.int32), dtype=dtype, init=True)


def needed(operations: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the operations of a graph that are run: those with an effect, and all they need."""
    found: set[int] = set()
    left = [tensor.op for tensor in outputs]
    left += [one for one in operations if one.op_def.is_stateful and one.type != "Placeholder"]
    while left:
        one = left.pop()
        if id(one) not in found:
            found.add(id(one))
            left += [tensor.op for tensor in one.inputs]
            left += one.control_inputs
    return [one for one in operations if id(one) in found]


def constants(operations: Sequence[Any]) -> dict[Any, int]:
    """Return the operations whose results TensorFlow computes once and keeps, with their value.

    They follow from constants alone. Equal ones have the same value, a number that means nothing
    else, and share their memory.
    """
    values: dict[Any, int] = {}
    known: dict[Any, int] = {}
    for one in operations:
        if one.type == "Const":
            key: Any = one.get_attr("value").SerializeToString()
        elif (
            one.inputs
            and one.type not in CALLS
            and not one.op_def.is_stateful
            and all(tensor.op in values for tensor in one.inputs)
            and all(_bytes(tensor) <= GREATEST_CONSTANT for tensor in one.outputs)
        ):
            inputs = tuple((values[tensor.op], tensor.value_index) for tensor in one.inputs)
            settings = one.node_def.attr
            key = (one.type, inputs, *(
                (name, settings[name].SerializeToString()) for name in sorted(settings)
                if not name.startswith("_")
            ))  # fmt: skip
        else:
            continue
        values[one] = known.setdefault(key, len(known))
    return values


def _chain(operations: list[Any]) -> None:
    last: dict[str, Any] = {}
    folded = constants(operations)
    for operation in operations:
        if (
            operation in folded
            or operation.type in FREE
            or "Collective" in operation.type
            or not _is_large(operation)
        ):
            continue
        before = last.get(operation.device)
        if before is not None and not _reads(operation, before):
            operation._add_control_input(before)
        last[operation.device] = operation


def _reads(operation: Any, other: Any) -> bool:
    return any(tensor.op is other for tensor in operation.inputs)


def _is_large(operation: Any) -> bool:
    return any(_bytes(tensor) > SMALL for tensor in (*operation.inputs, *operation.outputs))


def _bytes(tensor: Any) -> float:
    if tensor.dtype in {tf.resource, tf.variant}:
        return 0
    if not tensor.shape.is_fully_defined():
        return math.inf
    return math.prod(tensor.shape.as_list()) * tensor.dtype.size
