import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import errors
from trainer.settings import (
    CategoryFeature,
    CheckpointSettings,
    EarlyStopSettings,
    Features,
    Job,
    LabelFeature,
    ModelSettings,
    NumberFeature,
    TrainingSettings,
    job_from_json,
    parse_bytes,
    to_json,
)


def job():
    return Job(
        model=ModelSettings(width=8, heads=2),
        training=TrainingSettings(micro_batch=3, early_stop=EarlyStopSettings(after_rises=1)),
        checkpoint=CheckpointSettings(),
        features=Features(
            (NumberFeature("n", "int", (0.0, 1e300), 0.5, 1.0),),
            (CategoryFeature("größe", ("a", '"')),),
            LabelFeature("y", "binary", "string", ("no", "yes"), (0.25, 0.75)),
        ),
        train="t",
        eval="e",
        checkpoints="c",
        export="x",
        events="",
        result="r",
    )


def test_a_job_comes_back_from_json_text_as_it_was():
    assert job_from_json(json.loads(json.dumps(to_json(job())))) == job()


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("1.5 GiB", 3 * 2**29), ("500MB", 500_000_000), ("1024", 1024)],
)
def test_sizes_are_read_in_binary_and_decimal_units(text, size):
    assert parse_bytes(text, name="memory_limit") == size


@pytest.mark.parametrize("text", ["", "GiB", "8 gigs", "-1GiB", "0", "nan", "1e99TiB"])
def test_what_is_no_size_is_refused_by_its_key(text):
    with pytest.raises(ValueError, match=r"^memory_limit: must be a size.*it holds"):
        parse_bytes(text, name="memory_limit")


@pytest.mark.parametrize(
    ("kind", "values", "key"),
    [
        (ModelSettings, {"width": 10, "heads": 4}, "width"),
        (ModelSettings, {"dropout": 1.0}, "dropout"),
        (TrainingSettings, {"global_batch": 8, "micro_batch": 9}, "micro_batch"),
        (TrainingSettings, {"learning_rate": float("inf")}, "learning_rate"),
        (TrainingSettings, {"learning_rate": 0.0}, "learning_rate"),
        (CheckpointSettings, {"keep": 0}, "keep"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_first(kind, values, key):
    with pytest.raises(ValueError, match=f"^{key}: "):
        kind(**values)


KINDS = [
    errors.InputError,
    errors.SettingError,
    errors.DataFileError,
    errors.DataRefused,
    errors.TrainingError,
    errors.MemoryExceeded,
    errors.WorkerLost,
    errors.NotFinite,
    errors.CheckpointError,
]
CODES = [2, 2, 2, 3, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(("kind", "code"), zip(KINDS, CODES, strict=True))
def test_an_error_keeps_its_fields_and_code_across_processes(kind, code):
    error = kind("what", where="a.csv:3", holds='"x"', right="do y")
    assert error.exit_code == code
    for copy in (pickle.loads(pickle.dumps(error)), errors.from_facts(error.facts())):
        assert type(copy) is kind
        assert copy.facts() == error.facts()
        assert str(copy) == 'a.csv:3: what; it holds "x"; do y'


@settings(max_examples=50)
@given(st.text(), st.text(), st.text(), st.text())
def test_a_message_is_one_line_whatever_it_holds(what, where, holds, right):
    line = str(errors.InputError(what, where=where, holds=holds, right=right))
    assert len(line.splitlines()) <= 1
