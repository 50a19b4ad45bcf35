"""A worker's signs of life, and its end where there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer import pulse

SCRIPT = """
import sys, time
from pathlib import Path
from trainer import pulse
one = pulse.Pulse(Path(sys.argv[1]))
pulse.end_when_silent(one, seconds=1.0, look_seconds=0.05)
for _ in range(int(sys.argv[2])):
    one.beat(0.1)
    time.sleep(0.1)
if sys.argv[3] == "hangs":
    time.sleep(60)
"""


def test_beats_are_counted_and_the_slowest_step_is_told(tmp_path: Path) -> None:
    assert pulse.read(tmp_path) == (0, 0.0)
    one = pulse.Pulse(tmp_path)
    for seconds in (0.5, 2.0, 1.0):
        one.beat(seconds)
    assert pulse.read(tmp_path) == (3, 2.0)
    one.beat()  # an evaluation: nobody knows how long it takes
    assert pulse.read(tmp_path) == (4, 0.0)


@pytest.mark.parametrize(("how", "code"), [("hangs", 4), ("ends", 0)])
def test_who_gives_no_sign_of_life_ends_and_who_does_goes_on(
    tmp_path: Path, how: str, code: int
) -> None:
    # Beats go on for twice the time that a silence may take.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), "20", how],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == code
    assert ("another worker hangs" in done.stderr) == (how == "hangs")
    assert pulse.read(tmp_path)[0] == 20
