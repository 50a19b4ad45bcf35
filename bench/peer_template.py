"""The peer of end_to_end.py: TFX's own components, as its template uses them, on the flights.

    uv run python bench/peer_template.py FOLDER_WITH_FLIGHTS WORK_FOLDER

Prints one JSON line with the AUC on the eval split.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

NUMBERS = ("month", "day", "hour", "minute", "distance", "flight", "sched_dep_time")
TEXTS = ("carrier", "origin", "dest")
LABEL = "late"


def run_fn(fn_args) -> None:
    import keras
    import tensorflow as tf

    def read(patterns, *, shuffle):
        files = [one for pattern in patterns for one in tf.io.gfile.glob(pattern)]
        spec = {name: tf.io.FixedLenFeature([], tf.int64, -1) for name in (*NUMBERS, LABEL)}
        spec |= {name: tf.io.FixedLenFeature([], tf.string, "") for name in TEXTS}

        def split(examples):
            rows = tf.io.parse_example(examples, spec)
            return rows, rows.pop(LABEL)

        data = tf.data.TFRecordDataset(files, compression_type="GZIP")
        data = data.shuffle(20_000, seed=7) if shuffle else data
        return data.batch(256).map(split, num_parallel_calls=2).prefetch(2)

    train, evaluation = (
        read(fn_args.train_files, shuffle=True),
        read(fn_args.eval_files, shuffle=False),
    )
    inputs = {name: keras.Input((), name=name, dtype="int64") for name in NUMBERS}
    inputs |= {name: keras.Input((), name=name, dtype="string") for name in TEXTS}
    columns = []
    for name in NUMBERS:
        layer = keras.layers.Normalization(axis=None)
        layer.adapt(train.map(lambda rows, _, name=name: tf.cast(rows[name], tf.float32)).take(64))
        number = keras.layers.Lambda(lambda x: tf.cast(x, tf.float32)[:, None])(inputs[name])
        columns.append(layer(number))
    for name in TEXTS:
        layer = keras.layers.StringLookup(output_mode="one_hot")
        layer.adapt(train.map(lambda rows, _, name=name: rows[name]).take(64))
        columns.append(layer(inputs[name]))
    hidden = keras.layers.concatenate(columns)
    for width in (16, 8):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", metrics=[keras.metrics.AUC()])
    model.fit(train, epochs=2, verbose=0)
    auc = model.evaluate(evaluation, verbose=0)[1]
    model.export(fn_args.serving_model_dir)
    Path(fn_args.model_run_dir).mkdir(parents=True, exist_ok=True)
    Path(fn_args.model_run_dir, "auc.json").write_text(json.dumps(auc))


def main() -> None:
    from tfx import v1 as tfx

    source, work = Path(sys.argv[1]), Path(sys.argv[2])
    data = work / "data"
    data.mkdir(parents=True)
    shutil.copy(source / "flights.csv", data)
    with open(data / "flights.csv", newline="") as file:
        assert LABEL in next(csv.reader(file))
    examples = tfx.components.CsvExampleGen(input_base=str(data))
    figures = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.SchemaGen(statistics=figures.outputs["statistics"])
    validator = tfx.components.ExampleValidator(
        statistics=figures.outputs["statistics"], schema=schema.outputs["schema"]
    )
    trainer = tfx.components.Trainer(
        run_fn="peer_template.run_fn",
        examples=examples.outputs["examples"],
        train_args=tfx.proto.TrainArgs(num_steps=1),
        eval_args=tfx.proto.EvalArgs(num_steps=1),
    )
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="peer",
            pipeline_root=str(work / "root"),
            components=[examples, figures, schema, validator, trainer],
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                str(work / "metadata.sqlite")
            ),
            beam_pipeline_args=["--runner=FnApiRunner"],
        )
    )
    found = next((work / "root").rglob("auc.json"))
    print(json.dumps({"auc": json.loads(found.read_text())}))


if __name__ == "__main__":
    main()
