"""One weight update, on models small enough to work out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import SettingError
from trainer.settings import Techniques, TrainingSettings
from trainer.state import TrainState
from trainer.step import Outcome, Step, attempt, make_step
from trainer.strategy import Replicas


class Line(keras.Model):
    """``x`` [B, n] times a kernel, with a hidden layer where `width` is given."""

    def __init__(self, columns: int = 1, *, width: int = 0, dtype: str = "float32") -> None:
        super().__init__(autocast=False)
        self.compute = dtype
        sizes = [columns, width, 1] if width else [columns, 1]
        self.kernels = [
            self.add_weight(
                shape=shape,
                initializer=keras.initializers.RandomNormal(seed=3) if width else "zeros",
                name=f"kernel_{place}",
            )
            for place, shape in enumerate(itertools.pairwise(sizes))
        ]
        self.built = True

    def call(self, inputs: dict[str, Any], seed: Any = None, training: bool = False) -> tf.Tensor:
        x = tf.cast(inputs["x"], self.compute)
        for place, kernel in enumerate(self.kernels):
            x = x @ tf.cast(kernel.value, self.compute)
            x = tf.tanh(x) if place < len(self.kernels) - 1 else x
        return tf.cast(x, tf.float32)


def _squared(model: keras.Model) -> Any:
    """Return the sums of squared errors, as `Built.sums`."""

    def sums(batch: Any, seed: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        logits = model(batch, seed=seed, training=training)
        losses = tf.square(logits[:, 0] - batch["label"])
        return tf.reduce_sum(losses * batch["weight"]), tf.reduce_sum(batch["weight"])

    return sums


def _batch(x: Any, label: Any, size: int) -> dict[str, tf.Tensor]:
    x, label = np.asarray(x, np.float32).reshape(len(label), -1), np.asarray(label, np.float32)
    missing = size - len(label)
    return {
        "x": tf.constant(np.pad(x, ((0, missing), (0, 0)))),
        "label": tf.constant(np.pad(label, (0, missing))),
        "weight": tf.constant(np.pad(np.ones(len(label), np.float32), (0, missing))),
    }


def _step(
    model: keras.Model, *, micro_batch: int, policy: str = "float32", sums: Any = None, **keys: Any
) -> tuple[TrainState, Step]:
    keys = {"schedule": "constant", "clip_norm": 0.0, "weight_decay": 0.0, **keys}
    training = TrainingSettings(**keys)
    state = TrainState(model, training, total_steps=10, policy=policy)
    step = make_step(
        state, sums or _squared(model), settings=training, techniques=Techniques(micro_batch),
        replicas=Replicas(),
    )  # fmt: skip
    return state, step


def _made(model: keras.Model, **keys: Any) -> tuple[TrainState, Any]:
    state, step = _step(model, **keys)
    return state, lambda batch, number: _numbers(step.whole(batch, tf.constant(number)))


def _numbers(outcome: Outcome) -> Outcome:
    return Outcome(*(one.numpy().item() for one in outcome))


def test_a_short_last_micro_batch_weighs_by_its_rows() -> None:
    # cases/training.md, training-1
    _, step = _made(Line(), micro_batch=4, global_batch=8)
    outcome = step(_batch([1] * 5, [1, 1, 1, 1, 9], 8), 0)
    assert outcome.gradient_norm == pytest.approx(5.2)
    assert outcome.loss / outcome.examples == pytest.approx(17.0)


def test_a_last_window_of_fewer_micro_batches_is_divided_by_its_own_rows() -> None:
    # training-2: gradient -2, then -2 * (1 - w) over the 2 rows that are left, not over 4
    state, step = _made(Line(), micro_batch=1, global_batch=4, learning_rate=0.1)
    assert step(_batch([1] * 4, [1] * 4, 4), 0).gradient_norm == pytest.approx(2.0)
    weight = state.weights[0].numpy().item()
    assert weight == pytest.approx(0.1, rel=1e-5)
    outcome = step(_batch([1] * 2, [1] * 2, 4), 1)
    assert outcome.gradient_norm == pytest.approx(2 * (1 - weight), rel=1e-5)
    assert int(state.optimizer.updates) == 2


def test_accumulation_clips_and_decays_once_an_update() -> None:
    # training-6: micro gradients +10 and -4 (mean +3, clipped to 1) move w by exactly the rate
    state, step = _made(Line(), micro_batch=1, global_batch=2, learning_rate=0.1, clip_norm=1.0)
    # w = 0: the gradient of a row is -2 x y
    outcome = step(_batch([1, 1], [-5, 2], 2), 0)
    assert outcome.gradient_norm == pytest.approx(3.0)
    assert state.weights[0].numpy().item() == pytest.approx(-0.1, rel=1e-5)
    # no gradient (x = 0): two updates of four micro-batches each decay twice, not eight times
    state, step = _made(Line(), micro_batch=1, global_batch=4, learning_rate=0.1, weight_decay=0.1)
    state.weights[0].assign([[1.0]])
    for number in range(2):
        step(_batch([0] * 4, [1] * 4, 4), number)
    assert state.weights[0].numpy().item() == pytest.approx(0.9801, rel=1e-6)


def _twin(real: int, size: int, micro_batch: int) -> tuple[TrainState, Outcome]:
    random = np.random.default_rng(real)
    state, step = _made(Line(3, width=4), micro_batch=micro_batch, global_batch=size, clip_norm=1.0)
    x, label = random.normal(size=(real, 3)), random.normal(size=real)
    step(_batch(x, label, size), 0)
    return state, step(_batch(x[::-1], label[::-1], size), 1)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_accumulated_is_one_batch(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9), label="global_batch")
    real = data.draw(st.integers(1, size), label="rows of a ragged last batch")
    micro_batch = data.draw(st.integers(1, size - 1), label="micro_batch")
    whole, parts = _twin(real, size, size), _twin(real, size, micro_batch)
    # float32 sums in another order; Adam's first steps divide by what is near 0
    assert parts[1].loss == pytest.approx(whole[1].loss, rel=1e-4)
    assert parts[1].gradient_norm == pytest.approx(whole[1].gradient_norm, rel=1e-4)
    for one, other in zip(parts[0].weights, whole[0].weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_a_step_with_inf_or_nan_changes_no_weight(bad: float, micro_batch: int) -> None:
    state, step = _made(
        Line(2, width=3), micro_batch=micro_batch, global_batch=2, schedule="linear"
    )
    good = _batch([[1, 2], [3, 4]], [1, 0], 2)
    step(good, 0)
    before = state.arrays()
    outcome = step(_batch([[1, bad], [3, 4]], [1, 0], 2), 1)
    assert (outcome.is_finite, outcome.skipped_steps, outcome.successive_skips) == (False, 1, 1)
    after = state.arrays()
    for name in before:
        if not name.startswith("loss_scale/"):
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    after_it = step(good, 2)
    assert (after_it.is_finite, after_it.successive_skips) == (True, 0)
    # the schedule is at its second update: the skipped step did not move it
    assert outcome.learning_rate == after_it.learning_rate == pytest.approx(0.9 * 1e-3)


def test_an_overflow_in_the_first_micro_batch_skips_the_window_once() -> None:
    # training-12 (a): 7e4 is infinite in float16; the good rows are in the second micro-batch
    state, step = _made(
        Line(dtype="float16"), micro_batch=2, global_batch=4, policy="mixed_float16"
    )
    outcome = step(_batch([7e4, 1, 1, 1], [1] * 4, 4), 0)
    assert (outcome.is_finite, outcome.loss_scale) == (False, 2.0**15)
    assert float(state.loss_scale.scale) == 2.0**14
    assert (int(state.optimizer.updates), state.weights[0].numpy().item()) == (0, 0.0)
    good = step(_batch([1] * 4, [1] * 4, 4), 1)
    assert (good.is_finite, good.skipped_steps, good.loss_scale) == (True, 1, 2.0**14)
    # the gradient is unscaled once
    assert good.gradient_norm == pytest.approx(2.0, rel=2.0**-9)
    assert state.weights[0].numpy().item() > 0


def test_scaled_gradients_equal_plain_ones() -> None:
    batch = _batch([0.5, 0.25, 2.0], [1, 2, 3], 4)
    _, plain = _made(Line(), micro_batch=2, global_batch=4)
    _, scaled = _made(Line(dtype="float16"), micro_batch=2, global_batch=4, policy="mixed_float16")
    outcome = scaled(batch, 0)
    while not outcome.is_finite:  # the first scales are too large for this batch
        outcome = scaled(batch, 0)
    # float16 holds 11 bits
    assert outcome.loss_scale > 2.0**8
    assert outcome.gradient_norm == pytest.approx(plain(batch, 0).gradient_norm, rel=2.0**-10)


def test_the_slots_of_a_state_come_back() -> None:
    state, step = _made(Line(2, width=3), micro_batch=2, global_batch=2)
    batch = _batch([[1, 2], [3, 4]], [1, 0], 2)
    step(batch, 0)
    kept = state.arrays()
    after = step(batch, 1)
    other, again = _made(Line(2, width=3), micro_batch=2, global_batch=2)
    other.load(kept)
    assert again(batch, 1) == after
    for name, value in state.arrays().items():
        np.testing.assert_array_equal(value, other.arrays()[name], err_msg=name)
    kinds = {name.split("/")[0] for name in kept}
    assert kinds == {"weight", "first", "second", "updates", "loss_scale"}


def test_a_step_in_two_halves_is_the_whole_step() -> None:
    batch = _batch([[1, 2], [3, 4], [5, 6]], [1, 0, 1], 3)
    whole, first = _step(Line(2, width=3), micro_batch=2, global_batch=3)
    halves, second = _step(Line(2, width=3), micro_batch=2, global_batch=3)
    for number in range(3):
        at = tf.constant(number)
        assert _numbers(first.whole(batch, at)) == _numbers(attempt(second, batch, at))
    for name, value in whole.arrays().items():
        np.testing.assert_array_equal(value, halves.arrays()[name], err_msg=name)


def test_a_step_that_takes_too_much_memory_changes_nothing_and_can_be_repeated() -> None:
    batch = _batch([[1, 2], [3, 4]], [1, 0], 2)
    model = Line(2, width=3)
    left = [True]

    def refuse() -> float:
        if left.pop():
            raise MemoryError("as if there were none left")
        return 0.0

    def sums(batch: Any, seed: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        loss, weight = _squared(model)(batch, seed, training)
        return loss + tf.py_function(refuse, [], tf.float32), weight

    state, step = _step(model, micro_batch=2, global_batch=2, sums=sums)
    before = state.arrays()
    assert attempt(step, batch, tf.constant(0)) is None
    left += [False]
    assert attempt(step, batch, tf.constant(0), is_too_much=lambda: True) is None
    for name, value in state.arrays().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    _, other = _step(Line(2, width=3), micro_batch=2, global_batch=2)
    left += [False]
    again = _numbers(attempt(step, batch, tf.constant(0)))
    assert again == _numbers(other.whole(batch, tf.constant(0)))


class Counting(Line):
    """A line that counts its calls and keeps a moving mean, as batch normalisation does."""

    def __init__(self) -> None:
        super().__init__(1)
        self.mean = self.add_weight(shape=(), initializer="zeros", name="mean", trainable=False)
        self.calls = self.add_weight(
            shape=(), initializer="zeros", name="calls", dtype="int32", trainable=False
        )

    def call(self, inputs: dict[str, Any], seed: Any = None, training: bool = False) -> tf.Tensor:
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(inputs["x"]))
            self.calls.assign(self.calls + 1)
        return super().call(inputs, seed, training)


def test_buffers_move_with_the_micro_batches_of_applied_steps_alone() -> None:
    model = Counting()
    _, step = _made(model, micro_batch=1, global_batch=2)
    step(_batch([2, 4], [1, 1], 2), 0)
    assert (model.mean.numpy(), model.calls.numpy()) == (2.5, 2)
    assert not step(_batch([2, np.inf], [1, 1], 2), 1).is_finite
    assert (model.mean.numpy(), model.calls.numpy()) == (2.5, 2)
    step(_batch([1], [1], 2), 2)
    assert (model.mean.numpy(), model.calls.numpy()) == (1.75, 3)


def test_a_template_has_the_slots_of_a_state_and_no_memory() -> None:
    state, _ = _made(Line(2, width=3), micro_batch=2, global_batch=2)
    arrays, template = state.arrays(), state.template()
    assert {name: (one.shape, one.dtype) for name, one in arrays.items()} == {
        name: (one.shape, one.dtype) for name, one in template.items()
    }
    assert all(not any(one.strides) for one in template.values())


MIRRORED = """
import sys
import numpy as np, tensorflow as tf
sys.path[:0] = [{here!r}]
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import test_step as t
from trainer import strategy as replicated
from trainer.settings import Techniques, TrainingSettings
from trainer.state import TrainState
from trainer.step import attempt, make_step
from trainer.strategy import Replicas
keys = dict(global_batch=5, clip_norm=1.0, learning_rate=0.01)
settings = TrainingSettings(**keys)
found = []
for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
    replicas = Replicas(strategy)
    with replicas.scope():
        model = t.Line(3, width=4)
        state = TrainState(model, settings, total_steps=10, policy="float32")
    step = make_step(
        state, t._squared(model), settings=settings, techniques=Techniques(2), replicas=replicas
    )
    random = np.random.default_rng(0)
    losses = []
    for number, bad in enumerate([False, True, False]):
        x = random.normal(size=(4, 3))
        x[-1, 0] = np.inf if bad else 1.0   # on the second replica alone
        batch = replicated.share(replicas, t._batch(x, random.normal(size=4), 5))
        at = tf.constant(number)
        # the last one in two halves
        outcome = attempt(step, batch, at) if number == 2 else step.whole(batch, at)
        losses.append(float(outcome.loss))
    found.append((state.arrays(), losses, int(outcome.skipped_steps)))
(one, one_losses, one_skips), (two, two_losses, two_skips) = found
assert one_skips == two_skips == 1, (one_skips, two_skips)
np.testing.assert_allclose(one_losses, two_losses, rtol=1e-5)
assert len(one) == len(two)
for a, b in zip(one.values(), two.values()):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
print("equal")
"""


@pytest.mark.slow
def test_two_replicas_do_the_same_as_one_also_when_one_alone_sees_inf() -> None:
    import subprocess
    import sys
    from pathlib import Path

    code = MIRRORED.format(here=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.strip().endswith("equal"), done.stderr[-3000:]


@pytest.mark.parametrize(("name", "techniques"), [
    ("shard", Techniques(1, shard="optimizer")), ("offload", Techniques(1, offload="cpu"))
])  # fmt: skip
def test_several_devices_in_one_process_neither_cut_nor_move_their_state(
    name: str, techniques: Techniques
) -> None:
    class Two:
        num_replicas_in_sync = 2

    with pytest.raises(SettingError, match=f"training.{name}: needs one process for each device"):
        make_step(
            None, None, settings=TrainingSettings(), techniques=techniques,
            replicas=Replicas(Two()),
        )  # fmt: skip
