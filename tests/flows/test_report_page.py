"""The report as a person meets it: opened from disk in a real Chromium with the network off."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from components.report import write_report

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = "<script>document.title='taken'</script>"
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("main *, header *, nav *")) {
    const words = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!words || !element.checkVisibility() || element.closest("title, desc")) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(rgba(ink)), light(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.tagName + "." + element.getAttribute("class")]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def frames(penguins_file) -> dict[str, pd.DataFrame]:
    """All penguins and a column with a hostile name, 275 in train and 69 in eval."""
    frame = pd.read_csv(penguins_file).assign(**{HOSTILE: HOSTILE})
    train = frame.sample(275, random_state=7)
    return {"train": train, "eval": frame.drop(train.index)}


@pytest.fixture(scope="module")
def report(tmp_path_factory, write_statistics, frames) -> Path:
    """The report of a refused run that had trained before."""
    folder = tmp_path_factory.mktemp("report")
    history = [{"event": "train_step", "step": step, "loss": 1 / step, "learning_rate": 1e-3}
               for step in range(1, 20)]  # fmt: skip
    history += [{"event": "evaluation", "step": 19, "epoch": 1, "loss": 0.1, "auc": 0.9}]
    stop = {"feature": "island", "kind": "UNEXPECTED_VALUES", "split": "eval", "severity": "stop",
            "message": HOSTILE, "rows": 2, "where": ["penguins.csv:7"],
            "what_to_do": "correct it"}  # fmt: skip
    write_report(
        folder / "report.html",
        title="penguins",
        statistics={
            split: write_statistics(folder / split / "FeatureStats.pb", frame)
            for split, frame in frames.items()
        },
        anomalies=[stop, {**stop, "feature": "year", "severity": "warn"}],
        schema=None,
        label="species",
        ignored=["year"],
        history=history,
        metrics={"loss": 0.1, "auc": 0.9},
        baseline={"loss": 1.0, "auc": 0.5},
        facts={"status": "rejected", "run_id": "12", "error": "refused", "settings": {"seed": 7}},
    )
    return folder / "report.html"


class Watched:
    """A page in a context without network, with what it asked for and complained of."""

    def __init__(self, browser, path: Path, **context) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **context)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = path.as_uri()
        self.page.goto(self.address)


@pytest.fixture
def opened(browser, report) -> Iterator[Watched]:
    watched = Watched(browser, report, color_scheme="light")
    yield watched
    watched.context.close()


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.textContent")


def open_names(page) -> list[str]:
    return page.eval_on_selector_all("details.column[open] h3", "all => all.map(e => e.innerText)")


def shown_names(page) -> list[str]:
    return page.eval_on_selector_all(
        "details.column:not([hidden]) h3", "all => all.map(e => e.innerText)"
    )


def test_it_opens_without_network_asks_for_nothing_and_complains_of_nothing(opened):
    opened.page.click("#open-all")
    opened.page.click("#theme")
    assert opened.requests == [opened.address]
    assert opened.complaints == []
    assert opened.page.title() == "penguins: report"


def test_it_shows_the_missing_count_of_a_column(opened, frames):
    position = list(frames["train"].columns).index("sex")
    opened.page.click(f"#column-{position} summary")
    row = opened.page.locator(f"#column-{position} tr", has_text="Missing")
    shown = [int(text.split()[0]) for text in row.locator("td").all_inner_texts()]
    assert shown == [int(frame["sex"].isna().sum()) for frame in frames.values()]
    assert sum(shown) == 11


def test_hostile_names_are_shown_and_not_run(opened):
    assert opened.page.title() == "penguins: report"
    assert HOSTILE in shown_names(opened.page)
    assert opened.page.locator("script").count() == 1


def test_the_keyboard_reaches_everything(opened):
    page = opened.page
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the report"
    assert page.locator(".skip").bounding_box()["width"] > 50
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    for _ in range(40):
        if focused(page) != "search":
            page.keyboard.press("Tab")
    page.keyboard.type("BILL_")
    assert shown_names(page) == ["bill_length_mm", "bill_depth_mm"]
    assert page.inner_text("#count") == "2 of 9 columns"
    for _ in range(5):  # sort, only with anomalies, open all, close all, the first column
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert open_names(page) == ["bill_length_mm"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.focus("#search")
    page.keyboard.press("Escape")
    assert len(shown_names(page)) == 9


def test_columns_sort_by_problem_name_and_missing(opened):
    page = opened.page
    for order, first in [("problem", "island"), ("name", HOSTILE), ("missing", "sex"),
                         ("file", "species")]:  # fmt: skip
        page.select_option("#sort", order)
        assert shown_names(page)[0] == first
    page.check("#only")
    assert shown_names(page) == ["island", "year"]


def test_an_anomaly_leads_to_its_column(opened):
    opened.page.click("#anomalies a >> text=island")
    opened.page.wait_for_selector("#column-1[open]")
    assert open_names(opened.page) == ["island"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa_in_both_schemes(browser, report, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]
    for preferred, clicks in [(scheme, 0), (other, 1)]:
        watched = Watched(browser, report, color_scheme=preferred)
        watched.page.click("#open-all")
        for _ in range(clicks):
            watched.page.click("#theme")
        background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 21, 23)") == (scheme == "dark")
        measured = watched.page.evaluate(CONTRAST)
        watched.context.close()
        assert len(measured) > 200
        assert min(measured)[0] >= 4.5, min(measured)


def test_a_screen_reader_finds_landmarks_headings_and_names(opened):
    page = opened.page
    for landmark in ("main", "nav[aria-label]", "header", "[role=search]", "html[lang=en]"):
        assert page.locator(landmark).count() == 1
    levels = page.eval_on_selector_all("h1,h2,h3", "all => all.map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    unnamed = "svg:not([aria-hidden=true]):not([role=img]:has(> title):has(> desc))"
    assert page.locator(unnamed).count() == 0
    assert page.locator("svg[role=img]").count() >= 5
    assert page.get_by_label("Find a column").count() == 1
    assert page.get_by_label("Sort by").count() == 1
    identifiers = page.eval_on_selector_all("[id]", "all => all.map(e => e.id)")
    assert len(identifiers) == len(set(identifiers))


def test_it_reads_without_script(browser, report):
    watched = Watched(browser, report, java_script_enabled=False)
    page = watched.page
    assert not page.is_visible("#controls")
    assert not page.is_visible("#theme")
    page.click("#column-6 summary")
    assert page.is_visible("#column-6 table.numbers")
    watched.context.close()


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_no_width_needs_sideways_scrolling_of_the_page(opened, width):
    opened.page.set_viewport_size({"width": width, "height": 800})
    opened.page.click("#open-all")
    sizes = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert sizes[0] <= sizes[1]


def test_three_hundred_columns_stay_usable(browser, frames, write_statistics, tmp_path):
    wide = {
        split: pd.concat([frame.add_suffix(f" {number}") for number in range(34)], axis=1)
        for split, frame in frames.items()
    }
    statistics = {split: write_statistics(tmp_path / split, frame) for split, frame in wide.items()}
    write_report(
        tmp_path / "wide.html", title="wide", statistics=statistics, anomalies=[], schema=None,
        label="", ignored=[], history=[], metrics={}, baseline={}, facts={},
    )  # fmt: skip
    assert os.path.getsize(tmp_path / "wide.html") < 5_000_000
    watched = Watched(browser, tmp_path / "wide.html")
    page = watched.page
    assert page.inner_text("#count") == "306 columns"
    assert open_names(page) == []
    page.fill("#search", "sex 33")
    assert shown_names(page) == ["sex 33"]
    page.fill("#search", "no such column")
    assert page.is_visible("#none")
    page.fill("#search", "")
    page.select_option("#sort", "missing")
    assert shown_names(page)[0].startswith("sex ")
    assert watched.complaints == []
    watched.context.close()
