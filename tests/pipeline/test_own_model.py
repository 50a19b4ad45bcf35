"""A person's own model: found and hashed without an import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline import own_model
from trainer.errors import SettingError

NEVER = 'raise SystemExit("imported")\n'


def test_a_function_is_found_beside_the_configuration_and_not_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NEVER + "def build(settings):\n    pass\n")
    assert own_model.find("mine:build", tmp_path) == tmp_path / "mine.py"
    assert "mine" not in sys.modules


def test_a_module_in_a_package_is_found_without_importing_the_package(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text(NEVER)
    (tmp_path / "pack/models.py").write_text("from other import build\nsmall = build\n")
    for name in ("build", "small"):
        assert own_model.find(f"pack.models:{name}", tmp_path).name == "models.py"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nothing:build", "there is no module nothing in .*write nothing.py beside"),
        ("mine.part:build", "there is no module mine.part"),
        ("mine:biuld", 'has no biuld; it holds "mine:biuld"; the nearest is build'),
        ("wrong:build", r"wrong\.py:2 cannot be parsed"),
        ("sys:exit", "there is no module sys"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    (tmp_path / "mine.py").write_text("def build(): pass\n")
    (tmp_path / "wrong.py").write_text("x = 1\ndef build(:\n")
    with pytest.raises(SettingError, match=f"model.kind: .*{message}"):
        own_model.find(kind, tmp_path)


def test_the_digest_covers_the_modules_beside_it_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import numpy\nfrom parts import layer\ndef build(): pass\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").write_text("")
    (tmp_path / "parts/layer.py").write_text("from . import deep\nfrom .deep import x\n")
    (tmp_path / "parts/deep.py").write_text("x = 1\n")
    (tmp_path / "unused.py").write_text("")
    before = own_model.digests("mine:build", tmp_path)
    assert set(before) == {"mine", "parts", "parts.layer", "parts.deep"}
    (tmp_path / "parts/deep.py").write_text("x = 2\n")
    after = own_model.digests("mine:build", tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"parts.deep"}
