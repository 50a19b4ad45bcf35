"""One weight update: six calls in the order that matters.

Every replica computes the sums of its share; after the all-reduce all hold the same numbers, so
the finite check is the same on each and none waits for another that skipped. Moments, weights,
schedule and decay move only on a step that is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from trainer import strategy as replicated
from trainer.accumulation import Sums, accumulate
from trainer.loss_scale import LossScale, advance, start
from trainer.memory import tensor_bytes
from trainer.optimizer import AdamW, clip, global_norm
from trainer.settings import TrainingSettings

ExampleLosses = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Takes logits and label, returns float32 losses [B]."""

Update = Callable[[dict[str, Any], Any], "Outcome"]
"""Takes a batch and the step's number, changes the state, returns what happened."""


MODEL_SLOTS = ("weight/", "other/")
"""How the names of the model's own variables begin."""


class Outcome(NamedTuple):
    """What one step did; scalars.

    Attributes:
        loss: sum of the example losses over the global batch.
        examples: real examples in it.
        gradient_norm: global norm before clipping; not finite on a skipped step.
        learning_rate: of this update.
        loss_scale: that the gradients were computed with.
        is_finite: whether the update was applied.
        skipped_steps: steps skipped so far, this one included.
        successive_skips: steps skipped since the last that was applied.
    """

    loss: tf.Tensor
    examples: tf.Tensor
    gradient_norm: tf.Tensor
    learning_rate: tf.Tensor
    loss_scale: tf.Tensor
    is_finite: tf.Tensor
    skipped_steps: tf.Tensor
    successive_skips: tf.Tensor


class TrainState:
    """Everything that a step changes; make it in the strategy's scope.

    Attributes:
        model: Keras model, float32 weights.
        optimizer: its moments and its count of updates.
        loss_scale: four scalar variables.
        is_scaled: whether the loss is scaled: mixed_float16 only.
    """

    def __init__(
        self,
        model: keras.Model,
        settings: TrainingSettings,
        *,
        total_steps: int,
        policy: str,
    ) -> None:
        self.model = model
        self.weights = [one.value for one in model.trainable_variables]
        self.optimizer = AdamW(self.weights, settings, total_steps=total_steps)
        self.is_scaled = policy == "mixed_float16"
        self.loss_scale = LossScale(
            *(tf.Variable(one, trainable=False) for one in start(is_scaled=self.is_scaled))
        )

    def variables(self) -> dict[str, tf.Variable]:
        """Return every variable by the name of its slot in a checkpoint."""
        names = [f"{place:03d}/{one.name}" for place, one in
                 enumerate(self.model.trainable_variables)]  # fmt: skip
        optimizer = self.optimizer
        others = self.model.non_trainable_variables
        return {
            **{f"weight/{name}": one for name, one in zip(names, self.weights, strict=True)},
            **{f"first/{name}": one for name, one in zip(names, optimizer.first, strict=True)},
            **{f"second/{name}": one for name, one in zip(names, optimizer.second, strict=True)},
            **{f"other/{place:03d}/{one.name}": one.value for place, one in enumerate(others)},
            "updates": optimizer.updates,
            **{f"loss_scale/{name}": one for name, one in self.loss_scale._asdict().items()},
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of every variable, by name."""
        return {name: np.array(one.numpy()) for name, one in self.variables().items()}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the variables that `arrays`, from a checkpoint, names."""
        variables = self.variables()
        for name, value in arrays.items():
            variables[name].assign(value)

    def load_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the model's variables alone."""
        self.load({name: one for name, one in arrays.items() if name.startswith(MODEL_SLOTS)})

    def sizes(self) -> dict[str, int]:
        """Return the bytes on one device of what is there all the time."""
        by_kind = {"weights": 0, "optimizer": 0}
        for name, one in self.variables().items():
            kind = "weights" if name.startswith(MODEL_SLOTS) else "optimizer"
            by_kind[kind] += tensor_bytes(one.shape, one.dtype)
        return by_kind


def make_step(
    state: TrainState,
    example_losses: ExampleLosses,
    *,
    settings: TrainingSettings,
    micro_batch: int,
    strategy: tf.distribute.Strategy,
) -> Update:
    """Return one weight update as a traced function of (batch, step number).

    Args:
        state: what it changes.
        example_losses: of logits and label.
        settings: clip_norm, global_batch, seed.
        micro_batch: rows that a replica computes at once.
        strategy: of the state's variables.
    """

    def update(batch: dict[str, tf.Tensor], seed: tf.Tensor) -> Outcome:
        scale = _gradient_factor(state, settings)
        local = _local_gradients(state, example_losses, scale, seed)
        sums = accumulate(
            local, batch, micro_batch=micro_batch, shapes=[one.shape for one in state.weights]
        )
        total = _reduce(sums)
        gradients = _unscale(total, scale)
        norm, is_finite = _check_finite(gradients, total.loss)
        gradients = clip(gradients, norm, clip_norm=settings.clip_norm)
        return _apply_or_skip(state, gradients, total, norm, is_finite)

    @tf.function(autograph=False)
    def step(batch: dict[str, Any], number: tf.Tensor) -> Outcome:
        seed = tf.stack([tf.constant(settings.seed % (2**31 - 1), tf.int32), number])
        return replicated.run(strategy, update, batch, seed)

    return step


def _gradient_factor(state: TrainState, settings: TrainingSettings) -> tf.Tensor:
    """Return what the summed loss is multiplied by before the backward pass.

    In float16 the sum over a batch would leave the range that the scale was chosen for, so there
    the loss is also divided by the size of the global batch, and the gradients multiplied by it.
    """
    if not state.is_scaled:
        return tf.constant(1.0)
    return state.loss_scale.scale.read_value() / float(settings.global_batch)


def _local_gradients(
    state: TrainState, example_losses: ExampleLosses, factor: tf.Tensor, seed: tf.Tensor
) -> Callable[[dict[str, tf.Tensor], Any], Sums]:
    """Return the function from a micro-batch and its index to its (scaled) sums."""

    def local(batch: dict[str, tf.Tensor], index: Any) -> Sums:
        place = tf.random.experimental.stateless_fold_in(seed, index, alg="philox")
        mine = tf.random.experimental.stateless_fold_in(
            place, replicated.replica_id(), alg="philox"
        )
        with tf.GradientTape() as tape:
            logits = state.model(batch, seed=mine, training=True)
            loss = tf.reduce_sum(example_losses(logits, batch["label"]) * batch["weight"])
            scaled = loss * factor
        gradients = tape.gradient(
            scaled, state.weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return Sums(gradients, loss, tf.reduce_sum(batch["weight"]))

    return local


def _reduce(sums: Sums) -> Sums:
    """Return the sums over all replicas: one all-reduce, outside the loop."""
    *gradients, loss, examples = replicated.all_reduce_sum([
        *sums.gradients,
        sums.loss,
        sums.examples,
    ])
    return Sums(gradients, loss, examples)


def _unscale(total: Sums, factor: tf.Tensor) -> list[tf.Tensor]:
    """Return the mean over the real examples of the global batch, the loss scale taken out."""
    divisor = factor * tf.maximum(total.examples, 1.0)
    return [one / divisor for one in total.gradients]


def _check_finite(gradients: list[tf.Tensor], loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the global norm, and whether it and the loss are finite.

    One NaN or infinity anywhere makes the norm so too. So do gradients above 1e19, whose square
    float32 cannot hold: they are skipped as well, since clipping them would give 0.
    """
    norm = global_norm(gradients)
    return norm, tf.logical_and(tf.math.is_finite(norm), tf.math.is_finite(loss))


def _apply_or_skip(
    state: TrainState,
    gradients: list[tf.Tensor],
    total: Sums,
    norm: tf.Tensor,
    is_finite: tf.Tensor,
) -> Outcome:
    """Move weights, moments and counters; on a step that is not finite the loss scale alone."""
    rate, scale = state.optimizer.rate(), state.loss_scale.scale.read_value()
    moved = advance(
        LossScale(*(one.read_value() for one in state.loss_scale)),
        is_finite,
        is_scaled=state.is_scaled,
    )

    def change(is_finite: tf.Tensor, gradients: list[tf.Tensor]) -> None:
        tf.cond(is_finite, lambda: _done(state.optimizer.apply(gradients)), lambda: _done(None))

    def keep(_: tf.Tensor, values: list[tf.Tensor]) -> None:
        for variable, value in zip(state.loss_scale, values, strict=True):
            replicated.update(variable, lambda one, new: one.assign(new), value)

    replicated.together(change, is_finite, gradients)
    replicated.together(keep, is_finite, list(moved))
    return Outcome(
        total.loss, total.examples, norm, rate, scale, is_finite,
        moved.skipped_steps, moved.successive_skips,
    )  # fmt: skip


def _done(_: None) -> tf.Tensor:
    """Give both branches of `tf.cond` something to return."""
    return tf.constant(0)
