"""Training batches with noise and masks, by seed, epoch and index alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trainer.augment import augmented
from trainer.settings import AugmentSettings, NumberFeature
from trainer.tokens import TokenIds
from trainer.transform import MISSING_ID, UNKNOWN_ID

NUMBERS = (
    NumberFeature("x", "float", (0.0, 1.0), 0.0, 2.0),
    NumberFeature("y", "int", (0.0, 1.0), 0.0, 50.0),
)
ROWS = 20_000
BYTES = TokenIds(size=257, end=256, padding=256)


def batch() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {
        "number_values": np.zeros((ROWS, 2)),
        "number_present": draw.random((ROWS, 2)) < 0.5,
        "category_ids": draw.integers(0, 9, (ROWS, 3)).astype(np.int32),
        "tokens": np.full((ROWS, 4), 65, np.int32),
        "label": np.arange(ROWS),
    }


def changed(place=(7, 1, 2), *, ids=BYTES, **told):
    return augmented(batch(), AugmentSettings(**told), NUMBERS, ids=ids, place=place)


def test_noise_has_the_share_of_each_column_s_scale_and_missing_stays_missing() -> None:
    found = changed(noise=0.1)
    present = batch()["number_present"]
    noise = found["number_values"]
    assert (noise[~present] == 0).all()
    for column, scale in enumerate((2.0, 50.0)):
        of_column = noise[present[:, column], column]
        assert of_column.std() == pytest.approx(0.1 * scale, rel=0.05)
    np.testing.assert_array_equal(found["category_ids"], batch()["category_ids"])


def test_masks_hit_their_share_of_known_values_and_tokens() -> None:
    before, found = batch()["category_ids"], changed(mask=0.2)
    hit = found["category_ids"] != before
    assert (found["category_ids"][hit] == UNKNOWN_ID).all()
    assert not hit[before == MISSING_ID].any()
    could = (before != MISSING_ID) & (before != UNKNOWN_ID)
    assert hit[could].mean() == pytest.approx(0.2, abs=0.01)
    assert (found["tokens"] == 256).mean() == pytest.approx(0.2, abs=0.01)
    assert (changed(mask=0.2, ids=None)["tokens"] == 65).all()


def test_the_same_place_gives_the_same_and_another_one_another() -> None:
    one = changed(noise=1.0, mask=0.5)
    for name, value in changed(noise=1.0, mask=0.5).items():
        np.testing.assert_array_equal(value, one[name])
    for place in ((8, 1, 2), (7, 2, 2), (7, 1, 3)):
        other = changed(place, noise=1.0, mask=0.5)
        assert (other["number_values"] != one["number_values"]).any()
        np.testing.assert_array_equal(other["label"], one["label"])


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"noise": -1.0}, {"mask": 1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AugmentSettings(**wrong)
    assert not AugmentSettings().is_on
    assert dataclasses.replace(AugmentSettings(), mask=0.1).is_on
