"""Everything that a training step changes, cut up over the workers or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from trainer import offload
from trainer.cluster import Workers
from trainer.collectives import Channel
from trainer.layout import Part, Stored
from trainer.loss_scale import LossScale, start
from trainer.memory import tensor_bytes
from trainer.optimizer import AdamW
from trainer.settings import Techniques, TrainingSettings
from trainer.shard import Parameters, Sharding, WeightParts

MODEL_SLOTS = ("weight/", "other/")
"""How the names of the model's own variables begin."""
MOMENTS = ("first/", "second/")
"""How the names of the optimizer's moments begin."""


def set_variables(model: keras.Model, arrays: Mapping[str, np.ndarray]) -> None:
    """Give a whole model the weights and other variables of a state's whole arrays, by slot."""
    values = {name.rpartition("/")[0]: one for name, one in arrays.items()}
    for kind, variables in (
        ("weight", model.trainable_variables), ("other", model.non_trainable_variables),
    ):  # fmt: skip
        for place, one in enumerate(variables):
            one.assign(values[f"{kind}/{place:03d}"])


class TrainState:
    """The state; make it in the scope of the replicas.

    Attributes:
        model: Keras model, float32 weights.
        sharding: how it is cut up.
        weights: the model's weights, or this worker's slices of them.
        buffers: the model's other variables.
        are_gathered: whether the model runs its layers with the weights of `Parameters`.
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
        techniques: Techniques | None = None,
        workers: Workers | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        """Make it, untrained; no worker needs another one for that.

        Args:
            model: its variables have values, unless `parameters` holds them.
            settings: of the optimizer.
            total_steps: updates in all.
            policy: float32, mixed_float16 or mixed_bfloat16.
            techniques: shard and offload are read; none when not given.
            workers: who trains; this process alone when not given.
            parameters: the weights' slices, for shard ``parameters``; for ``gradients`` they let
                each block's gradients be cut up at once, rather than all at the end.
        """
        self.model = model
        self.are_gathered = parameters is not None
        shard = techniques.shard if techniques else "none"
        self.sharding = (
            parameters.sharding if parameters else Sharding(shard, Channel(workers or Workers()))
        )
        self.buffers = list(model.non_trainable_variables)
        self.weights = (
            parameters.slices if parameters else [one.value for one in model.trainable_variables]
        )
        self.shapes = [tuple(one.shape) for one in model.trainable_variables]
        cuts_moments_alone = self.sharding.cuts_optimizer and not self.sharding.cuts_parameters
        self.device = offload.place(techniques.offload if techniques else "none")
        self.optimizer = AdamW(
            self.weights, settings, total_steps=total_steps, shapes=self.shapes,
            parts=WeightParts(self.sharding, self.weights) if cuts_moments_alone else None,
            device=self.device,
        )  # fmt: skip
        self.is_scaled = policy == "mixed_float16"
        self.loss_scale = LossScale(
            *(tf.Variable(one, trainable=False) for one in start(is_scaled=self.is_scaled))
        )

    @property
    def gradient_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the gradient sums over micro-batches."""
        if not self.sharding.cuts_gradients:
            return self.shapes
        return [(self.sharding.size(one),) for one in self.shapes]

    def join(self, control: Channel) -> None:
        """Begin to train with the other workers; all of them call it at the same moment.

        Weights that every worker holds whole become those of worker 0, so that a model whose
        initial weights nobody seeded is the same everywhere.
        """
        control.open(self.sharding.channel)
        if self.sharding.workers == 1:
            return
        for name, one in self.variables().items():
            if name.startswith(MODEL_SLOTS) and name not in self._wholes():
                mine = one if self.sharding.rank == 0 else tf.zeros_like(one)
                one.assign(self.sharding.channel.sum(tf.convert_to_tensor(mine)))

    def variables(self) -> dict[str, tf.Variable]:
        """Return every variable of this worker by the name of its slot in a checkpoint."""
        names = [f"{place:03d}/{one.name}" for place, one in
                 enumerate(self.model.trainable_variables)]  # fmt: skip
        optimizer = self.optimizer
        return {
            **{f"weight/{name}": one for name, one in zip(names, self.weights, strict=True)},
            **{f"first/{name}": one for name, one in zip(names, optimizer.first, strict=True)},
            **{f"second/{name}": one for name, one in zip(names, optimizer.second, strict=True)},
            **{f"other/{place:03d}/{one.name}": one.value for place, one in
               enumerate(self.buffers)},
            "updates": optimizer.updates,
            **{f"loss_scale/{name}": one for name, one in self.loss_scale._asdict().items()},
        }  # fmt: skip

    def _wholes(self) -> dict[str, tuple[int, ...]]:
        """Return the whole shapes of the variables that are parts, by name."""
        kinds = (
            ("weight/", *MOMENTS) if self.sharding.cuts_parameters
            else MOMENTS if self.sharding.cuts_optimizer
            else ()
        )  # fmt: skip
        names = [f"{place:03d}/{one.name}" for place, one in
                 enumerate(self.model.trainable_variables)]  # fmt: skip
        return {f"{kind}{name}": shape for kind in kinds
                for name, shape in zip(names, self.shapes, strict=True)}  # fmt: skip

    def each_array(self) -> Iterator[tuple[str, np.ndarray]]:
        """Give a copy of every variable, whole, one at a time.

        Where the state is cut up, every worker must go through all of them, to give its parts.

        Yields:
            The name of a slot, and its array.
        """
        wholes = self._wholes()
        for name, one in self.variables().items():
            if name in wholes:
                (whole,) = self.sharding.whole([tf.convert_to_tensor(one)], [wholes[name]])
                yield name, whole.numpy()
            else:
                yield name, np.array(one.numpy())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return a copy of every variable, whole, by name; see `each_array`."""
        return dict(self.each_array())

    def template(self) -> dict[str, np.ndarray]:
        """Return arrays like those of `arrays`, all 0, that take no memory and ask no worker."""
        wholes = self._wholes()
        return {
            name: np.broadcast_to(
                np.zeros((), one.dtype.as_numpy_dtype), wholes.get(name, tuple(one.shape))
            )
            for name, one in self.variables().items()
        }

    def parts(self) -> dict[str, Part]:
        """Return a copy of what this worker alone has to save, by name.

        Its parts of the variables that are cut up, and, of worker 0, the others; asks no worker.
        """
        wholes, found = self._wholes(), {}
        for name, one in self.variables().items():
            if name in wholes:
                first, last = self.sharding.bounds(wholes[name])
                own = np.array(one.numpy()[: last - first])
                found[name] = Part(own, first, wholes[name])
            elif self.sharding.rank == 0:
                found[name] = Part.all_of(np.array(one.numpy()))
        return found

    def load(self, arrays: Mapping[str, np.ndarray], *, kinds: tuple[str, ...] = ("",)) -> None:
        """Set the variables that `arrays` names, one after the other.

        Args:
            arrays: whole ones; of those of a checkpoint no more is read than this worker's part.
            kinds: how the names begin of those that are set.
        """
        variables, wholes = self.variables(), self._wholes()
        for name in arrays:
            if not name.startswith(kinds):
                continue
            if name in wholes:
                variables[name].assign(self._part_of(arrays, name, wholes[name]))
            else:
                variables[name].assign(arrays[name])

    def _part_of(
        self, arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        if not isinstance(arrays, Stored):
            return self.sharding.part_of_array(arrays[name])
        first, last = self.sharding.bounds(shape)
        mine = arrays.part(name, first, last)
        return np.pad(mine, (0, self.sharding.size(shape) - len(mine)))

    def load_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the model's variables alone."""
        self.load(arrays, kinds=MODEL_SLOTS)

    def sizes(self) -> dict[str, list[int]]:
        """Return the bytes on one device of each tensor that is there all the time."""
        by_kind: dict[str, list[int]] = {"weights": [], "optimizer": []}
        for name, one in self.variables().items():
            kind = "weights" if name.startswith(MODEL_SLOTS) else "optimizer"
            is_elsewhere = self.device and name.startswith(MOMENTS)
            if not is_elsewhere:
                by_kind[kind].append(tensor_bytes(one.shape, one.dtype))
        return by_kind

    def host_bytes(self) -> int:
        """Return the bytes of the optimizer's state in host memory, where it is offloaded."""
        moments = [*self.optimizer.first, *self.optimizer.second] if self.device else []
        return sum(tensor_bytes(one.shape, one.dtype) for one in moments)
