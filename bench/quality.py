"""How good the models are beside scikit-learn's: the same splits, nothing tuned on eval.

    uv run python bench/quality.py [SET ...] [--seeds N]

Small sets: the settings that `headrace init` writes, and a new split (80/20, by the seed) for each
seed. flights and flights-by-time: the settings of `headrace example flights-best`, its own split by
hash and by time, and another seed of the training. Beside it `HistGradientBoosting` with default
settings (categories as such) and logistic or ridge regression (scaled, one-hot) on the same rows
and columns. The metric is the one that `headrace runs` ranks by: AUC, accuracy or RMSE. Prints a
table in Markdown, with mean and standard deviation over the seeds, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pandas as pd
import pyarrow as pa
import real_sets
from sklearn import metrics
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from components import features, readers, split
from pipeline import config as configuration
from pipeline import wizard
from pipeline.examples import flights_best
from trainer import loop
from trainer.settings import CheckpointSettings, EarlyStopSettings, Features, Job

SMALL = ("iris", "wine", "breast_cancer", "digits", "diabetes", "species", "body_mass")
LARGE = {"flights": "pipeline.toml", "flights-by-time": "by-time.toml"}
RANKED = {"binary": "auc", "multiclass": "accuracy", "regression": "rmse"}
MOST_CATEGORIES = 255
"""Of a column of `HistGradientBoosting`; others are left to headrace alone."""


def rows_of(config: Any) -> pa.RecordBatch:
    """Return all rows, typed as headrace types them."""
    found = readers.resolve(config.data.files, config.base).files
    source = readers.inspect(found, config.data.null_values)
    batches = [batch for part in source.parts for batch in source.read(part)]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    label = whole.column(whole.schema.get_field_index(config.data.label))
    return whole.filter(label.is_valid())


def columns_of(rows: pa.RecordBatch, config: Any) -> list[features.Column]:
    kinds = {pa.int64(): "int", pa.float64(): "float"}
    return [
        features.Column(one.name, kinds.get(one.type, "string"))
        for one in rows.schema
        if one.name not in config.data.ignore
    ]


def write(folder: Path, rows: pa.RecordBatch, columns: list[features.Column]) -> None:
    writer = features.SplitWriter(folder, columns, rows=rows.num_rows)
    lists = []
    for one in columns:
        values = rows.column(rows.schema.get_field_index(one.name))
        values = values.cast(pa.large_binary()) if one.kind == "string" else values
        offsets = np.concatenate([[0], np.cumsum(np.asarray(values.is_valid()))]).astype(np.int64)
        lists.append(pa.LargeListArray.from_arrays(pa.array(offsets), values.drop_null()))
    writer.add(pa.RecordBatch.from_arrays(lists, [one.name for one in columns]))
    writer.close()


def describe(folder: Path, rows: int, columns: list[features.Column], config: Any) -> Features:
    label_name = config.data.label
    values, _ = features.read_values(folder / "train", label_name)
    kind = next(one.kind for one in columns if one.name == label_name)
    label = features.label_feature(label_name, kind, values, task=config.data.task)
    top: dict[str, dict[str, float]] = {}
    for one in columns:
        if one.kind == "string":
            texts, counts = features.text_counts(folder / "train", one.name)
            order = np.argsort(-counts, kind="stable")[:1000]
            top[one.name] = {texts[at]: float(counts[at]) for at in order}
    by_time = config.data.split.by == "time"
    return features.features_of(
        folder / "train", columns, label, top_values=top, rows=rows, is_by_time=by_time
    )


def headrace(config: Any, train: pa.RecordBatch, held: pa.RecordBatch, seed: int) -> np.ndarray:
    """Train as a run does, and return the predictions of the rows that are held back."""
    columns = columns_of(train, config)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder / "train", train, columns)
        described = describe(folder, train.num_rows, columns, config)
        write(folder / "eval", held, columns)
        for name in ("train", "eval"):
            values, _ = features.read_values(folder / name, config.data.label)
            label = features.class_ids(described.label, np.asarray(values))
            np.save(folder / name / "label.npy", label)
        job = Job(
            model=config.model,
            # A stop by the eval split's loss would be a look at what is judged.
            training=replace(config.training, seed=seed, early_stop=EarlyStopSettings(0)),
            checkpoint=CheckpointSettings(every_steps=10**9),
            features=described,
            train=str(folder / "train"),
            eval=str(folder / "eval"),
            checkpoints=str(folder / "checkpoints"),
            export="",
            events="",
            result="",
        )
        return loop.train(job).predictions


def frame(rows: pa.RecordBatch, config: Any) -> pd.DataFrame:
    table = rows.to_pandas()
    drop = [*(one for one in config.data.ignore if one in table), config.data.label]
    return table.drop(columns=drop)


def scikit_learn(
    kind: str, config: Any, train: pa.RecordBatch, held: pa.RecordBatch, seed: int
) -> np.ndarray:
    """Return the predictions of gradient boosting (``boosting``) or of a linear model."""
    x, other = frame(train, config), frame(held, config)
    texts = [one for one in x if x[one].dtype == object and x[one].nunique() <= MOST_CATEGORIES]
    numbers = [one for one in x if x[one].dtype != object]
    y = train.column(train.schema.get_field_index(config.data.label)).to_pandas()
    is_regression = config.data.task == "regression"
    if kind == "boosting":
        encoder = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
        )
        prepared = ColumnTransformer([("texts", encoder, texts), ("rest", "passthrough", numbers)])
        chosen = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
        model = chosen(categorical_features=list(range(len(texts))) or None, random_state=seed)
    else:
        scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        one_hot = OneHotEncoder(handle_unknown="ignore")
        prepared = ColumnTransformer([("texts", one_hot, texts), ("numbers", scaled, numbers)])
        model = Ridge() if is_regression else LogisticRegression(max_iter=2000)
    fitted = make_pipeline(prepared, model).fit(x, y)
    return fitted.predict(other)[:, None] if is_regression else fitted.predict_proba(other)


def figure(
    config: Any, predictions: np.ndarray, held: pa.RecordBatch, classes: np.ndarray
) -> float:
    label = held.column(held.schema.get_field_index(config.data.label)).to_pandas().to_numpy()
    if config.data.task == "regression":
        return float(metrics.mean_squared_error(label, predictions[:, 0]) ** 0.5)
    if config.data.task == "binary":
        return float(metrics.roc_auc_score(label == classes[1], predictions[:, -1]))
    return float(metrics.accuracy_score(label, classes[predictions.argmax(axis=1)]))


def splits(config: Any, rows: pa.RecordBatch, name: str, seeds: int) -> Iterator[Any]:
    """Yield seed, train rows and held-back rows."""
    held = held_back(config, rows) if name in LARGE else np.zeros(0, bool)
    for seed in range(1, seeds + 1):
        if name not in LARGE:
            held = np.zeros(rows.num_rows, bool)
            chosen = np.random.default_rng(seed).permutation(rows.num_rows)
            held[chosen[: rows.num_rows // 5]] = True
        yield seed, rows.filter(pa.array(~held)), rows.filter(pa.array(held))


def held_back(config: Any, rows: pa.RecordBatch) -> np.ndarray:
    """Return which rows headrace itself holds back."""
    found = readers.resolve(config.data.files, config.base).files
    source = readers.inspect(found, config.data.null_values)
    told = {"by": config.data.split.by, "column": config.data.split.column,
            "eval": config.data.split.eval}  # fmt: skip
    return split.by_settings(told, source.layout, lambda: [rows])(rows)


def configured(name: str, folder: Path) -> Any:
    if name in LARGE:
        flights_best.write(folder)
        return configuration.load(folder / LARGE[name])
    data = real_sets.write(name, folder)
    wizard.write(str(data), real_sets.SETS[name], folder / "pipeline.toml", None)
    return configuration.load(folder / "pipeline.toml")


def measure(name: str, seeds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        config = configured(name, Path(place))
        rows = rows_of(config)
        found: dict[str, list[float]] = {"headrace": [], "boosting": [], "linear": []}
        seconds = dict.fromkeys(found, 0.0)
        for seed, train, held in splits(config, rows, name, seeds):
            label = train.column(train.schema.get_field_index(config.data.label)).to_pandas()
            classes = np.unique(label.to_numpy())
            for model in found:
                started = time.monotonic()
                if model == "headrace":
                    said = headrace(config, train, held, seed)
                else:
                    said = scikit_learn(model, config, train, held, seed)
                seconds[model] += (time.monotonic() - started) / seeds
                found[model].append(figure(config, said, held, classes))
            print(name, seed, {one: round(values[-1], 4) for one, values in found.items()},
                  file=sys.stderr, flush=True)  # fmt: skip
    metric = RANKED[config.data.task]
    return {
        "set": name,
        "rows": rows.num_rows,
        "metric": metric,
        "values": found,
        "ranks": ranks(found, is_lower_better=metric == "rmse"),
        "seconds": {one: round(value, 1) for one, value in seconds.items()},
    }


def ranks(found: dict[str, list[float]], *, is_lower_better: bool) -> dict[str, float]:
    """Return the mean rank of each model over the seeds, 1 the best; equal ones share theirs."""
    values = pd.DataFrame(found)
    ranked = values.rank(axis=1, ascending=is_lower_better)
    return {name: round(float(one), 2) for name, one in ranked.mean().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*SMALL, *LARGE])
    parser.add_argument("--seeds", type=int, default=5)
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    found = [measure(name, told.seeds) for name in told.names]
    print("| set | rows | metric | headrace | gradient boosting | logistic or ridge | mean ranks |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        cells = [f"{np.mean(of):.4g} ± {np.std(of):.2g}" for of in one["values"].values()]
        cells += [", ".join(f"{value:g}" for value in one["ranks"].values())]
        print(f"| {one['set']} | {one['rows']:,} | {one['metric']} | {' | '.join(cells)} |")
    mean = {model: round(float(np.mean([one["ranks"][model] for one in found])), 2)
            for model in found[0]["ranks"]}  # fmt: skip
    print(f"mean of ranks: {mean}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
