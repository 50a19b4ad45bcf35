"""How the layers of a model are run: as they are, recomputed, or with weights gathered for a while.

A Keras layer becomes a function of tensors alone by `keras.StatelessScope`: the weights are among
its arguments, so that `tf.recompute_grad` gives a gradient for each, and keeps none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.recompute import recompute
from trainer.shard import Parameters, without_values


class Blocks:
    """Runs the layers of one model in one forward pass after another.

    Attributes:
        recompute: blocks, from the first, whose activations are computed again for their gradient.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    """

    def __init__(self, recompute: int = 0, parameters: Parameters | None = None) -> None:
        self.recompute, self.parameters = recompute, parameters

    def run(self, index: int, layer: Any, *tensors: tf.Tensor, **constants: Any) -> Any:
        """Run block `index`.

        Args:
            index: from 0.
            layer: a Keras layer; besides the tensors it reads its variables alone.
            tensors: by place; the first one is float, [B, ...].
            constants: Python values by name. Nothing is recomputed unless ``training`` is true.
        """
        is_recomputed = index < self.recompute and bool(constants.get("training"))
        return self._run(layer, tensors, constants, is_recomputed=is_recomputed)

    def once(self, layer: Any, *tensors: tf.Tensor, **constants: Any) -> Any:
        """Run a layer that is no block: its activations are kept, unless its weights are not."""
        return self._run(layer, tensors, constants, is_recomputed=False)

    def function(
        self, layer: Any, call: Callable[..., Any], *, is_recomputed: bool
    ) -> Callable[..., Any]:
        """Return `call` as it is to be run: a function of the same tensors.

        Args:
            layer: whose weights `call` reads; or a list of variables.
            call: takes tensors by place, returns a tensor or a tuple of them, all float.
            is_recomputed: whether its activations are computed again.
        """
        if self.parameters is not None:
            is_recomputed = is_recomputed or not self.parameters.keeps_whole
            return _gathered(self.parameters, layer, call, is_recomputed=is_recomputed)
        return recompute(call) if is_recomputed else call

    def _run(
        self, layer: Any, tensors: Sequence[tf.Tensor], constants: Any, *, is_recomputed: bool
    ) -> Any:
        def call(*tensors: tf.Tensor) -> Any:
            return layer(*tensors, **constants)

        return self.function(layer, call, is_recomputed=is_recomputed)(*tensors)

    def build(self, make: Callable[[], Any]) -> Any:
        """Return the model that `make` makes, its weights cut up where no worker holds all."""
        if self.parameters is None:
            return make()
        values = contextlib.nullcontext() if self.parameters.keeps_whole else without_values()
        with values:
            model = make()
        self.parameters.adopt(model.variables)
        return model


def _gathered(
    parameters: Parameters, layer: Any, call: Callable[..., Any], *, is_recomputed: bool
) -> Callable[..., Any]:
    """Return `call` with the weights that `parameters` gives; whole ones live for a run of it."""
    held = parameters.of(layer)
    variables = [one for one, _ in held]

    def whole(*arguments: tf.Tensor) -> Any:
        tensors, slices = arguments[: -len(held)], arguments[-len(held) :]
        first, weights = parameters.entered(tensors[0], slices, [one.shape for one in variables])
        state = list(zip(variables, weights, strict=True))
        with keras.StatelessScope(state, initialize_variables=False):
            return call(first, *tensors[1:])

    def run(*tensors: tf.Tensor) -> Any:
        # An identity, or the gathered weight would stay alive with the variable that is read.
        slices = [tf.identity(one) for _, one in held]
        return (recompute(whole) if is_recomputed else whole)(*tensors, *slices)

    return run if held else call
