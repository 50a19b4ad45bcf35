"""Parts of times written as text, ISO 8601: the same operations in training and in serving.

A part is a text again, so that it is a category like any other: ``date`` 2013-01-31, ``month`` 01,
``day`` 31, ``weekday`` 1 (Monday) to 7, ``hour`` 05. The time stands as it is written: no zone is
turned into another. What is no such time, or has no hour, has the part `NONE`, which no vocabulary
holds.
"""

from __future__ import annotations

import tensorflow as tf

PARTS = ("date", "month", "day", "weekday", "hour")
NONE = b"?"
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ].*)?"
_HOUR = r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]).*"
_PLACES = {"date": (0, 10), "month": (5, 2), "day": (8, 2), "hour": (11, 2)}
_EXAMPLE = "1970-01-01T00:00:00"


def part_of(texts: tf.Tensor, part: str) -> tf.Tensor:
    """Return a part of times.

    Args:
        texts: string, any shape.
        part: one of `PARTS`.
    Returns: string, the shape of `texts`.
    """
    is_time = tf.strings.regex_full_match(texts, _DATE)
    if part == "hour":
        is_time = tf.logical_and(is_time, tf.strings.regex_full_match(texts, _HOUR))
    # Parsing refuses what is no number, and cutting what is too short.
    safe = tf.where(is_time, texts, _EXAMPLE)
    found = _weekday(safe) if part == "weekday" else tf.strings.substr(safe, *_PLACES[part])
    return tf.where(is_time, found, tf.constant(NONE))


def _weekday(texts: tf.Tensor) -> tf.Tensor:
    """Return the ISO weekday, from the days since 1970-01-01, a Thursday.

    Source: Hinnant, "chrono-compatible low-level date algorithms", days_from_civil.
    """
    year, month, day = (
        tf.strings.to_number(tf.strings.substr(texts, at, length), tf.int64)
        for at, length in ((0, 4), (5, 2), (8, 2))
    )
    year -= tf.cast(month <= 2, tf.int64)
    era, month = year // 400, (month + 9) % 12
    of_era = year - era * 400
    of_year = (153 * month + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return tf.strings.as_string((days + 3) % 7 + 1)
