"""Names of precisions."""

from __future__ import annotations

import pytest

from trainer.errors import SettingError
from trainer.precision import POLICIES, policy, resolve


def test_auto_halves_the_precision_on_a_gpu_only() -> None:
    assert resolve("auto", has_gpu=True) == "mixed_float16"
    assert resolve("auto", has_gpu=False) == "float32"


def test_a_named_precision_is_kept() -> None:
    for name in POLICIES:
        assert resolve(name, has_gpu=True) == resolve(name, has_gpu=False) == name


def test_policies_keep_their_weights_in_float32() -> None:
    assert [policy(name).variable_dtype for name in POLICIES] == ["float32"] * 3
    assert [policy(name).compute_dtype for name in POLICIES] == ["float32", "float16", "bfloat16"]


def test_an_unknown_precision_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r'training.precision: .*"float8".*mixed_bfloat16'):
        resolve("float8", has_gpu=False)
