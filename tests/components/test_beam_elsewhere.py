"""The same work on Beam's workers in processes of their own, as a cluster has them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from components import beam_runner, example_gen, readers, split, statistics
from components.cleaning import Cleaning, Rules
from trainer.errors import DataFileError, TrainingError

NULLS = ["", "NA", "NaN", "null"]


def pipeline(*options: str):
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    return beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner", *options]))


def elsewhere():
    return pipeline("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def generate(folder: Path, files: list[Path], beam) -> dict:
    from tfx.types import standard_artifacts

    artifact = standard_artifacts.Examples()
    artifact.uri = str(folder)
    told = {"files": [str(path) for path in files], "label": "late", "null_values": NULLS,
            "clean": {"drop_duplicates": True, "trim": ["*"]},
            "split": {"by": "hash", "column": "", "eval": 0.2}}  # fmt: skip
    example_gen.generate(artifact, told, beam)
    return json.loads((folder / "rows.json").read_text())


def rows_of(folder: Path, name: str) -> Counter:
    rows: Counter = Counter()
    for batch in statistics.read_examples(str(folder), name):
        for row in batch.to_pylist():
            rows[json.dumps(row, sort_keys=True, default=str)] += 1
    return rows


def test_a_local_pipeline_is_told_from_one_with_other_processes() -> None:
    assert beam_runner.is_local(pipeline())
    assert not beam_runner.is_local(elsewhere())


@pytest.mark.long
@pytest.mark.slow
def test_workers_elsewhere_give_the_same_examples_and_statistics(
    flights_1000_rows, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("components.csv_records.BLOCK_BYTES", 16 << 10)
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    header, *rows = flights_1000_rows.read_text().splitlines(keepends=True)
    files[0].write_text("".join([header, *rows[:600]]))
    files[1].write_text("".join([header, *rows[500:]]))
    here = generate(tmp_path / "here", files, pipeline())
    there = generate(tmp_path / "there", files, elsewhere())
    assert there == here
    assert here["cleaned"]["drop_duplicates"] == 100
    for name in split.SPLITS:
        assert rows_of(tmp_path / "here", name) == rows_of(tmp_path / "there", name)
        one, other = (
            statistics.read_statistics(str(tmp_path / place / "statistics"), name)
            for place in ("here", "there")
        )
        assert one == other
    left = [path.name for path in (tmp_path / "there").rglob(".*")]
    assert left == []


def test_what_a_worker_cannot_reach_is_one_line(tmp_path) -> None:
    gone = str(tmp_path / "gone.csv")
    with pytest.raises(DataFileError, match="cannot be reached from a worker") as caught:
        beam_runner.require_reachable([str(tmp_path), gone])
    assert caught.value.where == gone
    with pytest.raises(DataFileError) as again, beam_runner.explained():
        raise RuntimeError(f"Traceback ...\ntrainer.errors.DataFileError: {caught.value}\n")
    assert again.value.where == gone
    told = "job of Beam failed: the last line"
    with pytest.raises(TrainingError, match=told), beam_runner.explained():
        raise RuntimeError("Traceback\nthe last line")


def test_a_part_that_fails_leaves_no_file_with_its_name(tmp_path) -> None:
    """A kill between writing and naming leaves a hidden file, which no reader takes for a shard."""
    path = tmp_path / "a.csv"
    path.write_text("x,late\n" + "1,0\n" * 50)
    source = readers.inspect([path], NULLS)
    for name in split.SPLITS:
        (tmp_path / f"Split-{name}").mkdir()
    shards = example_gen.Shards(
        source, lambda batch: 1 / 0, tmp_path, Cleaning(Rules(), source.layout, "late")
    )
    with pytest.raises(ZeroDivisionError):
        shards.write(0)
    assert list(tmp_path.rglob("*tfrecord*")) == []
