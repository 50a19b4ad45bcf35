from __future__ import annotations

import re

import pytest

from components.weight_updates import LEAST_UPDATES, enough_updates


@pytest.mark.parametrize("rows", [1, 2, 7, 46, 142, 1000, 50_000])
@pytest.mark.parametrize("global_batch", [1, 3, 32, 1024])
def test_the_settings_that_are_suggested_make_enough_updates(rows, global_batch) -> None:
    said = re.search(
        r"global_batch = (\d+) with training.epochs = (\d+) makes ([\d,]+)",
        enough_updates(rows, global_batch),
    )
    assert said is not None
    batch, epochs, updates = (int(one.replace(",", "")) for one in said.groups())
    assert batch <= global_batch
    assert updates == epochs * len(range(0, rows, batch)) >= LEAST_UPDATES
    assert (epochs - 1) * len(range(0, rows, batch)) < LEAST_UPDATES
