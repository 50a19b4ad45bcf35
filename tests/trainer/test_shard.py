"""Sharded over two and three real local workers, against one process that does it all."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gang
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import strategy as replicated
from trainer.cluster import Workers
from trainer.collectives import Channel, buckets
from trainer.errors import MemoryExceeded
from trainer.models import kinds
from trainer.settings import (
    Features,
    LabelFeature,
    ModelSettings,
    Techniques,
    TextFeature,
    TrainingSettings,
)
from trainer.shard import Parameters, Sharding, without_values
from trainer.state import TrainState
from trainer.step import Step, attempt, make_step
from trainer.strategy import Replicas

pytestmark = pytest.mark.timeout(1800)
"""The first test of each gang waits for all of it: minutes, and more on a busy machine."""

LEVELS = ("none", "optimizer", "gradients", "parameters")
HALF_LEVELS = ("optimizer", "parameters")
RESUMED = (
    ("none", "gradients"), ("optimizer", "parameters"), ("gradients", "alone"),
    ("parameters", "optimizer"), ("parameters", "alone"),
)  # fmt: skip
ROWS = 7
"""A global batch: 4 and 3 rows on two workers, 3, 3 and 1 on three."""
STEPS, HALF, BAD = 10, 5, 6
TRAINING = TrainingSettings(
    global_batch=ROWS, learning_rate=0.01, weight_decay=0.1, clip_norm=1.0, schedule="linear"
)


class Net(keras.Model):
    """An embedding of ``id`` and two layers on ``x``; sizes 21, 15, 5, 5, 1 and a moving mean."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(autocast=False)
        self.compute = dtype
        shapes = {"table": (7, 3), "kernel": (3, 5), "bias": (5,), "out": (5, 1), "last": (1,)}
        self.each = [
            self.add_weight(
                shape=shape, name=name,
                initializer=keras.initializers.RandomNormal(stddev=0.5, seed=len(name)),
            )
            for name, shape in shapes.items()
        ]  # fmt: skip
        self.moving = self.add_weight(
            shape=(3,), name="moving", initializer="zeros", trainable=False
        )
        self.built = True

    def first(self, x: tf.Tensor, ids: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        table, kernel, bias = weights
        hidden = x + tf.cast(tf.gather(table, ids), self.compute)
        return tf.tanh(hidden @ tf.cast(kernel, self.compute) + tf.cast(bias, self.compute))

    def second(self, hidden: tf.Tensor, _: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
        out, last = (tf.cast(one, self.compute) for one in weights)
        return tf.cast(hidden @ out + last, tf.float32)[:, 0]


def _sums(
    model: Net, parameters: Parameters | None, fails: Callable[[], bool] | None = None
) -> Any:
    def layer(run: Any, x: tf.Tensor, ids: tf.Tensor, variables: list[Any]) -> tf.Tensor:
        if parameters is None:
            return run(x, ids, *(tf.convert_to_tensor(one.value) for one in variables))
        pairs = parameters.of(variables)

        def gathered(x: tf.Tensor, *slices: tf.Tensor) -> tf.Tensor:
            x, weights = parameters.entered(x, slices, [one.shape for one, _ in pairs])
            return run(x, ids, *weights)

        call = gathered if parameters.keeps_whole else tf.recompute_grad(gathered)
        return call(x, *(tf.identity(mine) for _, mine in pairs))

    def sums(batch: Any, seed: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        weight = batch["weight"]
        model.moving.assign(
            0.9 * model.moving.value
            + 0.1 * tf.reduce_sum(batch["x"] * weight[:, None], 0)
            / tf.maximum(tf.reduce_sum(weight), 1.0)
        )  # fmt: skip
        x = tf.cast(batch["x"], model.compute)
        if fails is not None:
            x += tf.cast(tf.py_function(_fail_if(fails), [], tf.float32), model.compute)
        hidden = layer(model.first, x, batch["id"], model.each[:3])
        guess = layer(model.second, hidden, batch["id"], model.each[3:])
        loss = tf.reduce_sum(tf.square(guess - batch["label"]) * weight)
        return loss, tf.reduce_sum(weight)

    return sums


def _fail_if(fails: Callable[[], bool]) -> Callable[[], float]:
    def check() -> float:
        if fails():
            raise MemoryError("as if there were none left")
        return 0.0

    return check


def _built(
    make: Callable[[], Any], replicas: Replicas, level: str, *, is_aided: bool = True
) -> tuple[Any, Parameters | None]:
    """Return a model, and what gathers its weights where the level needs that."""
    if not is_aided or level not in {"gradients", "parameters"}:
        return make(), None
    parameters = Parameters(Sharding(level, Channel(replicas.workers)))
    with contextlib.nullcontext() if parameters.keeps_whole else without_values():
        model = make()
    parameters.adopt(model.variables)
    return model, parameters


def _state(
    replicas: Replicas,
    techniques: Techniques,
    *,
    policy: str = "float32",
    fails: Callable[[], bool] | None = None,
    is_aided: bool = True,
) -> tuple[TrainState, Any]:
    """Return a state of the net, and its sums."""
    dtype = "float16" if policy == "mixed_float16" else "float32"
    model, parameters = _built(lambda: Net(dtype), replicas, techniques.shard, is_aided=is_aided)
    state = TrainState(
        model, TRAINING, total_steps=STEPS, policy=policy, techniques=techniques,
        workers=replicas.workers, parameters=parameters,
    )  # fmt: skip
    return state, _sums(model, parameters, fails)


def _made(
    replicas: Replicas, techniques: Techniques, **how: Any
) -> tuple[TrainState, Callable[[int], Step]]:
    """Return a state, joined, and what makes its step for a size of micro-batch."""
    state, sums = _state(replicas, techniques, **how)
    state.join(replicas.control)

    def step(micro_batch: int) -> Step:
        return make_step(
            state, sums, settings=TRAINING, replicas=replicas,
            techniques=replace(techniques, micro_batch=micro_batch),
        )  # fmt: skip

    return state, step


def _batch(number: int, *, bad: bool = False) -> dict[str, np.ndarray]:
    """Steps 3 and 7 have 2 real rows: two of three workers have none."""
    random = np.random.default_rng(number)
    real = 2 if number in {3, 7} else ROWS
    weight = (np.arange(ROWS) < real).astype(np.float32)
    x = random.normal(size=(ROWS, 3)).astype(np.float32) * weight[:, None]
    if bad:
        x[-1, 0] = np.inf  # a row of the last worker
    label = random.normal(size=ROWS).astype(np.float32) * weight
    ids = random.integers(0, 7, ROWS).astype(np.int32)
    return {"x": x, "id": ids, "label": label, "weight": weight}


def _trained(
    replicas: Replicas, techniques: Techniques, *, whole: bool = False, policy: str = "float32",
    steps: Sequence[int] = range(STEPS), start: dict[str, np.ndarray] | None = None,
    is_aided: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Train; in step BAD a row is infinite. Returns arrays at HALF and at the end, and more."""
    state, made = _made(replicas, techniques, policy=policy, is_aided=is_aided)
    if start is not None:
        state.load(start)
    step, outcomes, half = made(techniques.micro_batch), [], {}
    for number in steps:
        half = state.arrays() if number == HALF else half
        batch = replicated.share(replicas, _batch(number, bad=number == BAD))
        at = tf.constant(number)
        outcomes.append(step.whole(batch, at) if whole else attempt(step, batch, at))
    return {
        "arrays": state.arrays(),
        "half": half,
        "outcomes": [[one.numpy().item() for one in outcome] for outcome in outcomes],
        "held": {name: tuple(one.shape) for name, one in state.variables().items()},
    }


def _injected(
    replicas: Replicas, shard: str, *, micro_batch: int, refused_at: int = -1, passed_at: int = -1
) -> dict[str, np.ndarray]:
    """Train with a worker that runs out of memory once, or sees the limit passed once."""
    left = {"refused": [refused_at], "passed": [passed_at]}
    here = {"number": 0}

    def once(kind: str) -> bool:
        is_so = replicas.workers.rank == 1 and here["number"] in left[kind]
        if is_so:
            left[kind].clear()
        return is_so

    state, made = _made(
        replicas, Techniques(micro_batch, shard=shard), fails=lambda: once("refused")
    )
    step = made(micro_batch)
    for number in range(STEPS):
        here["number"] = number
        batch = replicated.share(replicas, _batch(number))
        before = state.arrays()
        outcome = attempt(step, batch, tf.constant(number), is_too_much=lambda: once("passed"))
        if outcome is None:
            for name, value in state.arrays().items():
                np.testing.assert_array_equal(value, before[name], err_msg=name)
            micro_batch = -(-micro_batch // 2)
            step = made(micro_batch)
            outcome = attempt(step, batch, tf.constant(number))
    return {**state.arrays(), "micro_batch": np.asarray(micro_batch)}


def _language_model(replicas: Replicas, techniques: Techniques) -> dict[str, Any]:
    """Train a language model with these techniques; returns its arrays and the mean losses."""
    tokens, words = 11, tuple("abcdefghij")
    features = Features(
        (), (), LabelFeature("said", "causal-lm", "string"), TextFeature("said", tokens, words)
    )
    shape = ModelSettings("causal-lm", layers=2, width=8, heads=2, sequence=tokens)
    parameters = None
    if techniques.shard in {"gradients", "parameters"}:
        parameters = Parameters(Sharding(techniques.shard, Channel(replicas.workers)))
    built = kinds.build(
        shape, features, techniques, policy="float32", seed=3, parameters=parameters
    )
    state = TrainState(
        built.model, TRAINING, total_steps=STEPS, policy="float32", techniques=techniques,
        workers=replicas.workers, parameters=parameters,
    )  # fmt: skip
    state.join(replicas.control)
    step = make_step(state, built.sums, settings=TRAINING, replicas=replicas, techniques=techniques)
    losses = []
    for number in range(STEPS):
        random = np.random.default_rng(number)
        batch = {
            "tokens": random.integers(0, 13, (ROWS, tokens + 1)).astype(np.int32),
            "lengths": random.integers(1, tokens + 1, ROWS).astype(np.int32),
            "weight": np.ones(ROWS, np.float32),
        }
        outcome = attempt(step, replicated.share(replicas, batch), tf.constant(number))
        losses.append(float(outcome.loss) / float(outcome.examples))
    return {"weights": state.arrays(), "losses": losses}


class Wide(keras.Model):
    """Eight square layers, one after the other: 8 MiB of weights, next to no activations."""

    def __init__(self) -> None:
        super().__init__(autocast=False)
        start = keras.initializers.RandomNormal(stddev=0.04, seed=1)
        self.each = [
            self.add_weight(shape=(512, 512), initializer=start, name=f"layer_{place}")
            for place in range(8)
        ]
        self.built = True


def _wide_sums(model: Wide, parameters: Parameters | None) -> Any:
    def sums(batch: Any, seed: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        x = batch["x"]
        for one in model.each:
            if parameters is None:
                x = tf.tanh(x @ tf.convert_to_tensor(one.value))
                continue

            def layer(x: tf.Tensor, mine: tf.Tensor) -> tf.Tensor:
                x, (kernel,) = parameters.entered(x, [mine], [(512, 512)])
                return tf.tanh(x @ kernel)

            ((_, mine),) = parameters.of([one])
            x = (layer if parameters.keeps_whole else tf.recompute_grad(layer))(
                x, tf.identity(mine)
            )
        return tf.reduce_sum(tf.square(x)), tf.reduce_sum(batch["weight"])

    return sums


def _memory(replicas: Replicas, shard: str) -> dict[str, float]:
    """Return MiB: what the state holds all the time, and the peak of two micro-batches beyond."""

    def info(kind: str) -> int:
        return tf.config.experimental.get_memory_info("CPU:0")[kind]

    gc.collect()
    before, techniques = info("current"), Techniques(1, shard=shard)
    model, parameters = _built(Wide, replicas, shard)
    state = TrainState(
        model, TRAINING, total_steps=1, policy="float32", techniques=techniques,
        workers=replicas.workers, parameters=parameters,
    )  # fmt: skip
    state.join(replicas.control)
    step = make_step(
        state, _wide_sums(model, parameters), settings=TRAINING, replicas=replicas,
        techniques=techniques,
    )  # fmt: skip
    held = info("current") - before
    batch = {"x": tf.ones([2, 512]), "weight": tf.ones([2])}
    step.whole(batch, tf.constant(0))
    tf.config.experimental.reset_memory_stats("CPU:0")
    step.whole(batch, tf.constant(1))
    peak = info("peak") - before - held
    return {
        "held": held / 2**20,
        "peak": peak / 2**20,
        "told": sum(map(sum, state.sizes().values())) / 2**20,
    }


def everything() -> dict[str, Any]:
    """All cases of one gang."""
    replicas = replicated.choose(wait_seconds=300)
    alone, plain = Replicas(), Techniques(3)
    found: dict[str, Any] = {
        "plain": _trained(alone, Techniques(ROWS), whole=True),
        "plain half": _trained(alone, Techniques(1), policy="mixed_float16"),
    }
    for level in LEVELS:
        shard = replace(plain, shard=level)
        found[level] = _trained(replicas, shard)
        offloaded = replace(shard, micro_batch=4, offload="cpu")
        found[f"{level} offload"] = _trained(replicas, offloaded, whole=True)
        found[f"{level} memory"] = _memory(replicas, level)
    found["gradients unaided"] = _trained(
        replicas, replace(plain, shard="gradients"), is_aided=False
    )
    for level in HALF_LEVELS:
        techniques = Techniques(1, shard=level)
        found[f"{level} half"] = _trained(replicas, techniques, policy="mixed_float16")
    # half of the way under one level, the other half under another
    for level, other in RESUMED:
        found[f"{level} {other}"] = _trained(
            replicas if other != "alone" else alone,
            replace(plain, shard=other if other != "alone" else "none"),
            steps=range(HALF, STEPS), start=found[level]["half"],
        )  # fmt: skip
    found["smaller"] = _injected(replicas, "optimizer", micro_batch=1)
    found["refused"] = _injected(replicas, "optimizer", micro_batch=2, refused_at=4)
    for level in HALF_LEVELS:
        found[f"{level} passed"] = _injected(replicas, level, micro_batch=2, passed_at=4)
    every = Techniques(
        2, recompute=2, attention="chunked", token_loss="chunked", shard="parameters", offload="cpu"
    )
    found["plain language"] = _language_model(alone, Techniques(ROWS))
    found["every lever"] = _language_model(replicas, every)
    found["smallest"] = int(replicas.control.smallest(tf.constant(5 + replicas.workers.rank)))
    return found


def _same(
    one: dict[str, np.ndarray],
    other: dict[str, np.ndarray],
    *,
    rtol: float = 1e-6,
    atol: float = 1e-6,
    but_buffers: bool = False,
) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if not (but_buffers and name.startswith("other/")):
            np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.fixture(scope="module", params=[2, 3])
def gangs(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each of two, and of three, workers found."""
    return gang.run(everything, workers=request.param, seconds=1500)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_ten_steps_sharded_are_those_of_one_process(gangs: list[Any], level: str) -> None:
    plain = gangs[0]["plain"]
    for found in gangs:
        for name, done in found.items():
            if name.split()[0] == level and name.split()[-1] not in {"memory", "half", "passed"}:
                # moving statistics are those of the micro-batches: the same where each has one
                _same(done["arrays"], plain["arrays"], but_buffers=not name.endswith("offload"))
                outcomes = plain["outcomes"][-len(done["outcomes"]) :]
                np.testing.assert_allclose(done["outcomes"], outcomes, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_workers_hold_the_same_bits(gangs: list[Any]) -> None:
    for found in gangs[1:]:
        for name, done in found.items():
            if "arrays" in done if isinstance(done, dict) else False:
                _same(done["arrays"], gangs[0][name]["arrays"], rtol=0, atol=0)
                np.testing.assert_array_equal(done["outcomes"], gangs[0][name]["outcomes"])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_inf_on_one_worker_changes_nothing_on_all(gangs: list[Any], level: str) -> None:
    for found in gangs:
        outcomes = found[level]["outcomes"]
        assert [one[5] for one in outcomes] == [number != BAD for number in range(STEPS)]
        assert [one[6] for one in outcomes] == [int(number >= BAD) for number in range(STEPS)]


@pytest.mark.slow
def test_each_worker_holds_its_part_of_what_the_level_cuts(gangs: list[Any]) -> None:
    held = {level: gangs[0][level]["held"] for level in LEVELS}
    part = -(-21 // len(gangs))
    assert held["none"]["first/000/table"] == held["gradients"]["weight/000/table"] == (7, 3)
    for level in LEVELS[1:]:
        assert held[level]["first/000/table"] == held[level]["second/000/table"] == (part,)
        assert held[level]["first/004/last"] == (1,)
    assert held["parameters"]["weight/000/table"] == (part,)


@pytest.mark.slow
def test_each_level_takes_the_memory_that_it_says(gangs: list[Any]) -> None:
    # TensorFlow's allocator, MiB: 8 of weights, 16 of moments, and up to a third that lies idle
    # in chunks larger than what was asked for
    n = len(gangs)
    right = {"none": 24, "optimizer": 8 + 16 / n, "gradients": 8 + 16 / n, "parameters": 24 / n}
    for found in gangs:
        for level in LEVELS:
            memory = found[f"{level} memory"]
            assert 0.98 * right[level] < memory["held"] < 1.34 * right[level], level
            assert memory["told"] == pytest.approx(right[level], rel=0.02)
        peak = {level: found[f"{level} memory"]["peak"] for level in LEVELS}
        # gradient sums of parts alone; and weights of one block at a time
        assert peak["gradients"] < 0.9 * peak["none"]
        assert peak["parameters"] < 0.8 * peak["none"]


@pytest.mark.slow
@pytest.mark.parametrize("level", HALF_LEVELS)
def test_float16_with_its_loss_scale_is_that_of_one_process(gangs: list[Any], level: str) -> None:
    plain = gangs[0]["plain half"]
    for found in gangs:
        done = found[f"{level} half"]
        assert [one[4:] for one in done["outcomes"]] == [one[4:] for one in plain["outcomes"]]
        assert done["outcomes"][-1][4] == 2.0**14  # halved once, in step BAD
        # float16 holds 11 bits; Adam's first updates are of the size of the rate, 0.01
        _same(done["arrays"], plain["arrays"], rtol=2.0**-8, atol=2e-3, but_buffers=True)


@pytest.mark.slow
def test_memory_refused_or_a_limit_passed_on_one_worker_makes_all_smaller(
    gangs: list[Any],
) -> None:
    for found in gangs:
        for name in ("refused", *(f"{level} passed" for level in HALF_LEVELS)):
            _same(found[name], found["smaller"], but_buffers=True)


def _without_key_biases(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Softmax takes no notice of what is added to all its scores, so the gradient of a bias of keys
    is rounding alone, of which Adam makes whole steps. They stand second of three, 8 each."""
    return {
        name: np.delete(one, slice(8, 16)) if one.shape == (24,) else one
        for name, one in arrays.items()
    }


@pytest.mark.slow
def test_all_levers_at_once_are_plain_training(gangs: list[Any]) -> None:
    plain = gangs[0]["plain language"]
    for found in gangs:
        done = found["every lever"]
        np.testing.assert_allclose(done["losses"], plain["losses"], rtol=1e-6)
        # Where a gradient is nearly 0 its rounding shows in Adam's steps: 5e-6, of 0.1 in ten.
        _same(
            _without_key_biases(done["weights"]), _without_key_biases(plain["weights"]), atol=5e-6
        )


@pytest.mark.slow
def test_workers_agree_on_the_smallest(gangs: list[Any]) -> None:
    assert [found["smallest"] for found in gangs] == [5] * len(gangs)


def refused_in_a_collective() -> str:
    """Worker 1 runs out of memory in the middle of a step whose loop has collectives."""
    replicas = replicated.choose(wait_seconds=300)
    _, made = _made(
        replicas, Techniques(2, shard="gradients"), fails=lambda: replicas.workers.rank == 1
    )
    try:
        attempt(made(2), replicated.share(replicas, _batch(0)), tf.constant(0))
    except MemoryExceeded as error:
        return str(error)
    except tf.errors.UnavailableError:
        return "lost a worker"
    return "no error"


@pytest.mark.slow
def test_where_the_others_cannot_be_told_the_worker_ends_and_theirs_fail() -> None:
    other, refused = gang.end(refused_in_a_collective, workers=2)
    assert refused.value.startswith("training.micro_batch: worker 1 ran out of memory")
    assert other.value == "lost a worker", other.output[-3000:]


# In one process


def _alone(level: str = "parameters", workers: int = 1, rank: int = 0) -> Sharding:
    return Sharding(level, Channel(Workers(workers, rank)))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_parts_put_together_are_the_whole(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), max_size=3), label="shape")
    workers = data.draw(st.integers(1, 5), label="workers")
    whole = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    shardings = [_alone(workers=workers, rank=rank) for rank in range(workers)]
    parts = [one.part(tf.constant(whole)).numpy() for one in shardings]
    assert {one.shape for one in parts} == {(-(-whole.size // workers),)}
    together = np.concatenate(parts)
    np.testing.assert_array_equal(together[: whole.size], whole.reshape(-1))
    assert not together[whole.size :].any()
    for one, part in zip(shardings, parts, strict=True):
        np.testing.assert_array_equal(one.part_of_array(whole), part)


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 40))
def test_buckets_hold_each_once_in_order_and_no_more_than_the_limit(
    sizes: list[int], limit: int
) -> None:
    groups = buckets(sizes, limit=limit)
    assert [place for group in groups for place in group] == list(range(len(sizes)))
    for group in groups:
        assert len(group) == 1 or sum(sizes[place] for place in group) <= limit


def test_with_one_worker_all_is_the_identity() -> None:
    sharding = _alone()
    wholes = [tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant(5.0)]
    parts = [sharding.part(one) for one in wholes]
    assert [one.numpy().tolist() for one in parts] == [[1, 2, 3, 4], [5]]
    again = sharding.whole(parts, [one.shape for one in wholes])
    assert [one.numpy().tolist() for one in again] == [[[1, 2], [3, 4]], 5]
    for one, part in zip(sharding.scattered(wholes), parts, strict=True):
        np.testing.assert_array_equal(one, part)
    assert [float(tf.reduce_sum(one)) for one in sharding.summed(wholes)] == [10, 5]


def test_a_layer_called_without_its_gathered_weights_fails() -> None:
    parameters = Parameters(_alone())
    with without_values():
        model = Net()
    assert model.each[0]._value is None
    parameters.adopt(model.variables)
    with pytest.raises(TypeError):
        _ = model.each[0].value
    assert model.moving.numpy().tolist() == [0, 0, 0]
    with keras.StatelessScope():
        pass
    assert model.each[0]._value is None
    assert [math.prod(one.shape) for one in parameters.slices] == [21, 15, 5, 5, 1]
    # the same draws as those of a model with values
    np.testing.assert_array_equal(parameters.slices[0], tf.reshape(Net().each[0].value, [-1]))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_step_of_three_workers_is_traced_in_one_process(level: str) -> None:
    # as the planner does it: variables in a graph have no memory
    replicas, techniques = Replicas(workers=Workers(3, 0)), Techniques(1, shard=level)
    with tf.Graph().as_default():
        state, sums = _state(replicas, techniques)
        step = make_step(state, sums, settings=TRAINING, techniques=techniques, replicas=replicas)
        rows = replicated.local_rows(replicas, ROWS)
        batch = {name: tf.TensorSpec([rows, *value.shape[1:]], value.dtype)
                 for name, value in _batch(0).items()}  # fmt: skip
        graph = step.whole.get_concrete_function(batch, tf.TensorSpec([], tf.int32)).graph
    found = {one.type for one in graph.get_operations()}
    for function in graph.as_graph_def().library.function:
        found |= {one.op for one in function.node_def}
    assert "CollectiveReduceV2" in found
    assert ("CollectiveGatherV2" in found) == (level != "none")
