from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from pipeline import config
from trainer.errors import InputError, SettingError
from trainer.settings import CheckpointSettings, ModelSettings, TrainingSettings

LEAST = '[data]\nfiles = "a.csv"\nlabel = "late"\n'


@pytest.fixture
def load(tmp_path: Path):
    def loaded(text: str = "", *sets: str) -> config.PipelineConfig:
        path = tmp_path / "pipeline.toml"
        path.write_text(text if "[data]" in text else LEAST + text, encoding="utf-8")
        return config.load(path, sets)

    return loaded


@pytest.fixture
def refused(load, tmp_path: Path):
    def message(text: str, *sets: str) -> str:
        with pytest.raises(InputError) as found:
            load(text, *sets)
        assert found.value.exit_code == 2
        return str(found.value).replace(f"{tmp_path}/", "")

    return message


def test_every_key_but_files_and_label_has_a_default(load, tmp_path):
    loaded = load()
    assert loaded.data.files == ("a.csv",)
    assert loaded.model == ModelSettings()
    assert loaded.training == TrainingSettings()
    assert loaded.checkpoint == CheckpointSettings()
    assert loaded.folder == tmp_path / "runs" / "pipeline"
    assert loaded.schema_path is None
    assert loaded.tracking_uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert loaded.set_keys == ("data.files", "data.label")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[training]\nprecison = "float32"',
            'pipeline.toml:5: training.precison: unknown key; it holds "float32"; '
            "the nearest key is training.precision",
        ),
        (
            "[training]\nlearning_rates = 0.1",
            "pipeline.toml:5: training.learning_rates: unknown key; it holds 0.1; "
            "the nearest key is training.learning_rate",
        ),
        (
            "[training]\nepochs = 10.0",
            "pipeline.toml:5: training.epochs: must be a whole number; it holds 10.0",
        ),
        (
            '[training]\nglobal_batch = "32"',
            'pipeline.toml:5: training.global_batch: must be a whole number; it holds "32"',
        ),
        (
            '[training]\nlearning_rate = "1e-3"',
            'pipeline.toml:5: training.learning_rate: must be a number; it holds "1e-3"',
        ),
        (
            "[training]\nepochs = true",
            "pipeline.toml:5: training.epochs: must be a whole number; it holds true",
        ),
        (
            '[training]\nmicro_batch = "some"',
            'pipeline.toml:5: training.micro_batch: must be a whole number or "auto"; '
            'it holds "some"',
        ),
        (
            "[training]\nepochs = 0",
            "pipeline.toml:5: training.epochs: must be at least 1; it holds 0",
        ),
        (
            "[training]\nearly_stop = { after_rises = -1 }",
            "pipeline.toml:5: training.early_stop.after_rises: must be 0 (never) or more; "
            "it holds -1",
        ),
        (
            "[training]\nearly_stop = 3",
            "pipeline.toml:5: training.early_stop: must be a table; it holds 3; "
            "its keys are after_rises",
        ),
        (
            "[training]\nlearning_rate = inf",
            "pipeline.toml:5: training.learning_rate: must be finite; it holds inf",
        ),
        (
            "[training]\nseed = 2024-01-05",
            "pipeline.toml:5: training.seed: must be a whole number, not a date or a time; "
            "it holds 2024-01-05",
        ),
        (
            '[data]\nfiles = "a"\nlabel = 2024-01-05',
            "pipeline.toml:3: data.label: must be a text, not a date or a time; "
            "it holds 2024-01-05; write it in quotes",
        ),
        (
            '[training]\nmemory_limit = "8 Gigs"',
            'pipeline.toml:5: training.memory_limit: must be a size such as "8GiB" or "500MB"; '
            'it holds "8 Gigs"',
        ),
        (
            "[model]\nwidth = 30",
            "pipeline.toml:5: model.width: must be a multiple of heads (4); it holds 30",
        ),
        (
            '[validation.rules]\n"a b" = "no"',
            'pipeline.toml:5: validation.rules."a b": must be one of "stop", "warn", "ignore"; '
            'it holds "no"',
        ),
        (
            '[validation]\nschema = "x.txt"',
            'pipeline.toml:5: validation.schema: must be "infer" or a .pbtxt file; '
            'it holds "x.txt"',
        ),
        (
            '[data]\nfiles = "a"\nlabel = "b"\n[data.split]\nby = "time"',
            'pipeline.toml:4: data.split.column: must name a column when by is "time"; it holds ""',
        ),
        (
            '[data]\nfiles = "a"\nlabel = "b"\nignore = ["b"]',
            'pipeline.toml:4: data.ignore: must not name the label; it holds "b"',
        ),
        (
            '[data]\nfiles = []\nlabel = "b"',
            "pipeline.toml:2: data.files: must name at least one file; it holds []",
        ),
        (
            '[data]\nfiles = ["a", 1]\nlabel = "b"',
            'pipeline.toml:2: data.files: must be a path or a list of paths; it holds ["a", 1]',
        ),
        (
            '[data]\nfiles = 3\nlabel = "b"',
            "pipeline.toml:2: data.files: must be a path or a list of paths; it holds 3",
        ),
        (
            '[data]\nfiles = "s3://key:s3cret@bucket/x.csv"\nlabel = "b"',
            "pipeline.toml:2: data.files: must be without user and password, which come from the "
            'environment or the storage\'s own files; it holds "s3://***@bucket/x.csv"',
        ),
        (
            '[data]\nfiles = ["a", "ftp://me:s3cret@host/x.csv"]\nlabel = "b"',
            "pipeline.toml:2: data.files: must be a path of this machine, s3:// or gs://; "
            'it holds "ftp://***@host/x.csv"',
        ),
        (
            '[data]\nfiles = "a"\nlabel = "b"\nignore = "c"',
            'pipeline.toml:4: data.ignore: must be a list of texts; it holds "c"; write ["c"]',
        ),
        (
            '[data]\nfiles = "a"\nlabel = "b"\nsplit = 3',
            "pipeline.toml:4: data.split: must be a table; it holds 3; "
            "its keys are by, column, eval",
        ),
        (
            '[model]\nkind = "image"\nimage_size = 30\npatch = 4',
            "pipeline.toml:6: model.image_size: must be a multiple of patch (4); it holds 30",
        ),
        (
            'root = ""\n' + LEAST,
            'pipeline.toml:1: root: must name a folder; it holds ""',
        ),
        (
            '[data]\nfiles = "a"',
            "pipeline.toml:1: data.label: must be set; it is the column to predict",
        ),
        (
            '[data]\nfiles = "a"\nlabel = "b"\ntext = "b"',
            'pipeline.toml:4: data.text: must not be the label; it holds "b"',
        ),
        (
            '[model]\nkind = "tabluar"',
            "pipeline.toml:5: model.kind: must be one of tabular, text, causal-lm, image, or "
            'module:function of your own; it holds "tabluar"',
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_line_key_value_and_what_is_right(refused, text, message):
    assert refused(text) == message


def test_a_root_in_a_bucket_is_refused(load, tmp_path):
    with pytest.raises(SettingError, match="s3:// and gs:// are not available") as found:
        load('root = "s3://bucket/x"\n' + LEAST)
    assert found.value.where == f"{tmp_path}/pipeline.toml:1: root"


@pytest.mark.parametrize("name", ["A", "a b", "", "-a", "mlruns", "a" * 64, "a/b", "é"])
def test_a_name_that_others_could_not_take_is_refused(refused, name):
    assert "name: must" in refused(f"name = {json.dumps(name)}\n" + LEAST)


def test_the_first_wrong_key_of_the_file_is_told_and_the_others_are_named(refused):
    said = refused("[training]\nepochs = 1.5\nbogus = 1\nseed = -1.5")
    assert said.startswith("pipeline.toml:5: training.epochs: must be a whole number")
    assert said.endswith("wrong as well: training.bogus, training.seed")


def test_numbers_with_exponents_are_numbers_and_words_are_texts(load):
    loaded = load("[training]\nlearning_rate = 1e-8", "data.label=no", "name=007")
    assert loaded.training.learning_rate == pytest.approx(1e-8, rel=1e-15)
    assert (loaded.data.label, loaded.name) == ("no", "007")


def test_set_is_read_as_the_type_of_its_key_wants(load, refused):
    loaded = load(
        "", "data.label=1", "training.recompute=true", "training.micro_batch=8", 'data.ignore=["a"]'
    )
    assert loaded.data.label == "1"
    assert loaded.training.recompute is True
    assert loaded.training.micro_batch == 8
    assert loaded.data.ignore == ("a",)
    assert loaded.set_keys == (
        "data.files",
        "data.label",
        "data.ignore",
        "training.micro_batch",
        "training.recompute",
    )
    assert refused("", "training.epochs=4.0") == (
        "--set training.epochs: must be a whole number; it holds 4.0"
    )
    assert refused("", "training.epochs=nan").startswith("--set training.epochs: must be finite")


def test_a_number_may_come_from_the_environment(load, monkeypatch):
    monkeypatch.setenv("EPOCHS", "4")
    loaded = load('[training]\nepochs = "${EPOCHS}"\nseed = "${SEED_X:-9}"')
    assert (loaded.training.epochs, loaded.training.seed) == (4, 9)


def test_relative_paths_are_relative_to_the_file(load, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    loaded = load(
        'name = "x"\nroot = "../out"\n'
        + LEAST
        + '[validation]\nschema = "schemas/s.pbtxt"\n[tracking]\nuri = "sqlite:///m.db"'
    )
    assert loaded.base == tmp_path
    assert loaded.folder == tmp_path.parent / "out" / "x"
    assert loaded.schema_path == str(tmp_path / "schemas/s.pbtxt")
    assert loaded.tracking_uri == f"sqlite:///{tmp_path}/m.db"


def test_a_password_is_neither_in_the_flat_settings_nor_in_messages(load, refused, monkeypatch):
    monkeypatch.setenv("PW", "s3cret")
    loaded = load('[tracking]\nuri = "https://me:${PW}@host/x"')
    assert loaded.tracking_uri == "https://me:s3cret@host/x"
    assert loaded.flat()["tracking.uri"] == "https://***@host/x"
    said = refused('[tracking]\nuri = "ftp://me:${PW}@host/x"')
    assert "s3cret" not in said
    assert "tracking.uri: must be empty, a server" in said


@pytest.mark.parametrize("uri", ["mlruns", "http://", "file:///x", "://x"])
def test_a_tracking_address_that_mlflow_could_not_take_is_refused(refused, uri):
    assert "tracking.uri: must be empty" in refused(f'[tracking]\nuri = "{uri}"')


def test_the_configuration_is_frozen(load):
    loaded = load()
    with pytest.raises(ValueError, match="frozen"):
        loaded.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.training.epochs = 3


def test_every_key_is_explained_and_its_default_is_what_a_file_without_it_has(load):
    rows = config.table()
    flat = load().flat()
    assert [name for name, _, _ in rows] == list(config.declared())
    assert set(flat) == set(config.declared())
    for name, default, text in rows:
        assert text, f"{name} has no explanation"
        if not default:
            assert name == "data.files"
        elif name not in {"validation.rules", "data.label"}:
            assert json.loads(default) == flat[name]


@pytest.mark.parametrize("name", list(config.declared()))
def test_every_key_is_read_by_some_code(name):
    attribute = name.rsplit(".", 1)[-1]
    read = re.compile(rf"""\.{attribute}\b|\[["']{attribute}["']\]""")
    house = Path(config.__file__).parents[1]
    declarations = {house / "pipeline/config.py", house / "trainer/settings.py"}
    declarations.add(house / "pipeline/kubeflow_keys.py")
    sources = [path for room in ("pipeline", "components", "trainer", "kubeflow") for path in
               (house / room).rglob("*.py") if path not in declarations]  # fmt: skip
    own = house / "pipeline/config.py"
    where = [*sources, own] if name in {"root", "validation.schema", "tracking.uri"} else sources
    assert any(read.search(path.read_text(encoding="utf-8")) for path in where)


def test_where_names_file_and_line_of_a_key(load, tmp_path):
    assert load().where("data.label") == f"{tmp_path}/pipeline.toml:3: data.label"
    assert load().where("training.epochs") == f"{tmp_path}/pipeline.toml: training.epochs"
