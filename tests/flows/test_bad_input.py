"""What a person does wrong gets one line, at once, and leaves nothing behind."""

import json
import os
import socket
import time

import pytest
from flows.commands import flight_rows, headrace, write_config, write_rows

ROWS = [["a", "b", "label"], *([str(n), f"t{n % 3}", str(n % 2)] for n in range(40))]


def text(rows):
    return "".join(",".join(row) + "\n" for row in rows)


def project(folder, content=None, *, config=""):
    if content is not None:
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(folder / "data.csv", mode) as file:
            file.write(content)
    (folder / "pipeline.toml").write_text(
        'name = "bad"\n' + (config or '[data]\nfiles = "data.csv"\nlabel = "label"\n')
    )
    return folder


CASES = {
    "missing file": (None, "", ["data.csv", "no such file"]),
    "empty file": ("", "", ["data.csv", "empty"]),
    "header only": ("a,b,label\n", "", ["data.csv", "no rows"]),
    "not UTF-8": (b"a,b,label\n1,caf\xe9,0\n2,x,1\n", "", ["data.csv:2", "not UTF-8", "0xE9"]),
    "UTF-16": (text(ROWS).encode("utf-16"), "", ["data.csv", "UTF-16"]),
    "ragged rows": ("a,b,label\n1,2,0\n3,4\n5,6,1,9\n", "", ["data.csv:3", "2", "3"]),
    "two columns of one name": ("a,a,label\n1,2,0\n", "", ["'a'", "twice"]),
    "a numeric header": ("5.1,3.5,0\n4.9,3.0,1\n", "", ["data.csv:1", "5.1"]),
    "label not in the data": (
        text(ROWS),
        '[data]\nfiles = "data.csv"\nlabel = "labl"\n',
        ["data.label", "labl", "label"],
    ),
    "unknown key": (
        text(ROWS),
        '[data]\nfiles = "data.csv"\nlabel = "label"\n[training]\nprecison = "float32"\n',
        ["pipeline.toml:6", "training.precison", "training.precision"],
    ),
    "wrong type": (
        text(ROWS),
        '[data]\nfiles = "data.csv"\nlabel = "label"\n[training]\nepochs = "2"\n',
        ["training.epochs", '"2"'],
    ),
    "unreadable Parquet": (
        text(ROWS),
        '[data]\nfiles = "data.parquet"\nlabel = "label"\n',
        ["data.parquet", "Parquet"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_in_one_line_before_anything_heavy(name, tmp_path):
    content, config, words = CASES[name]
    project(tmp_path, content, config=config)
    (tmp_path / "data.parquet").write_bytes(b"PAR1 this is none")
    started = time.monotonic()
    said = headrace("run", cwd=tmp_path)
    assert said.code == 2, said.out + said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.out + said.err
    # A bound against imports of TensorFlow, with room for a busy machine.
    assert time.monotonic() - started < 20
    assert not (tmp_path / "runs" / "bad" / "ExampleGen").exists()
    asked = headrace("run", "--json", cwd=tmp_path)
    assert asked.code == 2
    result = json.loads(asked.out)
    assert (result["status"], result["error"]) == ("failed", said.err.strip())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_root_that_cannot_be_written_to(tmp_path):
    project(tmp_path, text(ROWS))
    (tmp_path / "runs").mkdir(mode=0o500)
    said = headrace("run", cwd=tmp_path)
    assert said.code == 2
    assert "root" in said.err


def test_a_root_that_is_a_file(tmp_path):
    project(tmp_path, text(ROWS))
    (tmp_path / "runs").write_text("")
    said = headrace("run", cwd=tmp_path)
    assert said.code == 2
    assert "root" in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_port_in_use(tmp_path):
    project(tmp_path, text(ROWS))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").write_bytes(b"")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = headrace("ui", "--port", port, cwd=tmp_path)
    assert said.code == 2
    assert len(said.err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "labels", "kind"),
    [
        ("one class", ["1"] * 40, "LABEL_ONE_VALUE"),
        ("labels missing", ["0", "1", ""] * 13 + ["0"], "LABEL_MISSING"),
    ],
)
def test_labels_that_cannot_be_trained_on_are_refused_by_the_gate(tmp_path, name, labels, kind):
    rows = [
        ROWS[0],
        *([row[0], row[1], label] for row, label in zip(ROWS[1:], labels, strict=True)),
    ]
    project(tmp_path, text(rows))
    said = headrace("run", "--json", cwd=tmp_path)
    assert said.code == 3, said.out + said.err
    assert kind in {one["kind"] for one in said.json["anomalies"]}
    assert said.json["status"] == "rejected"
    assert not (tmp_path / "runs" / "bad" / "models").exists()


@pytest.mark.slow
def test_three_rows_are_refused_for_their_empty_split_or_trained_on(tmp_path):
    project(tmp_path, "a,label\n1,0\n2,1\n3,0\n")
    said = headrace("run", "--json", cwd=tmp_path)
    assert said.code in {0, 3}
    if said.code == 3:
        assert "rows" in said.json["error"]
    else:
        assert said.json["training"]["steps"] > 0


@pytest.mark.slow
def test_a_full_disk_is_named_and_earlier_results_stay(tmp_path):
    """A file system of 4 MB holds the examples' beginning and no more."""
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=4m tmpfs {tmp_path}") != 0:
        pytest.skip("a small file system can be mounted by root alone")
    try:
        write_rows(tmp_path / "flights.csv", flight_rows(20_000))
        write_config(tmp_path)
        said = headrace("run", cwd=tmp_path)
        assert said.code in {2, 4}
        assert len(said.err.strip().splitlines()) == 1
        assert "space" in said.err or "disk" in said.err or "free" in said.err
    finally:
        os.system(f"umount {tmp_path}")
