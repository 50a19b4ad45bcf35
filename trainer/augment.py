"""Light augmentation of training batches: noise on numbers, masked values, moved images.

What a batch gets depends on (seed, epoch, index) alone, so a resumed run goes on with the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trainer import images
from trainer.settings import AugmentSettings, Job, NumberFeature
from trainer.texts import Texts, Windows
from trainer.tokens import TokenIds
from trainer.transform import MISSING_ID, UNKNOWN_ID

STREAM = 0x61756765
"""Apart from the stream of random numbers that orders the rows."""


def augmenter(
    job: Job, text: Texts | Windows | None
) -> Callable[[dict[str, np.ndarray], int, int], dict[str, np.ndarray]] | None:
    """Return what changes a batch of an epoch and index, as the job asks; None: nothing does.

    Args:
        job: settings, features and seed.
        text: the text column of the train split.
    """
    if not job.augment.is_on:
        return None
    ids = text.ids if isinstance(text, Texts) else None

    def change(batch: dict[str, np.ndarray], epoch: int, index: int) -> dict[str, np.ndarray]:
        place = (job.training.seed, epoch, index)
        return augmented(batch, job.augment, job.features.numbers, ids=ids, place=place)

    return change


def mover(job: Job) -> Callable[[int, int, int], np.ndarray] | None:
    """Return what says how the images of a batch are moved, of rows, epoch and index.

    None: they are not, or there are none.
    """
    if job.features.image is None or not job.augment.moves_images:
        return None

    def draw(rows: int, epoch: int, index: int) -> np.ndarray:
        return images.draws(rows, job.augment, place=(job.training.seed, epoch, index))

    return draw


def augmented(
    batch: dict[str, np.ndarray],
    settings: AugmentSettings,
    numbers: Sequence[NumberFeature],
    *,
    ids: TokenIds | None,
    place: tuple[int, int, int],
) -> dict[str, np.ndarray]:
    """Return a batch with noise on its numbers, and some categories and tokens masked.

    Args:
        batch: as `Columns.batch`; it is left as it is.
        settings: how much.
        numbers: their scale is what noise is measured in; missing ones stay missing.
        ids: of a text's tokens, masked by padding; None: no text, or windows, whose tokens are
            also what is predicted.
        place: seed, epoch and index of the batch.
    """
    seed, epoch, index = place
    draw = np.random.Generator(np.random.Philox(key=[seed, STREAM], counter=[0, 0, epoch, index]))
    result = dict(batch)
    if settings.noise and "number_values" in batch:
        scale = settings.noise * np.array([one.scale for one in numbers], np.float64)
        values = batch["number_values"]
        noise = draw.standard_normal(values.shape) * scale
        result["number_values"] = np.where(batch["number_present"], values + noise, values)
    if settings.mask and "category_ids" in batch:
        known = batch["category_ids"] != MISSING_ID
        hit = known & (draw.random(known.shape) < settings.mask)
        result["category_ids"] = np.where(hit, np.int32(UNKNOWN_ID), batch["category_ids"])
    if settings.mask and ids is not None:
        tokens = batch["tokens"]
        hit = draw.random(tokens.shape) < settings.mask
        result["tokens"] = np.where(hit, np.int32(ids.padding), tokens)
    return result
