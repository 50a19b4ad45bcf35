"""A schema in words: what it asks of each column, and in what two of them differ. Light."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

SHOWN = 10
"""Most values that are named."""
_TOLD = (
    "type", "presence", "domain", "int_domain", "float_domain", "string_domain", "bool_domain",
    "shape", "value_count", "distribution_constraints", "drift_comparator", "skew_comparator",
    "in_environment", "not_in_environment", "unique_constraints",
)  # fmt: skip


def domains_of(schema: schema_pb2.Schema) -> dict[str, list[str]]:
    """Return the known values of each named domain."""
    return {one.name: list(one.value) for one in schema.string_domain}


def values_of(feature: schema_pb2.Feature, domains: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the values that a column may hold; empty where it is not a matter of a list."""
    which = feature.WhichOneof("domain_info")
    if which == "domain":
        return list(domains.get(feature.domain, ()))
    if which == "string_domain":
        return list(feature.string_domain.value)
    if which == "bool_domain":
        domain = feature.bool_domain
        return [value for value in (domain.true_value, domain.false_value) if value]
    return []


def expectation(feature: schema_pb2.Feature, domains: Mapping[str, Sequence[str]]) -> str:
    """Return what a schema asks of a column: type, presence, values or bounds."""
    parts = [schema_pb2.FeatureType.Name(feature.type).lower(), *_presence(feature)]
    which = feature.WhichOneof("domain_info")
    if which in {"domain", "string_domain"}:
        parts.append(f"one of {len(values_of(feature, domains))} known values")
    elif which in {"int_domain", "float_domain"}:
        parts.append(_bounds(getattr(feature, which)))
    if feature.distribution_constraints.HasField("min_domain_mass"):
        mass = feature.distribution_constraints.min_domain_mass
        parts.append(f"at least {100 * mass:g} % of them known")
    parts += [f"not when {environment.lower()}" for environment in feature.not_in_environment]
    return ", ".join(parts)


def _presence(feature: schema_pb2.Feature) -> Iterator[str]:
    if asked := feature.presence.min_fraction:
        yield "in every row" if asked >= 1 else f"in at least {100 * asked:g} % of rows"


def _bounds(limits: schema_pb2.IntDomain | schema_pb2.FloatDomain) -> str:
    low = f"{limits.min:g}" if limits.HasField("min") else "no lower limit"
    high = f"{limits.max:g}" if limits.HasField("max") else "no upper limit"
    return f"{low} to {high}"


def differences(before: schema_pb2.Schema, after: schema_pb2.Schema) -> list[str]:
    """Return in words in what the second schema differs from the first, a line a change."""
    old = {one.name: one for one in before.feature}
    new = {one.name: one for one in after.feature}
    domains = domains_of(before), domains_of(after)
    said: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            said.append(f"column {name} is gone")
        elif name not in old:
            said.append(f"column {name} is new: {expectation(new[name], domains[1])}")
        else:
            said.extend(f"column {name}: {one}" for one in _changes(old[name], new[name], *domains))
    rows = before.dataset_constraints, after.dataset_constraints
    if rows[0] != rows[1]:
        said.append(f"the number of rows: {_text(rows[0])} → {_text(rows[1])}")
    return said


def _changes(
    old: schema_pb2.Feature,
    new: schema_pb2.Feature,
    old_domains: Mapping[str, Sequence[str]],
    new_domains: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    if old.type != new.type:
        names = [schema_pb2.FeatureType.Name(one.type).lower() for one in (old, new)]
        yield f"type {names[0]} → {names[1]}"
    if old.presence != new.presence:
        told = [", ".join(_presence(one)) or "may be missing" for one in (old, new)]
        yield f"{told[0]} → {told[1]}" if told[0] != told[1] else "the least number of rows changed"
    yield from _changed_values(values_of(old, old_domains), values_of(new, new_domains))
    for which in ("int_domain", "float_domain"):
        limits = [getattr(one, which) if one.HasField(which) else None for one in (old, new)]
        if limits[0] != limits[1]:
            yield " → ".join("no bounds" if one is None else _bounds(one) for one in limits)
    for name, label in (
        ("drift_comparator", "drift"),
        ("skew_comparator", "skew"),
        ("distribution_constraints", "share of known values"),
        ("unique_constraints", "different values"),
    ):
        if getattr(old, name) != getattr(new, name):
            yield f"{label} {_text(getattr(old, name))} → {_text(getattr(new, name))}"
    yield from _changed_counts(old, new)
    if list(old.not_in_environment) != list(new.not_in_environment):
        yield f"not asked for in {', '.join(new.not_in_environment) or 'no environment'}"
    if _rest(old) != _rest(new):
        yield "other things changed"


def _changed_counts(old: schema_pb2.Feature, new: schema_pb2.Feature) -> Iterator[str]:
    counts = [(one.shape, one.value_count) for one in (old, new)]
    if counts[0] == counts[1]:
        return
    told = []
    for shape, count in counts:
        if shape.dim:
            told.append("one value in each row")
        else:
            most = count.max or "any number of"
            told.append(f"{most} value{'' if most == 1 else 's'} a row, where it is there")
    if told[0] != told[1]:
        yield f"{told[0]} → {told[1]}"


def _changed_values(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    more = [value for value in new if value not in set(old)]
    less = [value for value in old if value not in set(new)]
    if more and not old:
        yield f"only {_some(more)} from now on"
    elif less and not new:
        yield f"any value from now on, no longer {_some(less)} alone"
    else:
        yield from ([f"also {_some(more)}"] if more else [])
        yield from ([f"no longer {_some(less)}"] if less else [])


def _some(values: Sequence[str]) -> str:
    shown = ", ".join(f'"{value}"' for value in values[:SHOWN])
    return shown + (f" and {len(values) - SHOWN:,} more" if len(values) > SHOWN else "")


def _text(message: object) -> str:
    return text_format.MessageToString(message, as_one_line=True) or "not set"  # type: ignore[arg-type]


def _rest(feature: schema_pb2.Feature) -> schema_pb2.Feature:
    """Return a feature without all that is told in words of its own."""
    rest = schema_pb2.Feature()
    rest.CopyFrom(feature)
    for name in _TOLD:
        rest.ClearField(name)
    return rest
