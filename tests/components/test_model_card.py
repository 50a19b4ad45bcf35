"""The card says what was measured, and no value of the data breaks its tables."""

from components import model_card

FEATURES = {
    "label": {"name": "late", "task": "binary", "classes": ["0", "1"]},
    "numbers": [{"name": "distance", "edges": [80.0, 500.0, 4983.0]}],
    "categories": [{"name": "carrier", "vocabulary": ["UA"]}],
}
EVALUATION = {
    "metrics": {"loss": 0.4321, "auc": None, "calibration_error": 0.0123},
    "baseline": {"loss": 0.55, "auc": 0.5},
    "intervals": {"loss": [0.42, 0.44]},
    "slices": [
        {"column": "carrier", "value": "U|A\n`<b>", "rows": 500,
         "metrics": {"loss": 0.6}, "baseline": {"loss": 0.5}},
        {"column": "carrier", "value": "AA", "rows": 7,
         "metrics": {"loss": 0.3}, "baseline": {"loss": 0.5}},
    ],
    "notes": ["auc is not defined: one class"],
}  # fmt: skip


def card(**changes) -> str:
    facts = {
        "name": "flights",
        "settings": {"model.kind": "tabular", "model.layers": 2, "model.width": 32,
                     "data.split.by": "time", "data.split.column": "day",
                     "data.ignore": ["arr_delay"]},
        "rows": {"examples": {"train": 800, "eval": 200},
                 "files": [{"path": "/home/me/a.csv", "rows": 1000, "sha256": "ab" * 32}]},
        "features": FEATURES,
        "training": {"steps": 1200},
        "evaluation": EVALUATION,
        "described": {"columns": [{"column": "distance", "key": "distance", "kind": "float"},
                                  {"column": "carrier", "key": "carrier", "kind": "string"}]},
        "example": {"distance": [None, 3.0], "carrier": ['U"A', None]},
    }  # fmt: skip
    return model_card.text(**{**facts, **changes})


def test_the_card_says_data_split_metrics_slices_and_limits():
    found = card()
    for said in (
        'Predicts whether `late` is "1" (else "0").',
        "Rows: train 800, eval 200. Held back for evaluation: the newest rows by `day`.",
        "| a.csv | 1,000 | `abababababababab…` |",
        "| loss | 0.4321 | 0.42 to 0.44 | 0.55 |",
        "| auc | - | - | 0.5 |",
        "Not features: `arr_delay`.",
        "`distance` was between 80 and 4983",
        "carrier = AA has only 7 eval rows.",
        "no better than the baseline (500 rows)",
        "auc is not defined",
    ):
        assert said in found, said
    assert "/home/me" not in found


def test_no_value_of_the_data_breaks_a_table_or_a_line_of_code():
    found = card()
    rows = [one for one in found.splitlines() if one.startswith("| carrier = U")]
    assert rows == ["| carrier = U\\|A '&lt;b> | 500 | 0.6 |"]
    (line,) = [one for one in found.splitlines() if one.startswith("print(")]
    fed: dict = {}

    class Tf:
        float64 = "float64"
        constant = staticmethod(lambda *given: given)

    class Model:
        def __init__(self):
            self.signatures = {"columns": lambda **given: fed.update(given)}

    exec(line, {"tf": Tf, "model": Model()})
    assert fed["carrier"] == (['U"A'],)
    assert fed["distance"][0][0] != fed["distance"][0][0]


def test_a_run_without_slices_or_evaluation_has_a_card_too():
    found = card(evaluation={}, rows={}, training={}, described={}, example={})
    assert "### By slice" not in found
    assert "## Load and serve" in found
