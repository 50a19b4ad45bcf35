"""What is there and what is free."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from trainer import devices


def test_there_is_always_a_device_to_train_on() -> None:
    assert devices.compute_devices() == (devices.gpus() or ["CPU:0"])


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="needs no GPU")
def test_a_control_group_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    whole = devices.free_bytes()
    assert 2**20 < whole < 2**50
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.free_bytes() == pytest.approx(whole, rel=0.2)
    (tmp_path / "memory.max").write_text(f"{2**22}\n")
    (tmp_path / "memory.current").write_text(f"{2**21}\n")
    assert devices.free_bytes() == 2**21


def test_the_process_s_peak_is_what_proc_says() -> None:
    held = bytearray(50_000_000)
    assert devices.process_peak_bytes() > len(held)


def test_a_peak_that_is_not_counted_is_zero_not_an_error() -> None:
    devices.reset_peak()
    assert devices.peak_bytes() >= 0
    assert devices.current_bytes() >= 0
