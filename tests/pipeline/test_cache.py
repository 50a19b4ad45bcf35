import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd
from ml_records import Store

from components import fingerprint
from pipeline import cache

UPSTREAM = {"ExampleGen": [], "Trainer": ["ExampleGen"]}


def parts(epochs=2, data="d1", code="c1"):
    return {
        "ExampleGen": {"data": {"f.csv": data}, "settings": {}, "code": {"components.x": code}},
        "Trainer": {"data": {}, "settings": {"training.epochs": epochs}, "code": {}},
    }


def publish_all(store, run, decisions):
    return {
        name: store.publish(
            run,
            name,
            decision.fingerprint,
            state=mlmd.Execution.CACHED if decision.cached else mlmd.Execution.COMPLETE,
        )
        for name, decision in decisions.items()
    }


def decide(path, asked, forced=()):
    return cache.decide(cache.Records(path), asked, UPSTREAM, forced=frozenset(forced))


@pytest.fixture
def db(tmp_path):
    return tmp_path / "metadata.sqlite"


def test_without_records_everything_runs_for_the_first_time(db):
    found = decide(db, parts())
    assert [one.why for one in found.values()] == ["ran: first run", "ran: first run"]
    assert not db.exists()


def test_the_same_again_is_cached_and_names_the_run_that_made_it(db):
    publish_all(Store(db), "12", decide(db, parts()))
    found = decide(db, parts())
    assert all(one.cached for one in found.values())
    assert found["Trainer"].why == "cached: same data, settings and code as run 12"


def test_a_changed_setting_runs_its_node_only_and_says_both_values(db):
    publish_all(Store(db), "1", decide(db, parts()))
    found = decide(db, parts(epochs=4))
    assert found["ExampleGen"].cached
    assert found["Trainer"].why == "ran: training.epochs 2 → 4"


def test_changed_data_run_everything_after_them(db):
    publish_all(Store(db), "1", decide(db, parts()))
    found = decide(db, parts(data="d2"))
    assert found["ExampleGen"].why == "ran: f.csv changed"
    assert found["Trainer"].why == "ran: ExampleGen ran again"


def test_changed_code_is_a_reason(db):
    publish_all(Store(db), "1", decide(db, parts()))
    assert decide(db, parts(code="c2"))["ExampleGen"].why == "ran: code changed: components.x"


def test_a_forced_node_gets_a_fingerprint_of_its_own_and_so_do_those_after_it(db):
    store = Store(db)
    publish_all(store, "1", decide(db, parts()))
    forced = decide(db, parts(), forced=["ExampleGen"])
    assert forced["ExampleGen"].why == "ran: --no-cache"
    assert not forced["Trainer"].cached
    first = decide(db, parts())["ExampleGen"].fingerprint
    assert fingerprint.digest(forced["ExampleGen"].fingerprint) != fingerprint.digest(first)
    publish_all(store, "2", forced)
    again = decide(db, parts())
    assert again["ExampleGen"].why.endswith("as run 2")
    assert again["Trainer"].why.endswith("as run 2")


def test_a_result_that_is_gone_from_disk_is_made_again(db):
    places = publish_all(Store(db), "1", decide(db, parts()))
    places["ExampleGen"].rmdir()
    found = decide(db, parts())
    assert found["ExampleGen"].why == "ran: its earlier output is gone"
    assert not found["Trainer"].cached


def test_going_back_to_an_earlier_setting_finds_its_result(db):
    store = Store(db)
    publish_all(store, "1", decide(db, parts(epochs=2)))
    publish_all(store, "2", decide(db, parts(epochs=4)))
    assert decide(db, parts(epochs=2))["Trainer"].why.endswith("as run 1")


def test_a_failed_execution_is_no_result(db):
    store = Store(db)
    for name, one in decide(db, parts()).items():
        store.publish("1", name, one.fingerprint, state=mlmd.Execution.FAILED)
    assert not any(one.cached for one in decide(db, parts()).values())


def test_outputs_of_a_run_hold_the_cached_ones_too(db):
    store = Store(db)
    publish_all(store, "1", decide(db, parts()))
    publish_all(store, "2", decide(db, parts()))
    found = cache.Records(db).outputs_of_run("2")
    assert set(found) == set(UPSTREAM)
    assert found["Trainer"]["out"].uri.endswith("Trainer/2")
