"""Which data drift is measured against: the last that passed, and never those of a refused run."""

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd
from ml_records import Store

from components import fingerprint
from pipeline import baseline, cache


def examples(data, **settings):
    return {"data": {"f.csv": data}, "settings": settings, "code": {}, "upstream": {}}


@pytest.fixture
def records(tmp_path):
    """Write runs: each with its data, and whether the gate let them pass."""
    store = Store(tmp_path / "metadata.sqlite")

    def write(*runs):
        for number, (data, passed) in enumerate(runs, start=1):
            read = examples(data)
            counted = {"data": {}, "settings": {"run": number}, "upstream": {
                "ExampleGen": fingerprint.digest(read)}}  # fmt: skip
            gate = {"data": {}, "settings": {}, "upstream": {
                "StatisticsGen": fingerprint.digest(counted)}}  # fmt: skip
            store.publish(str(number), "ExampleGen", read, output="examples")
            store.publish(str(number), "StatisticsGen", counted, output="statistics")
            state = mlmd.Execution.COMPLETE if passed else mlmd.Execution.FAILED
            store.publish(str(number), "DataGate", gate, state=state, output="verdict")
        return cache.Records(tmp_path / "metadata.sqlite")

    return write


def found(records, data, **settings):
    one = baseline.find(records, examples(data, **settings))
    return one and one["run"]


def test_there_is_none_before_the_first_run(records):
    assert found(records(), "a") is None


def test_it_is_the_last_that_passed(records):
    assert found(records(("a", True), ("b", True)), "c") == "2"


def test_refused_data_never_become_it(records):
    assert found(records(("a", True), ("b", False), ("b", False)), "b") == "1"


def test_where_nothing_passed_there_is_none(records):
    assert found(records(("a", False)), "b") is None


def test_the_same_data_again_are_compared_with_what_they_were_compared_with(records):
    runs = records(("a", True), ("b", True), ("b", True))
    assert found(runs, "b") == "1"
    assert found(runs, "a") == "3"


def test_another_split_or_null_value_makes_other_data(records):
    assert found(records(("a", True)), "a", **{"data.split.eval": 0.3}) == "1"
