"""Names and values as MLflow takes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.tracking_names import (
    NAME_LIMIT,
    cut_name,
    plain_text,
    shortened,
    sqlite_file,
    stored_name,
    without_credentials,
)

NAMES = st.text(st.sampled_from("ab_x5f28/.<=>()%@, :é\n-") | st.characters(), max_size=30)


def original_name(stored: str) -> str:
    """Read the marks back: what makes two names with one stored name impossible."""
    return re.sub(
        r"_x([0-9a-f]*)_", lambda found: chr(int(found[1], 16)) if found[1] else "", stored
    )


@given(NAMES)
def test_a_stored_name_can_be_read_back_so_no_two_names_collide(name):
    assert original_name(stored_name(name)) == name


@settings(deadline=None)  # the first draw imports MLflow
@given(NAMES)
def test_mlflow_takes_every_stored_name(name):
    from mlflow.utils.validation import _validate_metric_name

    stored = stored_name(name)
    _validate_metric_name(stored)
    assert len(stored) <= NAME_LIMIT
    # What servers before 3.0 take; they know no colon.
    assert re.fullmatch(r"[/\w.\- ]+", stored)


def test_names_from_the_field_stay_apart_and_readable():
    assert stored_name("train/loss") == "train/loss"
    assert stored_name("größe") == "größe"
    assert stored_name("recall/class=<=50K") == "recall/class_x3d__x3c__x3d_50K"
    odd = [
        "<=50K",
        ">50K",
        "_50K",
        "Jitter(%)",
        "a,b",
        "a b",
        "price@eu",
        "../x",
        "x",
        "/x",
        "yes/",
    ]
    assert len({stored_name(name) for name in odd}) == len(odd)


def test_a_mark_cannot_be_faked_by_what_stands_around_it():
    # Both would be "_x5_x28_" if only whole marks were escaped.
    assert stored_name("_x5(") != stored_name("\x05x28_")


def test_long_names_are_cut_and_stay_apart():
    one, other = stored_name("a" * 300 + "1"), stored_name("a" * 300 + "2")
    assert one != other
    assert len(one) == len(other) == NAME_LIMIT
    assert cut_name("short") == "short"


@pytest.mark.parametrize("length", [500, 501, 5999, 6000])
def test_a_value_within_the_limit_is_kept_whole(length):
    assert shortened("x" * length, 6000) == "x" * length


def test_a_longer_value_is_cut_with_a_mark_that_names_its_length():
    value = ",".join(f"feature_{index:03d}_abcdefgh" for index in range(400))
    cut = shortened(value, 6000)
    assert len(cut) == 6000
    assert f"...(truncated, {len(value)} chars, sha256 " in cut
    assert shortened(value + "!", 6000) != cut


def test_credentials_in_addresses_are_left_out():
    assert (
        without_credentials("see http://me:pw@host:1/x, s3://k@b")
        == "see http://***@host:1/x, s3://***@b"
    )
    assert without_credentials("http://host/a@b") == "http://host/a@b"
    assert plain_text({"uri": "postgresql://u:p@h/d"}) == '{"uri": "postgresql://***@h/d"}'


def test_text_that_is_no_utf8_is_stored_escaped():
    assert plain_text("bad \udc80") == "bad \\udc80"


def test_the_file_of_a_sqlite_address_is_told():
    assert str(sqlite_file("sqlite:////a b/mlflow.db")) == "/a b/mlflow.db"
    assert sqlite_file("http://host") is None
