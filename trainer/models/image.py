"""Images to logits: a Transformer over patches (``vit``), or blocks of convolutions (``conv``).

Both begin alike: each patch of P x P pixels becomes one token by a linear map. The Transformer adds
a learned place to each and reads them as a text model reads its tokens (Dosovitskiy et al. 2021,
arXiv:2010.11929); convolutions keep the tokens in their grid, halve it after each block while it is
large, and the head reads their mean (pre-activation blocks, He et al. 2016, arXiv:1603.05027, with
layer norm, whose result does not depend on the other rows of a micro-batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import keras
import tensorflow as tf

from trainer.losses import prior_logits
from trainer.models.blocks import Block, Dense, LayerNorm, dropout, drops, fold_in, normal, uniform
from trainer.models.built import Built
from trainer.models.running import Blocks
from trainer.models.tabular import Asking, Head, label_sums, through
from trainer.precision import policy as policy_of
from trainer.settings import Features, ImageFeature, ModelSettings, Techniques
from trainer.shard import Parameters

SMALLEST_GRID = 4
"""Tokens a side below which convolutions halve the grid no further."""


def build(
    settings: ModelSettings,
    features: Features,
    techniques: Techniques,
    *,
    policy: str,
    seed: int,
    parameters: Parameters | None = None,
) -> Built:
    """Return the model; its weights depend on `seed` alone (and on the shapes).

    Args:
        settings: network, layers, width, heads, dropout and patch.
        features: the image, and the label with its shares.
        techniques: recompute; attention, which convolutions do not have.
        policy: float32, mixed_float16 or mixed_bfloat16.
        seed: of the weights at the start.
        parameters: where the weights are when no worker holds all of them; None: each holds all.
    Raises: SettingError when there is no such policy.
    """
    blocks, dtype = Blocks(techniques.recompute, parameters), policy_of(policy)
    is_vit = settings.network == "vit"
    make = partial(VisionTransformer, attention=techniques.attention) if is_vit else Convolutions
    model = blocks.build(lambda: make(settings, features, dtype=dtype, seed=seed, blocks=blocks))
    places = (image_of(features).size // settings.patch) ** 2
    return Built(
        model=model,
        sums=label_sums(model, features.label),
        predict=partial(model, training=False),
        blocks=settings.layers,
        tokens=places + is_vit,
        width=settings.width,
        attends=is_vit,
    )


def image_of(features: Features) -> ImageFeature:
    """Return the image column; an image model has one."""
    assert features.image is not None
    return features.image


def standard_pixels(pixels: tf.Tensor) -> tf.Tensor:
    """Return levels, uint8, as float32 from -1 to 1."""
    return tf.cast(pixels, tf.float32) * (2 / 255) - 1


class VisionTransformer(keras.Model):
    """Patches to logits; see `build`."""

    def __init__(
        self,
        settings: ModelSettings,
        features: Features,
        *,
        dtype: keras.DTypePolicy,
        seed: int,
        blocks: Blocks,
        attention: Literal["plain", "chunked"],
    ) -> None:
        super().__init__(name="vit", dtype=dtype, autocast=False)
        self.dropout_rate, self.run = settings.dropout, blocks
        self.patches = Patches(image_of(features), settings, seed=seed, dtype=dtype)
        self.places = Places(self.patches.side**2, settings.width, seed=seed, dtype=dtype)
        self.asking = Asking(settings.width, seed=seed, dtype=dtype)
        self.blocks = [
            Block(
                settings, name=f"block_{layer}", seed=seed, dtype=dtype,
                feed="squared", attention=attention,
            )
            for layer in range(settings.layers)
        ]  # fmt: skip
        self.head = Head(settings.width, prior_logits(features.label), seed=seed, dtype=dtype)
        self.built = True

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        seed: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Return the logits of a batch.

        Args:
            inputs: ``pixels`` uint8 [B, S, S, C]; others are not read.
            seed: int32 [2], of dropout; not read where nothing is dropped.
            training: whether dropout is on.
        Returns: float32 [B, C].

        Raises:
            ValueError: when training with dropout and no seed.
        """
        is_dropping = drops(self.dropout_rate, seed, training=training)
        grid = self.run.once(self.patches, inputs["pixels"])
        tokens = tf.reshape(grid, [-1, self.patches.side**2, self.patches.width])
        tokens = self.run.once(self.asking, self.run.once(self.places, tokens))
        tokens = through(self.blocks, tokens, self.run, seed if is_dropping else None, training)
        return self.run.once(self.head, tokens[:, 0])


class Convolutions(keras.Model):
    """A grid of patches to logits; see `build`."""

    def __init__(
        self,
        settings: ModelSettings,
        features: Features,
        *,
        dtype: keras.DTypePolicy,
        seed: int,
        blocks: Blocks,
    ) -> None:
        super().__init__(name="conv", dtype=dtype, autocast=False)
        self.dropout_rate, self.run = settings.dropout, blocks
        self.patches = Patches(image_of(features), settings, seed=seed, dtype=dtype)
        self.blocks = []
        side = self.patches.side
        for layer in range(settings.layers):
            halves = -(-side // 2) >= SMALLEST_GRID
            self.blocks.append(
                ConvolutionBlock(
                    settings, name=f"block_{layer}", seed=seed, dtype=dtype, halves=halves
                )
            )
            side = -(-side // 2) if halves else side
        self.head = Head(settings.width, prior_logits(features.label), seed=seed, dtype=dtype)
        self.built = True

    def call(
        self,
        inputs: Mapping[str, tf.Tensor],
        seed: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Return the logits of a batch; arguments and errors as of `VisionTransformer`."""
        is_dropping = drops(self.dropout_rate, seed, training=training)
        x = self.run.once(self.patches, inputs["pixels"])
        for layer, block in enumerate(self.blocks):
            seeds = [fold_in(seed, layer)] if is_dropping else []
            x = self.run.run(layer, block, x, *seeds, training=training)
        # In float32: a mean over many places is a long sum.
        return self.run.once(self.head, tf.reduce_mean(tf.cast(x, tf.float32), axis=[1, 2]))


class Patches(keras.layers.Layer):
    """Each patch of pixels, from -1 to 1, through one linear map to a token."""

    def __init__(
        self,
        image: ImageFeature,
        settings: ModelSettings,
        *,
        seed: int,
        dtype: keras.DTypePolicy,
    ) -> None:
        super().__init__(name="patches", dtype=dtype, autocast=False)
        self.patch, self.width = settings.patch, settings.width
        self.channels, self.side = image.channels, image.size // settings.patch
        size = self.patch * self.patch * self.channels
        self.lift = Dense(size, self.width, name="patches/lift", seed=seed, dtype=dtype)
        self.built = True

    def call(self, pixels: tf.Tensor) -> tf.Tensor:
        """Map uint8 [B, S, S, C] to [B, S/P, S/P, W] in the compute dtype."""
        x = tf.cast(standard_pixels(pixels), self.compute_dtype)
        if self.patch > 1:
            split = [-1, self.side, self.patch, self.side, self.patch, self.channels]
            x = tf.transpose(tf.reshape(x, split), [0, 1, 3, 2, 4, 5])
        flat = tf.reshape(x, [-1, self.side, self.side, self.patch**2 * self.channels])
        return self.lift(flat)


class Places(keras.layers.Layer):
    """Adds to each token a learned vector of its place."""

    def __init__(self, places: int, width: int, *, seed: int, dtype: keras.DTypePolicy) -> None:
        super().__init__(name="places", dtype=dtype, autocast=False)
        self.shape = (places, width)
        # Flat, since weight decay takes everything of two axes or more for a matrix.
        self.table = self.add_weight(
            shape=(places * width,),
            initializer=uniform(seed, "places", bound=width**-0.5),
            name="places",
            autocast=False,
        )
        self.built = True

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        """Map [B, places, W] to the same."""
        return tokens + tf.reshape(tf.cast(self.table.value, tokens.dtype), self.shape)


class ConvolutionBlock(keras.layers.Layer):
    """Two 3 x 3 convolutions, each after layer norm and relu, added to the input; then halved.

    Dropout is on what the convolutions add.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        name: str,
        seed: int,
        dtype: keras.DTypePolicy,
        halves: bool,
    ) -> None:
        super().__init__(name=name, dtype=dtype, autocast=False)
        self.rate, self.halves = settings.dropout, halves
        width = settings.width
        self.norms = [LayerNorm(width, name=f"{name}/norm_{at}", dtype=dtype) for at in (0, 1)]
        # Variance 2 over inputs, as relu lets half through (He et al. 2015, arXiv:1502.01852).
        deviation = (2 / (9 * width)) ** 0.5
        self.kernels = [
            self.add_weight(
                shape=(3, 3, width, width),
                initializer=normal(seed, f"{name}/kernel_{at}", deviation=deviation),
                name=f"kernel_{at}",
                autocast=False,
            )
            for at in (0, 1)
        ]
        self.biases = [
            self.add_weight(shape=(width,), initializer="zeros", name=f"bias_{at}", autocast=False)
            for at in (0, 1)
        ]
        self.built = True

    def call(
        self, x: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tf.Tensor:
        """Map [B, G, G, W] to [B, G, G, W], or half of G, rounded up.

        Args:
            x: in the compute dtype.
            seed: int32 [2], of this block's dropout; not read where nothing is dropped.
            training: whether dropout is on.
        """
        added = x
        for at in (0, 1):
            active = tf.nn.relu(self.norms[at](added))
            kernel = tf.cast(self.kernels[at].value, x.dtype)
            added = tf.nn.conv2d(active, kernel, strides=1, padding="SAME")
            added = tf.nn.bias_add(added, tf.cast(self.biases[at].value, x.dtype))
        if training and self.rate > 0 and seed is not None:
            added = dropout(added, fold_in(seed, 0), rate=self.rate)
        x += added
        return tf.nn.avg_pool2d(x, 2, strides=2, padding="SAME") if self.halves else x
