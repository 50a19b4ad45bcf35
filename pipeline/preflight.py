"""`check`: what would go wrong, told before anything runs.

Reads the configuration, the head of the data and the machine; writes nothing and trains nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline import config_file, lines, services
from pipeline.config import PipelineConfig
from trainer.errors import HeadraceError, InputError
from trainer.settings import parse_bytes

if TYPE_CHECKING:
    from components.heads import Heads

GPUS = Path("/proc/driver/nvidia/gpus")
MEMORY = Path("/proc/meminfo")
ROOM_FACTOR = 3
"""Disk that a run takes, in sizes of its data: examples, columns for the trainer, and the rest."""


@dataclass(frozen=True)
class Finding:
    """Something that would go wrong, or may not be meant.

    Attributes:
        severity: error, with which a run ends; or warning.
        where: the key or the file.
        message: what is wrong and what would be right.
    """

    severity: Literal["error", "warning"]
    where: str
    message: str


def check(config: PipelineConfig) -> list[Finding]:
    """Return what a run says before it starts, in the order of the configuration."""
    return _check(config, *_heads(config))


def result(config: PipelineConfig) -> dict[str, Any]:
    """Return the findings, the machine and the verdict as JSON-ready values.

    Beside those of `check` they tell what the data gate will refuse, in the run, with its report.
    """
    heads, refused = _heads(config)
    found = [*_check(config, heads, refused), *_foreseen(config, heads)]
    errors = [one for one in found if one.severity == "error"]
    return {
        "status": "failed" if errors else "succeeded",
        "pipeline": config.name,
        "findings": [dataclasses.asdict(one) for one in found],
        "environment": environment(config),
        "error": f"{errors[0].where}: {errors[0].message}" if errors else None,
    }


def environment(config: PipelineConfig) -> dict[str, str]:
    """Return what this machine has for a run, in words."""
    return {
        "processors": str(len(os.sched_getaffinity(0))),
        "memory": f"{lines.size(_free_memory())} free",
        "GPUs": ", ".join(_gpus()) or "none: training runs on the processor",
        "disk": f"{lines.size(shutil.disk_usage(_standing(config.folder)).free)} free under "
        f"{config.root_folder}",
    }


def _root(config: PipelineConfig) -> Iterator[Finding]:
    where, standing = config.where("root"), _standing(config.folder)
    if not standing.is_dir():
        yield Finding("error", where, f"{standing} is a file, not a folder; name another root")
    elif not os.access(standing, os.W_OK | os.X_OK):
        yield Finding(
            "error", where, f"{standing} cannot be written to; name a folder of this user"
        )


def _heads(config: PipelineConfig) -> tuple[Heads | None, list[Finding]]:
    """Return the first rows of the data, and what is said of its files; None: cannot be read."""
    from components import heads, readers
    from pipeline import definition

    where = config.where("data.files")
    try:
        found = readers.resolve(config.data.files, config.base, config.root_folder / "inputs")
        said = [Finding("warning", where, f"{one}; it is not read") for one in found.skipped]
        return heads.read(found.files, config.data.null_values, definition.dialect(config)), said
    except InputError as error:
        return None, [_refused(config, error)]


def _refused(config: PipelineConfig, error: HeadraceError) -> Finding:
    where = error.where or "data.files"
    at = config.where(where) if where.startswith("data.") else where
    return Finding("error", at, _message(error))


def _check(config: PipelineConfig, heads: Heads | None, said: Iterable[Finding]) -> list[Finding]:
    return [
        *_root(config),
        *said,
        *(_data(config, heads) if heads else []),
        *_own_model(config),
        *_schema(config),
        *_training(config),
        *(Finding(*one) for one in services.problems(config)),
    ]


def _data(config: PipelineConfig, heads: Heads) -> Iterator[Finding]:
    kinds = heads.layout.kinds
    yield from _room(config, heads.names)
    yield from _kind(config, kinds)
    yield from _names(config, list(kinds))
    yield from _rules(config, list(kinds))
    yield from _task(config, heads)
    yield from _image_classes(config, heads)
    if config.data.split.column in {"", *kinds}:
        yield from _split(config, heads)


def _image_classes(config: PipelineConfig, heads: Heads) -> Iterator[Finding]:
    """Yield why image files have no classes to tell apart."""
    from components import image_files

    is_files = set(heads.layout.kinds) == set(image_files.COLUMNS)
    if is_files and config.data.label == image_files.CLASS:
        paths = [one for one in heads.names if image_files.is_image(one)]
        if paths and (refused := image_files.one_class(paths)):
            yield Finding("error", refused.where, _message(refused))


def _task(config: PipelineConfig, heads: Heads) -> Iterator[Finding]:
    """Yield why the task does not fit the label's values."""
    label, task = config.data.label, config.data.task
    kind = heads.layout.kinds.get(label)
    if kind is None or label in heads.layout.lists:
        return
    if task == "regression" and kind == "string":
        message = f"{label} holds texts, which regression cannot predict"
        yield Finding("error", config.where("data.task"), message)
    # More rows may have more values, never fewer.
    if task == "binary" and (distinct := heads.distinct(label)) > 2:
        other = "multiclass" if kind == "string" else "multiclass or regression"
        message = (
            f'the label {label} has {distinct:,} different values, not 2; it holds "binary"; '
            f"take {other}, or auto"
        )
        yield Finding("error", config.where("data.task"), message)


def _kind(config: PipelineConfig, kinds: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the kind of model cannot read of these columns, or leaves out."""
    from components import documents, image_files, text_choice, text_features
    from pipeline import definition, model_keys

    kind, choice = config.model.kind, definition.choice(config)
    if kind == "tabular" and set(kinds) == set(documents.COLUMNS):
        message = (
            'a tabular model reads tables, and these are text documents; "causal-lm" learns to '
            "write such texts"
        )
        yield Finding("error", config.where("model.kind"), message)
    if kind in {"tabular", "text", "causal-lm"} and set(kinds) == set(image_files.COLUMNS):
        message = f'a {kind} model reads no images, and these are images; "image" does'
        yield Finding("error", config.where("model.kind"), message)
        return
    try:
        text = text_choice.choose(kinds, choice)
        image = text_choice.choose_image(kinds, choice)
    except InputError as error:
        yield _refused(config, error)
        return
    for name in () if text or image else model_keys.OF_TOKENS[1:]:
        if name in config.set_keys:
            message = "is not read: the model reads no text column; leave it out, or set data.text"
            yield Finding("error", config.where(name), message)
    read = text or image
    if others := text_choice.not_read(kinds, choice, read):
        yield Finding(
            "warning", config.where("model.kind"), text_features.not_read(choice, read, others)
        )


def _own_model(config: PipelineConfig) -> Iterator[Finding]:
    """Yield why a model of the person's own cannot be found."""
    from pipeline import own_model

    if own_model.is_own(config.model.kind):
        try:
            own_model.find(config.model.kind, config.base)
        except InputError as error:
            yield Finding("error", config.where("model.kind"), _message(error))


def _split(config: PipelineConfig, heads: Heads) -> Iterator[Finding]:
    """Yield why rows cannot be split as the configuration says."""
    try:
        heads.held_back(dataclasses.asdict(config.data.split))
    except InputError as error:
        yield _refused(config, error)


def _few_updates(config: PipelineConfig, rows: int, of: str) -> Iterator[Finding]:
    from components.verdict import count
    from components.weight_updates import LEAST_UPDATES, enough_updates

    training = config.training
    updates = training.steps or training.epochs * -(-rows // training.global_batch)
    if 0 < updates < LEAST_UPDATES:
        right = (
            f"fewer than {LEAST_UPDATES} seldom teach a model anything; set more"
            if training.steps
            else enough_updates(rows, training.global_batch)
        )
        message = (
            f"{count(rows, of)} for training make {count(updates, 'weight update')} "
            f"with these settings; {right}"
        )
        where = "training.steps" if training.steps else "training.global_batch"
        yield Finding("warning", config.where(where), message)


def _foreseen(config: PipelineConfig, heads: Heads | None) -> Iterator[Finding]:
    """Yield what the run will show of the data, as far as its first rows tell."""
    from components import foresight, text_choice, verdict
    from pipeline import definition

    if heads is None or any(_image_classes(config, heads)):
        return
    (gate,) = [node for node in definition.NODES if node.id == "DataGate"]
    settings = gate.settings(config, [str(one) for one in heads.names])
    try:
        held_back = heads.held_back(settings["split"])
        text_choice.choose(heads.layout.kinds, settings)
    except InputError:
        # `check` has said so.
        return
    found = foresight.foresee(heads, settings, held_back)
    if held_back is not None:
        if config.model.kind == "causal-lm":
            windows = foresight.windows(heads, settings, held_back)[1]
            yield from _few_updates(config, windows, "window")
        else:
            rows = sum(int((~one).sum()) for one in held_back)
            yield from _few_updates(config, rows, "row")
    for one in found:
        where = config.where("data.label" if one.feature else "data.files")
        if one.severity == "stop":
            refused = verdict.refusal([one])
            at = f" ({refused.where})" if refused.where else ""
            yield Finding("error", where, f"the data gate will refuse{at}: {_message(refused)}")
        else:
            yield Finding("warning", where, f"{one.message}; {one.what_to_do}")


def _message(error: HeadraceError) -> str:
    holds = f"it holds {error.holds}" if error.holds else ""
    return "; ".join(part for part in (error.what, holds, error.right) if part)


def _room(config: PipelineConfig, files: Iterable[Path]) -> Iterator[Finding]:
    needed = ROOM_FACTOR * sum(path.stat().st_size for path in files)
    free = shutil.disk_usage(_standing(config.folder)).free
    if free < needed:
        message = f"{lines.size(free)} are free where about {lines.size(needed)} are needed"
        yield Finding("error" if free < needed // ROOM_FACTOR else "warning", "disk", message)


def _names(config: PipelineConfig, columns: list[str]) -> Iterator[Finding]:
    data = config.data
    if data.label and data.label not in columns:
        yield _no_column(config, "data.label", data.label, columns=columns)
    if data.split.column and data.split.column not in columns:
        yield _no_column(config, "data.split.column", data.split.column, columns=columns)
    for name in config.evaluation.slices:
        if name not in columns:
            yield _no_column(config, "evaluation.slices", name, columns=columns)
    for name in data.ignore:
        if name not in columns:
            finding = _no_column(config, "data.ignore", name, columns=columns)
            yield dataclasses.replace(finding, severity="warning")
    if config.model.kind == "tabular" and not set(columns) - {data.label, *data.ignore}:
        if config.data.ignore:
            where, message = "data.ignore", "no column is left to learn from; ignore fewer"
        else:
            where, message = "data.files", "there is no column but the label; give the model others"
        yield Finding("error", config.where(where), message)


def _rules(config: PipelineConfig, columns: list[str]) -> Iterator[Finding]:
    # A rule for what does not exist would change nothing, without a word.
    from components.verdict import KINDS

    known = {*columns, *KINDS, *(f"{column}:{kind}" for column in columns for kind in KINDS)}
    for rule in config.validation.rules:
        where = f"{config.where('validation.rules')}.{config_file.dotted((rule,))}"
        kind = KINDS.get(rule.rpartition(":")[2])
        if rule not in known:
            near = config_file.nearest(rule, known)
            right = f"; the nearest is {near}" if near else f"; the kinds are {', '.join(KINDS)}"
            yield Finding("warning", where, f"there is no such column or kind{right}")
        elif kind is not None and kind.severity == "stop" and rule not in columns:
            yield Finding("warning", where, "this kind always stops, whatever a rule says")


def _no_column(config: PipelineConfig, key: str, name: str, *, columns: list[str]) -> Finding:
    return Finding(
        "error",
        config.where(key),
        f"the data has no column {quoted(name)}; {other_columns(name, columns)}",
    )


def quoted(name: str) -> str:
    """Return a column's name, in quotes where it begins or ends with a blank or holds a comma."""
    return name if name and name == name.strip() and "," not in name else json.dumps(name)


def other_columns(name: str, columns: Sequence[str]) -> str:
    """Say which column may be meant instead of one that is not there, or which there are.

    One column whose name holds what divides columns elsewhere is a file in another format.
    """
    mark = next((one for one in (";", "\t", "|") if one in "".join(columns)), "")
    if len(columns) == 1 and mark:
        written = {"\t": "tabs"}.get(mark, f'"{mark}"')
        only = json.dumps(columns[0], ensure_ascii=False)
        return (
            f"the file has one column, {only}, as if {written} stood between the columns; write it "
            "with commas"
        )
    near = next((one for one in columns if one.strip().lower() == name.strip().lower()), "")
    near = near or config_file.nearest(name, columns)
    if near:
        return f"the nearest is {quoted(near)}"
    more = f" and {len(columns) - 20:,} more" if len(columns) > 20 else ""
    return f"the columns are {', '.join(map(quoted, columns[:20]))}{more}"


def _schema(config: PipelineConfig) -> Iterator[Finding]:
    path = config.schema_path
    if path is None:
        return
    if not Path(path).is_file():
        message = f"{path}: no such file; name a .pbtxt file, or infer"
        yield Finding("error", config.where("validation.schema"), message)
    elif not os.access(path, os.R_OK):
        yield Finding("error", config.where("validation.schema"), f"{path} cannot be read")


def _training(config: PipelineConfig) -> Iterator[Finding]:
    training = config.training
    has_gpu = bool(_gpus())
    if training.precision.startswith("mixed") and not has_gpu:
        message = f"{training.precision} costs time on a processor; float32 is faster here"
        yield Finding("warning", config.where("training.precision"), message)
    if training.memory_limit != "auto" and not has_gpu:
        limit, free = parse_bytes(training.memory_limit, name="memory_limit"), _free_memory()
        if limit > free:
            message = f"{training.memory_limit} is more than the {lines.size(free)} that are free"
            yield Finding("warning", config.where("training.memory_limit"), message)


def _standing(path: Path) -> Path:
    """Return the path, or the nearest one above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _gpus() -> list[str]:
    names = []
    for path in sorted(GPUS.glob("*/information")):
        facts = dict(
            line.split(":", 1)
            for line in path.read_text(encoding="utf-8").splitlines()
            if ":" in line
        )
        names.append(facts.get("Model", "GPU").strip())
    return names


def _free_memory() -> int:
    for line in MEMORY.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
