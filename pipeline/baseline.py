"""The baseline of drift: the newest data of this pipeline that passed the gate and are others.

Told from ML Metadata: an execution of the gate that ended well. Data that were refused are never
it, and the data of this run itself are not, so that a run that nothing changed for stays cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import fingerprint
from components.fingerprint import Fingerprint
from pipeline.cache import Execution, Records

EXAMPLES, STATISTICS, GATE = "ExampleGen", "StatisticsGen", "DataGate"


def find(records: Records, examples: Fingerprint) -> dict[str, Any] | None:
    """Return run and place of the baseline's statistics; None when there is none.

    Args:
        records: the pipeline's ML Metadata.
        examples: ExampleGen's fingerprint of the data in question.
    """
    executions = [one for one in records.executions() if not one.cached]
    made = {(one.node, fingerprint.digest(one.fingerprint)): one for one in executions}

    def upstream(one: Execution, node: str) -> Execution | None:
        return made.get((node, one.fingerprint.get("upstream", {}).get(node, "")))

    for passed in reversed([one for one in executions if one.node == GATE]):
        statistics = upstream(passed, STATISTICS)
        read = statistics and upstream(statistics, EXAMPLES)
        if not statistics or not read or _data(read.fingerprint) == _data(examples):
            continue
        output = records.outputs(statistics.id).get("statistics")
        if output and Path(output.uri).exists():
            return {"run": records.run_of(statistics.id), "statistics": output.uri}
    return None


def _data(examples: Fingerprint) -> tuple[list[str], Any]:
    """Return what the rows of both splits depend on: contents of files, and settings."""
    told = {name: value for name, value in examples["settings"].items() if name != "data.files"}
    return sorted(examples["data"].values()), told


def with_baseline(part: Fingerprint, found: Mapping[str, Any] | None) -> Fingerprint:
    """Return the gate's part of the fingerprint with the baseline in it."""
    told = f"run {found['run']}" if found else "none"
    return {**part, "settings": {**part["settings"], "the baseline": told}}
