from __future__ import annotations

import csv
import tomllib

import pytest

from pipeline import config
from pipeline.examples import flights
from trainer.errors import InputError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("example") / "flights"
    flights.write(out)
    return out


@pytest.fixture(scope="module")
def table(written):
    with open(written / "flights.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_flight_with_an_arrival_delay_is_written_with_twenty_columns(table):
    # 336,776 flights, 9,430 of them without arr_delay: counted with pandas on the package's file.
    assert len(table) == 336_776 - 9_430
    assert len(table[0]) == 20


def test_late_means_more_than_fifteen_minutes(table):
    for row in table:
        assert row["late"] == str(int(int(row["arr_delay"]) > 15))


def test_whole_numbers_stay_whole_and_missing_values_are_empty(table):
    for name in ("year", "dep_time", "sched_dep_time", "air_time", "distance", "late"):
        assert all(row[name] == "" or row[name].lstrip("-").isdigit() for row in table), name
    assert not any(value in {"NA", "nan"} for row in table for value in row.values())


def test_the_written_configuration_loads_and_ignores_every_leak(written):
    loaded = config.load(written / "pipeline.toml")
    assert loaded.data.label == "late"
    assert {"arr_delay", "dep_delay", "dep_time", "arr_time", "air_time"} <= set(loaded.data.ignore)
    assert loaded.folder == written / "runs" / "flights"


def test_each_leak_has_its_reason_and_each_key_its_explanation(written):
    text = (written / "pipeline.toml").read_text(encoding="utf-8")
    for name in ("arr_delay", "dep_delay", "dep_time", "arr_time", "air_time"):
        line = next(line for line in text.splitlines() if f'"{name}"' in line)
        assert "# leak: " in line
    keys = config.declared()
    for name in ("training.seed", "training.micro_batch", "checkpoint.keep", "data.label"):
        assert " ".join(keys[name].help.split()) in " ".join(text.replace("\n# ", " ").split())
    assert max(map(len, text.splitlines())) <= 100


def test_a_changed_file_is_not_overwritten(written):
    path = written / "pipeline.toml"
    before = path.read_bytes()
    mine = before.replace(b"epochs = 2", b"epochs = 4")
    path.write_bytes(mine)
    try:
        with pytest.raises(InputError, match="is there already and differs"):
            flights.write(written)
        assert path.read_bytes() == mine
    finally:
        path.write_bytes(before)


def test_the_small_sample_of_the_tests_has_both_classes(flights_1000_rows):
    with open(flights_1000_rows, encoding="utf-8", newline="") as file:
        sample = list(csv.DictReader(file))
    assert len(sample) == 1000
    assert {row["late"] for row in sample} == {"0", "1"}


def test_the_template_sets_no_key_twice_nor_an_unknown_one():
    from pipeline.examples import folder

    for name in ("flights", "penguins"):
        assert tomllib.loads(folder.configuration(name))["name"] == name
