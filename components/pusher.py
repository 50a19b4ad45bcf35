"""Pusher: a blessed model becomes the next version folder, whole or absent.

The copy is made in a hidden folder beside the versions and renamed when every byte is on disk:
a model server that watches the destination sees a version complete or not at all.
"""

# TFX reads the annotations of a component as objects: no `from __future__ import annotations`.
import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.types import standard_artifacts

from components import handover
from trainer.errors import TrainingError
from trainer.journal import append

INCOMING = ".incoming-"


def push(model: Path, destination: Path, *, beside: Path | None = None) -> tuple[int, Path]:
    """Copy a SavedModel to the next version under `destination`.

    Args:
        model: folder that holds `saved_model.pb`.
        destination: folder of the version folders, made when it is not there.
        beside: folder whose files go beside the model; None: there are none.

    Returns:
        The version, one above the highest that is there, and its folder.

    Raises:
        TrainingError: when `model` is no SavedModel or it cannot be copied; no version was added.
    """
    _check(model)
    with _told_in_one_line(destination):
        destination.mkdir(parents=True, exist_ok=True)
        with _only_one(destination):
            _remove_leftovers(destination)
            incoming = destination / f"{INCOMING}{os.getpid()}-{secrets.token_hex(4)}"
            return _copy_and_rename(model, incoming, beside)


def archive(model: Path, folder: Path, *, beside: Path | None = None) -> None:
    """Copy a SavedModel into the artifact of the push, as TFX's Pusher does.

    Args:
        model: folder that holds `saved_model.pb`.
        folder: the artifact's own.
        beside: folder whose files go beside the model; None: there are none.

    Raises:
        TrainingError: when `model` is no SavedModel or it cannot be copied.
    """
    _check(model)
    with _told_in_one_line(folder):
        _copy(model, folder, beside)


def _check(model: Path) -> None:
    if not (model / "saved_model.pb").is_file():
        raise TrainingError(
            "there is no SavedModel to push",
            where=str(model),
            right="run the training again: headrace run --no-cache Trainer",
        )


@contextlib.contextmanager
def _told_in_one_line(place: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        # copytree collects (from, to, why) of every file; the first why is enough.
        told = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        raise TrainingError(
            f"the model could not be pushed: {told}",
            where=str(place),
            right="the versions that were there are untouched; make room or allow writing there, "
            "and run the same command again",
        ) from error


@contextlib.contextmanager
def _only_one(folder: Path) -> Generator[None, None, None]:
    """Let one push at a time into the folder; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(destination: Path) -> None:
    # Under the lock no other push is under way: what is there was left by one that was killed.
    for folder in destination.glob(f"{INCOMING}*"):
        shutil.rmtree(folder)


def _copy(model: Path, folder: Path, beside: Path | None) -> None:
    shutil.copytree(model, folder, dirs_exist_ok=True)
    if beside is not None:
        shutil.copytree(beside, folder, dirs_exist_ok=True)
        # The files alone: a folder for a while is for its owner alone, and so would the version be.
        shutil.copystat(model, folder)


def _copy_and_rename(model: Path, incoming: Path, beside: Path | None) -> tuple[int, Path]:
    try:
        _copy(model, incoming, beside)
        _flush(incoming)
        version, folder = _rename_to_next(incoming)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise
    _flush_one(folder.parent)
    return version, folder


def _rename_to_next(incoming: Path) -> tuple[int, Path]:
    while True:
        version = highest_version(incoming.parent) + 1
        folder = incoming.parent / str(version)
        try:
            os.rename(incoming, folder)
        except OSError as error:
            # Someone who does not know our lock took the number: a rename never replaces a folder
            # with something in it, so the next number is tried.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
        else:
            return version, folder


def highest_version(destination: Path) -> int:
    """Return the highest version under `destination`, 0 when there is none.

    Whatever has a number for a name counts, so that no number is given twice.
    """
    names = (entry.name for entry in destination.iterdir())
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _flush(folder: Path) -> None:
    """Bring every file and folder below onto the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            _flush_one(Path(parent, name))
        _flush_one(Path(parent))


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@component
def Pusher(
    model: InputArtifact[standard_artifacts.Model],
    blessing: InputArtifact[standard_artifacts.ModelBlessing],
    examples: InputArtifact[standard_artifacts.Examples],
    statistics: InputArtifact[standard_artifacts.ExampleStatistics],
    schema: InputArtifact[standard_artifacts.Schema],
    evaluation: InputArtifact[standard_artifacts.ModelEvaluation],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    pushed: OutputArtifact[standard_artifacts.PushedModel],
    settings: Parameter[str],
    fingerprint: Parameter[str],  # ruff: ignore[unused-function-argument] - part of the cache key
) -> None:
    """Push the model to the next version folder if it was blessed.

    Args:
        model: TFX's layout, with the SavedModel under `Format-Serving`.
        blessing: its custom property `blessed` decides; `blessing_message` and `blessing_remedy`
            are told when nothing is pushed.
        examples: what it learned from; a few rows stand beside the model.
        statistics: stand beside the model.
        schema: stands beside the model.
        evaluation: stands beside the model.
        model_run: says what the model reads.
        pushed: gets a copy of the model and the custom properties `pushed`, `pushed_destination`
            and `pushed_version`, as TFX's Pusher leaves them; `pushed` alone, 0, when nothing was
            pushed.
        settings: JSON text of `destination`, the folder of the version folders, and of what
            `handover.write` reads.
        fingerprint: JSON text of what a cached result depends on.
    """
    events = os.environ.get("HEADRACE_EVENTS", "")
    if blessing.get_int_custom_property("blessed") != 1:
        pushed.set_int_custom_property("pushed", 0)
        reason = blessing.get_string_custom_property("blessing_message") or "it was not blessed"
        remedy = blessing.get_string_custom_property("blessing_remedy")
        append(events, "not_pushed", id="Pusher", reason=reason, remedy=remedy)
        said = "; ".join(part for part in (reason, remedy) if part)
        append(events, "warning", id="Pusher", message=f"the model was not pushed: {said}")
        return
    source = Path(model.uri) / "Format-Serving"
    told = json.loads(settings)
    places = handover.Places(
        model=source,
        examples=Path(examples.uri),
        schema=Path(schema.uri),
        statistics=Path(statistics.uri),
        evaluation=Path(evaluation.uri),
        model_run=Path(model_run.uri),
    )
    with tempfile.TemporaryDirectory(prefix="headrace-handover-") as made:
        beside = Path(made)
        handover.write(beside, places, told)
        # The archive first: once the version is there, nothing more can fail.
        archive(source, Path(pushed.uri), beside=beside)
        version, folder = push(source, Path(told["destination"]), beside=beside)
    pushed.set_int_custom_property("pushed", 1)
    pushed.set_string_custom_property("pushed_destination", str(folder))
    pushed.set_string_custom_property("pushed_version", str(version))
    append(events, "pushed", version=version, path=str(folder))
