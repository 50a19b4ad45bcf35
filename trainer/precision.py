"""Precision by name: Keras's policies, and what stays in float32 whatever the policy.

Under ``mixed_float16`` and ``mixed_bfloat16`` the blocks compute in 16 bits. These stay in float32:
the weights themselves (cast at each use), layer norm's moments, the softmax of attention, logits,
loss, gradient sums, the optimizer's state. Numbers are encoded in float64 before their cast, and
ids are integers that never pass through float.
"""

from __future__ import annotations

import keras

from trainer.errors import SettingError

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def resolve(name: str, *, has_gpu: bool) -> str:
    """Return the policy's name; ``auto`` is mixed_float16 on a GPU and float32 on a CPU.

    CPUs have no fast float16, so that there half precision costs time and saves little memory.

    Raises:
        SettingError: when there is no such policy.
    """
    if name == "auto":
        return "mixed_float16" if has_gpu else "float32"
    if name not in POLICIES:
        raise SettingError(
            "there is no such precision",
            where="training.precision",
            holds=f'"{name}"',
            right=f"one of auto, {', '.join(POLICIES)}",
        )
    return name


def policy(name: str) -> keras.DTypePolicy:
    """Return Keras's policy of that name, one of `POLICIES`.

    Raises:
        SettingError: when there is no such policy.
    """
    return keras.DTypePolicy(resolve(name, has_gpu=False))
