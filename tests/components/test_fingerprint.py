import json
import os

import pytest

from components import fingerprint


def test_a_file_of_equal_size_and_time_but_other_content_has_another_digest(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,label\n1,0\n2,1\n")
    before, times = fingerprint.file_digest(path), path.stat()
    path.write_text("x,label\n9,0\n8,1\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    assert fingerprint.file_digest(path) != before


def test_a_file_digest_is_sha256_of_its_bytes(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert (
        fingerprint.file_digest(path)
        == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_code_reaches_through_imports_and_stays_in_our_rooms():
    found = fingerprint.code_digests(["trainer.addresses"])
    assert set(found) == {"trainer.addresses"}
    found = fingerprint.code_digests(["pipeline.cache"])
    assert {"pipeline.cache", "components.fingerprint"} <= set(found)
    assert all(name.split(".")[0] in fingerprint.ROOMS for name in found)


def test_changes_name_the_setting_with_both_values():
    before = {"data": {"d/f.csv": "1"}, "settings": {"training.epochs": 2}, "code": {"a": "1"}}
    after = {"data": {"d/f.csv": "2"}, "settings": {"training.epochs": 4}, "code": {"a": "2"}}
    assert fingerprint.changes(before, after) == [
        "f.csv changed",
        "training.epochs 2 → 4",
        "code changed: a",
    ]


def test_nothing_changed_says_nothing():
    one = {"data": {"f": "1"}, "settings": {"a": [1]}, "upstream": {"A": "x"}}
    assert fingerprint.changes(one, json.loads(json.dumps(one))) == []


@pytest.mark.parametrize("other", [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": "2"}])
def test_a_digest_depends_on_values_not_on_their_order(other):
    assert fingerprint.digest({"a": 1, "b": 2}) == fingerprint.digest({"b": 2, "a": 1})
    assert fingerprint.digest({"a": 1, "b": 2}) != fingerprint.digest(other)
