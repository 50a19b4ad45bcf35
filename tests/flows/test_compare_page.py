"""Two runs side by side in MLflow's own page, in a real browser."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from components import untracked
from components.tracking import MlflowStore
from components.tracking_follow import Follower
from pipeline import history
from trainer import journal

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def add_run(root: Path, number: str, *, epochs: int, auc: float) -> None:
    """Write the journal of a finished run of the pipeline flights, and store it."""
    folder = root / "flights" / "logs" / number
    folder.mkdir(parents=True)
    spec = {
        "tracking_uri": f"sqlite:///{root}/mlflow.db",
        "artifact_root": str(root / "mlruns"),
        "experiment": "flights",
        "run_name": f"flights-{number}",
        "params": {"training.epochs": epochs, "training.seed": 7},
        "tags": {},
        "fingerprint": number,
        "resume": False,
    }
    (folder / "tracking.json").write_text(json.dumps(spec))
    events = folder / "events.jsonl"
    journal.append(events, "run_started", run=number)
    for step in range(1, 20):
        journal.append(events, "train_step", step=step, epoch=1, loss=1 / step, learning_rate=0.1)
    journal.append(events, "metrics", metrics={"auc": auc}, baseline={"auc": 0.5}, blessed=True)
    journal.append(events, "run_ended", status="succeeded", exit_code=0, seconds=1.0)
    marker = untracked.mark(events, folder / "tracking.json")
    assert Follower(events, spec, marker, MlflowStore(spec)).follow(lambda: True)
    marker.remove()


@pytest.fixture
def served(tmp_path):
    """Two runs with one setting changed, served as `headrace ui` does; its configuration, port."""
    add_run(tmp_path, "1", epochs=2, auc=0.7125)
    add_run(tmp_path, "2", epochs=4, auc=0.7375)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys; from types import SimpleNamespace as Config; from pathlib import Path;"
        "from pipeline import ui; root = Path(sys.argv[1]);"
        "config = Config(tracking_uri=f'sqlite:///{root}/mlflow.db', folder=root / 'flights',"
        " root_folder=root);"
        "ui.serve(config, int(sys.argv[2]), say=lambda text: print(*text, flush=True))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            # Before the line with the address it says that the server starts.
            assert any(str(port) in line for line in process.stdout)
            uri = f"sqlite:///{tmp_path}/mlflow.db"
            folder = tmp_path / "flights"
            yield SimpleNamespace(name="flights", tracking_uri=uri, folder=folder), port
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser at {CHROMIUM}")
def test_two_runs_stand_side_by_side_on_mlflows_compare_page(served, tmp_path):
    from playwright.sync_api import expect, sync_playwright

    config, port = served
    result = history.runs(config)
    address = result["compare_url"].replace(":5000/", f":{port}/")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1800})
        broken: list[str] = []
        page.on("pageerror", lambda error: broken.append(str(error)))
        # Only this machine is asked.
        page.route(
            lambda url: urllib.parse.urlsplit(url).hostname != "127.0.0.1",
            lambda route: route.abort(),
        )
        page.goto(address)
        for run in result["runs"]:
            expect(page.get_by_text(run["run_id"]).first).to_be_visible(timeout=60_000)
            expect(page.get_by_text(run["run"]).first).to_be_visible()
        row = page.get_by_role("row").filter(has_text="training.epochs")
        expect(row.first).to_contain_text("2")
        expect(row.first).to_contain_text("4")
        expect(page.get_by_text(re.compile(r"^0\.713|^0\.7125")).first).to_be_attached()
        page.screenshot(path=tmp_path / "compare.png", full_page=True)
        browser.close()
    assert broken == []
