"""Layers that we did not write: run like our own blocks, with all that they keep given to them.

Recomputation runs a layer twice, and both runs must be the same. So what it reads besides its
arguments is given to it in a `keras.StatelessScope`: the states of its seed generators, its moving
statistics. What it changes of them is taken from the first run alone. A layer is caught at
``__call__``, where casts, masks and whether it trains are still to be decided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from trainer.errors import SettingError
from trainer.models.blocks import fold_in
from trainer.models.running import Blocks

UNSEEDED = frozenset({
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle",
    "Multinomial", "RandomGammaV2", "RandomPoissonV2", "StatefulUniform", "StatefulUniformInt",
    "StatefulStandardNormalV2", "StatefulTruncatedNormal", "RngReadAndSkip",
})  # fmt: skip
"""Operations that draw other numbers each time."""


class Foreign:
    """A person's model as it is run in training and evaluation.

    Attributes:
        model: Keras model, built.
        seeds: the states of all seed generators that it may draw from.
        kept: its other variables that are not trained.
        running: how the caught layers are run.
        is_training: while the model is run; None otherwise: layers are left alone.
    """

    def __init__(self, model: Any, caught: Sequence[Any], running: Blocks) -> None:
        """Change the classes of some of the model's layers, so that their calls come here.

        Args:
            model: built; its weights have values, or `running` has parts of them.
            caught: layers, none of them within another: first the blocks in order, which may be
                recomputed; then those that need their weights gathered.
            running: how to run them.
        """
        self.model, self.running = model, running
        self.is_training: bool | None = None
        weights = {id(one) for one in (*model.weights, *model.metrics_variables)}
        others = model.non_trainable_variables
        self.kept = [one for one in others if id(one) in weights]
        drawn = [one for one in others if id(one) not in weights]
        self.generator = keras.random.SeedGenerator(0)
        self.seeds = [*drawn, self.generator.state]
        inside = {id(one) for layer in caught for one in layer.trainable_variables}
        self.rest = [one for one in model.trainable_variables if id(one) not in inside]
        for index, layer in enumerate(caught):
            _catch(layer, index, self)

    def __call__(self, inputs: Any, *, seed: tf.Tensor | None, training: bool) -> Any:
        """Run the model; what it keeps besides its weights moves on, in the scope if there is one.

        Args:
            inputs: as the model takes them.
            seed: int32 [2], decides all that is drawn; None: as the generators stand.
            training: whether it trains.
        """
        state = [(one, _current(one)) for one in self.kept] + self._rest()
        if seed is not None:
            state += [(one, tf.cast(fold_in(seed, place), one.dtype))
                      for place, one in enumerate(self.seeds)]  # fmt: skip
        with _scope(state) as scope, self._catching(training), drawing_from(self.generator):
            found = self.model(inputs, training=training)
        for one in self.kept if training else []:
            one.assign(scope.get_current_value(one))
        return found

    def _rest(self) -> list[tuple[Any, tf.Tensor]]:
        """Return the weights of no caught layer, where they must be gathered: for the whole run."""
        parameters = self.running.parameters
        if parameters is None:
            return []
        slices = [tf.identity(one) for _, one in parameters.of(self.rest)]
        wholes = parameters.gather(slices, [one.shape for one in self.rest])
        return list(zip(self.rest, wholes, strict=True))

    @contextlib.contextmanager
    def _catching(self, is_training: bool) -> Generator[None]:
        self.is_training = is_training
        try:
            yield
        finally:
            self.is_training = None

    def run(self, kind: type, layer: Any, index: int, arguments: tuple[Any, Any]) -> Any:
        """Run a caught layer.

        Args:
            kind: its own class.
            layer: which.
            index: its place among the caught ones.
            arguments: by place and by name.
        """
        training = arguments[1].get("training", _inherited(self.is_training))
        given = tf.nest.flatten((arguments[0], {**arguments[1], "training": training}))
        places = [place for place, one in enumerate(given) if tf.is_tensor(one)]
        is_recomputed = (
            bool(training)
            and index < self.running.recompute
            and any(given[place].dtype.is_floating for place in places)
        )
        first = _First(layer, is_recomputed=is_recomputed)
        call = _call(kind, layer, self, given, places, arguments, first)
        run = self.running.function(layer, call, is_recomputed=is_recomputed)
        return first.result(run(*(given[one] for one in places), *map(_current, self.seeds)))


def _catch(layer: Any, index: int, foreign: Foreign) -> None:
    """Let the calls of one layer go to `Foreign.run`."""
    kind = type(layer)

    def caught(self: Any, *args: Any, **kwargs: Any) -> Any:
        if foreign.is_training is None:
            return kind.__call__(self, *args, **kwargs)
        return foreign.run(kind, self, index, (args, kwargs))

    # Python looks `__call__` up in the class, so this layer gets a class of its own.
    own = type(kind.__name__, (kind,), {"__call__": caught, "__module__": kind.__module__})
    object.__setattr__(layer, "__class__", own)


def _call(
    kind: type,
    layer: Any,
    foreign: Foreign,
    given: Sequence[Any],
    places: Sequence[int],
    arguments: tuple[Any, Any],
    first: _First,
) -> Any:
    """Return a layer as a function of tensors: those among its arguments, then the seeds' states.

    Args:
        kind: the layer's own class.
        layer: which.
        foreign: whose seeds it draws from.
        given: all arguments, flat.
        places: of the tensors among them.
        arguments: not flat.
        first: what is taken from the first run.
    """
    masks = [getattr(given[place], "_keras_mask", None) for place in places]
    seeds = foreign.seeds
    drawn = {id(one) for one in seeds}
    kept = [one for one in layer.non_trainable_variables if id(one) not in drawn]
    state = [(one, _current(one)) for one in kept]
    shape = (arguments[0], {**arguments[1], "training": None})

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        flat = list(given)
        for place, tensor, mask in zip(places, tensors, masks, strict=False):
            flat[place] = _masked(tensor, mask)
        args, kwargs = tf.nest.pack_sequence_as(shape, flat)
        # The weights as they are here: gathered ones, maybe.
        trained = [(one, _current(one)) for one in layer.trainable_variables]
        drawing = zip(seeds, tensors[len(places) :], strict=True)
        scope = _scope([*trained, *state, *drawing])
        with scope, drawing_from(foreign.generator):
            found = kind.__call__(layer, *args, **kwargs)
        return first.take(found, scope, [*kept, *seeds])

    return call


class _First:
    """What the first run of a layer gave besides tensors with a gradient."""

    def __init__(self, layer: Any, *, is_recomputed: bool) -> None:
        self.layer, self.is_recomputed = layer, is_recomputed
        self.found: Any = None
        self.before = _operations() if is_recomputed else 0

    def take(
        self, found: Any, scope: keras.StatelessScope, state: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Return the float tensors of what a run gave; of the first one keep everything else."""
        flat = tf.nest.flatten(found)
        if self.found is None:
            self.found, self.flat = found, flat
            self.state = [(one, scope.get_current_value(one)) for one in state]
            if self.is_recomputed:
                _check_seeded(self.layer, self.before)
        return [one for one in flat if _is_float(one)]

    def result(self, floats: Iterable[tf.Tensor]) -> Any:
        """Return what the layer returns, and move on what it keeps."""
        scope = get_stateless_scope()
        for one, value in self.state:
            scope.add_update((one, value))
        following = iter(floats)
        flat = [
            _masked(next(following), getattr(one, "_keras_mask", None)) if _is_float(one) else one
            for one in self.flat
        ]
        return tf.nest.pack_sequence_as(self.found, flat)


@contextlib.contextmanager
def drawing_from(generator: Any) -> Generator[None]:
    """Let what draws without a generator of its own draw from this one, not from Keras's global."""
    before = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
    try:
        yield
    finally:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, before)


def _scope(state: Iterable[tuple[Any, tf.Tensor]]) -> keras.StatelessScope:
    """Return the scope in which variables have these values."""
    scope = keras.StatelessScope(initialize_variables=False)
    for one, value in state:
        # Not by its constructor, which casts to what a variable would be cast to where we are.
        scope.add_update((one, value))
    return scope


def _current(variable: Any) -> tf.Tensor:
    """Return a variable's value here, as it is stored."""
    scope = get_stateless_scope()
    value = None if scope is None else scope.get_current_value(variable)
    return variable._value if value is None else value


def _inherited(default: bool | None) -> bool | None:
    """Return whether the layers around the one that is called train."""
    context = global_state.get_global_attribute("current_call_ctx")
    if context is None:
        return default
    read = getattr(context, "get_value", None)
    value = read("training") if read else context.training
    return default if value is None else value


def _masked(tensor: tf.Tensor, mask: Any) -> tf.Tensor:
    """Return a tensor with the mask that Keras hangs on it."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def _is_float(value: Any) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating


def _operations() -> int:
    return 0 if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())


def _check_seeded(layer: Any, before: int) -> None:
    """Refuse a layer whose second run would draw other numbers.

    Raises:
        SettingError: naming it.
    """
    if tf.executing_eagerly():
        return
    made = tf.compat.v1.get_default_graph().get_operations()[before:]
    if any(one.type in UNSEEDED for one in made):
        raise SettingError(
            f'the layer "{layer.name}" draws random numbers with no seed of its own, so it '
            "cannot be recomputed",
            where="training.recompute", right="keras.random with a keras.random.SeedGenerator, or "
            "recompute = false",
        )  # fmt: skip
