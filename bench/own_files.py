"""`headrace init` and `headrace run`, with no edit, on twelve real sets of installed packages.

    uv run python bench/own_files.py [NAME ...]

Each run must end with 0 and a loss below the trivial baseline's. Prints a line a set, the seconds
that `init` foretold beside those that the run took, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The house first: tests/pipeline would else hide pipeline.
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import real_sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(real_sets.SETS))
    headrace = str(Path(sys.executable).with_name("headrace"))
    found = {}
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            data = real_sets.write(name, Path(folder))
            label = real_sets.SETS[name]
            command = [headrace, "init", data.name, *(["--label", label] if label else [])]
            said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            foretold = re.search(r"about (\S+ \w+)", said.stdout)
            started = time.monotonic()
            done = subprocess.run(
                [headrace, "run", "--json"], cwd=folder, capture_output=True, text=True, check=False
            )
            result = json.loads(done.stdout)
            metrics, baseline = result["metrics"] or {}, result["baseline"] or {}
            loss, trivial = metrics.get("loss"), baseline.get("loss")
            found[name] = {
                "code": done.returncode,
                "loss": loss,
                "baseline": trivial,
                "is_better": loss is not None and loss < trivial,
                "seconds": round(time.monotonic() - started, 1),
                "foretold": foretold[1] if foretold else "",
                "error": result["error"],
            }
            print(name, json.dumps(found[name]), flush=True)
    better = sum(one["is_better"] and not one["code"] for one in found.values())
    print(f"{better} of {len(found)} end with 0 and beat the trivial baseline")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
