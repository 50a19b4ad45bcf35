"""One table in every format reads as the same values; damaged, as the same or as one refusal.

Python's csv and pyarrow write; what they wrote is what must be read.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from components import column_types, csv_records, heads, readers, split, tfrecord_files
from components.csv_records import Dialect
from trainer.errors import DataFileError

NULLS = column_types.DEFAULT_NULLS
SOME = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
words = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6
).filter(lambda one: one.strip() == one)
float32s = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def tables(draw, lists=False) -> dict[str, list[Any]]:
    """Columns of one kind each, missing values among them, none without any value."""
    rows = draw(st.integers(1, 12))
    kinds = {
        "n": st.integers(-(2**63), 2**63 - 1),
        "x": float32s.map(lambda one: one + 0.0),
        "t": words.map(lambda one: "w" + one),
        **({"l": st.lists(st.integers(-5, 5), max_size=3)} if lists else {}),
    }
    return {
        name: draw(st.lists(st.none() | kind, min_size=rows, max_size=rows))
        for name, kind in kinds.items()
    }


def is_told(table: dict[str, list[Any]]) -> bool:
    """Say whether each column has a value, and the numbers with a fraction one with a fraction."""
    has_values = all(any(one not in (None, []) for one in column) for column in table.values())
    return has_values and any(one is not None and one % 1 for one in table["x"])


def read(*paths: Path, dialect: Dialect = csv_records.PLAIN) -> dict[str, list[Any]]:
    source = readers.inspect(paths, NULLS, dialect)
    batches = [batch for part in source.parts for batch in source.read(part)]
    return pa.Table.from_batches(batches).to_pydict()


def as_csv(table, dialect: Dialect = csv_records.PLAIN) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=dialect.delimiter, quotechar=dialect.quote)
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow("" if one is None else one for one in row)
    return out.getvalue().encode(dialect.encoding)


def record(data: bytes) -> bytes:
    """Frame a record as tensorflow/core/lib/io/record_writer.h has it."""

    def masked(of: bytes) -> bytes:
        crc = google_crc32c.value(of)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


def as_tfrecord(table) -> bytes:
    from tensorflow.core.example import example_pb2

    records = []
    for row in zip(*table.values(), strict=True):
        example = example_pb2.Example()
        for name, one in zip(table, row, strict=True):
            values = one if isinstance(one, list) else [] if one is None else [one]
            feature = example.features.feature[name]
            for value in values:
                if isinstance(value, str):
                    feature.bytes_list.value.append(value.encode())
                elif isinstance(value, float):
                    feature.float_list.value.append(value)
                else:
                    feature.int64_list.value.append(value)
        records.append(record(example.SerializeToString()))
    return b"".join(records)


def as_zst(data: bytes) -> bytes:
    """With a checksum, as the program zstd writes it."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def same(found: dict[str, list[Any]], table: dict[str, list[Any]]) -> bool:
    return {name: [one or None if isinstance(one, list) else one for one in column]
            for name, column in found.items()} == {
        name: [one or None if isinstance(one, list) else one for one in column]
        for name, column in table.items()}  # fmt: skip


@SOME
@given(tables())
def test_packed_csv_files_hold_what_the_plain_one_does(tmp_path, table) -> None:
    assume(is_told(table))
    data = as_csv(table)
    for name, content in (
        ("a.csv", data), ("b.csv.gz", gzip.compress(data)), ("c.csv.zst", as_zst(data)),
    ):  # fmt: skip
        path = tmp_path / name
        path.write_bytes(content)
        assert read(path) == table, name


@SOME
@given(tables(), st.sampled_from(";|\t"), st.sampled_from("'\"~"),
       st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-8-sig", "utf-32"]))  # fmt: skip
def test_delimiter_quote_and_encoding_are_those_that_are_set(
    tmp_path, table, delimiter, quote, encoding
) -> None:
    assume(is_told(table))
    dialect = Dialect(delimiter, quote, encoding)
    path = tmp_path / "a.csv"
    path.write_bytes(as_csv(table, dialect))
    assert read(path, dialect=dialect) == table
    head = heads.read([path], NULLS, dialect)
    assert pa.Table.from_batches([head.files[0].rows]).to_pydict() == table


def test_latin_1_is_read_where_it_is_set_and_a_wrong_encoding_is_refused_by_line(tmp_path) -> None:
    """Case data-12."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"gr\xf6\xdfe,label\ncaf\xe9,0\nth\xe9,1\n")
    assert read(path, dialect=Dialect(encoding="latin-1")) == {
        "größe": ["café", "thé"], "label": [0, 1],
    }  # fmt: skip
    with pytest.raises(DataFileError, match="is not in the encoding euc-jp; it holds the byte"):
        read(path, dialect=Dialect(encoding="euc-jp"))


@SOME
@given(tables(lists=True), st.integers(1, 3), st.booleans())
def test_parquet_shards_hold_the_table(tmp_path, table, shards, is_dictionary) -> None:
    """Nested lists, dictionaries, nullable integers; a shard may lack a column's values."""
    assume(is_told(table))
    schema = pa.schema([
        ("n", pa.int64()), ("x", pa.float32()),
        ("t", pa.dictionary(pa.int32(), pa.string()) if is_dictionary else pa.large_string()),
        ("l", pa.list_(pa.int64())),
    ])  # fmt: skip
    whole = pa.table({name: pa.array(table[name], kind.type)
                      for name, kind in zip(table, schema, strict=True)})  # fmt: skip
    size = max(1, math.ceil(whole.num_rows / shards))
    paths = []
    for old in tmp_path.glob("*.parquet"):
        old.unlink()
    for number, start in enumerate(range(0, whole.num_rows, size)):
        part = whole.slice(start, size)
        # Shards disagree: the order of columns, and a column of nulls that has no type.
        names = list(part.column_names)[:: 1 if number % 2 else -1]
        part = part.select([name for name in names if part[name].null_count < part.num_rows])
        if not part.num_columns:
            part = whole.slice(start, size).select(["n"])
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(part, paths[-1])
    found = read(*paths)
    assert same({name: found[name] for name in table}, table)


@SOME
@given(tables(lists=True), st.booleans())
def test_tfrecords_hold_the_table(tmp_path, table, packed) -> None:
    assume(is_told(table))
    # Of a feature with one value everywhere nothing says that it is a list.
    assume(any(len(one or ()) > 1 for one in table["l"]))
    data = as_tfrecord(table)
    path = tmp_path / ("a.tfrecord.gz" if packed else "a.tfrecord")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert same(read(path), table)
    head = heads.read([path], NULLS).files[0].rows
    assert same(pa.Table.from_batches([head]).to_pydict(), table)


@SOME
@given(tables(), st.randoms(use_true_random=False))
def test_the_split_is_the_same_in_every_format_and_order(tmp_path, table, random) -> None:
    """Acceptance 2: rows by what they hold, one file or shards, shuffled, packed or not."""
    assume(is_told(table))
    rows = list(zip(*table.values(), strict=True))
    shuffled = random.sample(rows, len(rows))
    other = dict(zip(table, map(list, zip(*shuffled, strict=True)), strict=True))
    data = as_csv(other)
    files = {
        "a.csv": as_csv(table), "b.csv.gz": gzip.compress(data), "c.csv.zst": as_zst(data),
        "d.tfrecord": as_tfrecord(other),
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    types = [pa.int64(), pa.float32(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(other.values(), types, strict=True)]
    pq.write_table(pa.table(arrays, list(other)), tmp_path / "e.parquet")
    found = []
    for name in [*files, "e.parquet"]:
        source = readers.inspect([tmp_path / name], NULLS)
        is_eval = split.by_settings({"by": "hash", "column": "", "eval": 0.5}, source.layout, list)
        split_of = [
            (*row.values(), bool(held))
            for part in source.parts
            for batch in source.read(part)
            for row, held in zip(
                pa.Table.from_batches([batch]).select(list(table)).to_pylist(), is_eval(batch),
                strict=True,
            )
        ]  # fmt: skip
        found.append(sorted(split_of, key=repr))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst", "a.parquet", "a.tfrecord", "a.csv"])
@SOME
@given(data=st.data())
def test_a_damaged_file_gives_the_rows_or_one_refusal(tmp_path, name, data) -> None:
    """Never a wrong value from a checksummed format; from a CSV, whose bytes are all it has, none
    but those of the damaged line."""
    table = {"n": list(range(40)), "x": [n + 0.5 for n in range(40)], "t": ["word"] * 40}
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table(table), path, compression="zstd")
        # Arrow verifies a page's checksum from version 11 on: damage the compressed frames and
        # the footer, whose structure it verifies.
    else:
        plain = as_tfrecord(table) if "tfrecord" in name else as_csv(table)
        pack = {"gz": gzip.compress, "zst": as_zst}.get(name.rsplit(".", 1)[1], bytes)
        path.write_bytes(pack(plain))
    good = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        good[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del good[at:]
    path.write_bytes(bytes(good))
    found, error = read_or_refuse(path)
    if error:
        assert str(path) in error
        assert len(error.splitlines()) == 1
        return
    if name in {"a.csv", "a.parquet"}:
        assert len(next(iter(found.values()))) <= 41
    else:
        assert found == table or (name == "a.tfrecord" and is_prefix(found, table))


def read_or_refuse(path: Path) -> tuple[dict[str, list[Any]], str]:
    try:
        return read(*readers.resolve(str(path), path.parent).files), ""
    except DataFileError as error:
        return {}, str(error)


def is_prefix(found, table) -> bool:
    """A plain TFRecord that ends between two records cannot be told from a whole one."""
    rows = len(next(iter(found.values())))
    return found == {name: column[:rows] for name, column in table.items()}


def test_a_tfrecord_names_the_damaged_record(tmp_path) -> None:
    table = {"n": list(range(5)), "t": ["a", "b", "c", "d", "e"]}
    data = bytearray(as_tfrecord(table))
    data[len(data) // 2] ^= 4
    path = tmp_path / "a.tfrecord"
    path.write_bytes(bytes(data))
    with pytest.raises(DataFileError, match="damaged or ends in the middle") as caught:
        read(path)
    assert caught.value.where == f"{path}:row 3"
    path.write_bytes(record(b"\xff\xff"))
    with pytest.raises(DataFileError, match=r"no tf\.Example"):
        read(path)
    assert tfrecord_files.is_tfrecord(path)


def test_whole_numbers_past_2_to_the_24_are_kept_or_warned_of(tmp_path) -> None:
    """Case data-9, variant C, and its sibling in float32."""
    path = tmp_path / "a.csv"
    path.write_text("x\n16777217\n0.5\n")
    source = readers.inspect([path], NULLS)
    assert any("column x" in one and "2^24" in one for one in source.layout.warnings)
    assert np.float32(16777217) == np.float32(16777216)
    path.write_text("x\n16777217\n9007199254740993\n")
    assert read(path) == {"x": [16777217, 9007199254740993]}


# Object storage


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a real S3 server in this process, and its client."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        told = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
        client = boto3.client(
            "s3", endpoint_url=told["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="k", aws_secret_access_key="s",
        )  # fmt: skip
        client.create_bucket(Bucket="rows")
        yield client, told, patch
    server.stop()


@pytest.fixture
def s3(bucket, monkeypatch):
    client, told, _ = bucket
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return client


def put(client, **objects: bytes) -> None:
    for name, data in objects.items():
        client.put_object(Bucket="rows", Key=f"in/{name}.csv", Body=data)


@pytest.mark.filterwarnings("ignore")
def test_object_storage_is_read_and_what_is_no_data_is_said(s3, tmp_path) -> None:
    put(s3, a=b"x,y\n1,2\n", b=b"x,y\n3,4\n", _SUCCESS=b"x\n", empty=b"")
    s3.put_object(Bucket="rows", Key="in/notes.pdf", Body=b"x")
    for spec in ("s3://rows/in/*", "s3://rows/in", "s3://rows/in/"):
        found = readers.resolve(spec, tmp_path, tmp_path / "copies")
        assert [path.name for path in found.files] == ["a.csv", "b.csv"], spec
        assert {one.split(": ")[1] for one in found.skipped} == {
            "hidden or a marker", "not a data file by its ending", "empty",
        }  # fmt: skip
    assert read(*found.files) == {"x": [1, 3], "y": [2, 4]}
    one = readers.resolve("s3://rows/in/a.csv", tmp_path, tmp_path / "copies").files
    before = one[0].stat()
    assert one[0] == tmp_path / "copies" / "s3" / "rows" / "in" / "a.csv"
    # Nothing changed: not copied again. Another object under the same name: copied.
    readers.resolve("s3://rows/in/a.csv", tmp_path, tmp_path / "copies")
    assert one[0].stat().st_mtime_ns == before.st_mtime_ns
    put(s3, a=b"x,y\n9,8\n")
    readers.resolve("s3://rows/in/a.csv", tmp_path, tmp_path / "copies")
    assert read(*one) == {"x": [9], "y": [8]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", ["s3://rows/none.csv", "s3://nowhere/a.csv", "ftp://a/b.csv"])
def test_storage_that_has_no_such_object_is_one_refusal(s3, tmp_path, spec) -> None:
    with pytest.raises(DataFileError) as caught:
        readers.resolve(spec, tmp_path, tmp_path / "copies")
    assert spec in str(caught.value)
    assert not list((tmp_path / "copies").rglob("*.csv"))


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_task_brings_what_addresses_stand_for_in_the_order_named(
    s3, tmp_path, monkeypatch
) -> None:
    from kubeflow import data

    put(s3, a=b"x,y\n1,2\n", b=b"x,y\n3,4\n")
    (tmp_path / "here.csv").write_bytes(b"x,y\n5,6\n")
    monkeypatch.chdir(tmp_path)
    named = ["s3://rows/in/b.csv", "here.csv", "s3://rows/in/a.csv"]
    files = data.local_files(named, tmp_path / "scratch")
    assert [Path(one).name for one in files] == ["b.csv", "here.csv", "a.csv"]
    assert Path(files[0]).is_relative_to(tmp_path / "scratch")
    assert data.digest(named) == data.digest(named)
    assert data.digest(named) != data.digest(named[::-1])
    before = data.digest(named)
    put(s3, a=b"x,y\n1,3\n")
    assert data.digest(named) != before
