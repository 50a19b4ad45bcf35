from __future__ import annotations

import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from pipeline import config
from pipeline.examples import digits


def test_every_digit_is_a_png_of_scikit_learn_s_own_in_the_folder_of_its_class():
    known = load_digits()
    found = digits.images()
    assert len(found) == 1797
    for (path, data), image, digit in zip(found.items(), known.images, known.target, strict=True):
        assert path.split("/")[1] == str(digit)
        levels = np.asarray(Image.open(io.BytesIO(data)))
        # 17 shades as 256: the nearest level of each.
        np.testing.assert_array_equal(levels, np.round(image * 255 / 16))


def test_the_written_configuration_loads_and_names_the_folder(tmp_path):
    images, path = digits.write(tmp_path)
    loaded = config.load(path)
    assert images == tmp_path / "digits"
    assert (loaded.data.label, loaded.data.task, loaded.model.kind) == ("class", "image", "image")
    assert sorted(one.name for one in images.iterdir()) == [str(one) for one in range(10)]
