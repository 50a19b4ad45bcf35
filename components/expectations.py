"""What the schema expects of a column, as a check of rows and as words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from components import evidence
from components.evidence import Shows
from components.verdict import Anomaly

TYPES = {"INT": "a whole number", "FLOAT": "a number", "BYTES": "text"}
SAID = {
    "UNEXPECTED_VALUES": "column {feature} holds values that the schema does not list",
    "COLUMN_MISSING": "column {feature} is in the schema, but not in the data",
    "NEW_COLUMN": "column {feature} is in the data, but not in the schema",
    "WRONG_TYPE": "column {feature} does not hold {type} as the schema says",
    "WHOLE_NUMBERS_ONLY": "column {feature} holds only whole numbers, and the schema says FLOAT",
    "MISSING_VALUES": "column {feature} has no value where the schema asks for one",
    "TOO_MANY_VALUES": "column {feature} has more values in a row than the schema allows",
}
"""In our words; what is not here is told in TFDV's."""


@dataclass(frozen=True)
class Expectations:
    """A schema, asked about single columns.

    Attributes:
        schema: the schema.
        null: texts that are missing in a column of numbers.
    """

    schema: schema_pb2.Schema
    null: Sequence[str] = ()

    def type_of(self, column: str) -> str:
        """Return ``INT``, ``FLOAT`` or ``BYTES``, or nothing for a column it does not have."""
        feature = self._feature(column)
        return schema_pb2.FeatureType.Name(feature.type) if feature else ""

    def message(self, anomaly: Anomaly) -> str:
        """Return what an anomaly is about, without rows and values."""
        if anomaly.kind not in SAID:
            return anomaly.message
        kind = TYPES.get(self.type_of(anomaly.feature), "what it should")
        if self._is_digits(anomaly.feature):
            kind = "whole numbers in text"
        return SAID[anomaly.kind].format(feature=anomaly.feature, type=kind)

    def shows(self, anomaly: Anomaly) -> Shows | None:
        """Return how to find the rows of an anomaly; None where single rows do not show it."""
        column = anomaly.feature
        if anomaly.kind == "UNEXPECTED_VALUES":
            return evidence.is_not_in(column, self._domain(column))
        if anomaly.kind == "WRONG_TYPE":
            return self._of_other_type(column)
        if anomaly.kind in {"MISSING_VALUES", "LABEL_MISSING"}:
            return evidence.is_missing(column)
        if anomaly.kind == "OUT_OF_RANGE":
            return evidence.is_outside(column, *self._range(column))
        if anomaly.kind == "NOT_FINITE":
            return evidence.is_not_finite(column)
        if anomaly.kind == "TOO_MANY_VALUES":
            return evidence.is_longer(column, self._most_values(column))
        return None

    def looks_at(self, anomaly: Anomaly) -> str:
        """Return the column that `shows` looks at."""
        counts = anomaly.kind == "TOO_MANY_VALUES"
        return evidence.LENGTH + anomaly.feature if counts else anomaly.feature

    def _most_values(self, column: str) -> int:
        feature = self._feature(column)
        return int(feature.value_count.max) or 1 if feature else 1

    def _feature(self, column: str) -> schema_pb2.Feature | None:
        return next((one for one in self.schema.feature if one.name == column), None)

    def _domain(self, column: str) -> Sequence[Any]:
        feature = self._feature(column)
        if feature is None:
            return ()
        if feature.HasField("bool_domain"):
            domain = feature.bool_domain
            return [value for value in (domain.true_value, domain.false_value) if value]
        if feature.HasField("string_domain"):
            return list(feature.string_domain.value)
        named = [one for one in self.schema.string_domain if one.name == feature.domain]
        return list(named[0].value) if named else ()

    def _of_other_type(self, column: str) -> Shows:
        kind = self.type_of(column)
        if kind in {"INT", "FLOAT"}:
            return evidence.is_no_number(column, whole=kind == "INT", null=self.null)
        if self._is_digits(column):
            return evidence.is_no_digits(column)
        return evidence.is_there(column)

    def _is_digits(self, column: str) -> bool:
        """Say whether TFDV took a text column, such as postal codes, for whole numbers in text."""
        feature = self._feature(column)
        return feature is not None and (
            feature.type == schema_pb2.BYTES and feature.HasField("int_domain")
        )

    def _range(self, column: str) -> tuple[float | None, float | None]:
        feature = self._feature(column)
        which = feature.WhichOneof("domain_info") if feature else None
        if which == "bool_domain":
            return 0, 1
        if which not in {"int_domain", "float_domain"}:
            return None, None
        domain = getattr(feature, which)
        low = domain.min if domain.HasField("min") else None
        high = domain.max if domain.HasField("max") else None
        return low, high
