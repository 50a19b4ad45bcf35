"""Keys that a kind of model asks for, and those that it does not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import config
from trainer.errors import SettingError

LANGUAGE = '[data]\nfiles = "a"\n[model]\nkind = "causal-lm"\n'
TEXT = '[data]\nfiles = "a"\nlabel = "b"\n[model]\nkind = "text"\n'
TABULAR = '[data]\nfiles = "a"\nlabel = "b"\n[model]\nkind = "tabular"\n'
IMAGE = '[data]\nfiles = "a"\nlabel = "b"\n[model]\nkind = "image"\n'
OWN = '[data]\nfiles = "a"\nlabel = "b"\n[model]\nkind = "mine:build"\n'


def load(folder: Path, text: str, *sets: str) -> config.PipelineConfig:
    (folder / "pipeline.toml").write_text(text)
    return config.load(folder / "pipeline.toml", sets)


@pytest.mark.parametrize(
    "text",
    [
        LANGUAGE,
        LANGUAGE + 'sequence = 8\nvocabulary = "words"\nvocabulary_size = 9\n[training]\n'
        'token_loss = "chunked"\nattention = "chunked"',
        LANGUAGE.replace('"a"', '"a"\ntext = "body"\ntask = "causal-lm"'),
        TEXT + 'sequence = 8\nvocabulary = "bytes"\n[training]\nattention = "plain"',
        TABULAR + 'layers = 1\n[training]\nattention = "chunked"',
        OWN + "sequence = 8",
        IMAGE + 'network = "vit"\nheads = 2\npatch = 4\n[training]\nattention = "chunked"',
        IMAGE + "[data.augment]\ncrop = 0.1\nflip = true",
        IMAGE.replace('"b"', '"b"\ntask = "image"\nimage = "c"'),
        OWN.replace('"b"', '"b"\nimage = "c"\ntask = "image"') + "image_size = 8",
    ],
)
def test_what_a_kind_reads_is_taken(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TABULAR + "sequence = 8",
            "pipeline.toml:6: model.sequence: is not read: a tabular model has no text column; "
            'it holds 8; leave it out, or set model.kind to "text" or "causal-lm"',
        ),
        (
            IMAGE + "sequence = 8",
            "pipeline.toml:6: model.sequence: is not read: an image model has no text column",
        ),
        (
            IMAGE + "heads = 2",
            "pipeline.toml:6: model.heads: is not read: convolutions have no attention; "
            'it holds 2; leave it out, or set model.network to "vit"',
        ),
        (
            IMAGE + "[data.augment]\nnoise = 0.1",
            "pipeline.toml:7: data.augment.noise: is not read: an image model reads no numbers",
        ),
        (
            TABULAR + "[data.augment]\nflip = true",
            "pipeline.toml:7: data.augment.flip: is not read: tabular reads no column of images; "
            'it holds true; leave it out, or set model.kind to "image"',
        ),
        (
            TABULAR.replace("label", 'task = "image"\nlabel'),
            'pipeline.toml:3: data.task: goes with model.kind = "image" alone; it holds "image"; '
            'model.kind is "tabular"',
        ),
        (TABULAR + 'vocabulary = "words"', "pipeline.toml:6: model.vocabulary: is not read"),
        (
            TABULAR.replace("label", 'text = "t"\nlabel'),
            "pipeline.toml:3: data.text: is not read: a tabular model has no text column",
        ),
        (
            TEXT + "vocabulary_size = 9",
            "pipeline.toml:6: model.vocabulary_size: is not read: the tokens are bytes; it holds 9",
        ),
        (
            TEXT + '[training]\ntoken_loss = "auto"',
            "pipeline.toml:7: training.token_loss: is not read: no other model than a language",
        ),
        (
            OWN + '[training]\nattention = "plain"',
            "training.attention: is not read: mine:build",
        ),
        (
            LANGUAGE.replace('"a"', '"a"\nlabel = "b"'),
            "pipeline.toml:3: data.label: is not read: a language model predicts its text",
        ),
        (
            LANGUAGE.replace('"a"', '"a"\ntask = "binary"'),
            'pipeline.toml:3: data.task: must be "causal-lm" or "auto" where model.kind is',
        ),
        (
            TEXT.replace('"b"', '"b"\ntask = "causal-lm"'),
            'pipeline.toml:4: data.task: goes with model.kind = "causal-lm" alone; '
            'it holds "causal-lm"; model.kind is "text"',
        ),
        (
            TEXT.replace('label = "b"\n', ""),
            "pipeline.toml:1: data.label: must be set; it is the column",
        ),
    ],
)
def test_what_a_kind_does_not_read_or_lacks_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingError) as found:
        load(tmp_path, text)
    assert message in str(found.value)


def test_a_key_of_the_command_line_is_refused_as_well(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--set model\.sequence: is not read"):
        load(tmp_path, TABULAR, "model.sequence=8")


def test_the_first_of_several_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"toml:6: model\.sequence"):
        load(tmp_path, TABULAR + 'sequence = 8\n[training]\ntoken_loss = "plain"')
