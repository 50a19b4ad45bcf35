"""What the gate found, and what follows from it; light: imports nothing heavy.

An `Anomaly` says which column shows what in which split, how many rows do and where. Its kind has a
short stable name, which rules in the configuration and the run's JSON use.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.errors import DataRefused

Severity = Literal["stop", "warn"]
PLACES = 10
"""Most places of an anomaly that are named, and most of its values that are kept."""
TRAIN_SPLIT = "the train split"
"""As messages call it."""
SHOWN_VALUES = 5
"""Most values that a refusal names."""
ID_VALUES, ID_SHARE = 20, 0.5
"""A label of at least so many values, of which at least this share differ, looks like an id."""
CHANCE = (
    "nothing if these rows are right: so few may all fall into eval by chance; to look at no such "
    'rows again, set "{rule}" = "ignore" under [validation.rules]'
)


@dataclass(frozen=True)
class Kind:
    """A kind of anomaly.

    Attributes:
        remedy: what to do about it; ``{feature}`` stands for the column.
        severity: ``as set``: stop or warn, as the configuration says; ``stop``: training cannot
            work, whatever it says; ``warn``: worth knowing, unless a rule says otherwise.
    """

    remedy: str
    severity: Literal["as set", "stop", "warn"] = "as set"


KINDS: dict[str, Kind] = {
    # What cannot be trained on.
    "EMPTY_SPLIT": Kind(
        "give more rows, or change data.split so that both splits get some", "stop"
    ),
    "LABEL_COLUMN_MISSING": Kind("name a column of the data as data.label", "stop"),
    "LABEL_EMPTY": Kind("give rows with a label, or name another column as data.label", "stop"),
    "LABEL_ONE_VALUE": Kind(
        "give rows with other values of {feature}, or name another column as data.label", "stop"
    ),
    "NO_TEXT": Kind("give rows with a text, or name another column as data.text", "stop"),
    "NO_WINDOW": Kind("give more text, or change data.split so that both splits get some", "stop"),
    # What TFDV cannot see for a training run.
    "LABEL_MISSING": Kind(
        "give these rows a label or take them out of the file; as a warning, they are left out"
    ),
    "LABEL_UNSEEN_CLASS": Kind(
        "give train rows of these classes, take these rows out, or name another column as "
        "data.label; as a warning, they are left out"
    ),
    "LABEL_COPY": Kind("add {feature} to data.ignore, unless it is known before the label", "warn"),
    "FEW_ROWS": Kind(
        "raise training.epochs, lower training.global_batch, or give more rows", "warn"
    ),
    "FEW_WINDOWS": Kind(
        "raise training.epochs, lower training.global_batch or model.sequence, or give more text",
        "warn",
    ),
    "FILES_UNRELATED": Kind(
        "name the files of one table alone in data.files, or give the columns that mean the same "
        "the same name"
    ),
    "FILES_DIFFER": Kind(
        "give every file the same columns, or take those that differ out of data.files", "warn"
    ),
    "DISTINCT_VALUES": Kind("add {feature} to data.ignore", "warn"),
    "CONSTANT_COLUMN": Kind("nothing can be learned from {feature}; add it to data.ignore", "warn"),
    "EMPTY_COLUMN": Kind("{feature} is left out; fill it, or add it to data.ignore", "warn"),
    # What TFDV finds against the schema.
    "UNEXPECTED_VALUES": Kind(
        "correct these rows, or add the values to the column's domain in the schema"
    ),
    "COLUMN_MISSING": Kind("give the column back, or take it out of the schema"),
    "NEW_COLUMN": Kind("take the column out of the data, or add it to the schema"),
    "WRONG_TYPE": Kind("correct these rows, or change the column's type in the schema"),
    "WHOLE_NUMBERS_ONLY": Kind("the column is read as numbers, as the schema says", "warn"),
    "MISSING_VALUES": Kind(
        "fill these rows, or lower presence.min_fraction of the column in the schema"
    ),
    "TOO_MANY_VALUES": Kind("give one value a row, or change value_count in the schema"),
    "OUT_OF_RANGE": Kind("correct these rows, or change the column's range in the schema"),
    "NOT_FINITE": Kind("correct these rows, or allow such values in the column's float_domain"),
    "NOT_UTF8": Kind("write the file in UTF-8"),
    "UNIQUE_VALUES": Kind("check the column, or change unique_constraints in the schema"),
    "DRIFT": Kind(
        "check what changed since these data passed, or raise validation.drift.thresholds.{feature}"
    ),
    "SKEW": Kind("check why the splits differ, or raise validation.skew.thresholds.{feature}"),
    "LABEL_SHIFT": Kind(
        "check what changed since these data passed, or raise validation.drift.thresholds.{feature}"
    ),
    "ROW_COUNT": Kind("check that the files are complete, or change the bounds in the schema"),
    "INVALID_SCHEMA": Kind("correct the schema file"),
    "OTHER": Kind("check the column against the schema"),
}


@dataclass(frozen=True)
class Anomaly:
    """One thing that one column shows in one split.

    Attributes:
        feature: the column; empty when it concerns the whole split.
        kind: a key of `KINDS`.
        split: the split's name; empty when it concerns all of them.
        message: what is wrong, as one sentence without the places.
        severity: whether training stops for it.
        rows: how many rows show it; 0 where it is not a matter of single rows.
        where: up to `PLACES` of these rows as ``file:line`` (Parquet: ``file:row N``).
        values: the most frequent of the values that these rows hold, as short texts, each with its
            number of rows.
        what_to_do: the remedy.
    """

    feature: str
    kind: str
    split: str
    message: str
    severity: Severity = "stop"
    rows: int = 0
    where: tuple[str, ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    what_to_do: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            "feature": self.feature,
            "kind": self.kind,
            "split": self.split,
            "severity": self.severity,
            "message": f"{self.message}: {_values([self])}" if self.values else self.message,
            "rows": self.rows,
            "where": list(self.where),
            "values": [{"value": value, "rows": rows} for value, rows in self.values],
            "what_to_do": self.what_to_do,
        }


def judge(
    found: Iterable[Anomaly],
    *,
    on_anomaly: Severity,
    rules: Mapping[str, str],
    ignored: Sequence[str] = (),
    may_be_chance: Callable[[Anomaly], bool] = lambda _: False,
) -> list[Anomaly]:
    """Return the anomalies that count, with severity and remedy, those that stop first.

    A rule named ``feature:KIND`` goes before one named ``feature``, that before ``KIND``, and each
    of them before `on_anomaly`. What training cannot work with stops in any case; what concerns a
    column that the model does not read, or may be chance, warns, unless a rule says otherwise.
    """
    judged = []
    for one in found:
        chance = may_be_chance(one)
        harmless = chance or one.feature in ignored
        severity = _severity(one, "warn" if harmless else on_anomaly, rules)
        if severity != "ignore":
            text = CHANCE if chance else KINDS[one.kind].remedy
            remedy = text.format(feature=one.feature, rule=_rule(one.feature, one.kind))
            judged.append(dataclasses.replace(one, severity=severity, what_to_do=remedy))
    order = list(KINDS)
    return sorted(
        judged,
        key=lambda one: (one.severity != "stop", _rank(one, order), -one.rows, one.feature),
    )


def _rank(one: Anomaly, order: list[str]) -> int:
    """What makes training impossible comes first; all else by the number of rows."""
    return order.index(one.kind) if KINDS[one.kind].severity == "stop" else len(order)


def _severity(one: Anomaly, otherwise: Severity, rules: Mapping[str, str]) -> Any:
    kind = KINDS[one.kind]
    if kind.severity == "stop":
        return "stop"
    for name in (f"{one.feature}:{one.kind}", one.feature, one.kind):
        if name and name in rules:
            return rules[name]
    return "warn" if kind.severity == "warn" else otherwise


def refusal(anomalies: Sequence[Anomaly]) -> DataRefused:
    """Return the error that says in one line why the data is refused.

    It tells the first anomaly in all splits: column, values, rows, places and what to do; and how
    many more columns stop the run.

    Args:
        anomalies: as `judge` returns them, the first one being of severity ``stop``.
    """
    stops = [one for one in anomalies if one.severity == "stop"]
    first = stops[0]
    same = [one for one in stops if (one.feature, one.kind) == (first.feature, first.kind)]
    others = {(one.feature, one.kind) for one in stops} - {(first.feature, first.kind)}
    places = list(dict.fromkeys(place for one in same for place in one.where))[:PLACES]
    where, *further = places or [""]
    also = f" (also {', '.join(further)})" if further else ""
    remedies = [
        first.what_to_do,
        passing_rule(first.feature, first.kind),
        f"and {count(len(others), 'more anomaly', 'more anomalies')}" if others else "",
    ]
    return DataRefused(
        f"{first.message}{_rows_by_split(same)}{also}",
        where=where,
        holds=_values(same),
        right="; ".join(remedy for remedy in remedies if remedy),
    )


def passing_rule(feature: str, kind: str) -> str:
    """Return which rule lets such an anomaly pass; empty where none can, or the kind is unknown."""
    known = KINDS.get(kind)
    if known is None or known.severity == "stop":
        return ""
    return f'"{_rule(feature, kind)}" = "warn" under [validation.rules] lets it pass'


def _rule(feature: str, kind: str) -> str:
    """Return the name of the rule for this kind of anomaly of this column alone."""
    return f"{feature}:{kind}" if feature else kind


def _values(same: Sequence[Anomaly]) -> str:
    """Return ``"ZZ" (2 rows), "YY" (1 row)``, the splits' rows added up."""
    rows: Counter[str] = Counter()
    for one in same:
        rows.update(dict(one.values))
    told = [f"{value} ({count_rows(count)})" for value, count in rows.most_common(SHOWN_VALUES)]
    return ", ".join([*told, "and others"] if len(rows) > len(told) else told)


def _rows_by_split(same: Sequence[Anomaly]) -> str:
    """Return `` in 3 rows (2 of train, 1 of eval)``, or nothing where rows are not counted."""
    total = sum(one.rows for one in same)
    if not total:
        return ""
    by_split = ", ".join(f"{one.rows:,} of {one.split}" for one in same if one.rows and one.split)
    return f" in {count_rows(total)} ({by_split})" if by_split else f" in {count_rows(total)}"


def empty_split(name: str, rows: int) -> Anomaly:
    """Return that a split has no row, of so many in all."""
    message = f"{name} split has 0 rows; {count_rows(rows)} in total"
    return Anomaly("", "EMPTY_SPLIT", name, message)


def empty_label(label: str, *, seen: str) -> Anomaly:
    """Return that no row of what was seen has a label."""
    message = f"the label {label} has no value in any row of {seen}"
    return Anomaly(label, "LABEL_EMPTY", "train", message)


def constant_label(label: str, value: object, *, seen: str) -> Anomaly:
    """Return that every row of what was seen has the same label."""
    message = f"the label {label} has one value in {seen}, {value}"
    return Anomaly(label, "LABEL_ONE_VALUE", "train", message)


def missing_label(label: str, split: str, rows: int, where: tuple[str, ...] = ()) -> Anomaly:
    """Return that so many rows have no label."""
    message = f"the label {label} is missing"
    return Anomaly(label, "LABEL_MISSING", split, message, rows=rows, where=where)


def unseen_classes(
    label: str, split: str, unseen: Sequence[tuple[Any, int]], *, distinct: int, labelled: int
) -> Anomaly:
    """Return that a split has classes of the label which train does not have.

    Args:
        label: the column.
        split: the split's name.
        unseen: these classes, each with its rows.
        distinct: values of the label that differ, in the train split.
        labelled: rows of the train split that have a label.
    """
    shown = [str(value) for value, _ in unseen[:SHOWN_VALUES]]
    more = len(unseen) - len(shown)
    names = ", ".join(shown) + (f" and {more:,} more" if more else "")
    is_id = looks_like_id(distinct, labelled)
    like = f" ({distinct:,} of {labelled:,} values differ: it looks like an id)" if is_id else ""
    message = (
        f"the label {label}{like} has classes in the {split} split that the train split does not "
        f"have: {names}"
    )
    return Anomaly(
        label, "LABEL_UNSEEN_CLASS", split, message, rows=sum(rows for _, rows in unseen)
    )


def too_many_classes(label: str, *, distinct: int, labelled: int) -> Anomaly:
    """Return that so many of the first labelled rows have a class of their own."""
    message = (
        f"the label {label} has {distinct:,} different values in the first {count_rows(labelled)}, "
        "so it looks like an id or a free text, not like classes; the eval split will have some "
        "that the train split does not have"
    )
    return Anomaly(label, "LABEL_UNSEEN_CLASS", "eval", message)


def looks_like_id(distinct: int, rows: int) -> bool:
    """Say whether so many different values in so many rows are no classes."""
    return distinct >= ID_VALUES and distinct >= ID_SHARE * rows


def count_rows(rows: int) -> str:
    """Return ``1 row``, ``2 rows``, ``1,000 rows``."""
    return count(rows, "row")


def count(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: ``1 column``, ``2 columns``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
