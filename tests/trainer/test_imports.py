import importlib
import sys

import pytest

from trainer import imports


def test_a_package_looks_absent_in_the_block_and_is_back_after_it():
    sys.modules.pop("this", None)
    with imports.without("antigravity_of_tests", "colorsys"):
        sys.modules.get("colorsys")
        with pytest.raises(ImportError):
            importlib.import_module("antigravity_of_tests")
    assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_what_is_imported_already_stays():
    with imports.without("json"):
        assert importlib.import_module("json").loads("1") == 1


def test_an_error_in_the_block_still_brings_the_packages_back():
    with pytest.raises(ZeroDivisionError), imports.without("wave"):
        raise ZeroDivisionError
    assert importlib.import_module("wave")


def test_submodules_of_a_namespace_load_without_their_package(tmp_path, monkeypatch):
    inner = tmp_path / "outer_of_tests" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer_of_tests" / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("raise RuntimeError('the whole package was loaded')")
    (inner / "part.py").write_text("value = 3")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports.as_namespace("outer_of_tests.inner")
    assert importlib.import_module("outer_of_tests.inner.part").value == 3


def test_a_package_that_is_not_installed_is_left_alone():
    imports.as_namespace("not_installed_of_tests.inner")
    assert "not_installed_of_tests.inner" not in sys.modules
