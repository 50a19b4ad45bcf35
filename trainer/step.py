"""One weight update: six calls in the order that matters.

Every replica computes the sums of its share; after they are added up all hold the same numbers (or
each its part of them, and the same norm), so the finite check is the same on each and none waits
for another that skipped. Moments, weights, schedule and decay move only on a step that is applied.

A step can be done in two halves: `Step.sums`, after which nothing has changed yet, and
`Step.finish`. In between `attempt` lets all workers agree that one of them has run out of memory;
then all of them throw their sums away, and the step is to be repeated with a smaller micro-batch.
What holds where:

    shard none, optimizer    the first half has no collective: an error in it on one worker is
                             known to all, nothing has changed, no example was used
    gradients, parameters    the first half has collectives in every micro-batch: where a worker
                             runs out of memory the others wait for it in one of them, so it must
                             end (`attempt` raises MemoryExceeded), upon which theirs fail within
                             seconds; all start again from the last checkpoint. A limit that is
                             passed, rather than memory that is refused, is agreed on as above.
    the second half          an error in it ends the worker; all start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer import strategy as replicated
from trainer.accumulation import Local, Sums, accumulate
from trainer.errors import MemoryExceeded
from trainer.loss_scale import LossScale, advance
from trainer.optimizer import clip, global_norm
from trainer.order import in_program_order, keep_graphs
from trainer.settings import Techniques, TrainingSettings
from trainer.state import TrainState
from trainer.strategy import Replicas

ModelSums = Callable[[Mapping[str, Any], tf.Tensor, bool], tuple[tf.Tensor, tf.Tensor]]
"""Takes batch, seed and whether it trains; returns loss sum and weight (`Built.sums`)."""


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


@dataclass(frozen=True)
class Step:
    """One weight update, traced: whole, or in its two halves.

    Attributes:
        whole: takes a batch (this worker's share) and the step's number, changes the state, returns
            what happened.
        sums: takes the same, returns this process's sums; changes nothing.
        finish: takes them, changes the state, returns what happened.
        replicas: who takes part.
        cuts_gradients: whether `sums` has collectives in it.
    """

    whole: Callable[[dict[str, Any], tf.Tensor], Outcome]
    sums: Callable[[dict[str, Any], tf.Tensor], Any]
    finish: Callable[[Any], Outcome]
    replicas: Replicas
    cuts_gradients: bool


def attempt(
    step: Step,
    batch: dict[str, Any],
    number: tf.Tensor,
    *,
    is_too_much: Callable[[], bool] = lambda: False,
) -> Outcome | None:
    """Do one step, unless it takes more memory than there is on any worker.

    Args:
        step: all workers are at the same one.
        batch: this worker's share.
        number: of the step.
        is_too_much: asked once the sums are there: whether a limit has been passed.
    Returns: what happened; None on every worker when one of them had too little memory: then
        nothing has changed, and all of them are to repeat the step with one smaller micro-batch.

    Raises:
        MemoryExceeded: when this worker has too little, and the others cannot be told.
    """
    sums = None
    try:
        sums = step.sums(batch, number)
        is_refused = is_too_much()
    except tf.errors.ResourceExhaustedError as error:
        if step.cuts_gradients and step.replicas.workers.count > 1:
            raise MemoryExceeded(
                f"worker {step.replicas.workers.rank} ran out of memory in the middle of a step",
                where="training.micro_batch",
                right="the training goes on from the last checkpoint with a smaller one",
            ) from error
        is_refused = True
    if step.replicas.control.agree(is_refused):
        return None
    return step.finish(sums)


def make_step(
    state: TrainState,
    model_sums: ModelSums,
    *,
    settings: TrainingSettings,
    techniques: Techniques,
    replicas: Replicas,
) -> Step:
    """Return one weight update as traced functions of (batch, step number).

    Args:
        state: what it changes.
        model_sums: `Built.sums` of the state's model.
        settings: clip_norm, global_batch, seed.
        techniques: micro_batch: rows that a replica computes at once.
        replicas: of the state's variables.

    Raises: SettingError when the techniques need a process for each device.
    """
    keep_graphs()
    replicated.check_alone(replicas, shard=techniques.shard, offload=techniques.offload)

    def sums(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Sums:
        local = _local_gradients(state, model_sums, settings, number)
        return accumulate(
            local, batch, micro_batch=techniques.micro_batch, shapes=state.gradient_shapes,
            buffers=[tf.convert_to_tensor(one.value) for one in state.buffers],
            over_workers=_computed_by_all(state),
        )  # fmt: skip

    def finish(sums: Sums) -> Outcome:
        total = _reduce(state, replicas, sums)
        gradients = _unscale(total, _gradient_factor(state, settings))
        norm, is_finite = _check_finite(state, gradients, total.loss)
        gradients = clip(gradients, norm, clip_norm=settings.clip_norm)
        return _apply_or_skip(state, gradients, total, norm, is_finite)

    run = partial(replicated.run, replicas)

    def traced(function: Callable[..., Any]) -> Any:
        return tf.function(in_program_order(function), autograph=False)

    return Step(
        whole=traced(lambda batch, number: replicated.first(
            replicas, run(lambda *share: finish(sums(*share)), batch, number)
        )),
        sums=traced(lambda batch, number: run(sums, batch, number)),
        finish=traced(lambda sums: replicated.first(replicas, run(finish, sums))),
        replicas=replicas,
        cuts_gradients=state.sharding.cuts_gradients,
    )  # fmt: skip


def _computed_by_all(state: TrainState) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return how many micro-batches are computed, of how many this worker has rows for."""
    return state.sharding.channel.largest if state.sharding.cuts_gradients else tf.identity


def _gradient_factor(state: TrainState, settings: TrainingSettings) -> tf.Tensor:
    """Return what the summed loss is multiplied by before the backward pass.

    In float16 the sum over a batch would leave the range that the scale was chosen for, so there
    the loss is also divided by the size of the global batch, and the gradients multiplied by it.
    """
    if not state.is_scaled:
        return tf.constant(1.0)
    return state.loss_scale.scale.read_value() / float(settings.global_batch)


def _local_gradients(
    state: TrainState, model_sums: ModelSums, settings: TrainingSettings, number: tf.Tensor
) -> Local:
    """Return the function from a micro-batch and its index to its (scaled) sums."""
    factor = _gradient_factor(state, settings)
    seed = tf.stack([tf.constant(settings.seed % (2**31 - 1), tf.int32), number])

    def local(batch: dict[str, tf.Tensor], index: Any, buffers: Sequence[tf.Tensor]) -> Sums:
        place = tf.random.experimental.stateless_fold_in(seed, index, alg="philox")
        mine = tf.random.experimental.stateless_fold_in(
            place, state.sharding.rank + replicated.replica_id(), alg="philox"
        )
        with tf.GradientTape() as tape, _holding(state.buffers, buffers) as scope:
            loss, weight = model_sums(batch, mine, True)
            scaled = loss * factor
        gradients = tape.gradient(
            scaled, state.weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        if state.sharding.cuts_gradients:
            gradients = _parts(state, gradients)
        return Sums(gradients, loss, weight, [scope.get_current_value(one) for one in
                                              state.buffers])  # fmt: skip

    return local


def _parts(state: TrainState, gradients: list[Any]) -> list[tf.Tensor]:
    """Return this worker's parts of the gradients' sums over the workers.

    Those of layers whose weights were gathered have come out as parts already, one block's after
    the other's. The others, of a model that knows nothing of this, are cut up here.
    """
    parts = [tf.convert_to_tensor(one) for one in gradients]
    if not state.are_gathered:
        return state.sharding.scattered(parts)
    whole = [place for place, one in enumerate(parts)
             if one.shape != (state.sharding.size(state.shapes[place]),)]  # fmt: skip
    cut = state.sharding.scattered([parts[place] for place in whole])
    for place, one in zip(whole, cut, strict=True):
        parts[place] = one
    return parts


def _holding(
    buffers: Sequence[keras.Variable], values: Sequence[tf.Tensor]
) -> keras.StatelessScope:
    """Return the scope in which a model reads and sets these values, and none of its variables."""
    return keras.StatelessScope(
        state_mapping=list(zip(buffers, values, strict=True)), initialize_variables=False
    )


def _reduce(state: TrainState, replicas: Replicas, sums: Sums) -> Sums:
    """Return the sums over all replicas, outside the loop; of gradients maybe this worker's part.

    Buffers become their mean over the replicas, by real examples.
    """
    sharding, count = state.sharding, len(sums.gradients)
    if replicated.replicas(replicas) == 1 and not sharding.cuts_optimizer:
        return sums
    weighed = [tf.cast(one, tf.float32) * sums.examples for one in sums.buffers]
    in_process = replicated.all_reduce_sum([*sums.gradients, sums.loss, sums.examples, *weighed])
    gradients, scalars = in_process[:count], in_process[count:]
    if sharding.cuts_optimizer:
        if not sharding.cuts_gradients:
            gradients = sharding.scattered(gradients)
        scalars = sharding.summed(scalars)
    else:
        summed = sharding.summed([*gradients, *scalars])
        gradients, scalars = summed[:count], summed[count:]
    loss, examples, *weighed = scalars
    buffers = [
        _mean(total, examples, mine) for total, mine in zip(weighed, sums.buffers, strict=True)
    ]
    return Sums(list(gradients), loss, examples, buffers)


def _mean(total: tf.Tensor, examples: tf.Tensor, mine: tf.Tensor) -> tf.Tensor:
    """Return a buffer's mean over the replicas; counters and seeds are the same on all."""
    if not mine.dtype.is_floating:
        return mine
    return tf.where(examples > 0, tf.cast(total / tf.maximum(examples, 1.0), mine.dtype), mine)


def _unscale(total: Sums, factor: tf.Tensor) -> list[tf.Tensor]:
    """Return the mean over the real examples of the global batch, the loss scale taken out."""
    divisor = factor * tf.maximum(total.examples, 1.0)
    return [one / divisor for one in total.gradients]


def _check_finite(
    state: TrainState, gradients: list[tf.Tensor], loss: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the global norm, and whether it and the loss are finite.

    One NaN or infinity anywhere makes the norm so too. So do gradients above 1e19, whose square
    float32 cannot hold: they are skipped as well, since clipping them would give 0.
    """
    sharding = state.sharding
    norm = global_norm(gradients, sharding.channel.sum if sharding.cuts_optimizer else tf.identity)
    return norm, tf.logical_and(tf.math.is_finite(norm), tf.math.is_finite(loss))


def _apply_or_skip(
    state: TrainState,
    gradients: list[tf.Tensor],
    total: Sums,
    norm: tf.Tensor,
    is_finite: tf.Tensor,
) -> Outcome:
    """Move weights, moments, buffers, counters; on a step that is not finite the scale alone."""
    rate, scale = state.optimizer.rate(), state.loss_scale.scale.read_value()
    moved = advance(
        LossScale(*(one.read_value() for one in state.loss_scale)),
        is_finite,
        is_scaled=state.is_scaled,
    )

    def apply(values: list[tf.Tensor]) -> None:
        state.optimizer.apply(values[: len(gradients)])
        _set([one.value for one in state.buffers], values[len(gradients) :])

    def change(is_finite: tf.Tensor, values: list[tf.Tensor]) -> None:
        tf.cond(
            is_finite,
            in_program_order(lambda: _done(apply(values))),
            lambda: _done(None),
        )

    def keep(_: tf.Tensor, values: list[tf.Tensor]) -> None:
        _set(state.loss_scale, values)

    replicated.together(change, is_finite, [*gradients, *total.buffers])
    replicated.together(keep, is_finite, list(moved))
    return Outcome(
        total.loss, total.examples, norm, rate, scale, is_finite,
        moved.skipped_steps, moved.successive_skips,
    )  # fmt: skip


def _set(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        replicated.update(variable, lambda one, new: one.assign(new), value)


def _done(_: None) -> tf.Tensor:
    """Give both branches of `tf.cond` something to return."""
    return tf.constant(0)
