"""Transformer blocks in Keras 3 layers, float32 weights, computing in the policy's dtype."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, Literal

import keras
import tensorflow as tf

from trainer.attention import attention as plain
from trainer.chunked_attention import chunked_attention as chunked
from trainer.settings import ModelSettings

LAYER_NORM_EPSILON = 1e-5

ATTENTIONS = {"plain": plain, "chunked": chunked}


def weight_seed(seed: int, name: str) -> int:
    """Return the seed of one weight's initialiser, from the model's seed and the weight's name."""
    return zlib.crc32(f"{seed}/{name}".encode())


def uniform(seed: int, name: str, *, bound: float) -> keras.initializers.Initializer:
    """Return an initialiser: uniform in -bound..bound, decided by `seed` and `name`."""
    return keras.initializers.RandomUniform(-bound, bound, seed=weight_seed(seed, name))


def normal(seed: int, name: str, *, deviation: float) -> keras.initializers.Initializer:
    """Return an initialiser: normal around 0, decided by `seed` and `name`."""
    return keras.initializers.RandomNormal(stddev=deviation, seed=weight_seed(seed, name))


def dropout(x: tf.Tensor, seed: tf.Tensor, *, rate: float) -> tf.Tensor:
    """Drop a share of `x`, scaling the rest by 1 / (1 - rate); the mask depends on `seed` alone.

    The mask is drawn as 32-bit integers: the same under every policy, and with XLA or without
    (their floats differ).

    Args:
        x: any shape.
        seed: int32 [2].
        rate: 0 to below 1.
    """
    # A named algorithm: "auto" draws other numbers on another device.
    draw = tf.random.stateless_uniform(
        tf.shape(x), seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    is_kept = draw >= tf.constant(int(rate * 2**32), tf.uint32)
    return tf.where(is_kept, x * tf.cast(1 / (1 - rate), x.dtype), tf.constant(0, x.dtype))


def drops(rate: float, seed: tf.Tensor | None, *, training: bool) -> bool:
    """Say whether a model drops anything.

    Raises:
        ValueError: when it does, and there is no seed.
    """
    is_on = training and rate > 0
    if is_on and seed is None:
        raise ValueError("seed: training with dropout needs one, int32 [2]")
    return is_on


def fold_in(seed: tf.Tensor, number: int) -> tf.Tensor:
    """Return another seed, int32 [2], made of `seed` and `number`."""
    return tf.random.experimental.stateless_fold_in(seed, number, alg="philox")


class Dense(keras.layers.Layer):
    """x kernel + bias over the last axis, Glorot-uniform kernel, zero bias."""

    def __init__(
        self, size_in: int, size_out: int, *, name: str, seed: int, dtype: keras.DTypePolicy
    ) -> None:
        super().__init__(name=name.replace("/", "_"), dtype=dtype, autocast=False)
        bound = (6 / (size_in + size_out)) ** 0.5
        self.kernel = self.add_weight(
            shape=(size_in, size_out),
            initializer=uniform(seed, name, bound=bound),
            name="kernel",
            autocast=False,
        )
        self.bias = self.add_weight(
            shape=(size_out,), initializer="zeros", name="bias", autocast=False
        )
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Map [..., size_in] to [..., size_out], in x's dtype."""
        return _affine(x, self.kernel.value, self.bias.value)

    def part(self, x: tf.Tensor, start: int, stop: int) -> tf.Tensor:
        """Map [..., size_in] to columns start..stop of the output only."""
        return _affine(x, self.kernel.value[:, start:stop], self.bias.value[start:stop])


def _affine(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return x kernel + bias in x's dtype."""
    kernel, bias = tf.cast(kernel, x.dtype), tf.cast(bias, x.dtype)
    size_in, size_out = kernel.shape
    # One plain matmul: a batched one against a shared kernel is several times slower on CPUs.
    flat = tf.reshape(x, [-1, size_in])
    if size_in > size_out:
        # So that the kernel's gradient reads across the narrower one of x and upstream: it takes a
        # quarter less time on CPUs.
        flat = tf.matmul(flat, tf.transpose(kernel), transpose_b=True)
    else:
        flat = tf.matmul(flat, kernel)
    flat = tf.nn.bias_add(flat, bias)
    if x.shape.rank == 2:
        return flat
    return tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [size_out]], 0))


class LayerNorm(keras.layers.Layer):
    """Layer norm over the last axis; moments, scale and offset in float32.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, width: int, *, name: str, dtype: keras.DTypePolicy) -> None:
        super().__init__(name=name.replace("/", "_"), dtype=dtype, autocast=False)
        self.scale = self.add_weight(
            shape=(width,), initializer="ones", name="scale", autocast=False
        )
        self.offset = self.add_weight(
            shape=(width,), initializer="zeros", name="offset", autocast=False
        )
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Normalise [..., W], in x's dtype."""
        return layer_norm(x, self.scale.value, self.offset.value)


def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Return x with mean 0 and variance 1 over the last axis, times scale, plus offset.

    The gradient is written out, with fewer passes over x than TensorFlow's own of each operation.

    Args:
        x: [..., W], any float type; computed in float32.
        scale: float32 [W].
        offset: float32 [W].
    Returns: [..., W] in x's dtype.
    """
    width = x.shape[-1]

    @tf.custom_gradient
    def normed(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> Any:
        rows = tf.cast(tf.reshape(x, [-1, width]), tf.float32)
        centred = rows - tf.reduce_mean(rows, axis=1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=1, keepdims=True)
        shrink = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
        unit = centred * shrink

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            coming = tf.cast(tf.reshape(upstream, [-1, width]), tf.float32)
            by_unit = coming * unit
            share = scale[:, None] / width
            inner = coming * scale - tf.matmul(coming, share) - unit * tf.matmul(by_unit, share)
            return [
                tf.reshape(tf.cast(inner * shrink, x.dtype), tf.shape(upstream)),
                tf.raw_ops.BiasAddGrad(out_backprop=by_unit),
                tf.raw_ops.BiasAddGrad(out_backprop=coming),
            ]

        found = tf.cast(unit * scale + offset, x.dtype)
        return tf.reshape(found, tf.shape(x)), gradient

    return normed(x, tf.convert_to_tensor(scale), tf.convert_to_tensor(offset))


def gated(x: tf.Tensor) -> tf.Tensor:
    """Return relu of the first half of the last axis, times the second half (ReGLU)."""
    gate, value = tf.split(x, 2, axis=-1)
    return tf.nn.relu(gate) * value


def squared(x: tf.Tensor) -> tf.Tensor:
    """Return relu(x)^2."""

    @tf.custom_gradient
    def square(x: tf.Tensor) -> Any:
        known = tf.nn.relu(x)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # Where relu is 0 so is this: the gradient of relu itself need not be taken.
            half = upstream * known
            return half + half

        return tf.square(known), gradient

    return square(x)


Feed = Literal["gated", "squared"]

FEEDS = {
    "gated": lambda width: (gated, 2 * -(-4 * width // 3), -(-4 * width // 3)),
    "squared": lambda width: (squared, 4 * width, 4 * width),
}
"""What a block does to a token alone: the activation, and the numbers before and after it.

``gated``: relu(x A) * (x B) C (Shazeer 2020, arXiv:2002.05202), 4/3 as wide as the token, as in
Gorishniy et al. 2021 (arXiv:2106.11959). ``squared``: relu(x A)^2 C, four times as wide (So et al.
2021, arXiv:2109.08668), for models of text.
"""


class Block(keras.layers.Layer):
    """A pre-norm Transformer block: attention and a feed-forward, each added to its input.

    The feed-forward is one of `FEEDS`. Dropout is on what either half adds.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        name: str,
        seed: int,
        dtype: keras.DTypePolicy,
        feed: Feed = "gated",
        attention: Literal["plain", "chunked"] = "plain",
        causal: bool = False,
    ) -> None:
        super().__init__(name=name, dtype=dtype, autocast=False)
        width = settings.width
        self.heads, self.width, self.rate = settings.heads, width, settings.dropout
        self.depth = width // settings.heads
        self.attend = partial(ATTENTIONS[attention], causal=causal)
        self.attention_norm = LayerNorm(width, name=f"{name}/attention_norm", dtype=dtype)
        self.query_key_value = Dense(
            width, 3 * width, name=f"{name}/query_key_value", seed=seed, dtype=dtype
        )
        self.attention_out = Dense(
            width, width, name=f"{name}/attention_out", seed=seed, dtype=dtype
        )
        self.feed_norm = LayerNorm(width, name=f"{name}/feed_norm", dtype=dtype)
        self.activate, wide, narrow = FEEDS[feed](width)
        self.feed_in = Dense(width, wide, name=f"{name}/feed_in", seed=seed, dtype=dtype)
        self.feed_out = Dense(narrow, width, name=f"{name}/feed_out", seed=seed, dtype=dtype)
        self.built = True

    def call(
        self,
        tokens: tf.Tensor,
        seed: tf.Tensor | None = None,
        lengths: tf.Tensor | None = None,
        training: bool = False,
        first_only: bool = False,
    ) -> tf.Tensor:
        """Map tokens to tokens.

        Args:
            tokens: [B, S, W], compute dtype.
            seed: int32 [2], of this block's dropout; not read where nothing is dropped.
            lengths: int32 [B], how many of the tokens may be seen; None: all.
            training: whether dropout is on.
            first_only: compute the first token's result alone, the same numbers for less work; not
                where attention is causal.
        Returns: [B, S, W], or [B, 1, W] for `first_only`.
        """
        asking = tokens[:, :1] if first_only else tokens
        attend = self._attend_first if first_only else self._attend
        mask = None
        if lengths is not None:
            mask = tf.sequence_mask(lengths, tokens.shape[1])[:, None, None]
        attended = attend(self.attention_norm(tokens), mask)
        tokens = asking + self._drop(attended, seed, training=training, place=0)
        fed = self.feed_out(self.activate(self.feed_in(self.feed_norm(tokens))))
        return tokens + self._drop(fed, seed, training=training, place=1)

    def _attend(self, x: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Return what attention adds to each token of x, [B, S, W]."""
        query, key, value = self._split(self.query_key_value(x))
        query *= tf.cast(self.depth**-0.5, query.dtype)
        mixed = self.attend(query, key, value, mask=mask)
        merged = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, x.shape[1], self.width])
        return self.attention_out(merged)

    def _attend_first(self, x: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """Return what attention adds to the first token of x alone, [B, 1, W].

        For one query a head it is cheaper to carry the query through the keys' map than every
        token: q (x K) = (q K') x, and sum p (x V) = (sum p x) V. So the tokens themselves are
        keys and values, and the heads are the queries. The bias of the keys shifts all scores of
        a query alike, which softmax does not see; that of the values is added once, as the p add
        up to 1. About a tenth fewer CPU seconds a step than with keys and values of all tokens.
        """
        query = self.query_key_value.part(x[:, 0], 0, self.width)
        query = tf.reshape(query * tf.cast(self.depth**-0.5, x.dtype), [-1, self.heads, self.depth])
        to_keys, to_values = (self._by_head(place, x.dtype) for place in (1, 2))
        asked = _map_heads(query, tf.transpose(to_keys, [0, 2, 1]))
        mixed = plain(asked[:, None], x[:, None], x[:, None], mask=mask)[:, 0]
        merged = tf.reshape(_map_heads(mixed, to_values), [-1, 1, self.width])
        bias = self.query_key_value.bias.value[2 * self.width :]
        return self.attention_out(merged + tf.cast(bias, x.dtype))

    def _by_head(self, place: int, dtype: str) -> tf.Tensor:
        """Return the kernel of queries (0), keys (1) or values (2), [H, W, D]."""
        columns = slice(place * self.width, (place + 1) * self.width)
        kernel = tf.cast(self.query_key_value.kernel.value[:, columns], dtype)
        return tf.transpose(tf.reshape(kernel, [self.width, self.heads, self.depth]), [1, 0, 2])

    def _split(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Split [B, S, 3 W] into query, key and value, each [B, H, S, D]."""
        apart = tf.reshape(x, [-1, x.shape[1], 3, self.heads, self.depth])
        return tf.unstack(tf.transpose(apart, [2, 0, 3, 1, 4]))

    def _drop(
        self, x: tf.Tensor, seed: tf.Tensor | None, *, training: bool, place: int
    ) -> tf.Tensor:
        if not training or self.rate == 0 or seed is None:
            return x
        return dropout(x, fold_in(seed, place), rate=self.rate)


def _map_heads(x: tf.Tensor, kernels: tf.Tensor) -> tf.Tensor:
    """Map [B, H, a] by a kernel a head, [H, a, b], to [B, H, b]."""
    return tf.transpose(tf.matmul(tf.transpose(x, [1, 0, 2]), kernels), [1, 0, 2])
