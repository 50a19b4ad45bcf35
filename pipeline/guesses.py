"""What `init` takes for a person's files: task, columns, split, size and expected seconds.

Each guess has a reason, which becomes the comment of its line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import documents, features, image_files, single_columns, verdict
from components.survey import Column, Survey
from pipeline import preflight
from trainer.errors import InputError

Ask = Callable[[str, str], str]
"""Takes a question and the answer that would be taken; returns the person's."""

LABEL_NAMES = ("label", "target", "class", "y", "outcome", "species")
EVAL = 0.2
RARE = 5
"""A class of so many rows or fewer may fall into eval as a whole (0.2⁵ is 3 in 10,000)."""
TEXT_WINS = 0.2
"""Where no other column tells more of the label than this, a text is what is read."""
FEW_WHOLE_NUMBERS = 10
"""A float label of no more values, all whole, stands for classes: 0.0, 1.0, 2.0."""


@dataclass
class Guess:
    """What a configuration is written from.

    Attributes:
        kind: ``model.kind``.
        label, task, text, image: as their keys; empty where there is none.
        why_task: reason.
        ignore: column to reason.
        asked: columns that tell much of the label, to the share that they tell.
        split, why_split: column of a split by time (empty: by hash), and reason.
        rules: of validation, each with its reason.
    """

    kind: Literal["tabular", "text", "causal-lm", "image"]
    label: str = ""
    task: str = ""
    text: str = ""
    image: str = ""
    why_task: str = ""
    ignore: dict[str, str] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    split: str = ""
    why_split: str = ""
    rules: dict[str, tuple[str, str]] = field(default_factory=dict)


def guess(survey: Survey, label: str, ask: Ask | None) -> Guess:
    """Return what is taken for these files.

    Args:
        survey: of them.
        label: the column to predict; empty: not told.
        ask: puts a question to the person; None: there is nobody to answer.

    Raises:
        InputError: when the label is not told, is no column, or cannot be predicted.
    """
    if set(survey.columns) == set(documents.COLUMNS):
        return _of_documents(label)
    if set(survey.columns) == set(image_files.COLUMNS):
        return _of_image_files(survey, label)
    label = label or _label(survey, ask)
    column = _checked(survey, label)
    task, why = _task(column, ask)
    found = Guess("tabular", label=label, task=task, why_task=why)
    _split(survey, found)
    _columns(survey, found)
    _rules(survey, found)
    return found


def _of_documents(label: str) -> Guess:
    if label:
        raise InputError(
            "text documents have no label",
            where="--label",
            holds=label,
            right="leave it out: a language model learns to write such texts; for a label, give a "
            "CSV with a column of texts and one of labels",
        )
    return Guess("causal-lm", task="causal-lm")


def _of_image_files(survey: Survey, label: str) -> Guess:
    if label not in {"", image_files.CLASS}:
        raise InputError(
            "of image files the label is the folder that each lies in",
            where="--label",
            holds=label,
            right="leave it out, or give a Parquet file with a column of images and one of labels",
        )
    if refused := image_files.one_class(list(survey.source.names)):
        raise refused
    column = _checked(survey, image_files.CLASS)
    why = f"an image lies in one of {column.distinct:,} folders, which is its class"
    found = Guess("image", label=image_files.CLASS, task="image", why_task=why)
    _rules(survey, found)
    return found


def _label(survey: Survey, ask: Ask | None) -> str:
    names = list(survey.columns)
    likely = next((one for one in LABEL_NAMES for name in names if name.lower() == one), names[-1])
    if ask is None:
        raise InputError(
            "must be given",
            where="--label",
            right=f"it is the column to predict; {preflight.other_columns('', names)}",
        )
    said = preflight.other_columns("", names).removeprefix("the columns are ")
    return ask(f"Which column is to be predicted? ({said})", likely)


def _checked(survey: Survey, label: str) -> Column:
    """Return the label's column.

    Raises:
        InputError: when it is not there, or nothing can be learned of it.
    """
    where = "--label"
    if label not in survey.columns:
        right = preflight.other_columns(label, list(survey.columns))
        raise InputError(
            f"the data has no column {preflight.quoted(label)}", where=where, right=right
        )
    one, other = survey.columns[label], "name another column"
    if one.is_list:
        raise InputError(f"{label} holds lists of values", where=where, right=other)
    if one.distinct < 2:
        holds = one.example if one.distinct else "nothing"
        what = f"{label} has the same value in every row"
        raise InputError(what, where=where, holds=holds, right=other)
    if one.kind == "string" and verdict.looks_like_id(one.distinct, one.rows):
        what = f"{label} looks like an id: {one.distinct:,} of {one.rows:,} texts differ"
        raise InputError(what, where=where, holds=one.example, right=other)
    if one.role == "image":
        raise InputError(f"{label} holds images", where=where, right=other)
    if len(survey.columns) == 1:
        raise InputError(f"there is no column but {label}", where=where, right="give others")
    return one


def _task(label: Column, ask: Ask | None) -> tuple[str, str]:
    """Return the task and why.

    Raises:
        InputError: when the person's answer is no task.
    """
    values = f"{label.distinct:,} different {'texts' if label.kind == 'string' else 'numbers'}"
    found = features.guess_task(label.kind, label.distinct)
    if label.kind == "float" and label.distinct <= FEW_WHOLE_NUMBERS:
        numbers = label.values.drop_null()
        is_whole = bool(pc.all(pc.equal(pc.floor(numbers), numbers)).as_py())
        found = "multiclass" if is_whole and label.distinct > 2 else found
    both = label.kind != "string" and 5 < label.distinct <= 5 * features.FEW_CLASSES
    if both and label.kind == "int" and ask is not None:
        question = f"{label.name} holds {values}: are they classes (multiclass) or a quantity "
        found = ask(f"{question}(regression)?", found)
        if found not in {"multiclass", "regression"}:
            raise InputError(
                "no such task", where="task", holds=found, right="answer multiclass or regression"
            )
    other = {"multiclass": "regression", "regression": "multiclass"}.get(found, "")
    also = f"; {other} would do as well" if both and label.kind == "int" else ""
    return found, f"{label.name} holds {values}{also}"


def _split(survey: Survey, found: Guess) -> None:
    times = [one for one in survey.columns.values() if one.is_time and one.name != found.label]
    if times:
        first = times[0]
        found.split = first.name
        found.why_split = (
            f"rows have a time in {first.name}, and a model is asked about later rows than those "
            "it learned from"
        )


def _columns(survey: Survey, found: Guess) -> None:
    """Say which columns are no features, and which kind of model reads the others."""
    is_regression = found.task == "regression"
    label = survey.columns[found.label].values
    told: dict[str, float] = {}
    for one in survey.columns.values():
        if one.name == found.label:
            continue
        if why := _no_feature(one, found):
            found.ignore[one.name] = why
        elif one.role not in {"text", "image"}:
            told[one.name] = single_columns.tells(one.values, label, is_regression=is_regression)
    _leaks(told, found)
    if _images(survey, found):
        return
    texts = [one for one in survey.columns.values() if one.role == "text"]
    texts = [one for one in texts if one.name != found.label]
    kept = {name: share for name, share in told.items() if name not in found.ignore}
    if texts and not is_regression and max(kept.values(), default=0.0) < TEXT_WINS:
        longest = max(texts, key=lambda one: pc.mean(pc.binary_length(one.values)).as_py() or 0)
        found.kind, found.text = "text", longest.name
        others = [name for name in survey.columns if name not in {found.label, longest.name}]
        for name in others:
            found.ignore.setdefault(name, "a model of texts reads its text alone")
    else:
        for one in texts:
            found.ignore[one.name] = "free text, which a tabular model does not read"


def _images(survey: Survey, found: Guess) -> bool:
    """Take the first column of images, if there is one; say whether there is."""
    images = [one.name for one in survey.columns.values() if one.role == "image"]
    if not images:
        return False
    found.kind, found.image = "image", images[0]
    for name in survey.columns:
        if name not in {found.label, found.image}:
            found.ignore.setdefault(name, "an image model reads one column of images alone")
    return True


def _no_feature(one: Column, found: Guess) -> str:
    if one.is_list:
        return "holds several values in a row"
    if one.name == found.split and one.kind != "string":
        return "the split is made by it, and later rows hold times that none of these has"
    return {
        "empty": "has no value in any row",
        "constant": f"the same in every row: {one.example}",
        "id": f"looks like an id, such as {one.example}: other rows have others",
        "date": f"dates as text, such as {one.example}: other rows have others",
        # A text of ISO 8601 is read as weekday, hour and the like, which other rows have, too.
        "time": "",
    }.get(one.role, "")


def _leaks(told: dict[str, float], found: Guess) -> None:
    leaks = {
        name: share
        for name, share in told.items()
        if single_columns.is_leak(share, is_regression=found.task == "regression")
    }
    # Where nothing would be left, these columns are what there is to learn from.
    if len(leaks) < len(told):
        for name, share in leaks.items():
            found.ignore[name] = (
                f"leak? it alone tells {share:.0%} of {found.label}; take this line out if it is "
                "known before the label"
            )
    found.asked = {
        name: share
        for name, share in sorted(told.items(), key=lambda one: -one[1])
        if share >= single_columns.STRONG and name not in found.ignore
    }


def _rules(survey: Survey, found: Guess) -> None:
    label = survey.columns[found.label]
    if missing := label.values.null_count:
        share = f"{missing:,} rows" if survey.is_whole else f"{label.missing:.1%} of the rows"
        found.rules[f"{label.name}:LABEL_MISSING"] = (
            "ignore",
            f"{share} have no {label.name}: they are left out",
        )
    if found.task == "multiclass":
        counts = np.asarray(label.values.drop_null().value_counts().field("counts"))
        if found.split or counts.min() <= RARE or not survey.is_whole:
            found.rules[f"{label.name}:LABEL_UNSEEN_CLASS"] = (
                "ignore",
                "rows of eval whose class no row of train has are left out",
            )
    if found.split:
        for kind in ("UNEXPECTED_VALUES", "MISSING_VALUES", "OUT_OF_RANGE"):
            found.rules[kind] = ("warn", "newer rows may hold what older ones do not")
    elif not survey.is_whole or survey.rows < 1000 or any(_has_rare(survey)):
        found.rules["UNEXPECTED_VALUES"] = ("warn", "values so rare that train may have none")


def _has_rare(survey: Survey) -> Iterator[bool]:
    for one in survey.columns.values():
        if one.kind == "string" and one.role == "feature" and not one.is_list:
            counts = one.values.drop_null().value_counts().field("counts")
            yield bool(pc.any(pc.less_equal(counts, pa.scalar(RARE, pa.int64()))).as_py())


@dataclass(frozen=True)
class Size:
    """How large a model and how long a training is taken.

    Attributes:
        layers, width, dropout, sequence, image_size, patch, channels: of the model.
        crop: of augmentation.
        global_batch, epochs, steps, learning_rate, warmup_steps: of the training; `steps` is 0
            where `epochs` decides.
        seconds: about how long a run takes on this machine's processors.
    """

    layers: int
    width: int
    dropout: float
    global_batch: int
    epochs: int
    steps: int
    learning_rate: float
    warmup_steps: int
    seconds: float
    sequence: int = 0
    image_size: int = 0
    patch: int = 1
    channels: int = 3
    crop: float = 0.0


STEPS = ((300, 16, 130), (600, 32, 200), (2000, 32, 800), (20_000, 128, 1200), (100_000, 512, 1000))
"""Rows up to which a batch is taken, and how many weight updates are aimed at."""
FEW = 600
"""Rows up to which a training is short and drops much."""
START_SECONDS = 25.0
"""Imports, and nodes that do little."""
SECONDS_OF_STEP, SECONDS_OF_UNIT = 4e-3, 6e-8
"""Of a weight update on two cores: what it takes in any case, and for a number that a layer makes
(rows x tokens x layers x width), as measured on the flights."""


def size(survey: Survey, found: Guess) -> Size:
    """Return a model and a training for so many rows."""
    if found.kind == "causal-lm":
        return _size_of_language(survey)
    rows = max(1, int(survey.rows * (1 - EVAL)))
    if found.kind == "text":
        return _size_of_text(survey, found, rows)
    if found.kind == "image":
        return _size_of_images(survey, found, rows)
    batch, updates = next(((b, u) for most, b, u in STEPS if rows <= most), (1024, 600))
    per_epoch = -(-rows // batch)
    epochs = min(max(2, round(updates / per_epoch)), 60)
    tokens = 1 + len(survey.columns) - 1 - len(found.ignore)
    made = epochs * per_epoch
    small = rows <= 2000
    return Size(
        layers=2,
        width=32,
        # So few rows are learned by heart before long (bench/quality.py).
        dropout=0.3 if rows <= FEW else 0.1 if small else 0.0,
        global_batch=batch,
        epochs=epochs,
        steps=0,
        learning_rate=1e-3 if small else 3e-3,
        warmup_steps=max(1, made // 20),
        seconds=_seconds(made, batch * tokens * 2 * 32, rows=rows),
    )


def _size_of_text(survey: Survey, found: Guess, rows: int) -> Size:
    lengths = pc.fill_null(pc.binary_length(survey.columns[found.text].values), 0)
    # The next power of two that nine of ten texts fit into.
    needed = float(np.quantile(np.asarray(lengths), 0.9))
    sequence = int(min(256, max(32, 2 ** np.ceil(np.log2(max(needed, 1))))))
    per_epoch = -(-rows // 32)
    steps = 0 if per_epoch * 2 <= 800 else 800
    epochs = min(max(2, round(600 / per_epoch)), 40)
    made = steps or epochs * per_epoch
    return Size(
        layers=2,
        width=64,
        dropout=0.1,
        global_batch=32,
        epochs=epochs,
        steps=steps,
        learning_rate=2e-3,
        warmup_steps=max(1, made // 10),
        seconds=_seconds(made, 32 * sequence * 2 * 64, rows=rows),
        sequence=sequence,
    )


MOST_PIXELS, MOST_GRID = 64, 32
"""A side that a first model sees, and the places a side that it makes of them."""


def _size_of_images(survey: Survey, found: Guess, rows: int) -> Size:
    heads = survey.columns[found.image or image_files.IMAGE].values.drop_null().to_pylist()
    shapes = [shape for one in heads if (shape := image_files.shape_of(one))]
    sides = [min(one.width, one.height) for one in shapes] or [32]
    side = min(MOST_PIXELS, max(8, int(np.median(sides)) // 4 * 4))
    patch = max(1, side // MOST_GRID)
    side -= side % patch
    batch, updates = (16, 300) if rows <= FEW else (64, 500) if rows <= 3000 else (64, 900)
    per_epoch = -(-rows // batch)
    steps = 0 if per_epoch * 2 <= updates else 2 * updates
    epochs = min(max(2, round(updates / per_epoch)), 40)
    made = steps or epochs * per_epoch
    grid = (side // patch) ** 2
    return Size(
        layers=2 if side <= 12 else 3,
        width=32,
        dropout=0.1,
        global_batch=batch,
        epochs=epochs,
        steps=steps,
        learning_rate=3e-3,
        warmup_steps=max(1, made // 20),
        # A convolution multiplies so many numbers for one that it makes.
        seconds=_seconds(made, batch * grid * 32 * 18, rows=rows),
        image_size=side,
        patch=patch,
        channels=3 if any(one.has_colours for one in shapes) or not shapes else 1,
        crop=0.25 if side <= 16 else 0.125,
    )


def _size_of_language(survey: Survey) -> Size:
    files = survey.source.names
    windows = max(1, int((1 - EVAL) * sum(one.stat().st_size for one in files) / 256))
    per_epoch = -(-windows // 8)
    steps = 0 if per_epoch <= 1000 else 1000
    epochs = min(max(1, round(400 / per_epoch)), 40)
    made = steps or epochs * per_epoch
    return Size(
        layers=4,
        width=128,
        dropout=0.0,
        global_batch=8,
        epochs=epochs,
        steps=steps,
        learning_rate=2e-3,
        warmup_steps=max(1, made // 15),
        seconds=_seconds(made, 8 * 256 * 4 * 128, rows=survey.rows),
        sequence=256,
    )


def _seconds(updates: int, units: int, *, rows: int) -> float:
    per_update = SECONDS_OF_STEP + SECONDS_OF_UNIT * units
    # Half of the cores' gain is lost between them.
    cores = max(1.0, len(os.sched_getaffinity(0)) / 2) ** 0.5
    return START_SECONDS + updates * per_update / cores + rows * 4e-5
