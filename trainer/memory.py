"""Predicted peak of TensorFlow's allocator, from the traced step alone: nothing is run.

The graph of the step is walked in the order in which it runs (`trainer.order`), and each request
and each release is handed to an imitation of the allocator (`trainer.allocator`). Accumulation,
recomputation and whatever a person's own model does are then simply part of the graph. What
TensorFlow does with buffers is followed: an operation that only looks at its input in another shape
makes none, an element-wise one writes into an input that nobody else needs any more, and what
follows from constants alone is made once and stays.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from trainer.allocator import UNIT, Allocator, Chunk
from trainer.order import CALLS, constants, needed

STEPS = 3
"""Steps that are walked: the first one meets empty memory, the others what was left over."""
ITERATIONS = 3
"""Of a loop: the later ones meet what the first one left."""

VIEWS = frozenset({
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "Snapshot", "EnsureShape", "Bitcast", "CheckNumerics", "InplaceUpdate",
})  # fmt: skip
"""Operations whose output i is the buffer of input i."""

IN_PLACE = frozenset({
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Ceil", "ClipByValue", "Cos", "Div", "DivNoNan",
    "Elu", "EluGrad", "Erf", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "LeakyRelu",
    "LeakyReluGrad", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "LogicalNot", "LogicalOr",
    "Maximum", "Minimum", "Mul", "MulNoNan", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu",
    "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "SelectV2",
    "Selu", "SeluGrad", "Sigmoid",
    "SigmoidGrad", "Sign", "Sin", "Softmax", "Softplus", "SoftplusGrad",
    "SparseSoftmaxCrossEntropyWithLogits", "Sqrt", "SqrtGrad",
    "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad", "TensorScatterAdd",
    "TensorScatterUpdate", "Xdivy", "Xlogy",
})  # fmt: skip
"""Operations whose output may take the buffer of an input of the same size that dies there."""

MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMulV2", "BatchMatMulV3"})

CONVOLUTION_GRADIENTS = frozenset({"Conv2DBackpropInput", "Conv2DBackpropFilter"})
CACHES = 256 * 2**10, 30 * 2**20
"""Bytes of the second and third level that the kernels of those gradients reckon with."""

SPARSE_READS = frozenset({"ResourceGather", "ResourceGatherNd", "ResourceScatterAdd",
                          "ResourceScatterUpdate"})  # fmt: skip
"""After one of them a variable is copied whenever it is read whole or changed
(`copy_on_read_mode`, core/framework/resource_var.h)."""

CHANGES = frozenset({
    "AssignAddVariableOp", "AssignSubVariableOp", "ResourceApplyAdam", "ResourceApplyMomentum",
    "ResourceApplyGradientDescent", "ResourceApplyAdagradV2", "ResourceApplyRMSProp",
})  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """The peak, term by term, in bytes.

    Attributes:
        terms: ``weights`` and ``optimizer`` (there all the time), ``inputs`` (batches in use and
            ready), at the moment of the peak ``activations`` (of the forward pass) and
            ``gradients`` (everything of the backward pass, and the sums), ``allocator``
            (chunks that are larger than what they are used for), and ``framework`` (what the
            allocator held before).
        operations: in the traced graphs, those of the functions that they call with them.
    """

    terms: dict[str, int]
    operations: int = 0

    @property
    def total_bytes(self) -> int:
        """The predicted peak."""
        return sum(self.terms.values())


def predict_peak(
    parts: Sequence[Any],
    batch: Sequence[Any],
    *,
    state: Mapping[str, Sequence[int]],
    copies: int,
    replicas: int = 1,
    framework: int = 0,
) -> Prediction:
    """Return the predicted peak of a training with this step.

    Args:
        parts: the step's concrete functions, one after another; each takes what the one before it
            returned, the first one a batch.
        batch: bytes of each tensor of a batch.
        state: bytes of each tensor that is there all the time, by term.
        copies: how many batches there are at once, in use and ready.
        replicas: whose equal shares stand in the one graph, each on a device of its own.
        framework: bytes that the allocator holds already, and goes on to hold.
    """
    walk = Walk()
    for term, sizes in state.items():
        for size in sizes:
            walk.take(size, term)
            walk.take(UNIT, term)  # the variable's handle
    for size in [*batch] * copies:
        walk.take(size, "inputs")
    for _ in range(STEPS):
        _walk_step(walk, parts)
    terms = {term: size // replicas for term, size in walk.peak.items()}
    terms["framework"] = framework
    return Prediction(
        {term: size for term, size in terms.items() if size},
        operations=sum(_operations(part.graph) for part in parts),
    )


def _operations(graph: Any) -> int:
    told = graph.as_graph_def()
    return len(told.node) + sum(len(one.node_def) for one in told.library.function)


def _walk_step(walk: Walk, parts: Sequence[Any]) -> None:
    """Walk the parts of a step: each takes what the one before it returned."""
    given: list[_Buffer] | None = None
    for part in parts:
        captured = walk.captured(part)
        if given is None:
            given = [_Buffer(None) for _ in range(len(part.inputs) - len(captured))]
        # The caller holds what it hands over until the call is done.
        for buffer in given:
            buffer.uses += 1
        returned = walk.run(part.graph, [*given, *captured])
        for buffer in given:
            walk.drop(buffer)
        given = returned
    for buffer in given or []:
        walk.drop(buffer)


def tensor_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Return the bytes that the allocator gives for a tensor; 0 where its shape is not known."""
    return -(-_bytes(shape, dtype) // UNIT) * UNIT


def _bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    if dtype in {tf.resource, tf.variant} or not shape.is_fully_defined():
        return 0
    return math.prod(shape.as_list()) * dtype.base_dtype.size


def graph_peak(graph: Any) -> Counter[str]:
    """Return the bytes of ``activations`` and ``gradients`` when a graph's runs hold most.

    The graph's own arguments are not among them: they are their owner's. What the allocator holds
    beyond them is ``allocator``.
    """
    walk = Walk()
    for _ in range(STEPS):
        for buffer in walk.run(graph, [_Buffer(None) for _ in graph.inputs]):
            walk.drop(buffer)
    return walk.peak


@dataclass(frozen=True)
class _Held:
    """A chunk in use: how much of it, and what for."""

    chunk: Chunk
    size: int
    term: str


@dataclass(eq=False)
class _Buffer:
    """Memory that one tensor or several share.

    Attributes:
        held: where it stands; None: owned by someone else, or empty.
        uses: operations that still need it.
    """

    held: _Held | None
    uses: int = 1


class Walk:
    """Goes through a graph and takes what a run of it would.

    Attributes:
        asked: bytes by term.
        peak: the same when the allocator held most, and ``allocator``, what it held beyond it.
        constants: memory that stays, by graph, value and place among the outputs.
        copied: variables that are copied when they are read.
    """

    def __init__(self) -> None:
        self.allocator = Allocator()
        self.asked: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.constants: dict[tuple[int, int, int], _Buffer] = {}
        self.copied: set[int] = set()
        self._captured: dict[int, _Buffer] = {}

    def captured(self, function: Any) -> list[_Buffer]:
        """Return the buffers of what a function reads besides its arguments, one use of each."""
        found = []
        for tensor in function.captured_inputs:
            buffer = self._captured.setdefault(id(tensor), _Buffer(None))
            buffer.uses += 1
            found.append(buffer)
        return found

    def run(self, graph: Any, arguments: Sequence[_Buffer]) -> list[_Buffer]:
        """Walk a graph; takes over one use of each argument, gives one of each output."""
        operations = needed(graph.get_operations(), graph.outputs)
        folded = constants(operations)
        uses = Counter(
            id(tensor) for one in operations if id(one) not in folded for tensor in one.inputs
        )
        uses.update(id(tensor) for tensor in graph.outputs)
        buffers: dict[int, _Buffer] = {}
        for tensor, buffer in zip(graph.inputs, arguments, strict=True):
            buffers[id(tensor)] = buffer
            buffer.uses += uses[id(tensor)]
        for buffer in arguments:
            self.drop(buffer)
        for operation in operations:
            if operation in folded:
                self._fold(operation, folded[operation], buffers, uses)
            elif operation.type != "Placeholder":
                self._visit(operation, buffers, uses)
        return [buffers[id(tensor)] for tensor in graph.outputs]

    def take(self, size: int, term: str) -> _Buffer:
        """Ask the allocator for memory; one use of it is held."""
        if not size:
            return _Buffer(None)
        return _Buffer(self._held(size, term))

    def drop(self, buffer: _Buffer) -> None:
        """Take away one use; the last one frees the memory."""
        buffer.uses -= 1
        if buffer.uses <= 0 and buffer.held is not None:
            held, buffer.held = buffer.held, None
            self.asked[held.term] -= held.size
            self.allocator.give_back(held.chunk)

    def _held(self, size: int, term: str) -> _Held:
        size = -(-size // UNIT) * UNIT
        before = self.allocator.peak
        chunk = self.allocator.take(size)
        self.asked[term] += size
        if self.allocator.peak > before:
            self.peak = self.asked.copy()
            self.peak["allocator"] = self.allocator.peak - self.asked.total()
        return _Held(chunk, size, term)

    def _fold(
        self, operation: Any, value: int, buffers: dict[int, _Buffer], uses: Mapping[int, int]
    ) -> None:
        """Give what follows from constants alone, where something that does not needs it."""
        for place, tensor in enumerate(operation.outputs):
            if needed := uses[id(tensor)]:
                key = (id(operation.graph), value, place)
                if key not in self.constants:
                    size = _bytes(tensor.shape, tensor.dtype)
                    self.constants[key] = self.take(size, "activations")
                buffers[id(tensor)] = self.constants[key]
                buffers[id(tensor)].uses += needed

    def _visit(self, operation: Any, buffers: dict[int, _Buffer], uses: Mapping[int, int]) -> None:
        inputs = [buffers[id(tensor)] for tensor in operation.inputs]
        if operation.type in CALLS:
            made, inputs = self._call(operation, inputs)
        else:
            made = self._outputs(operation, inputs)
        for tensor, buffer in zip(operation.outputs, made, strict=True):
            buffers[id(tensor)] = buffer
            buffer.uses += uses[id(tensor)]
        for buffer in (*inputs, *made):
            self.drop(buffer)

    def _outputs(self, operation: Any, inputs: list[_Buffer]) -> list[_Buffer]:
        """Return the outputs' buffers, one use of each held."""
        made = []
        term = "gradients" if "gradient_tape" in operation.name else "activations"
        copies = [self.take(size, term) for size in _copies(operation)]
        for place, tensor in enumerate(operation.outputs):
            source = _viewed(operation, place)
            if source is not None:
                buffer = inputs[source]
                buffer.uses += 1
            else:
                buffer = self._new(operation, tensor, inputs, term)
            made.append(buffer)
        extra = [self.take(size, term) for size in self._workspace(operation, inputs)]
        for buffer in (*copies, *extra):
            self.drop(buffer)
        return made

    def _call(self, operation: Any, inputs: list[_Buffer]) -> tuple[list[_Buffer], list[_Buffer]]:
        kind = operation.type
        name = operation.get_attr(CALLS[kind]).name
        graph = operation.graph._get_function(name).graph
        if "While" in kind:
            for _ in range(_iterations(operation)):
                inputs = self.run(graph, inputs)
            return inputs, []
        skipped = 1 if "If" in kind else 0
        return self.run(graph, inputs[skipped:]), inputs[:skipped]

    def _new(self, operation: Any, tensor: Any, inputs: list[_Buffer], term: str) -> _Buffer:
        size = _bytes(tensor.shape, tensor.dtype)
        if operation.type == "ReadVariableOp" and id(inputs[0]) not in self.copied:
            return _Buffer(None)
        if operation.type in SPARSE_READS:
            self.copied.add(id(inputs[0]))
        if operation.type in IN_PLACE and (held := _dying(operation, size, inputs)):
            return _Buffer(held)
        return self.take(size, term)

    def _workspace(self, operation: Any, inputs: list[_Buffer]) -> list[int]:
        """Return the bytes that a kernel takes for itself while it runs."""
        if operation.type in CHANGES and id(inputs[0]) in self.copied:
            return [max(_bytes(one.shape, one.dtype) for one in operation.inputs)]
        if operation.type == "SparseSoftmaxCrossEntropyWithLogits":
            return [_bytes(operation.outputs[0].shape, operation.outputs[0].dtype)]
        if operation.type in MATRIX_PRODUCTS and operation.outputs[0].dtype == tf.bfloat16:
            return _float32_copies(operation)
        if operation.type in CONVOLUTION_GRADIENTS:
            return _columns_of_images(operation)
        return []


def _iterations(loop: Any) -> int:
    """Return how often a loop's body is to be walked: no more than it is run, where that is known.

    Known where the condition compares a counter from 0 with a constant.
    """
    condition = loop.graph._get_function(loop.get_attr("cond").name).graph
    test = condition.outputs[0].op
    while test.type in {"Identity", "LogicalAnd"}:
        # A limit on the iterations comes first; the caller's own condition after it.
        test = test.inputs[-1].op
    known = tf.get_static_value(test.inputs[1]) if test.type == "Less" else None
    return ITERATIONS if known is None else min(int(known), ITERATIONS)


def _copies(operation: Any) -> list[int]:
    """Return the bytes that an einsum takes before its output.

    It makes a matrix product of what it is asked for: axes of a factor come in the order batch,
    free, contracted (or batch, contracted, free), those of the product batch, free of both; what
    stands in another order is copied (tensorflow/core/kernels/linalg/einsum_op_impl.h).
    """
    if operation.type != "Einsum" or len(operation.inputs) != 2:
        return []
    left, out = operation.get_attr("equation").decode().split("->")
    factors = left.split(",")
    if "." in left or any(len(set(one)) < len(one) for one in factors):
        return []
    numbers = {one: place for place, one in enumerate(dict.fromkeys("".join(factors)))}

    def kind(label: str) -> int:
        is_shared = all(label in one for one in factors)
        return (0 if label in out else 2) if is_shared else (1 if label in out else 3)

    def is_in_order(labels: str) -> bool:
        swapped = [{1: 2, 2: 1}.get(kind(one), kind(one)) for one in labels]
        straight = sorted(labels, key=lambda one: (kind(one), numbers[one]))
        return list(labels) == straight or swapped == sorted(swapped)

    sizes = [_bytes(tensor.shape, tensor.dtype)
             for tensor, labels in zip(operation.inputs, factors, strict=True)
             if not is_in_order(labels)]  # fmt: skip
    product = sorted((one for one in out if kind(one) == 0), key=numbers.__getitem__)
    for labels in factors:
        free = [one for one in labels if kind(one) == 1]
        product += sorted(free, key=numbers.__getitem__)
    if list(out) != product:
        sizes.append(_bytes(operation.outputs[0].shape, operation.outputs[0].dtype))
    return [size for size in sizes if size]


def _float32_copies(operation: Any) -> list[int]:
    """Return the bytes of both factors and the product in float32.

    CPUs have no bfloat16 products without AMX: TensorFlow makes such copies
    (tensorflow/core/kernels/matmul_op_impl.h).
    """
    if tf.config.list_physical_devices("GPU"):
        return []
    tensors = (*operation.inputs, *operation.outputs)
    return [size for one in tensors if (size := _bytes(one.shape, tf.float32))]


def _columns_of_images(operation: Any) -> list[int]:
    """Return the bytes in which a CPU lays patches of images out as rows of a matrix.

    Images go through it some at a time: as many as fill the cache, or one where a single product is
    large enough for all threads (tensorflow/core/kernels/conv_grad_filter_ops.cc,
    conv_grad_input_ops.h: the same rule in both). oneDNN, which TensorFlow takes where the
    processor has AVX512_VNNI or its like, lays nothing out: its own scratch is below 1 MiB.
    """
    if tf.config.list_physical_devices("GPU") or _pywrap_util_port.IsMklEnabled():
        return []
    is_filter = operation.type == "Conv2DBackpropFilter"
    filters = operation.outputs[0] if is_filter else operation.inputs[1]
    arrives, size = operation.inputs[2], operation.inputs[2].dtype.size
    if not (filters.shape.is_fully_defined() and arrives.shape.is_fully_defined()):
        return []
    *window, channels = filters.shape.as_list()
    images, height, width, _ = arrives.shape.as_list()
    patch, places = math.prod(window), height * width
    work = places * channels + patch * channels + places * patch
    second, third = (one // size for one in CACHES)
    is_large = images == 1 or work // (os.cpu_count() or 1) >= second
    at_once = 1 if is_large else -(-third // work)
    return [at_once * places * patch * size]


def _dying(operation: Any, size: int, inputs: list[_Buffer]) -> _Held | None:
    """Return the memory of an input of `size` that nobody else needs, taking it away from it."""
    # One that is read twice by this very operation is held twice.
    for tensor, one in zip(operation.inputs, inputs, strict=True):
        if (
            one.held is not None
            and one.uses == 1
            and tensor.dtype.size == operation.outputs[0].dtype.size
            and (_bytes(tensor.shape, tensor.dtype) == size)
        ):
            held, one.held = one.held, None
            return held
    return None


def _viewed(operation: Any, place: int) -> int | None:
    """Return which input's buffer output `place` is a view of, if it is one."""
    kind = operation.type
    if kind in VIEWS:
        return place
    if kind in {"Unpack", "Slice", "StridedSlice", "SplitV"}:
        return 0 if _cuts_first_axis(operation) else None
    if kind == "Split":
        return 1 if _cuts_first_axis(operation) else None
    if kind == "Cast" and operation.inputs[0].dtype == operation.outputs[0].dtype:
        return 0
    if kind == "Transpose" and _keeps_order(operation):
        return 0
    return None


def _keeps_order(operation: Any) -> bool:
    """Tell whether a transposition moves axes of length 1 alone."""
    order = tf.get_static_value(operation.inputs[1])
    shape = operation.inputs[0].shape
    if order is None or not shape.is_fully_defined():
        return False
    longer = [axis for axis in order if shape[int(axis)] != 1]
    return longer == sorted(longer)


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
    # Whole in every axis but the first, which may be cut or dropped; axes of length 1 may come.
    rest = [size for size in before[1:] if size != 1]
    kept = [size for size in after if size != 1]
    return kept[-len(rest) :] == rest and len(kept) <= len(rest) + 1 if rest else not kept[1:]
