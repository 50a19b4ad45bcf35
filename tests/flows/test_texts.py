"""Text and language models from a folder of files to an exported model, as a person runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.commands import headrace

pytestmark = pytest.mark.slow
SMALL = (
    "model.layers=1", "model.width=32", "model.heads=2", "model.sequence=64",
    "training.global_batch=32", "training.learning_rate=1e-2",
)  # fmt: skip


def run(name: str, folder: Path, *sets: str):
    assert headrace("example", name, cwd=folder).code == 0
    told = [part for one in (*SMALL, *sets) for part in ("--set", one)]
    said = headrace("run", f"{name}/pipeline.toml", "--json", *told, cwd=folder, timeout=580)
    assert said.code == 0, said.err
    return said.json


def test_a_language_model_learns_from_a_folder_of_sources(tmp_path: Path) -> None:
    result = run("stdlib-lm", tmp_path, "training.steps=120")
    assert set(result["metrics"]) == {"loss", "bits_per_byte", "perplexity", "accuracy"}
    assert set(result["baseline"]) == set(result["metrics"])
    # A byte of English or Python without any context has about 4.5 bits, and 8 at most.
    assert 4 < result["baseline"]["bits_per_byte"] < 5.5
    assert result["metrics"]["bits_per_byte"] < result["baseline"]["bits_per_byte"]
    files = sum(1 for one in (tmp_path / "stdlib-lm/stdlib").rglob("*") if one.is_file())
    assert sum(result["examples"].values()) == files
    assert result["anomalies"] == []
    pipeline = tmp_path / "stdlib-lm/runs/stdlib-lm"
    assert Path(result["model"]).parent == pipeline / "models"
    # Nothing of the texts is in the report, nor in the schema or the statistics.
    assert Path(result["report"]).stat().st_size < 500_000
    for path in pipeline.glob("*/*/*/**/*"):
        if path.name in {"schema.pbtxt", "FeatureStats.pb", "values.json", "anomalies.json"}:
            assert b"import " not in path.read_bytes(), path
            assert path.stat().st_size < 100_000
    again = headrace("run", "stdlib-lm/pipeline.toml", "--json", *(
        part for one in (*SMALL, "training.steps=120") for part in ("--set", one)
    ), cwd=tmp_path)  # fmt: skip
    assert {one["state"] for one in again.json["nodes"]} == {"cached"}


def test_a_text_model_learns_which_package_a_function_is_from(tmp_path: Path) -> None:
    result = run("stdlib-packages", tmp_path, "training.steps=120")
    assert result["metrics"]["loss"] < result["baseline"]["loss"]
    assert result["metrics"]["accuracy"] > result["baseline"]["accuracy"]
    assert Path(result["model"]).is_dir()
