"""A run's tracking process, for tests that fork it (a test module can't be imported there)."""

import os
from pathlib import Path

from components import tracking


def track(events: Path) -> None:
    """Do what `python -m components.tracking` does, in the run's folder."""
    os.chdir(events.parent)
    for name, number in (("out", 1), ("tracking.log", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    code = 70
    try:
        code = tracking.main([str(events), str(events.parent / "tracking.json")])
    finally:
        os._exit(code)
