"""`init`: looks at a person's files and writes a commented pipeline.toml that runs as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from components import readers, survey
from components.survey import Survey
from pipeline import config_keys, guesses
from pipeline.examples import folder
from pipeline.guesses import Ask, Guess, Size
from trainer.errors import InputError


def write(data: str, label: str, out: Path, ask: Ask | None) -> list[str]:
    """Write the configuration, whole or not at all.

    Args:
        data: a file, a folder or a glob.
        label: the column to predict; empty: not told.
        out: the file that is made.
        ask: puts a question to the person; None: there is nobody to answer.

    Returns: what a person is told, line by line.

    Raises:
        InputError: when the files cannot be read, the label cannot be predicted, or `out` is
            there.
    """
    if out.exists() or not out.absolute().parent.is_dir():
        what = "is there already" if out.exists() else "its folder does not exist"
        raise InputError(what, where=str(out), right="name another file with --out")
    found = readers.resolve(data, Path.cwd())
    seen = survey.look(found.files)
    guess = guesses.guess(seen, label, ask)
    size = guesses.size(seen, guess)
    text = _text(data, out, seen, guess, size)
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=str(out),
            right="name another file with --out",
        ) from None
    return [*_told(seen, guess, size), "", str(out), f"next: headrace run {out}"]


def _told(seen: Survey, guess: Guess, size: Size) -> Iterator[str]:
    yield f"{seen.rows:,} rows, {len(seen.columns):,} columns"
    if guess.label:
        yield f"task       {guess.task}: {guess.why_task}"
    yield f"split      {'time' if guess.split else 'hash'}: {_why_split(guess)}"
    for name, why in guess.ignore.items():
        yield f"ignored    {name}: {why}"
    yield f"model      {guess.kind}, {size.layers} layers of width {size.width}"
    yield f"duration   about {_duration(size)} on this machine's processors"


def _why_split(guess: Guess) -> str:
    return guess.why_split or "no column holds times, so rows are held back by what they hold"


def _duration(size: Size) -> str:
    if size.seconds < 100:
        return f"{round(size.seconds, -1):.0f} s"
    return f"{size.seconds / 60:.0f} minutes"


def _text(data: str, out: Path, seen: Survey, guess: Guess, size: Size) -> str:
    path = _relative(data, out)
    lines = [
        f"# Written by `headrace init` from {path}: {seen.rows:,} rows, {len(seen.columns):,} "
        "columns.",
        "# Every line may be changed; the reasons are those of a first look.",
        "#",
        f"#     headrace run {out.name}    # about {_duration(size)} on this machine's processors",
        "",
        _line("name", _name(data)),
        _line("root", "runs"),
        "",
        *_data(path, guess),
        *_augment(size),
        *_validation(guess),
        *_model(guess, size),
        *_training(size),
    ]
    return folder.explained("\n".join(lines) + "\n")


def _line(key: str, value: object, why: str = "") -> str:
    said = f"{key} = {config_keys.toml_text(value)}"
    return f"{said:<32} # {why}" if why else said


def _name(data: str) -> str:
    stem = Path(data).absolute().name.split(".")[0]
    name = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:63]
    return name if name and name != "mlruns" else "pipeline"


def _relative(data: str, out: Path) -> str:
    """Return the files as seen from the configuration's folder; absolute where that is far away."""
    whole = os.path.abspath(data)
    path = os.path.relpath(whole, out.absolute().parent)
    return whole if path.startswith(f"..{os.sep}..") else path


def _data(path: str, guess: Guess) -> Iterator[str]:
    yield "[data]"
    yield _line("files", path)
    if guess.label:
        yield _line("label", guess.label)
    if guess.text:
        yield _line("text", guess.text)
    if guess.image:
        yield _line("image", guess.image)
    yield _line("task", guess.task, guess.why_task)
    if guess.ignore:
        yield "ignore = ["
        for name, why in guess.ignore.items():
            one = f"  {config_keys.toml_text(name)},"
            yield f"{one:<24} # {_one_line(why)}"
        yield "]"
    for name, share in guess.asked.items():
        shown = json.dumps(name, ensure_ascii=False)
        yield f"# {shown} alone tells {share:.0%} of the label: is it known before the label is?"
    yield ""
    yield "[data.split]"
    yield f"# {_one_line(_why_split(guess))}"
    yield _line("by", "time" if guess.split else "hash")
    if guess.split:
        yield _line("column", guess.split)
    yield _line("eval", guesses.EVAL)
    yield ""


def _augment(size: Size) -> Iterator[str]:
    if size.crop:
        yield "[data.augment]"
        yield _line("crop", size.crop)
        yield ""


def _one_line(text: str) -> str:
    """Return a comment of one line; what comes from the data may hold any character."""
    return "".join(one if one.isprintable() else " " for one in text)


def _validation(guess: Guess) -> Iterator[str]:
    yield "[validation]"
    yield _line("schema", "infer")
    yield _line("on_anomaly", "stop")
    if guess.rules:
        yield ""
        yield "[validation.rules]"
        for rule, (what, why) in guess.rules.items():
            yield f"# {_one_line(why)}"
            yield f"{config_keys.toml_text(rule)} = {config_keys.toml_text(what)}"
    yield ""


def _model(guess: Guess, size: Size) -> Iterator[str]:
    yield "[model]"
    yield _line("kind", guess.kind)
    yield _line("layers", size.layers)
    yield _line("width", size.width)
    if not size.image_size:
        yield _line("heads", 4)
    if size.dropout:
        yield _line("dropout", size.dropout)
    if size.sequence:
        yield _line("sequence", size.sequence)
        yield _line("vocabulary", "bytes")
    if size.image_size:
        yield _line("network", "conv", '"vit" is a Transformer over patches')
        yield _line("image_size", size.image_size)
        yield _line("patch", size.patch)
        yield _line("channels", size.channels)
    yield ""


def _training(size: Size) -> Iterator[str]:
    yield "[training]"
    yield _line("steps", size.steps) if size.steps else _line("epochs", size.epochs)
    yield _line("global_batch", size.global_batch)
    for name in ("micro_batch", "precision", "recompute", "memory_limit"):
        yield _line(name, "auto")
    yield _line("learning_rate", size.learning_rate)
    yield _line("schedule", "cosine")
    yield _line("warmup_steps", size.warmup_steps)
    yield _line("seed", 7)
