"""Predicted peak of TensorFlow's allocator, from the traced step alone: nothing is run.

The graph of the step is walked in the order in which it was made, with each buffer's birth and
last use. Accumulation, recomputation and whatever a person's own model does are then simply part
of the graph. What TensorFlow does with buffers is followed where it matters: an operation that
only looks at its input in another shape makes none, and an element-wise one writes into an input
that nobody else needs any more.

What it cannot know: which operations happen to run at once, and what the graph optimizer fuses. For
the first, memory is taken to be free again one operation later than it could be. For the second, a
model of dense layers with GELU, which oneDNN has one kernel for, is foreseen 20 to 30 % too high.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

ROUNDING = 256
"""Bytes; the allocator gives out multiples of it (tsl/framework/bfc_allocator.h)."""
UNUSED = 0.12
"""What the allocator holds beyond what was asked for, as a share of that.

It gives a free chunk whole to a request that is more than half as large, so the rest lies idle:
3 to 17 % over fourteen models, batches and precisions, 11 % on average. Imitating it chunk by chunk
was tried, and was further off (up to 16 % of the peak, against 6 %): it hangs on the exact order.
"""
ITERATIONS = 2
"""Of a loop: the second one meets what the first one left."""

VIEWS = frozenset({
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "Snapshot", "ReadVariableOp", "EnsureShape", "Bitcast", "CheckNumerics",
})  # fmt: skip
"""Operations whose output i is the buffer of input i."""

IN_PLACE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Div", "DivNoNan", "Elu", "EluGrad", "Erf", "Exp",
    "Gelu", "LeakyRelu", "Log", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum",
    "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6",
    "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Selu", "Sigmoid", "SigmoidGrad", "Sign",
    "Softmax", "Softplus", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh",
    "TanhGrad", "Xdivy", "ClipByValue",
})  # fmt: skip
"""Operations whose output may take the buffer of an input of the same size that dies there."""

CONSTANT = frozenset({"Const", "ZerosLike", "OnesLike", "Fill"})
"""Operations that the graph optimizer replaces by a tensor that stays, where shapes are static."""

GREATEST_CONSTANT = 10 * 2**20
"""Bytes; larger ones stay operations (grappler/optimizers/constant_folding.cc)."""

MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMulV2", "BatchMatMulV3"})

OVERLAP = 2
"""Operations that run at once; while they do, what each has read stays."""

SMALL = 4096
"""Bytes; an operation that makes no more than this is done before another one begins."""

CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "While": "body",
         "StatelessWhile": "body", "If": "then_branch", "StatelessIf": "then_branch"}  # fmt: skip
"""Operations that run another graph, and the attribute that names it.

Of two branches the first is followed: it is the one that applies the update.
"""


@dataclass(frozen=True)
class Prediction:
    """The peak, term by term, in bytes.

    Attributes:
        terms: ``weights`` and ``optimizer`` (there all the time), ``inputs`` (batches in use and
            ready), at the moment of the peak ``activations`` (of the forward pass) and
            ``gradients`` (everything of the backward pass, and the sums), and ``allocator``
            (chunks that are larger than what they are used for).
    """

    terms: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """The predicted peak."""
        return sum(self.terms.values())


def predict_peak(
    step: Any,
    arguments: Sequence[Any],
    *,
    state: Mapping[str, int],
    copies: int,
    replicas: int = 1,
) -> Prediction:
    """Return the predicted peak of a training with this step.

    Args:
        step: a `tf.function`, which is traced (once: calls with such arguments use the trace).
        arguments: tensors of static shape, or nests of them.
        state: bytes of what is there all the time, by term.
        copies: how many batches there are at once, in use and ready.
        replicas: whose equal shares stand in the one graph, each on a device of its own.
    """
    function = step.get_concrete_function(*arguments)
    peak = graph_peak(function.graph)
    activations, gradients = (peak[one] // replicas for one in ("activations", "gradients"))
    batch = sum(tensor_bytes(one.shape, one.dtype) for one in function.inputs)
    return Prediction({
        **state,
        "inputs": copies * batch // replicas,
        "activations": activations,
        "gradients": gradients,
        "allocator": round(UNUSED * (activations + gradients)),
    })  # fmt: skip


def tensor_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Return the bytes that the allocator gives for a tensor; 0 where its shape is not known."""
    if dtype in {tf.resource, tf.variant} or not shape.is_fully_defined():
        return 0
    return -(-math.prod(shape.as_list()) * dtype.base_dtype.size // ROUNDING) * ROUNDING


def graph_peak(graph: Any) -> Counter[str]:
    """Return the bytes of ``activations`` and ``gradients`` when a graph's runs hold most.

    The graph's own arguments are not among them: they are their owner's.
    """
    walk = _Walk()
    walk.run(graph, [_Buffer(None, uses=1) for _ in graph.inputs])
    return walk.peak


@dataclass(frozen=True)
class _Chunk:
    """Bytes in use, and what for."""

    size: int
    term: str


@dataclass(eq=False)
class _Buffer:
    """Memory that one tensor or several share.

    Attributes:
        chunk: where it stands; None: owned by someone else, or empty.
        uses: operations that still need it.
    """

    chunk: _Chunk | None
    uses: int = 0


class _Walk:
    """Goes through a graph and takes what a run of it would.

    Attributes:
        in_use: bytes by term.
        peak: the same when their sum was greatest.
        constants: memory that stays, by the name of its operation.
        leaving: memory that nobody needs any more, in the order in which it will be free.
        newest: what the last operation made.
    """

    def __init__(self) -> None:
        self.in_use: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.constants: dict[str, _Buffer] = {}
        self.leaving: deque[list[_Chunk]] = deque([[]], maxlen=OVERLAP)
        self.newest: _Buffer | None = None

    def run(self, graph: Any, arguments: Sequence[_Buffer]) -> list[_Buffer]:
        """Walk a graph; takes over one use of each argument, gives one of each output."""
        operations = graph.get_operations()
        uses = Counter(id(tensor) for one in operations for tensor in one.inputs)
        uses.update(id(tensor) for tensor in graph.outputs)
        buffers: dict[int, _Buffer] = {}
        for tensor, buffer in zip(graph.inputs, arguments, strict=True):
            buffers[id(tensor)] = buffer
            buffer.uses += uses[id(tensor)]
        for buffer in arguments:
            self.drop(buffer)
        for operation in operations:
            if operation.type != "Placeholder":
                self._visit(operation, buffers, uses)
        return [buffers[id(tensor)] for tensor in graph.outputs]

    def drop(self, buffer: _Buffer) -> None:
        """Take away one use; the last one frees the memory."""
        buffer.uses -= 1
        if buffer.uses <= 0 and buffer.chunk is not None:
            self.leaving[-1].append(buffer.chunk)
            buffer.chunk = None

    def _take(self, size: int, term: str) -> _Chunk:
        self.in_use[term] += size
        if self.in_use.total() > self.peak.total():
            self.peak = self.in_use.copy()
        return _Chunk(size, term)

    def _free(self, chunks: list[_Chunk]) -> None:
        for chunk in chunks:
            self.in_use[chunk.term] -= chunk.size

    def _settle(self) -> None:
        """Free what nobody needs: no operation runs that reads it."""
        for chunks in self.leaving:
            self._free(chunks)
        self.leaving.clear()
        self.leaving.append([])

    def _begin(self, inputs: list[_Buffer]) -> None:
        """Begin another operation: what the one `OVERLAP` before it had read is free.

        One that reads what the last one made has waited for it, and so runs alone.
        """
        if any(one is self.newest for one in inputs):
            self._settle()
        elif len(self.leaving) == OVERLAP:
            self._free(self.leaving[0])
        self.leaving.append([])

    def _visit(self, operation: Any, buffers: dict[int, _Buffer], uses: Mapping[int, int]) -> None:
        inputs = [buffers[id(tensor)] for tensor in operation.inputs]
        made, taken = self._outputs(operation, inputs)
        for tensor, buffer in zip(operation.outputs, made, strict=True):
            buffers[id(tensor)] = buffer
            buffer.uses += uses[id(tensor)]
        for buffer in (*taken, *made):
            self.drop(buffer)

    def _outputs(
        self, operation: Any, inputs: list[_Buffer]
    ) -> tuple[list[_Buffer], list[_Buffer]]:
        """Return the outputs' buffers, one use of each held, and the inputs still to be dropped."""
        if operation.type in CALLS:
            return self._call(operation, inputs)
        made = []
        for place, tensor in enumerate(operation.outputs):
            source = _viewed(operation, place)
            buffer = self._new(operation, tensor, inputs) if source is None else inputs[source]
            buffer.uses += 1
            made.append(buffer)
        return made, inputs

    def _call(self, operation: Any, inputs: list[_Buffer]) -> tuple[list[_Buffer], list[_Buffer]]:
        kind = operation.type
        name = operation.get_attr(CALLS[kind]).name
        graph = operation.graph._get_function(name).graph
        if "While" in kind:
            for _ in range(ITERATIONS):
                inputs = self.run(graph, inputs)
            return inputs, []
        skipped = 1 if "If" in kind else 0
        return self.run(graph, inputs[skipped:]), inputs[:skipped]

    def _new(self, operation: Any, tensor: Any, inputs: list[_Buffer]) -> _Buffer:
        size = tensor_bytes(tensor.shape, tensor.dtype)
        if operation.type in CONSTANT and size <= GREATEST_CONSTANT:
            return self._constant(operation, size)
        if operation.type in IN_PLACE and (chunk := _dying(operation, size, inputs)):
            return _Buffer(chunk)
        if not size:
            return _Buffer(None)
        if size > SMALL:
            self._begin(inputs)
        term = "gradients" if "gradient_tape" in operation.name else "activations"
        taken = self._take(size, term)
        for extra in _workspace(operation):
            self.leaving[-1].append(self._take(extra, term))
        self.newest = _Buffer(taken)
        return self.newest

    def _constant(self, operation: Any, size: int) -> _Buffer:
        # Equal ones become a single one; the value of a Const itself is not looked at.
        name = f"{id(operation.graph)}/{operation.name}" if operation.type == "Const" else ""
        tensor = operation.outputs[0]
        key = f"{operation.type}/{tensor.dtype.name}/{tensor.shape}/{name}"
        if key not in self.constants:
            chunk = self._take(size, "activations") if size else None
            self.constants[key] = _Buffer(chunk, uses=1)
        return self.constants[key]


def _workspace(operation: Any) -> list[int]:
    """Return the bytes that a kernel takes for itself while it runs.

    CPUs have no bfloat16 products without AMX: TensorFlow makes float32 copies of both factors and
    of the product (tensorflow/core/kernels/matmul_op_impl.h).
    """
    if operation.type not in MATRIX_PRODUCTS or operation.outputs[0].dtype != tf.bfloat16:
        return []
    if tf.config.list_physical_devices("GPU"):
        return []
    tensors = (*operation.inputs, *operation.outputs)
    return [size for one in tensors if (size := tensor_bytes(one.shape, tf.float32))]


def _dying(operation: Any, size: int, inputs: list[_Buffer]) -> _Chunk | None:
    """Return the memory of an input of `size` that nobody else needs, taking it away from it."""
    counts = Counter(id(one) for one in inputs)
    for tensor, one in zip(operation.inputs, inputs, strict=True):
        is_alone = one.chunk is not None and one.uses == counts[id(one)]
        if is_alone and tensor_bytes(tensor.shape, tensor.dtype) == size:
            chunk, one.chunk = one.chunk, None
            return chunk
    return None


def _viewed(operation: Any, place: int) -> int | None:
    """Return which input's buffer output `place` is a view of, if it is one."""
    if operation.type in VIEWS:
        return place
    if operation.type in {"Unpack", "Slice", "StridedSlice", "SplitV"}:
        return 0 if _cuts_first_axis(operation) else None
    if operation.type == "Split":
        return 1 if _cuts_first_axis(operation) else None
    return None


def _cuts_first_axis(operation: Any) -> bool:
    """Tell whether outputs are contiguous parts of the input, which need no copy."""
    if operation.type == "Unpack":
        return operation.get_attr("axis") == 0
    if operation.type in {"Split", "SplitV"}:
        axis = tf.get_static_value(operation.inputs[0 if operation.type == "Split" else 2])
        return axis is not None and int(axis) == 0
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if not before.rank or after.rank is None:
        return False
    # Whole in every axis but the first, which may be cut or dropped.
    rest = before[1:].as_list()
    return rest in ([*after[1:]], [*after])
