"""Parts of times are those of Python's own calendar, in training as in serving."""

import datetime

import pytest
import tensorflow as tf

from trainer import times
from trainer.settings import CategoryFeature
from trainer.transform import UNKNOWN_ID, category_ids


def parts(texts, part):
    return [one.decode() for one in times.part_of(tf.constant(texts), part).numpy()]


def test_every_day_of_four_centuries_has_python_s_weekday():
    first = datetime.date(1899, 1, 1)
    days = [first + datetime.timedelta(days=at) for at in range(0, 150_000, 13)]
    texts = [one.isoformat() for one in days]
    assert parts(texts, "weekday") == [str(one.isoweekday()) for one in days]


@pytest.mark.parametrize(
    "text", ["2013-01-31T05:59:00Z", "2013-01-31 05:59", "2013-01-31T05:59:00.5+02:00"]
)
def test_parts_stand_as_they_are_written(text):
    found = {part: parts([text], part)[0] for part in times.PARTS}
    assert found == {
        "date": "2013-01-31", "month": "01", "day": "31", "weekday": "4", "hour": "05",
    }  # fmt: skip


@pytest.mark.parametrize("part", times.PARTS)
def test_what_is_no_time_has_no_part_and_is_unknown(part):
    wrong = ["", "x", "2013-13-01", "2013-01-32T01", "31.01.2013", "2013-01-31x", "ä" * 30, "2013"]
    assert parts(wrong, part) == ["?"] * len(wrong)
    feature = CategoryFeature(f"when:{part}", ("01",), part)
    assert feature.column == "when"
    assert category_ids(feature, tf.constant(wrong)).numpy().tolist() == [UNKNOWN_ID] * len(wrong)


def test_a_date_has_no_hour():
    assert parts(["2013-01-31", "2013-01-31T24:00"], "hour") == ["?", "?"]
    assert parts(["2013-01-31"], "date") == ["2013-01-31"]
