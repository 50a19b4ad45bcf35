"""The gate before a text or language model."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from components import anomalies, example_gen, gate, readers, schema, split, statistics
from components.gate import Data
from trainer.errors import DataRefused, SettingError

NULLS = ["", "NA", "NaN", "null"]
SPLITS = ["train", "eval"]
BY_HASH = {"by": "hash", "column": "", "eval": 0.4}
BY_COLUMN = {"by": "column", "column": "split", "eval": 0.2}


def judged(folder: Path, paths: list[Path], **changed) -> list[dict]:
    """Bring files to the gate, and return what it finds."""
    told = {
        "files": [str(path) for path in paths], "label": "", "task": "auto", "ignore": [],
        "null_values": NULLS, "split": BY_HASH, "on_anomaly": "stop", "rules": {},
        "global_batch": 1, "model": "causal-lm", "text": "", "sequence": 8, "vocabulary": "bytes",
        **changed,
    }  # fmt: skip
    source = readers.inspect(told["files"], NULLS)
    names = ("examples", "statistics", "schema", "anomalies")
    places = {name: str(folder / name) for name in names}
    for name in SPLITS:
        (folder / "examples" / f"Split-{name}").mkdir(parents=True)
    is_eval = split.by_settings(
        told["split"],
        source.layout,
        lambda: (batch for part in source.parts for batch in source.read(part)),
    )
    shards = example_gen.Shards(source, is_eval, folder / "examples")
    example_gen.write(shards, None)
    (folder / "examples" / "rows.json").write_text(json.dumps(example_gen.facts(shards)))
    statistics.write_statistics(places["examples"], places["statistics"], SPLITS)
    schema.write_schema(
        places["statistics"], places["schema"], schema="infer", label=told["label"], choice=told
    )
    anomalies.write_anomalies(
        places["statistics"], places["schema"], places["anomalies"], splits=SPLITS
    )
    with contextlib.suppress(DataRefused):
        gate.run_gate(Data(**places), str(folder / "verdict"), told)
    return json.loads((folder / "verdict" / "anomalies.json").read_text())


def documents(folder: Path, texts: list[str]) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def table(folder: Path, text: str) -> list[Path]:
    (folder / "t.csv").write_text(text)
    return [folder / "t.csv"]


def test_documents_pass_and_their_texts_are_in_no_list(tmp_path: Path) -> None:
    paths = documents(tmp_path, [f"document {number}" for number in range(20)])
    assert judged(tmp_path / "run", paths) == []
    text = (tmp_path / "run/schema/schema.pbtxt").read_text()
    assert "document 1" not in text
    assert "txt" not in text
    assert len(list((tmp_path / "run/examples/Split-train").iterdir())) == 1


def test_fewer_windows_than_a_batch_warn(tmp_path: Path) -> None:
    paths = documents(tmp_path, [f"document {number:02d}" for number in range(20)])
    (one,) = judged(tmp_path / "run", paths, global_batch=1000)
    rows = json.loads((tmp_path / "run/examples/rows.json").read_text())["examples"]["train"]
    windows = -(-(rows * 12 - 1) // 8)
    assert (one["kind"], one["severity"]) == ("FEW_WINDOWS", "warn")
    assert f"train split has {rows * 12:,} tokens, which make {windows:,} windows" in one["message"]


def test_a_split_without_a_text_is_refused(tmp_path: Path) -> None:
    paths = table(tmp_path, "body,split\nsome text,train\nmore,train\n,eval\n")
    found = judged(tmp_path / "run", paths, split=BY_COLUMN)
    assert [(one["kind"], one["split"], one["severity"]) for one in found] == [
        ("NO_WINDOW", "eval", "stop")
    ]


def test_a_text_model_needs_texts_and_its_label(tmp_path: Path) -> None:
    rows = "".join(f",{n},{n % 2},{'eval' if n > 7 else 'train'}\n" for n in range(12))
    paths = table(tmp_path, "body,n,label,split\n" + rows)
    settings = {"model": "text", "label": "label", "text": "body", "split": BY_COLUMN}
    found = judged(tmp_path / "run", paths, **settings)
    assert [one["kind"] for one in found] == ["NO_TEXT"]


def test_columns_that_a_text_model_does_not_read_only_warn(tmp_path: Path) -> None:
    rows = "".join(
        f"text {n},{'odd' if n > 7 else 'even'},{n % 2},{'eval' if n > 7 else 'train'}\n"
        for n in range(12)
    )
    paths = table(tmp_path, "body,other,label,split\n" + rows)
    settings = {"model": "text", "label": "label", "text": "body", "split": BY_COLUMN}
    found = judged(tmp_path / "run", paths, **settings)
    assert {(one["feature"], one["severity"]) for one in found} == {("other", "warn")}


def test_a_text_that_is_not_clear_ends_the_schema_s_node(tmp_path: Path) -> None:
    paths = table(tmp_path, "a,b\nx,y\nz,w\nu,v\nr,s\np,q\n")
    with pytest.raises(SettingError, match=r"data\.text: several columns hold texts"):
        judged(tmp_path / "run", paths)
