"""An inferred schema made ready to be frozen: environments, bounds, shares; light."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow_metadata.proto.v0 import schema_pb2

from components.checks import Split

TRAINING, SERVING = "TRAINING", "SERVING"


@dataclass(frozen=True)
class Extras:
    """What inference leaves out, where it is asked for.

    Attributes:
        bounds: whether numbers must stay between the least and greatest that train holds.
        min_domain_mass: share of a text column's values that must be known, 1 for all.
        max_missing: most of the rows that may lack a value, in columns that lack some; None: any.
    """

    bounds: bool = False
    min_domain_mass: float = 1.0
    max_missing: float | None = None


def frozen(
    schema: schema_pb2.Schema, train: Split, *, label: str, extras: Extras
) -> schema_pb2.Schema:
    """Return a schema with what inference leaves out.

    The label is not asked for when serving: TFDV's environment ``SERVING``.

    Args:
        schema: as it was inferred from `train`.
        train: the train split.
        label: name of the label's column; empty: there is none.
        extras: what is asked for beside.
    """
    result = copy.deepcopy(schema)
    if label:
        result.ClearField("default_environment")
        result.default_environment.extend([TRAINING, SERVING])
    for one in result.feature:
        if one.name == label:
            one.not_in_environment.append(SERVING)
        if one.name not in train.columns or train.is_empty(one.name):
            continue
        if extras.bounds:
            _bound(one, train)
        if extras.min_domain_mass < 1 and one.WhichOneof("domain_info") in {
            "domain", "string_domain",
        }:  # fmt: skip
            one.distribution_constraints.min_domain_mass = extras.min_domain_mass
        if extras.max_missing is not None and train.missing(one.name):
            there = 1 - train.missing(one.name) / train.rows
            one.presence.min_fraction = min(round(1 - extras.max_missing, 9), there)
    return result


def _bound(feature: schema_pb2.Feature, train: Split) -> None:
    """Set the bounds of a number to the least and greatest value of train."""
    seen = train.columns[feature.name]
    if not seen.HasField("num_stats") or feature.WhichOneof("domain_info") == "bool_domain":
        return
    if feature.type == schema_pb2.INT:
        limits, number = feature.int_domain, int
    elif feature.type == schema_pb2.FLOAT:
        limits, number = feature.float_domain, float
    else:
        return
    limits.min, limits.max = number(seen.num_stats.min), number(seen.num_stats.max)


def described(train: Split, labels: Sequence[str] = ()) -> dict[str, str]:
    """Return what train shows of each column, for the comments of the file."""
    told = {}
    for name, one in train.columns.items():
        parts = ["the label"] if name in labels else []
        if missing := train.missing(name):
            parts.append(f"train lacks it in {missing:,} of {train.rows:,} rows")
        if one.HasField("num_stats") and not train.is_empty(name):
            parts.append(f"train holds {one.num_stats.min:g} to {one.num_stats.max:g}")
        told[name] = ", ".join(parts)
    return told
