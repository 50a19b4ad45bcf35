"""Every command of the README, run as it is written there."""

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
from flows.commands import HEADRACE, headrace

from pipeline import config

README = Path(__file__).parents[2] / "README.md"
TABLE = re.compile(r"^\|.*\| (`headrace .*)\|$", re.MULTILINE)
COMMAND = re.compile(r"`(headrace [^`]+)`")


def commands():
    return [one for row in TABLE.findall(README.read_text()) for one in COMMAND.findall(row)]


def test_the_readme_tells_of_every_command():
    told = {one.split()[1] for one in commands()} | {"example"}
    listed = headrace("--help").out
    shown = set(re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE))
    assert shown <= told | {"runs"}


def test_the_configuration_table_is_that_of_the_code():
    text = README.read_text()
    for name, default, explanation in config.table():
        assert f"| `{name}` | {f'`{default}`' if default else 'must be set'} |" in text, name
        assert explanation.split(";")[0] in text, name


def test_both_commands_of_make_are_its_targets():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make ([a-z-]+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    pytest.param(one, marks=pytest.mark.long if "--measure" in one else ())
    for one in commands()
    if " ui " not in one
])  # fmt: skip
def test_a_command_of_the_readme_does_what_it_says(command, project):
    assert project.first.code == 0
    _, *arguments = command.split()
    if arguments[0] == "run" and "--no-cache" in arguments:
        # What these run again is shown by test_run; here: that they are understood.
        arguments += ["--help"]
    os.environ["BROWSER"] = "true"
    try:
        said = headrace(*arguments, cwd=project.folder)
    finally:
        del os.environ["BROWSER"]
    assert said.code == 0, said.err
    assert said.out.strip()


@pytest.mark.slow
def test_the_ui_answers_until_ctrl_c(project):
    (command,) = [one for one in commands() if " ui " in one]
    port = 5987
    process = subprocess.Popen(
        [HEADRACE, *command.split()[1:], "--port", str(port)],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        # Ends when the process does, which gives its server 180 seconds to start.
        line = next((line for line in process.stdout if "http://" in line), "nothing")
        assert f"http://127.0.0.1:{port}" in line
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in {0, 130}
