"""`init` on real files: what it takes for them, and that `check` then finds nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import real_sets
from PIL import Image

from pipeline import config, guesses, preflight, wizard
from trainer.errors import InputError


def loaded(data: Path, label: str, ask: guesses.Ask | None = None) -> config.PipelineConfig:
    out = data.parent / "made.toml"
    wizard.write(str(data), label, out, ask)
    return config.load(out)


@pytest.mark.parametrize(("name", "label"), list(real_sets.SETS.items()))
def test_twelve_real_sets_get_a_configuration_that_check_finds_nothing_in(
    tmp_path: Path, name: str, label: str
) -> None:
    made = loaded(real_sets.write(name, tmp_path), label)
    assert preflight.result(made)["findings"] == []
    assert made.data.task == real_sets.TASKS[name]
    assert made.model.kind == {"functions": "text", "sources": "causal-lm"}.get(name, "tabular")
    assert made.data.split.by == ("time" if name in {"flights", "weather"} else "hash")


def test_a_column_that_the_label_is_made_from_is_ignored_as_a_leak(tmp_path: Path) -> None:
    made = loaded(real_sets.write("flights", tmp_path), "late")
    text = (tmp_path / "made.toml").read_text()
    assert "arr_delay" in made.data.ignore
    assert '"arr_delay",' in text
    assert "leak? it alone tells" in text
    assert "carrier" not in made.data.ignore
    assert made.data.split.column == "time_hour"


def test_ids_constants_and_lists_are_ignored_with_their_reason(tmp_path: Path) -> None:
    rows = 400
    table = pa.table({
        "row id": list(range(rows)),
        "uuid": [f"{n * 7919 % 10_007:05d}-x" for n in range(rows)],
        "always": ["same"] * rows,
        "tags": [[n, n + 1] for n in range(rows)],
        "x": [n % 13 for n in range(rows)],
        "größe": [float(n * 37 % 101) / 7 for n in range(rows)],
        "y": ["yes" if n % 13 + n % 5 > 8 else "no" for n in range(rows)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    made = loaded(tmp_path / "a.parquet", "y")
    assert set(made.data.ignore) == {"row id", "uuid", "always", "tags"}
    assert made.data.task == "binary"
    assert preflight.result(made)["findings"] == []


def test_nobody_is_asked_off_a_terminal(tmp_path: Path) -> None:
    data = real_sets.write("iris", tmp_path)
    with pytest.raises(InputError, match=r"--label: must be given; .* the columns are"):
        wizard.write(str(data), "", tmp_path / "made.toml", None)


def test_at_a_terminal_the_label_and_a_doubtful_task_are_asked_for(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def answer(question: str, default: str) -> str:
        asked.append((question, default))
        return "regression" if "quantity" in question else default

    made = loaded(real_sets.write("digits", tmp_path), "", answer)
    assert [default for _, default in asked] == ["target", "multiclass"]
    assert made.data.task == "regression"


@pytest.mark.parametrize(
    ("text", "label", "said"),
    [
        ("a,y\n1,0\n2,1\n", "z", "the data has no column z; the columns are a, y"),
        ("a, y\n1,0\n2,1\n", "y", 'the nearest is " y"'),
        ("a,y\n" + "".join(f"{n % 3},n{n}\n" for n in range(60)), "y", "looks like an id"),
        ("a,y\n1,0\n2,0\n", "y", "the same value in every row"),
        ("y\n0\n1\n", "y", "there is no column but y"),
        ("a;y\n0;1\n1;2\n", "y", '";" stood between the columns'),
    ],
)
def test_a_label_that_cannot_be_predicted_is_refused_in_one_line(
    tmp_path: Path, text: str, label: str, said: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as error:
        wizard.write(str(tmp_path / "a.csv"), label, tmp_path / "made.toml", None)
    assert said in str(error.value)
    assert not (tmp_path / "made.toml").exists()


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    data = real_sets.write("iris", tmp_path)
    (tmp_path / "made.toml").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        wizard.write(str(data), "target", tmp_path / "made.toml", None)
    assert (tmp_path / "made.toml").read_text() == "mine"


def picture(shade: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (30, 21), (shade, 9, 9)).convert(mode).save(file, "PNG")
    return file.getvalue()


def write_pets(folder: Path, *names: str, mode: str = "RGB") -> Path:
    """Forty images of each class."""
    for name in names:
        (folder / "pets" / name).mkdir(parents=True)
        for at in range(40):
            shade = 2 * at + (0 if name == "cats" else 100)
            (folder / "pets" / name / f"{at}.png").write_bytes(picture(shade, mode))
    return folder / "pets"


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_folder_of_class_folders_gets_an_image_model(
    tmp_path: Path, mode: str, channels: int
) -> None:
    made = loaded(write_pets(tmp_path, "cats", "dogs", mode=mode), "")
    assert (made.data.label, made.data.task, made.model.kind) == ("class", "image", "image")
    # The shorter side is 21; a multiple of 4 is taken.
    assert (made.model.image_size, made.model.channels) == (20, channels)
    assert preflight.result(made)["findings"] == []


def test_a_folder_with_one_class_is_refused_in_one_message(tmp_path: Path) -> None:
    data = write_pets(tmp_path, "cats")
    with pytest.raises(InputError, match="the images are of one class") as refused:
        wizard.write(str(data), "", tmp_path / "made.toml", None)
    assert refused.value.where == str(data / "cats")
    made = loaded(write_pets(tmp_path / "both", "cats", "dogs"), "")
    text = made.path.read_text().replace('files = "pets"', f'files = "{data}"')
    (tmp_path / "one.toml").write_text(text)
    (found,) = preflight.result(config.load(tmp_path / "one.toml"))["findings"]
    assert "the images are of one class" in found["message"]


def test_a_column_of_images_is_read_and_the_others_are_not(tmp_path: Path) -> None:
    rows = 80
    table = pa.table({
        "photo": [picture(at) for at in range(rows)],
        "weight": [float(at % 7) for at in range(rows)],
        "animal": [("cat", "dog")[at % 2] for at in range(rows)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "pets.parquet")
    made = loaded(tmp_path / "pets.parquet", "animal")
    assert (made.model.kind, made.data.image, made.data.ignore) == ("image", "photo", ("weight",))
    assert preflight.result(made)["findings"] == []
    with pytest.raises(InputError, match="photo holds images"):
        wizard.write(str(tmp_path / "pets.parquet"), "photo", tmp_path / "other.toml", None)
