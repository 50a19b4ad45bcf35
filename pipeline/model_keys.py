"""Keys that the kind of model asks for, and those that it does not read.

A key that would change nothing is refused where it is set: who set it expects something of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.errors import SettingError
from trainer.settings import MODEL_KINDS

if TYPE_CHECKING:
    from pipeline.config import PipelineConfig

LANGUAGE = "causal-lm"
SHAPE = ("model.layers", "model.width", "model.heads", "model.dropout")
OF_TOKENS = ("data.text", "model.sequence", "model.vocabulary", "model.vocabulary_size")
IMAGE = "image"
OF_IMAGES = ("model.image_size", "model.channels", "data.augment.crop", "data.augment.flip")
OF_OUR_IMAGES = ("data.image", "model.network", "model.patch")


def refusal(config: PipelineConfig) -> SettingError | None:
    """Return what does not go with the kind of model, the first key of the file; None: all does."""
    found = dict(_wrong(config))
    order = sorted(found, key=lambda name: (_line(config, name), list(found).index(name)))
    return found[order[0]] if order else None


def _line(config: PipelineConfig, name: str) -> int:
    place = config.where(name).removesuffix(f": {name}").rpartition(":")[2]
    return int(place) if place.isdigit() else 0


def _wrong(config: PipelineConfig) -> Iterator[tuple[str, SettingError]]:
    yield from _asked_for(config)
    values, kind = config.flat(), config.model.kind
    for name, why, right in _not_read(config):
        if name in config.set_keys:
            yield (
                name,
                SettingError(
                    f"is not read: {why}",
                    where=config.where(name),
                    holds=json.dumps(values[name]),
                    right=f"leave it out{right.format(kind=kind)}",
                ),
            )


def _asked_for(config: PipelineConfig) -> Iterator[tuple[str, SettingError]]:
    """Yield a label that is missing, and a task that is another kind's."""
    kind, task = config.model.kind, config.data.task
    if kind != LANGUAGE and not config.data.label:
        yield _must(config, "data.label", "must be set", right="it is the column to predict")
    if kind == LANGUAGE and task not in {"auto", LANGUAGE}:
        what = 'must be "causal-lm" or "auto" where model.kind is "causal-lm"'
        yield _must(config, "data.task", what, holds=task)
    for one in (LANGUAGE, IMAGE):
        is_own = one == IMAGE and kind not in MODEL_KINDS
        if task == one != kind and not is_own:
            what = f'goes with model.kind = "{one}" alone'
            yield _must(config, "data.task", what, holds=task, right=f'model.kind is "{kind}"')


def _must(config: PipelineConfig, name: str, what: str, **facts: Any) -> tuple[str, SettingError]:
    if "holds" in facts:
        facts["holds"] = json.dumps(facts["holds"])
    return name, SettingError(what, where=config.where(name), **facts)


def _not_read(config: PipelineConfig) -> Iterator[tuple[str, str, str]]:
    """Yield keys that change nothing, why, and what else may be meant."""
    kind = config.model.kind
    yield from _not_read_of_images(config)
    if kind in {"tabular", IMAGE}:
        other = ', or set model.kind to "text" or "causal-lm"'
        a_kind = "an image" if kind == IMAGE else "a tabular"
        for name in OF_TOKENS:
            yield name, f"{a_kind} model has no text column", other
    elif config.model.vocabulary == "bytes":
        other = ', or set model.vocabulary to "words"'
        yield "model.vocabulary_size", "the tokens are bytes", other
    if kind == LANGUAGE:
        yield "evaluation.slices", "a language model is judged by windows, not by rows", ""
        yield "data.label", "a language model predicts its text", ", and name the text as data.text"
    else:
        other = ', or set model.kind to "causal-lm"'
        yield "training.token_loss", "no other model than a language model has such a loss", other
    if kind == IMAGE and config.model.network == "conv":
        other = ', or set model.network to "vit"'
        for name in ("model.heads", "training.attention"):
            yield name, "convolutions have no attention", other
    if kind not in MODEL_KINDS:
        for name in ("training.attention", *SHAPE):
            yield name, f"{kind} decides it by itself", ", or take a model.kind of this house"


def _not_read_of_images(config: PipelineConfig) -> Iterator[tuple[str, str, str]]:
    """Yield keys of images where the model reads none, and of its own where it is a person's."""
    kind = config.model.kind
    if kind == IMAGE:
        for name in ("data.augment.noise", "data.augment.mask"):
            yield name, "an image model reads no numbers, categories or tokens", ""
        return
    is_own = kind not in MODEL_KINDS
    names = OF_OUR_IMAGES[1:] if is_own else OF_OUR_IMAGES
    if not (is_own and config.data.image):
        names += OF_IMAGES
    a_kind = f"{kind} decides it by itself" if is_own and config.data.image else (
        f"{kind} reads no column of images"
    )  # fmt: skip
    for name in names:
        yield name, a_kind, ', or set model.kind to "image"'
