"""Images from a folder to an exported model and its answers, as a person runs them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from flows.commands import headrace

pytestmark = pytest.mark.slow


def test_digits_are_told_apart_and_a_broken_image_is_named(tmp_path: Path) -> None:
    assert headrace("example", "digits", cwd=tmp_path).code == 0
    said = headrace("run", "digits/pipeline.toml", "--json", cwd=tmp_path, timeout=580)
    assert said.code == 0, said.err
    result = said.json
    assert result["metrics"]["accuracy"] >= 0.97
    assert sum(result["examples"].values()) == 1797
    assert result["anomalies"] == []
    pipeline = tmp_path / "digits/runs/digits"
    # No image is in the report, nor in the schema or the statistics.
    for path in pipeline.glob("*/*/*/**/*"):
        if path.name in {"schema.pbtxt", "FeatureStats.pb", "values.json", "anomalies.json"}:
            assert b"IHDR" not in path.read_bytes(), path
            assert path.stat().st_size < 200_000
    (schema,) = pipeline.glob("SchemaGen/schema/*/schema.pbtxt")
    assert "image_domain" in schema.read_text()

    ask = ("predict", "digits/runs/digits/models", "digits/digits", "--out", "out.csv")
    assert headrace(*ask, cwd=tmp_path).code == 0
    with open(tmp_path / "out.csv", newline="") as file:
        answers = [row["prediction"] for row in csv.DictReader(file)]
    paths = sorted((tmp_path / "digits/digits").rglob("*.png"))
    right = sum(one == path.parent.name for one, path in zip(answers, paths, strict=True))
    assert right / len(paths) >= 0.97

    broken = paths[5]
    broken.write_bytes(broken.read_bytes()[:60])
    refused = headrace(*ask, cwd=tmp_path)
    assert refused.code == 2
    assert str(broken) in refused.err
    assert headrace(*ask, "--keep-errors", cwd=tmp_path).code == 0
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [at for at, one in enumerate(rows) if one["error"]] == [5]
    assert rows[5]["prediction"] == ""

    tell = ("run", "digits/pipeline.toml", "--json", "--set", "training.epochs=1")
    refused = headrace(*tell, cwd=tmp_path)
    assert refused.code == 2
    assert str(broken) in refused.json["error"]
    kept = headrace(*tell, "--set", "data.clean.drop_broken_images=true", cwd=tmp_path)
    assert kept.code == 0
    assert sum(kept.json["examples"].values()) == 1796
