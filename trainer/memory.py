"""Predicted peak of TensorFlow's allocator, from the traced step alone: nothing is run.

The graph of the step is walked in the order in which it was made, with each buffer's birth and
last use. Accumulation, recomputation and whatever a person's own model does are then simply part
of the graph. What TensorFlow does with buffers is followed where it matters: an operation that
only looks at its input in another shape makes none, and an element-wise one writes into an
input that nobody else needs any more.

What it cannot know: two operations that run at once, and what the graph optimizer rewrites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

ROUNDING = 256
"""Bytes; the allocator gives out multiples of it (tensorflow/core/framework/bfc_allocator.h)."""

VIEWS = frozenset({
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "Snapshot", "ReadVariableOp", "EnsureShape", "Bitcast", "CheckNumerics",
})  # fmt: skip
"""Operations whose output i is the buffer of input i."""

SLICES = frozenset({"Unpack", "Split", "SplitV", "StridedSlice", "Slice"})
"""Operations that give out parts of their input's buffer when they cut along the first axis."""

IN_PLACE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Exp",
    "Gelu", "LeakyRelu", "Log", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum",
    "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Selu", "Sigmoid", "SigmoidGrad", "Sign",
    "Softmax", "Softplus", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh",
    "TanhGrad", "Xdivy", "ClipByValue",
})  # fmt: skip
"""Operations whose output may take the buffer of an input of the same size that dies there."""


@dataclass(frozen=True)
class Prediction:
    """The peak, term by term, in bytes.

    Attributes:
        terms: ``weights`` and ``optimizer`` (there all the time), ``inputs`` (batches that are
            ready or in use), and at the moment of the peak ``activations`` (of the forward pass)
            and ``gradients`` (everything of the backward pass, and the sums).
    """

    terms: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """The predicted peak."""
        return sum(self.terms.values())


def predict_peak(step: Any, arguments: Sequence[Any], *, state: Mapping[str, int]) -> Prediction:
    """Return the predicted peak of a training with this step.

    Args:
        step: a `tf.function`, which is traced (once: calls with such arguments use the trace).
        arguments: tensors of static shape, or their specs.
        state: bytes of what is there all the time, by term.
    """
    graph = step.get_concrete_function(*arguments).graph
    peak = graph_peak(graph)
    return Prediction({
        **state, "activations": peak["activations"], "gradients": peak["gradients"],
    })  # fmt: skip


def tensor_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Return the bytes that the allocator gives for a tensor; 0 where its shape is not known."""
    if dtype in {tf.resource, tf.variant} or not shape.is_fully_defined():
        return 0
    size = math.prod(shape.as_list()) * dtype.base_dtype.size
    return -(-size // ROUNDING) * ROUNDING


def graph_peak(graph: tf.Graph) -> Counter[str]:
    """Return the bytes of ``activations`` and ``gradients`` when a graph's run holds most.

    The graph's own arguments are not among them: they are their owner's.
    """
    return _Walk(graph).run()


@dataclass
class _Buffer:
    size: int
    term: str
    uses: int = 0
    is_owned: bool = True


@dataclass
class _Walk:
    """One pass over a graph, with what is alive."""

    graph: Any
    buffers: dict[int, _Buffer] = field(default_factory=dict)
    alive: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    def run(self) -> Counter[str]:
        operations = self.graph.get_operations()
        self._place(operations)
        for operation in operations:
            self._visit(operation)
        return self.most

    def _place(self, operations: Sequence[Any]) -> None:
        """Give each tensor its buffer (shared by views) and count the buffer's uses."""
        for operation in operations:
            for place, tensor in enumerate(operation.outputs):
                source = _viewed(operation, place)
                self.buffers[id(tensor)] = (
                    self.buffers[id(source)]
                    if source is not None
                    else _new_buffer(operation, tensor)
                )
            for tensor in operation.inputs:
                self.buffers[id(tensor)].uses += 1
        for tensor in self.graph.outputs:
            self.buffers[id(tensor)].uses += 1

    def _visit(self, operation: Any) -> None:
        inputs = [self.buffers[id(tensor)] for tensor in operation.inputs]
        within = _inner_peak(operation)
        born = self._born(operation, inputs)
        for buffer in born:
            self.alive[buffer.term] += buffer.size
        self._note(within)
        for buffer in inputs:
            buffer.uses -= 1
            if buffer.uses == 0:
                self._free(buffer)
        for buffer in {id(one): one for one in born}.values():
            if buffer.uses == 0:
                self._free(buffer)

    def _born(self, operation: Any, inputs: list[_Buffer]) -> list[_Buffer]:
        """Return the buffers that the operation makes; it may take over a dying input's."""
        born = []
        seen = {id(one) for one in inputs}
        for tensor in operation.outputs:
            buffer = self.buffers[id(tensor)]
            if id(buffer) in seen or not buffer.is_owned:
                continue
            if operation.type in IN_PLACE:
                self._take_over(buffer, inputs)
            born.append(buffer)
        return born

    def _take_over(self, buffer: _Buffer, inputs: list[_Buffer]) -> None:
        counts = Counter(id(one) for one in inputs)
        for one in inputs:
            dies = one.is_owned and one.uses == counts[id(one)]
            if dies and one.size == buffer.size and one.size:
                self.alive[one.term] -= one.size
                one.size = 0
                return

    def _free(self, buffer: _Buffer) -> None:
        if buffer.is_owned:
            self.alive[buffer.term] -= buffer.size
            buffer.size = 0

    def _note(self, within: Counter[str]) -> None:
        if sum(self.alive.values()) + sum(within.values()) > sum(self.most.values()):
            self.most = self.alive + within


def _new_buffer(operation: Any, tensor: Any) -> _Buffer:
    term = "gradients" if "gradient_tape" in operation.name else "activations"
    is_owned = operation.type not in {"Placeholder", "VarHandleOp"}
    return _Buffer(tensor_bytes(tensor.shape, tensor.dtype), term, is_owned=is_owned)


def _viewed(operation: Any, place: int) -> Any | None:
    """Return the input whose buffer output `place` is a view of, if it is one."""
    kind = operation.type
    if kind in VIEWS:
        return operation.inputs[place]
    if kind in {"While", "StatelessWhile"}:
        return operation.inputs[place]
    if kind in SLICES and _cuts_first_axis(operation):
        return operation.inputs[1 if kind == "Split" else 0]
    return None


def _cuts_first_axis(operation: Any) -> bool:
    if operation.type == "Unpack":
        return operation.get_attr("axis") == 0
    if operation.type in {"Split", "SplitV"}:
        axis = tf.get_static_value(operation.inputs[0 if operation.type == "Split" else 2])
        return axis is not None and int(axis) == 0
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if before.rank is None or after.rank is None or not before.rank:
        return False
    # Whole in every axis but the first, which may be cut or dropped.
    return before[1:] in {after[1:], after} or before[1:].as_list() == after.as_list()


def _inner_peak(operation: Any) -> Counter[str]:
    """Return what the graphs that an operation calls hold at their peak."""
    names = {
        "While": ("body",), "StatelessWhile": ("body",),
        "If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch"),
        "PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",),
    }.get(operation.type, ())  # fmt: skip
    peaks = [
        graph_peak(operation.graph._get_function(operation.get_attr(name).name).graph)
        for name in names
    ]
    return max(peaks, key=lambda one: sum(one.values()), default=Counter())
