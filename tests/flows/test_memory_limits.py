"""A language model trained within a half, a quarter and an eighth of what it would take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.commands import headrace

pytestmark = pytest.mark.long
STEPS = 60
FILES = 120
"""Of the standard library's sources: enough for these steps, and an evaluation of seconds."""


def train(folder: Path, name: str, *sets: str) -> dict[str, Any]:
    told = (f"root=runs-{name}", f"training.steps={STEPS}", "training.precision=float32", *sets)
    given = [part for one in told for part in ("--set", one)]
    said = headrace("run", "stdlib-lm/pipeline.toml", "--json", *given, cwd=folder, timeout=580)
    assert said.code == 0, said.err
    return said.json


def test_a_run_keeps_to_its_limit_and_ends_at_the_same_loss(tmp_path: Path) -> None:
    assert headrace("example", "stdlib-lm", cwd=tmp_path).code == 0
    sources = sorted(one for one in (tmp_path / "stdlib-lm/stdlib").rglob("*") if one.is_file())
    for one in sources[FILES:]:
        one.unlink()
    plain = train(
        tmp_path, "plain", "training.recompute=false", "training.attention=plain",
        "training.token_loss=plain", "training.micro_batch=16",
    )  # fmt: skip
    peak = plain["training"]["peak_memory_bytes"]
    for part in (2, 4, 8):
        limit = peak // part
        found = train(tmp_path, str(part), f"training.memory_limit={limit // 1024}KiB")
        training = found["training"]
        assert training["peak_memory_bytes"] <= limit, part
        assert training["steps"] == STEPS
        for name in ("loss", "bits_per_byte"):
            assert found["metrics"][name] == pytest.approx(plain["metrics"][name], abs=1e-3), part
