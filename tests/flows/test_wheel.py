"""A wheel that is built from the repository works in another place."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MODULES = ("pipeline", "components", "trainer", "kubeflow")


@pytest.mark.slow
def test_an_installed_wheel_writes_the_example_from_another_folder(tmp_path):
    build = (
        "from setuptools import build_meta; import sys; "
        f"print(build_meta.build_wheel({str(tmp_path)!r}))"
    )
    source = tmp_path / "source"
    subprocess.run(
        ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(source)], check=True
    )
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        "import sys; from pipeline import cli; import components; "
        "assert components.__file__.startswith(sys.argv[1]), components.__file__; "
        "sys.exit(cli.execute(['example', 'flights']))"
    )
    # -S keeps the environment's own link to the repository out; its packages come by path.
    packages = next(one for one in sys.path if one.endswith("site-packages"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(installed)],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), packages])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (elsewhere / "flights" / "flights.csv").read_text()
    assert text.count("\n") == 327_347
    assert (elsewhere / "flights" / "pipeline.toml").is_file()
    for name in ("components/report.css", "components/report.js"):
        assert (installed / name).is_file()
