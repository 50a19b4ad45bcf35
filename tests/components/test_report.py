"""The report's file: right values, nothing from outside, whole or absent."""

import errno
import html
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import palmerpenguins
import pandas as pd
import pytest

from components import report
from components.report_text import MINUS, number

PENGUINS = Path(palmerpenguins.__file__).parent / "data" / "penguins.csv"
HOSTILE = "</script><script>alert(1)</script>"


class Blocks(HTMLParser):
    """Rows of cells and the text of each element that has an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.block, self.rows, self.attributes = "", {}, []
        self.text: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, element, attributes):
        found = dict(attributes)
        self.attributes += attributes
        if element in {"section", "details"} and found.get("id"):
            self.block = found["id"]
        if element == "tr":
            self.rows.setdefault(self.block, []).append([])
        if element in {"th", "td"} and self.rows.get(self.block):
            self.rows[self.block][-1].append("")

    def handle_data(self, data):
        self.text[self.block] = self.text.get(self.block, "") + data
        if self.rows.get(self.block) and self.rows[self.block][-1]:
            self.rows[self.block][-1][-1] += data

    def row(self, block: str, name: str) -> list[str]:
        return next(row[1:] for row in self.rows[block] if row and row[0].strip() == name)


@pytest.fixture
def penguins() -> dict[str, pd.DataFrame]:
    """344 penguins as the file has them, 275 in train and 69 in eval."""
    frame = pd.read_csv(PENGUINS)
    train = frame.sample(275, random_state=7)
    return {"train": train, "eval": frame.drop(train.index)}


@pytest.fixture
def write(tmp_path, write_statistics):
    """Write a report of data frames by split and return its text."""

    def write_one(frames: dict[str, pd.DataFrame], **changes) -> str:
        statistics = {
            split: write_statistics(tmp_path / f"Split-{split}" / "FeatureStats.pb", frame)
            for split, frame in frames.items()
        }
        content = {
            "title": "penguins", "statistics": statistics, "anomalies": [], "schema": None,
            "label": "species", "ignored": [], "history": [], "metrics": {}, "baseline": {},
            "facts": {}, **changes,
        }  # fmt: skip
        report.write_report(tmp_path / "report.html", **content)
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return write_one


def test_missing_counts_are_those_of_the_file(write, penguins):
    page = Blocks(write(penguins))
    for position, name in enumerate(penguins["train"].columns):
        expected = [int(frame[name].isna().sum()) for frame in penguins.values()]
        shown = page.row(f"column-{position}", "Missing")
        assert [int(text.split()[0]) for text in shown] == expected
    assert sum(int(text.split()[0]) for text in page.row("column-6", "Missing")) == 11  # sex


def test_numbers_and_top_values_are_those_of_the_file(write, penguins):
    page = Blocks(write(penguins))
    means = [number(frame["body_mass_g"].mean()) for frame in penguins.values()]
    assert page.row("column-5", "Mean") == means
    adelies = [int((frame["species"] == "Adelie").sum()) for frame in penguins.values()]
    cells = page.row("label", "Adelie")
    assert [int(text.split()[0]) for text in (cells[0], cells[2])] == adelies


def test_names_and_values_are_escaped(write):
    frame = pd.DataFrame({HOSTILE: [HOSTILE, '"><img src=x>', "\x00\x1b"], "y": [1, 2, 3]})
    anomaly = dict.fromkeys(("feature", "kind", "split", "message", "what_to_do"), HOSTILE)
    page = write(
        {"train": frame, HOSTILE: frame},
        title=HOSTILE,
        anomalies=[{**anomaly, "where": [HOSTILE]}],
        label=HOSTILE,
        facts={"status": HOSTILE, "settings": {HOSTILE: HOSTILE}},
    )
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<img" not in page
    assert "\x00" not in page
    assert HOSTILE in Blocks(page).text["columns"] + Blocks(page).text["column-0"]


def test_nothing_is_asked_of_the_network(write, penguins):
    page = Blocks(write(penguins))
    addresses = [value for name, value in page.attributes if name in {"src", "href", "action"}]
    assert addresses
    assert all(value.startswith("#") or value == "data:," for value in addresses)
    assert "url(" not in write(penguins)


def test_an_anomaly_says_rows_places_and_what_to_do(write, penguins):
    anomaly = {
        "feature": "island", "kind": "UNEXPECTED_VALUES", "split": "eval", "severity": "stop",
        "message": "values that the schema does not know", "rows": 212,
        "where": [f"penguins.csv:{line}" for line in range(2, 12)], "what_to_do": "correct them",
    }  # fmt: skip
    page = write(penguins, anomalies=[anomaly], facts={"status": "rejected"})
    text = " ".join(Blocks(page).text["anomalies"].split())
    for part in ("island", "UNEXPECTED_VALUES", "212", "penguins.csv:11", "and 202 more",
                 "correct them", "stops the run"):  # fmt: skip
        assert part in text
    assert page.index('id="anomalies"') < page.index('id="columns"')
    assert 'href="#column-1"' in page


def test_a_run_that_was_refused_before_statistics_still_has_a_report(write, tmp_path):
    damaged = tmp_path / "damaged.pb"
    damaged.write_bytes(b"\xff\xff not a proto")
    page = write({}, statistics={"train": tmp_path / "absent.pb", "eval": damaged},
                 facts={"status": "failed", "error": "disk full"})  # fmt: skip
    text = Blocks(page).text
    assert "train split could not be read" in text["anomalies"]
    assert "eval split could not be read" in text["anomalies"]
    assert "disk full" in page
    assert "No statistics were computed" in text["columns"]


def test_metrics_stand_beside_the_baseline(write, penguins):
    metrics = {"loss": 0.41, "auc": "nan", "r2": None}
    page = Blocks(write(penguins, metrics=metrics, baseline={"loss": 0.55, "auc": 0.5}))
    assert page.row("metrics", "Loss lower is better") == [
        "0.4100",
        "0.5500",
        f"{MINUS}0.1400",
        "better",
    ]
    assert page.row("metrics", "AUC higher is better")[0] == "not a number"
    assert page.row("metrics", "R² higher is better")[0] == "undefined"


def test_passwords_do_not_reach_the_page(write, penguins):
    tracking = {"uri": "https://me:hunter2@host/x?token=hunter2", "password": "hunter2"}
    error = "no answer of http://me:hunter2@host"
    facts = {"settings": {"tracking": tracking}, "error": error}
    page = write(penguins, facts=facts)
    assert "hunter2" not in page
    assert "@host/x" in page


def test_a_full_disk_leaves_the_older_report_as_it_was(write, penguins, tmp_path, monkeypatch):
    before = write(penguins)

    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write(penguins, title="newer")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".report")]


def test_the_report_imports_neither_tensorflow_nor_tfx():
    code = (
        "import sys, components.report;"
        "print([m for m in ('tensorflow', 'tfx', 'apache_beam', 'pandas') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_what_an_evaluation_shows_is_drawn_with_its_numbers(write, penguins):
    evaluation = {
        "blessed": False,
        "reason": "loss 0.4 is not below the baseline's 0.3",
        "remedy": "give more rows",
        "intervals": {"loss": [0.39, 0.43], "auc": None},
        "confusion": {"classes": ["0", "1"], "rows": [[30, 4], [5, 30]]},
        "calibration": [
            {"from": 0.0, "to": 0.1, "rows": 30, "confidence": 0.05, "share": 0.07},
            {"from": 0.9, "to": 1.0, "rows": 39, "confidence": 0.95, "share": 0.91},
        ],
        "slices": [
            {"column": "sex", "value": "<b>", "rows": 35, "metrics": {"loss": 0.5, "auc": None},
             "baseline": {}, "intervals": {"loss": [0.4, 0.6]}},
        ],
    }  # fmt: skip
    page = write(penguins, metrics={"loss": 0.41}, baseline={"loss": 0.55}, evaluation=evaluation)
    assert Blocks(page).row("metrics", "Loss lower is better")[1] == "0.3900 to 0.4300"
    for said in (
        "The model is not pushed: loss 0.4 is not below the baseline&#x27;s 0.3; give more rows.",
        "60 of 69 rows lie on the diagonal",
        "model: 0.07 at confidence 0.05, 0.91 at confidence 0.95",
        "[0.4000, 0.6000]",
    ):
        assert html.unescape(said) in html.unescape(page), said
    assert "<b><b></b>" not in page
