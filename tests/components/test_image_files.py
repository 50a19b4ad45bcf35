"""Image files, and columns of encoded images, as rows: which are read, refused or dropped."""

from __future__ import annotations

import base64
import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from components import cleaning, column_types, heads, image_files, readers
from components.cleaning import Cleaning, Rules
from components.readers import Source
from trainer.errors import DataFileError

NULLS = column_types.DEFAULT_NULLS


def encoded(shade: int = 100, form: str = "PNG", mode: str = "RGB", size=(12, 9)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 50, 20)).convert(mode).save(file, form)
    return file.getvalue()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two images of each of two classes, and what is none."""
    for at, name in enumerate(("cats", "dogs")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.png").write_bytes(encoded(at))
        (tmp_path / "pets" / name / "2.jpg").write_bytes(encoded(at, "JPEG"))
    (tmp_path / "pets" / "README.md").write_text("pictures of pets")
    (tmp_path / "pets" / "cats" / "3.gif").write_bytes(encoded(3, "GIF"))
    return tmp_path / "pets"


def rows(source: Source) -> list[dict]:
    return [
        row for part in source.parts for batch in source.read(part) for row in batch.to_pylist()
    ]


def test_a_folder_of_class_folders_is_a_row_an_image(pets: Path) -> None:
    found = readers.resolve(str(pets), pets.parent)
    assert [one.parent.name for one in found.files] == ["cats", "cats", "dogs", "dogs"]
    assert any("3.gif: an image, but no PNG or JPEG" in one for one in found.skipped)
    source = readers.inspect(found.files, NULLS)
    assert source.layout.kinds == {"image": "image", "path": "string", "class": "string"}
    first, *_, last = rows(source)
    assert first == {
        "image": (pets / "cats/1.png").read_bytes(), "path": "cats/1.png", "class": "cats"
    }  # fmt: skip
    assert (last["path"], last["class"]) == ("dogs/2.jpg", "dogs")


def test_images_and_other_files_are_not_read_together(pets: Path) -> None:
    (pets.parent / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataFileError, match="tables and images cannot be read together"):
        readers.resolve(["pets", "rows.csv"], pets.parent)


def test_images_of_one_folder_are_of_one_class(pets: Path) -> None:
    files = readers.resolve(str(pets), pets.parent).files
    assert image_files.one_class(files) is None
    refused = image_files.one_class(readers.resolve(str(pets / "cats"), pets).files)
    assert refused is not None
    assert refused.where == str(pets / "cats")
    assert "2 images" in refused.holds


def test_columns_of_bytes_structs_and_base64_hold_the_same_images(tmp_path: Path) -> None:
    images = [encoded(0), encoded(9, "JPEG"), None]
    labels = ["a", "b", "a"]
    table = pa.table({"picture": pa.array(images, pa.binary()), "label": labels})
    pq.write_table(table, tmp_path / "plain.parquet")
    structs = [one and {"bytes": one, "path": "x.png"} for one in images]
    pq.write_table(pa.table({"picture": structs, "label": labels}), tmp_path / "structs.parquet")
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["picture", "label"])
        for image, label in zip(images, labels, strict=True):
            written.writerow([base64.b64encode(image).decode() if image else "", label])
    for name in ("plain.parquet", "structs.parquet", "texts.csv"):
        source = readers.inspect([tmp_path / name], NULLS)
        assert source.layout.kinds == {"picture": "image", "label": "string"}, name
        assert [one["picture"] for one in rows(source)] == images, name


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (encoded(), ""),
        (encoded(form="JPEG"), ""),
        (encoded(mode="P"), ""),
        (None, "holds no image"),
        (b"", "holds no image"),
        (b"hello", "is no PNG or JPEG"),
        (encoded(form="GIF"), "is GIF, not PNG or JPEG"),
        (encoded(form="BMP"), "is BMP, not PNG or JPEG"),
        (encoded()[:50], "is a broken image"),
        (encoded(form="JPEG")[:300], "is a broken image"),
    ],
)
def test_what_is_wrong_with_an_image_is_said(data: bytes | None, said: str) -> None:
    found = image_files.problem(data)
    assert found.startswith(said) if said else not found


def test_broken_images_are_dropped_and_counted_by_rule_alone() -> None:
    images = pa.array([encoded(), b"hello", None, encoded(2)], pa.large_binary())
    batch = pa.RecordBatch.from_arrays([images, pa.array(["a", "b", "a", "b"])], ["image", "class"])
    layout = column_types.Layout(kinds={"image": "image", "class": "string"})
    kept, counts = Cleaning(Rules(drop_broken_images=True), layout, "class").kept(batch, 0)
    assert kept.tolist() == [True, False, False, True]
    assert counts == Counter(drop_broken_images=2)
    kept, counts = Cleaning(Rules(), layout, "class").kept(batch, 0)
    assert kept.all()
    assert not counts
    everything = np.ones(4, np.bool_)
    assert [row for row, _ in cleaning.broken_images(batch, everything)] == [1, 2]


@pytest.mark.parametrize(
    ("mode", "form", "has_colours"),
    [("RGB", "PNG", True), ("L", "PNG", False), ("P", "PNG", True), ("RGBA", "PNG", True),
     ("LA", "PNG", False), ("RGB", "JPEG", True), ("L", "JPEG", False)],
)  # fmt: skip
def test_the_head_of_an_image_says_its_size(mode: str, form: str, has_colours: bool) -> None:
    data = encoded(mode=mode, form=form, size=(70, 33))
    assert image_files.shape_of(data) == image_files.Shape(70, 33, has_colours)
    assert image_files.shape_of(data[:20]) is None
    assert image_files.shape_of(b"hello") is None


def test_heads_of_many_images_do_not_hold_all_of_them(pets: Path, monkeypatch) -> None:
    monkeypatch.setattr("components.heads.HEAD_BYTES", 8)
    (pets / "cats" / "4.png").write_bytes(encoded() + bytes(5000))
    found = heads.read(readers.resolve(str(pets), pets.parent).files, NULLS)
    sizes = {one.path.name: len(one.rows.column(0)[0].as_py()) for one in found.files}
    assert sizes["4.png"] == 1001
    assert not found.is_whole
    assert found.distinct("class") == 2
