from pathlib import Path

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from pipeline.examples import flights

SCHEMA = Path(__file__).parents[2] / "schemas" / "flights.pbtxt"


def test_the_schema_of_the_flights_names_their_columns_and_airlines():
    schema = text_format.Parse(SCHEMA.read_text(), schema_pb2.Schema())
    rows = flights.rows()
    header = next(rows)
    assert sorted(feature.name for feature in schema.feature) == sorted(header)
    domains = {one.name: set(one.value) for one in schema.string_domain}
    carrier = header.index("carrier")
    assert domains["carrier"] == {row[carrier] for row in rows}
