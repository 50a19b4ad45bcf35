"""Encoded images to pixels against Pillow, by place alone, and through DALI where it is there."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainer import dali, images, loop
from trainer.batches import Batches, Columns
from trainer.images import MIDDLE, Images
from trainer.settings import (
    AugmentSettings,
    CheckpointSettings,
    Features,
    ImageFeature,
    Job,
    LabelFeature,
    ModelSettings,
    TrainingSettings,
)

LABEL = LabelFeature("class", "binary", "string", ("a", "b"), (0.5, 0.5))
SIDES = ((40, 60), (64, 33), (32, 32), (31, 77), (9, 20))
DRAWN = np.array(
    [MIDDLE, (0, 1, 1), (0.3, 0.7, 0), (1, 0, 1), (0.2, 0.9, 0)], np.float32
)  # fmt: skip


def encoded(height: int, width: int, *, seed: int = 0, form: str = "PNG", mode: str = "RGB"):
    """A smooth picture, as pictures are: of noise alone each decoder makes something else."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
    file = io.BytesIO()
    picture.convert(mode).save(file, form)
    return file.getvalue()


def by_pillow(feature: ImageFeature, data: bytes, drawn: np.ndarray) -> np.ndarray:
    """The steps that the module states, by Pillow and slices."""
    picture = Image.open(io.BytesIO(data)).convert("RGB").convert("RGB" if feature.channels == 3
                                                                  else "L")  # fmt: skip
    scale = feature.resize / min(picture.size)
    width, height = (max(feature.resize, int(one * scale + 0.5)) for one in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    levels = np.asarray(resized).reshape(height, width, feature.channels).astype(int)
    left = int(drawn[0] * (width - feature.size) + 0.5)
    top = int(drawn[1] * (height - feature.size) + 0.5)
    cut = levels[top : top + feature.size, left : left + feature.size]
    return cut[:, ::-1] if drawn[2] else cut


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_pillow(channels: int) -> None:
    feature = ImageFeature("image", 32, channels, 36)
    pictures = [encoded(*sides, seed=at) for at, sides in enumerate(SIDES)]
    found = images.by_tf_data(feature)(pictures, DRAWN)
    assert found.dtype == np.uint8
    expected = [by_pillow(feature, *one) for one in zip(pictures, DRAWN, strict=True)]
    # Pillow rounds to a level after each direction of its resize, and its grey as well.
    assert np.abs(found - np.stack(expected)).max() <= 1 + (channels == 1)


def test_jpeg_grey_and_transparent_images_are_read_as_colours() -> None:
    feature = ImageFeature("image", 32, 3, 32)
    pictures = [
        encoded(40, 50, form="JPEG"),
        encoded(40, 50, mode="L"),
        encoded(40, 50, mode="RGBA"),
        encoded(40, 50, mode="P"),
    ]
    found = images.by_tf_data(feature)(pictures, np.tile(np.float32(MIDDLE), (4, 1)))
    # TensorFlow's inverse cosine transform of JPEG is the fast one, a few levels off.
    for data, pixels, most in zip(pictures, found, (6, 1, 1, 1), strict=True):
        off = np.abs(by_pillow(feature, data, np.asarray(MIDDLE)) - pixels)
        assert off.max() <= most
        assert off.mean() <= 1
    assert (found[1, :, :, 0] == found[1, :, :, 2]).all()


def test_an_image_of_the_right_size_is_not_changed() -> None:
    feature = ImageFeature("image", 8, 3, 8)
    levels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    drawn = np.array([MIDDLE, (0.5, 0.5, 1.0)], np.float32)
    found = images.by_tf_data(feature)([file.getvalue()] * 2, drawn)
    np.testing.assert_array_equal(found, [levels, levels[:, ::-1]])


def test_served_pixels_are_those_of_evaluation_and_none_is_black() -> None:
    feature = ImageFeature("image", 16, 3, 20)
    pictures = [encoded(*sides, seed=at) for at, sides in enumerate(SIDES)]
    expected = images.by_tf_data(feature)(pictures, np.tile(np.float32(MIDDLE), (5, 1)))
    found = images.served(feature, tf.constant([*pictures, b""])).numpy()
    np.testing.assert_array_equal(found[:-1], expected)
    assert not found[-1].any()


def test_draws_depend_on_their_place_alone_and_do_what_is_asked_for() -> None:
    both = AugmentSettings(crop=0.2, flip=True)
    one = images.draws(4000, both, place=(7, 1, 2))
    np.testing.assert_array_equal(images.draws(4000, both, place=(7, 1, 2)), one)
    for place in ((8, 1, 2), (7, 2, 2), (7, 1, 3)):
        assert (images.draws(4000, both, place=place) != one).any()
    # Three standard deviations of 4,000 draws.
    assert one[:, 2].mean() == pytest.approx(0.5, abs=3 * 0.5 / 4000**0.5)
    assert set(one[:, 2]) == {0, 1}
    assert one[:, :2].min() < 0.01
    assert one[:, :2].max() > 0.99
    assert (images.draws(9, AugmentSettings(flip=True), place=(7, 0, 0))[:, :2] == 0.5).all()
    assert not images.draws(9, AugmentSettings(crop=0.2), place=(7, 0, 0))[:, 2].any()


def write_images(folder: Path, *, rows: int) -> Features:
    """Column files of squares, light ones of class 1 and dark ones of class 0."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    label = random.integers(0, 2, rows).astype(np.int32)
    data = []
    for one in label:
        levels = random.integers(0, 128, (10, 12, 3)).astype(np.uint8) + np.uint8(100 * one)
        file = io.BytesIO()
        Image.fromarray(levels).save(file, "PNG")
        data.append(file.getvalue())
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in data])]).astype(np.int64)
    np.save(folder / "0.bytes.npy", np.frombuffer(b"".join(data), np.uint8))
    np.save(folder / "0.offsets.npy", offsets)
    np.save(folder / "label.npy", label)
    described = f'{{"rows": {rows}, "features": {{"image": {{"kind": "text", "index": 0}}}}}}'
    (folder / "columns.json").write_text(described)
    return Features((), (), LABEL, image=ImageFeature("image", 8, 3, 9))


def job_of(folder: Path, name: str, **training: object) -> Job:
    features = write_images(folder / "train", rows=20)
    write_images(folder / "eval", rows=12)
    return Job(
        model=ModelSettings("image", layers=2, width=8, heads=2, image_size=8),
        training=TrainingSettings(**{"global_batch": 8, "epochs": 3, **training}),
        checkpoint=CheckpointSettings(every_steps=2),
        features=features,
        train=str(folder / "train"),
        eval=str(folder / "eval"),
        checkpoints=str(folder / name),
        export=str(folder / "export"),
        events=str(folder / f"{name}.jsonl"),
        result="",
        augment=AugmentSettings(crop=0.2, flip=True),
    )


def test_a_killed_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = loop.train(job_of(tmp_path, "whole"))
    asked = iter([0, 0, 0, 0, 15])
    job = job_of(tmp_path, "killed")
    with pytest.raises(loop.Interrupted):
        loop.train(job, stop=lambda: next(asked))
    resumed = loop.train(job)
    assert resumed.facts["resumed_from_step"] == 5
    for one, other in zip(
        whole.built.model.get_weights(), resumed.built.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.predictions, resumed.predictions)
    # An image of mean 63 or 163: what the class is, is told by any pixel.
    assert whole.facts["peak_memory_bytes"] >= 0


def test_the_plan_is_near_what_training_took(tmp_path: Path) -> None:
    facts = loop.train(job_of(tmp_path, "planned", global_batch=20)).facts
    assert facts["planned_memory_bytes"] > 20 * 8 * 8 * 3


def test_each_worker_decodes_its_own_rows_alone(tmp_path: Path) -> None:
    columns = Columns.open(tmp_path, write_images(tmp_path, rows=11))
    whole = Batches(columns, seed=7, global_batch=8)
    own = [Batches(columns, seed=7, global_batch=8, own=slice(at, at + 4)) for at in (0, 4)]
    for step in (0, 1):
        pixels, first, second = (one.at(step)["pixels"] for one in (whole, *own))
        np.testing.assert_array_equal(np.concatenate([first[:4], second[4:]]), pixels)
        assert not first[4:].any()
        assert not second[:4].any()
    assert not whole.at(1)["pixels"][3:].any(), "padding is zeros"


def test_images_are_mapped_and_empty_batches_are_empty(tmp_path: Path) -> None:
    features = write_images(tmp_path, rows=5)
    assert features.image is not None
    found = Images.open(tmp_path, 0, features.image)
    assert found.rows == 5
    assert found.take(np.zeros(0, np.int64)).shape == (0, 8, 8, 3)
    np.save(tmp_path / "0.offsets.npy", np.array([0, 3]))
    with pytest.raises(ValueError, match="does not fit"):
        Images.open(tmp_path, 0, features.image)


def test_dali_is_chosen_only_where_it_is_installed_and_a_gpu_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feature = ImageFeature("image", 8, 3, 8)
    asked: list[int] = []
    monkeypatch.setattr("trainer.dali.decoder", lambda _, device_id: asked.append(device_id))
    for gpus, is_installed in (([], True), (["GPU:0"], False), (["GPU:0"], True)):
        monkeypatch.setattr("trainer.devices.gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr("trainer.dali.is_installed", lambda found=is_installed: found)
        images.decoder(feature)
    assert asked == [0]


@pytest.mark.skipif(not dali.is_installed(), reason="nvidia-dali-cuda120 is not installed")
@pytest.mark.parametrize("channels", [1, 3])
def test_dali_s_graph_gives_the_pixels_of_tf_data(channels: int) -> None:
    # On processors, where there is no GPU; there JPEG is decoded by other code.
    feature = ImageFeature("image", 32, channels, 36)
    pictures = [encoded(*sides, seed=at) for at, sides in enumerate(SIDES)]
    expected = images.by_tf_data(feature)(pictures, DRAWN).astype(int)
    decode = dali.decoder(feature, device_id=None)
    assert np.abs(decode(pictures, DRAWN) - expected).max() <= 1 + (channels == 1)
    assert np.abs(decode(pictures[:2], DRAWN[:2]) - expected[:2]).max() <= 1 + (channels == 1)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="image_size: must be a multiple of patch"):
        ModelSettings("image", image_size=30, patch=4)
    with pytest.raises(ValueError, match="crop: must be from 0 to 1"):
        AugmentSettings(crop=1.5)
    assert dataclasses.replace(AugmentSettings(), flip=True).moves_images
