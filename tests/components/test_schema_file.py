from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import schema_pb2

from components import schema_file
from components.schema_freeze import Extras, frozen
from components.schema_words import differences

TEXT = """\
# Mine.
# Read through by hand.

# the company
feature { name: "carrier"  # {braces} in a comment
  type: BYTES domain: "carrier" }
default_environment: "TRAINING"
feature {
  name: "odd } name \\" #"
  type: INT
}
# all of them
string_domain {
  name: "carrier"
  value: "UA"
}
# the end
"""


def test_a_change_leaves_every_other_byte_as_it_was() -> None:
    schema = schema_file.parse_schema(TEXT, "x")
    schema.string_domain[0].value.append("ZZ")
    changed = schema_file.changed_text(TEXT, schema, ["# accepted 1", "# accepted 2"])
    assert changed == TEXT.replace('"UA"\n', '"UA"\n  value: "ZZ"\n').replace(
        "by hand.\n", "by hand.\n# accepted 1\n# accepted 2\n"
    )
    assert schema_file.history(changed) == ["accepted 1", "accepted 2"]


names = st.text(min_size=1, max_size=8)


@settings(max_examples=60)
@given(st.lists(names, unique=True, max_size=4), st.lists(names, unique=True, max_size=4))
def test_the_changed_text_holds_the_changed_schema(before, after) -> None:
    def schema_of(listed):
        schema = schema_pb2.Schema()
        for name in listed:
            schema.feature.add(name=name, type=schema_pb2.BYTES, domain=name)
            schema.string_domain.add(name=name, value=[*listed])
        return schema

    text = schema_file.commented(schema_of(before), ["head"])
    assert schema_file.parse_schema(text, "x") == schema_of(before)
    changed = schema_file.changed_text(text, schema_of(after))
    assert schema_file.parse_schema(changed, "x") == schema_of(after)


def test_who_when_and_why_stand_in_one_line() -> None:
    line = schema_file.accepted_line(
        "carrier:UNEXPECTED_VALUES", who="ann", reason="new\nairline",
        when=datetime(2026, 12, 3, 5, 6, tzinfo=UTC),
    )  # fmt: skip
    assert line == (
        "# accepted 2026-12-03 05:06 UTC, ann: carrier:UNEXPECTED_VALUES; reason: new airline"
    )


def test_two_schemas_differ_in_words() -> None:
    one, other = (schema_file.parse_schema(text, "x") for text in (
        'feature { name: "gone" type: INT }'
        'feature { name: "x" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } } }'
        'feature { name: "y" type: FLOAT float_domain { min: 0 max: 1 } }'
        'feature { name: "c" type: BYTES string_domain { value: "a" value: "b" } }',
        'feature { name: "x" type: FLOAT presence { min_fraction: 0.9 } '
        'value_count { min: 1 max: 1 } }'
        'feature { name: "y" type: FLOAT float_domain { min: 0 max: 2 } }'
        'feature { name: "c" type: BYTES string_domain { value: "b" value: "d" } }'
        'feature { name: "new" type: BYTES presence { min_fraction: 1 } }',
    ))  # fmt: skip
    assert differences(one, other) == [
        'column c: also "d"',
        'column c: no longer "a"',
        "column gone is gone",
        "column new is new: bytes, in every row",
        "column x: type int → float",
        "column x: in every row → in at least 90 % of rows",
        "column x: one value in each row → 1 value a row, where it is there",
        "column y: 0 to 1 → 0 to 2",
    ]
    assert differences(one, one) == []


@pytest.mark.parametrize("bounds", [False, True])
def test_bounds_and_shares_are_frozen_where_they_are_asked_for(write_statistics, tmp_path, bounds):
    import pandas as pd

    from components.checks import Split

    frame = pd.DataFrame({"x": [3, 1, 2, 2], "c": ["a", "b", None, None]})
    (tmp_path / "values.json").write_text("{}")
    write_statistics(tmp_path / "Split-train" / "FeatureStats.pb", frame)
    schema = schema_file.parse_schema(
        'feature { name: "c" type: BYTES domain: "c" } feature { name: "x" type: INT }'
        'string_domain { name: "c" value: "a" value: "b" }', "x",
    )  # fmt: skip
    extras = Extras(bounds, min_domain_mass=0.9, max_missing=0.25) if bounds else Extras()
    made = frozen(schema, Split.read(tmp_path, "train"), label="", extras=extras)
    text, number = made.feature
    assert number.HasField("int_domain") == bounds
    if bounds:
        assert (number.int_domain.min, number.int_domain.max) == (1, 3)
        assert text.distribution_constraints.min_domain_mass == pytest.approx(0.9)
        # Half of the rows lack it already: no more than that.
        assert text.presence.min_fraction == 0.5
    else:
        assert made == schema
