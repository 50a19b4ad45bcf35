"""ExampleGen over Beam, read back through TFX's own reader. Every test here imports TFX."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components import csv_records, readers, split
from trainer import journal
from trainer.errors import DataFileError

pytestmark = pytest.mark.slow

NULLS = ("", "NA", "NaN", "null")
BY_HASH = {"by": "hash", "column": "", "eval": 0.2}


def generate(folder: Path, files: list[Path], *, by: dict[str, Any] = BY_HASH) -> Any:
    """Run what the component runs, and return its artifact."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from tfx.types import standard_artifacts

    from components import example_gen

    artifact = standard_artifacts.Examples()
    artifact.uri = str(folder)
    told = {"files": [str(path) for path in files], "label": "late", "null_values": NULLS}
    example_gen.generate(
        artifact,
        {**told, "split": by},
        beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])),
    )
    return artifact


def read_back(artifact: Any, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a split as TFX's tfxio gives them; a missing value is left out."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from tfx.components.util import tfxio_utils
    from tfx.types import artifact_utils

    make = tfxio_utils.get_tfxio_factory_from_artifact([artifact], ["test"])
    source = make([f"{artifact_utils.get_split_uri([artifact], name)}/*"])
    folder.mkdir()

    def keep(batch: pa.RecordBatch, folder: str = str(folder)) -> None:
        import uuid

        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_batches([batch])
        pq.write_table(table, f"{folder}/{uuid.uuid4()}")

    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        _ = pipeline | source.BeamSource() | beam.Map(keep)
    rows = [row for path in folder.iterdir() for row in pq.read_table(path).to_pylist()]
    return [{key: cell[0] for key, cell in row.items() if cell} for row in rows]


def as_texts(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[str, str], ...]]:
    """Return rows as texts, whatever their order."""

    def text(cell: Any) -> str:
        if isinstance(cell, bytes):
            return cell.decode()
        return f"{cell:g}" if isinstance(cell, float) else str(cell)

    return Counter(
        tuple(sorted((key, text(cell)) for key, cell in row.items() if cell not in {"", None}))
        for row in rows
    )


def test_tfx_reads_back_the_values_of_the_files_missing_ones_included(
    tmp_path, flights_1000_rows, monkeypatch
):
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setenv("HEADRACE_EVENTS", str(tmp_path / "events.jsonl"))
    artifact = generate(tmp_path / "out", [flights_1000_rows])
    train = read_back(artifact, "train", tmp_path / "train")
    held = read_back(artifact, "eval", tmp_path / "eval")
    with open(flights_1000_rows, newline="", encoding="utf-8") as file:
        expected = as_texts([
            {key: cell.removesuffix(".0") for key, cell in row.items()}
            for row in csv.DictReader(file)
        ])
    assert as_texts([*train, *held]) == expected
    # A binomial count: 200 expected, standard deviation 13.
    assert 140 < len(held) < 260

    events, _ = journal.read(tmp_path / "events.jsonl")
    told = next(one for one in events if one["event"] == "data")
    assert told["examples"] == {"train": len(train), "eval": len(held)}
    assert told["rows_read"] == 1000 == sum(told["examples"].values()) + told["rows_refused"]
    progress = [one for one in events if one["event"] == "progress"]
    assert progress[-1]["done"] == progress[-1]["total"] == 1000
    assert json.loads((tmp_path / "out" / "rows.json").read_text())["rows_read"] == 1000


def test_the_examples_of_csv_packed_csv_and_parquet_are_the_same(tmp_path):
    text = "late,f,t\n" + "".join(f"{n % 2},{n / 4},{'x' * (n % 3)}\n" for n in range(50))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    columns = {"late": [n % 2 for n in range(50)], "f": [n / 4 for n in range(50)]}
    columns["t"] = ["x" * (n % 3) for n in range(50)]
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    found = []
    for name in ("a.csv", "b.csv.gz", "c.parquet"):
        artifact = generate(tmp_path / f"out-{name}", [tmp_path / name])
        found.append({
            one: as_texts(read_back(artifact, one, tmp_path / f"{name}-{one}"))
            for one in split.SPLITS
        })
    assert found[0] == found[1] == found[2]


def test_the_artifact_is_laid_out_as_tfx_does(tmp_path):
    from tfx.types import artifact_utils

    (tmp_path / "a.csv").write_text("late,x\n" + "0,1\n1,2\n" * 20)
    artifact = generate(tmp_path / "out", [tmp_path / "a.csv"])
    assert artifact_utils.decode_split_names(artifact.split_names) == ["train", "eval"]
    for name in split.SPLITS:
        files = [path.name for path in (tmp_path / "out" / f"Split-{name}").iterdir()]
        assert files == ["data_tfrecord-00000-of-00001.gz"]


@pytest.fixture
def shards(tmp_path) -> Callable[[str, dict[str, Any]], Any]:
    """Inspect a CSV of this text, and make ready to write its shards."""

    def make(text: str, by: dict[str, Any]) -> Any:
        from components import example_gen

        path = tmp_path / "a.csv"
        path.write_text(text)
        source = readers.inspect([path], NULLS)
        for name in split.SPLITS:
            (tmp_path / "out" / f"Split-{name}").mkdir(parents=True)
        is_eval = split.by_settings(by, source.layout, lambda: iter(()))
        return example_gen.Shards(source, is_eval, tmp_path / "out")

    return make


def test_a_row_that_names_no_split_is_refused_by_line(tmp_path, shards):
    by = {"by": "column", "column": "s", "eval": 0.0}
    made = shards('s,x\ntrain,"1\n2"\neval,3\n\ntest,4\n', by)
    with pytest.raises(DataFileError) as caught:
        made.write(0)
    assert caught.value.where == f"{tmp_path / 'a.csv'}:6"
    assert caught.value.holds == '"test"'


def test_a_file_that_grew_after_it_was_inspected_is_refused(tmp_path, shards):
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from components import example_gen

    made = shards("late,x\n0,1\n1,2\n", BY_HASH)
    (tmp_path / "a.csv").write_text("late,x\n0,\n,\n,\n")
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    with pytest.raises(DataFileError, match="changed while it was read"):
        example_gen.write(made, pipeline)
