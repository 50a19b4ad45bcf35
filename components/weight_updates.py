"""How many weight updates teach a model anything, and which settings make so many; light."""

from __future__ import annotations

LEAST_UPDATES = 100
BATCHES = 8
"""Batches an epoch that a suggestion aims at: fewer show the model little but noise or averages."""


def enough_updates(rows: int, global_batch: int) -> str:
    """Say which settings make at least `LEAST_UPDATES` weight updates.

    The batch is lowered to a power of two that makes at least `BATCHES` batches an epoch, where it
    is larger; the rest is left to the epochs.

    Args:
        rows: of the train split.
        global_batch: as it is set.
    """
    fitting = max(1, rows // BATCHES)
    batch = min(global_batch, 1 << (fitting.bit_length() - 1))
    per_epoch = -(-rows // batch)
    epochs = -(-LEAST_UPDATES // per_epoch)
    return (
        f"training.global_batch = {batch} with training.epochs = {epochs} makes "
        f"{epochs * per_epoch:,}, and fewer than {LEAST_UPDATES} seldom teach a model anything"
    )
