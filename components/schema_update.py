"""What accepting an anomaly changes in a schema: that which lets the same data pass, no more.

Each kind of anomaly has its own change, made from the statistics of the data that showed it. What
would leave a column, or all of them, without anything to be refused for is refused. Light.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from components import verdict
from components.checks import Split
from components.schema_words import domains_of, values_of
from trainer.errors import InputError

TYPES = {"int": schema_pb2.INT, "float": schema_pb2.FLOAT, "string": schema_pb2.BYTES}
LISTED_VALUES = 100
"""A new text column with more distinct values than this gets no list of them."""
MOVED = ("DRIFT", "SKEW", "LABEL_SHIFT")
WHERE = "--accept"


def accept(
    schema: schema_pb2.Schema,
    feature: str,
    kind: str,
    splits: Sequence[Split],
    distances: Sequence[Mapping[str, Any]] = (),
) -> schema_pb2.Schema:
    """Return the schema with one anomaly of one column accepted.

    Args:
        schema: the one in force; it is left as it is.
        feature: the column; empty where the anomaly concerns all rows.
        kind: a key of `verdict.KINDS`.
        splits: the statistics of the data that showed it.
        distances: how far its columns had moved, as `drift.Distance.facts` tells.

    Raises:
        InputError: no change of the schema lets it pass, or only one that accepts everything.
    """
    if kind not in CHANGES:
        rule = verdict.passing_rule(feature, kind)
        raise InputError(
            "no change of the schema lets this pass",
            where=WHERE,
            holds=f"{feature}:{kind}",
            right=rule or "correct the data: nothing can be trained on them",
        )
    after = copy.deepcopy(schema)
    if kind == "ROW_COUNT":
        _row_count(after, splits)
        return after
    found = next((one for one in after.feature if one.name == feature), None)
    if (found is None) != (kind == "NEW_COLUMN"):
        raise InputError(
            f"the schema {'lists this column already' if found else 'has no such column'}",
            where=WHERE,
            holds=f"{feature}:{kind}",
            right="run once with this schema, and accept what that run says",
        )
    if found is None:
        after.feature.append(_seen_feature(feature, splits))
    elif kind in MOVED:
        _moved(found, kind, distances)
    else:
        CHANGES[kind](after, found, splits)
        _require_bounds(schema, after, feature, kind)
    return after


def _require_bounds(
    before: schema_pb2.Schema, after: schema_pb2.Schema, feature: str, kind: str
) -> None:
    """Refuse a change after which a column, or every one, may be anything or absent.

    Raises:
        InputError: when it is such a change.
    """
    (one,) = (one for one in after.feature if one.name == feature)
    if _accepts_everything(one):
        raise InputError(
            f"the schema would then accept everything in column {feature}",
            where=WHERE,
            holds=f"{feature}:{kind}",
            right="take the column out of the schema, add it to data.ignore, or let it pass by a "
            "rule: " + verdict.passing_rule(feature, kind),
        )
    if any(_is_asked_for(one) for one in before.feature) and not any(
        _is_asked_for(one) for one in after.feature
    ):
        raise InputError(
            "the schema would then ask for none of its columns, and accept any table",
            where=WHERE,
            holds=f"{feature}:{kind}",
            right="freeze a schema of these data, or correct them",
        )


def _is_asked_for(feature: schema_pb2.Feature) -> bool:
    return bool(feature.presence.min_fraction or feature.presence.min_count)


def _accepts_everything(feature: schema_pb2.Feature) -> bool:
    """Say whether a column may hold any text, or be missing in every row."""
    is_text = feature.type in {schema_pb2.BYTES, schema_pb2.TYPE_UNKNOWN}
    constrained = feature.WhichOneof("domain_info") or feature.unique_constraints.ByteSize()
    return is_text and not constrained and not _is_asked_for(feature)


def _seen(splits: Sequence[Split], feature: str) -> list[Split]:
    return [split for split in splits if feature in split.columns and not split.is_empty(feature)]


def _seen_values(splits: Sequence[Split], feature: str) -> dict[Any, int]:
    """Return every value of a column with its number of rows.

    Raises:
        InputError: when there are too many to be kept.
    """
    counted: dict[Any, int] = {}
    for split in _seen(splits, feature):
        if feature not in split.values:
            raise InputError(
                f"column {feature} has too many different values to list them",
                where=WHERE,
                holds=feature,
                right="take its domain out of the schema, or add the column to data.ignore",
            )
        for value, rows in split.values[feature]:
            counted[value] = counted.get(value, 0) + rows
    return counted


def _unexpected_values(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    """Add the values that occur to the column's own list.

    Raises:
        InputError: when nearly every row has a value of its own.
    """
    known = values_of(feature, domains_of(schema))
    seen = {str(value): rows for value, rows in _seen_values(splits, feature.name).items()}
    new = sorted(value for value in seen if value not in set(known))
    rows = sum(seen[value] for value in new)
    if verdict.looks_like_id(len(new), rows):
        raise InputError(
            f"{len(new):,} new values in {verdict.count_rows(rows)} look like ids: with such a "
            "list the schema would accept everything",
            where=WHERE,
            holds=f"{feature.name}:UNEXPECTED_VALUES",
            right=f"correct the data, or add {feature.name} to data.ignore",
        )
    _own_domain(schema, feature).value.extend(new)


def _own_domain(schema: schema_pb2.Schema, feature: schema_pb2.Feature) -> schema_pb2.StringDomain:
    """Return the list of values that belongs to this column alone; one that is shared is copied."""
    named = [one for one in schema.string_domain if one.name == feature.domain]
    users = [one for one in schema.feature if feature.domain and one.domain == feature.domain]
    if named and len(users) == 1:
        return named[0]
    if feature.WhichOneof("domain_info") != "string_domain":
        known = values_of(feature, domains_of(schema))
        feature.string_domain.value.extend(known)
    return feature.string_domain


def _column_missing(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    feature.ClearField("presence")
    if feature.HasField("shape"):
        _one_or_none(feature)


def _one_or_none(feature: schema_pb2.Feature) -> None:
    """Ask for one value where there is one, no longer for one in each row."""
    feature.ClearField("shape")
    feature.value_count.min = feature.value_count.max = 1


def _missing_values(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    """Lower the share of rows that must have a value to the least that a split has."""
    there = [
        (split.rows - split.missing(feature.name)) if feature.name in split.columns else 0
        for split in splits
    ]
    share = min(count / max(split.rows, 1) for count, split in zip(there, splits, strict=True))
    if not share:
        _column_missing(schema, feature, splits)
        return
    least = math.floor(share * 1e6) / 1e6
    feature.presence.min_fraction = min(feature.presence.min_fraction or least, least)
    feature.presence.min_count = min(feature.presence.min_count, *there)
    if feature.HasField("shape") and share < 1:
        _one_or_none(feature)


def _seen_kind(splits: Sequence[Split], name: str) -> str:
    kinds = {split.kind(name) for split in _seen(splits, name)}
    return next((kind for kind in ("string", "float", "int") if kind in kinds), "string")


def _wrong_type(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    """Take the type that the data have, and with it their values; bounds of numbers stay."""
    seen = _seen_feature(feature.name, splits)
    bounds = feature.float_domain, feature.int_domain
    was = feature.WhichOneof("domain_info")
    feature.ClearField(was) if was else None
    if seen.type == schema_pb2.FLOAT and was == "int_domain":
        limits = bounds[1]
        for side in ("min", "max"):
            if limits.HasField(side):
                setattr(feature.float_domain, side, float(getattr(limits, side)))
    elif seen.HasField("string_domain"):
        feature.string_domain.CopyFrom(seen.string_domain)
    feature.type = seen.type


def _seen_feature(name: str, splits: Sequence[Split]) -> schema_pb2.Feature:
    """Return what the data themselves show of a column, over all splits.

    Its type; whether each row has a value; and the values of a text that has few.
    """
    kind = _seen_kind(splits, name)
    feature = schema_pb2.Feature(name=name, type=TYPES[kind])
    feature.presence.min_count = 1
    is_everywhere = all(name in split.columns and not split.missing(name) for split in splits)
    most = max((_counts(split, name).max_num_values for split in _seen(splits, name)), default=1)
    if is_everywhere:
        feature.presence.min_fraction = 1.0
    if most > 1:
        feature.value_count.min = 1
    elif is_everywhere:
        feature.shape.dim.add(size=1)
    else:
        _one_or_none(feature)
    seen = _seen(splits, name)
    if kind == "string" and all(name in split.values for split in seen):
        values = sorted({str(value) for split in seen for value, _ in split.values[name]})
        if 0 < len(values) <= LISTED_VALUES:
            feature.string_domain.value.extend(values)
    return feature


def _counts(split: Split, name: str) -> Any:
    feature = split.columns[name]
    return getattr(feature, feature.WhichOneof("stats") or "num_stats").common_stats


def _too_many_values(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    counts = [_counts(split, feature.name) for split in _seen(splits, feature.name)]
    feature.ClearField("shape")
    feature.value_count.min = min(int(one.min_num_values) for one in counts)
    feature.value_count.max = max(int(one.max_num_values) for one in counts)


def _out_of_range(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    """Move the bounds that are passed to the least and greatest value that occur."""
    seen = _seen(splits, feature.name)
    if any(split.columns[feature.name].HasField("string_stats") for split in seen):
        numbers = [float(value) for value in _seen_values(splits, feature.name)]
    else:
        stats = [split.columns[feature.name].num_stats for split in seen]
        numbers = [edge for one in stats for edge in (one.min, one.max)]
    which = feature.WhichOneof("domain_info")
    if which == "bool_domain":
        feature.ClearField("bool_domain")
        feature.int_domain.min, feature.int_domain.max = 0, 1
        which = "int_domain"
    limits, number = getattr(feature, which or "float_domain"), float
    if which == "int_domain":
        number = int
    if limits.HasField("min"):
        limits.min = min(limits.min, number(min(numbers)))
    if limits.HasField("max"):
        limits.max = max(limits.max, number(max(numbers)))


def _not_finite(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    feature.float_domain.disallow_nan = feature.float_domain.disallow_inf = False


def _unique_values(
    schema: schema_pb2.Schema, feature: schema_pb2.Feature, splits: Sequence[Split]
) -> None:
    seen = [
        int(split.columns[feature.name].string_stats.unique)
        for split in _seen(splits, feature.name)
    ]
    limits = feature.unique_constraints
    limits.min = min(limits.min, *seen)
    limits.max = max(limits.max, *seen)


def _row_count(schema: schema_pb2.Schema, splits: Sequence[Split]) -> None:
    rows, limits = [split.rows for split in splits], schema.dataset_constraints
    if limits.HasField("min_examples_count"):
        limits.min_examples_count = min(limits.min_examples_count, *rows)
    if limits.HasField("max_examples_count"):
        limits.max_examples_count = max(limits.max_examples_count, *rows)


def _moved(feature: schema_pb2.Feature, kind: str, distances: Sequence[Mapping[str, Any]]) -> None:
    """Raise a column's own threshold to how far it has moved.

    Raises:
        InputError: that is not known.
    """
    measured = [one for one in distances if (one["feature"], one["kind"]) == (feature.name, kind)]
    if not measured:
        raise InputError(
            "it is not known how far the column moved",
            where=WHERE,
            holds=f"{feature.name}:{kind}",
            right="run again, and accept what that run says",
        )
    comparator = feature.skew_comparator if kind == "SKEW" else feature.drift_comparator
    is_text = measured[0]["measure"] == "L-infinity"
    limits = comparator.infinity_norm if is_text else comparator.jensen_shannon_divergence
    limits.threshold = math.ceil(measured[0]["distance"] * 1e6) / 1e6


Change = Callable[[schema_pb2.Schema, schema_pb2.Feature, Sequence[Split]], None]
CHANGES: Mapping[str, Change] = {
    "UNEXPECTED_VALUES": _unexpected_values,
    "COLUMN_MISSING": _column_missing,
    "NEW_COLUMN": _column_missing,  # made from what is seen, before this could be called
    "WRONG_TYPE": _wrong_type,
    "WHOLE_NUMBERS_ONLY": _wrong_type,
    "MISSING_VALUES": _missing_values,
    "TOO_MANY_VALUES": _too_many_values,
    "OUT_OF_RANGE": _out_of_range,
    "NOT_FINITE": _not_finite,
    "UNIQUE_VALUES": _unique_values,
    "ROW_COUNT": _column_missing,  # of all rows, not of a column
    **dict.fromkeys(MOVED, _column_missing),  # by distances, not by statistics
}
