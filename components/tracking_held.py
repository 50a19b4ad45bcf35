"""What an MLflow run holds already, and what of a record is new to it: no MLflow here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from components.tracking_names import cut_name
from components.tracking_record import Point, Record

# Where a run came from: kept as it was when a resumed run comes from somewhere else.
_KEPT_TAGS = ("git.", "version.", "hardware.", "digest.", "mlflow.source.")


@dataclass
class Held:
    """One MLflow run as it stands.

    Attributes:
        run_id: as MLflow names it.
        session: which `headrace run` of those that wrote to it this is, from 0.
        params, tags: stored so far.
        last: name of a metric to the step and value stored last.
        nonfinite_before: tag to the count that earlier sessions left.
    """

    run_id: str
    session: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    nonfinite_before: dict[str, int] = field(default_factory=dict)

    def new_params(self, record: Record) -> dict[str, str]:
        """Return the parameters that the run has no value of."""
        return {name: value for name, value in record.params.items() if name not in self.params}

    def new_tags(self, record: Record) -> dict[str, str]:
        """Return the tags that the run has not, or holds otherwise.

        MLflow never changes a parameter: another value of a resumed run becomes the tag
        ``resume_<session>/<name>`` (``changed/<name>`` within one session), and so does where it
        came from.
        """
        tags = {}
        for name, value in record.params.items():
            if self.params.get(name, value) != value:
                tags[self._changed(name)] = value
        for name, value in record.tags.items():
            is_kept = name.startswith(_KEPT_TAGS) and self.tags.get(name, value) != value
            tags[self._changed(name) if is_kept else name] = value
        for name, count in record.nonfinite.items():
            total = self.nonfinite_before.get(name, 0) + count
            tags[name] = str(max(total, int(self.tags.get(name, 0))))
        return {name: value for name, value in tags.items() if self.tags.get(name, "") != value}

    def _changed(self, name: str) -> str:
        return cut_name(f"resume_{self.session}/{name}" if self.session else f"changed/{name}")

    def new_points(self, record: Record) -> Iterator[Point]:
        """Yield the points past the last stored step: a training that went back repeats some.

        A final metric that came out otherwise at the same step counts as new.
        """
        last = dict(self.last)
        for point in record.points:
            step, value = last.get(point.name, (-1, 0.0))
            is_corrected = point.is_final and point.step == step and point.value != value
            if point.step > step or is_corrected:
                last[point.name] = (point.step, point.value)
                yield point
