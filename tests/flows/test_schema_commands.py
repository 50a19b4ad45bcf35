"""A schema that people own: frozen, refused against, changed with a reason, passed."""

import mlflow
import pytest
from flows.commands import flight_rows, headrace, write_config, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.long]


def other_carrier(rows):
    at = rows[0].index("carrier")
    return [row if n % 40 else [*row[:at], "ZZ", *row[at + 1 :]] for n, row in enumerate(rows)]


def test_freeze_refuse_accept_pass(tmp_path):
    header, *rows = flight_rows(1200)
    write_rows(tmp_path / "flights.csv", [header, *rows])
    write_config(tmp_path, more='[validation]\nschema = "schemas/own.pbtxt"')
    inferring = "validation.schema=infer"
    # Both splits must know all airports, so that nothing but the new carrier is refused.
    rules = '--set=validation.rules={"UNEXPECTED_VALUES" = "warn", "carrier" = "stop"}'
    first = headrace("run", "--json", "--set", inferring, rules, cwd=tmp_path)
    assert first.code == 0, first.err
    frozen = headrace("schema", "freeze", cwd=tmp_path)
    assert frozen.code == 0, frozen.err
    assert "own.pbtxt: 20 columns, from run 1" in frozen.out
    again = headrace("schema", "freeze", cwd=tmp_path)
    assert (again.code, "--replace" in again.err) == (2, True)
    shown = headrace("schema", "show", cwd=tmp_path).out
    assert "\n  carrier         bytes, in every row, one of " in shown

    write_rows(tmp_path / "flights.csv", [header, *other_carrier([header, *rows])[1:]])
    refused = headrace("run", "--json", rules, cwd=tmp_path)
    assert refused.code == 3, refused.err
    for wrong, said in (
        (["--accept", "*", "--reason", "all"], "everything at once cannot be accepted"),
        (["--accept", "carrier:OUT_OF_RANGE", "--reason", "x"], "carrier:UNEXPECTED_VALUES"),
        (["--accept", "carrier:UNEXPECTED_VALUES"], "--reason: a reason is needed"),
        (["--reason", "x"], "names no anomaly"),
    ):
        told = headrace("schema", "update", *wrong, cwd=tmp_path)
        assert (told.code, said in told.err) == (2, True), told.err
    accept = ["--accept", "carrier:UNEXPECTED_VALUES", "--reason", "new airline", "--by", "ann"]
    done = headrace("schema", "update", *accept, cwd=tmp_path)
    assert done.code == 0, done.err
    assert 'column carrier: also "ZZ"' in done.out
    assert "ann: carrier:UNEXPECTED_VALUES of run 2" in headrace("schema", "show", cwd=tmp_path).out

    passed = headrace("run", "--json", rules, cwd=tmp_path)
    assert passed.code == 0, passed.err
    tracked = passed.json["mlflow"]
    run = mlflow.MlflowClient(tracked["tracking_uri"]).get_run(tracked["run_id"])
    assert run.data.tags["schema.accepted"].endswith(
        '(column carrier: also "ZZ"); reason: new airline'
    )
