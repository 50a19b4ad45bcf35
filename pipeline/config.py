"""The configuration: frozen models of ``pipeline.toml``, every key declared once.

Keys of training stand in `trainer.settings`, the others here; both hold their default and the
sentence that explains them, from which messages, written files and the README's table are made.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from pipeline import config_file, config_keys, model_keys
from pipeline.config_file import Key, Source
from pipeline.config_keys import Declared, Words
from pipeline.kubeflow_keys import KubeflowSettings
from trainer.errors import SettingError
from trainer.settings import (
    FORBID_UNKNOWN_KEYS,
    AugmentSettings,
    CheckpointSettings,
    ModelSettings,
    MonitoringSettings,
    TrainingSettings,
    key,
    parse_bytes,
    require,
)

BEAM_NEEDS: dict[str, tuple[str, ...]] = {
    "local": (),
    "flink": ("--flink_master", "--environment_type"),
    "spark": ("--spark_master_url", "--environment_type"),
    "dataflow": ("--project", "--region", "--temp_location"),
}
"""Arguments without which a cluster's job cannot be submitted."""
TRACKING_SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql")


def _as_tuple(value: Any) -> Any:
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    )


def _pipeline_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", value):
        raise ValueError(
            "must be made of a-z 0-9 - and _, begin with a letter or digit and be at most 63 long"
        )
    if value == "mlruns":
        raise ValueError("must not be mlruns, where MLflow keeps its artifacts under root")
    return value


def _local_path(value: str) -> str:
    if "://" in value:
        raise ValueError(
            "must be a path of this machine; s3:// and gs:// are not available in this version"
        )
    if not value:
        raise ValueError("must name a folder")
    if set("\0%?") & set(value):
        raise ValueError(
            "must be a path without % and ?, which mean something else in a sqlite address"
        )
    return value


def _is_encoding(name: str) -> bool:
    try:
        return codecs.lookup(name)._is_text_encoding
    except LookupError:
        return False


@dataclass(frozen=True)
class SplitSettings:
    """Which rows are held back for evaluation."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    by: Literal["hash", "time", "column"] = key(
        "hash",
        "hash of the row's content, or of column; time: the newest rows by column are eval; "
        "column: it holds the split's name",
    )
    column: str = key("", "the column that by speaks of; empty: none")
    eval: float = key(0.2, "share of the rows held back, above 0 and below 1")

    def __post_init__(self) -> None:
        require(0 < self.eval < 1, "eval", f"must be above 0 and below 1; it holds {self.eval}")
        require(
            self.by == "hash" or bool(self.column),
            "column",
            f'must name a column when by is "{self.by}"; it holds ""',
        )


@dataclass(frozen=True)
class CleanSettings:
    """What is changed or dropped before anything else sees the rows; each change is counted."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    trim: tuple[str, ...] = key((), "text columns whose values lose blanks around them; *: all")
    blank_to_missing: tuple[str, ...] = key(
        (), "text columns in which blanks alone are missing; *: all"
    )
    map: dict[str, dict[str, str]] = key(
        dict, "column to value to what replaces it, as texts; an empty one is missing"
    )
    clip: dict[str, tuple[float, float]] = key(
        dict, "number column to its least and greatest value"
    )
    drop_unlabelled: bool = key(False, "rows without a label are dropped")
    drop_duplicates: bool = key(False, "rows that equal an earlier one in every column are dropped")
    drop_broken_images: bool = key(
        False, "rows whose image is missing or cannot be decoded are dropped"
    )

    def __post_init__(self) -> None:
        for name, bounds in self.clip.items():
            require(
                bounds[0] <= bounds[1],
                "clip",
                f"must hold the least value before the greatest; {name} holds {list(bounds)}",
            )


@dataclass(frozen=True)
class DataSettings:
    """What is read, and what is predicted."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    files: Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), Words("a path or a list of paths")
    ] = field(
        metadata={
            "help": "a path, a folder, a glob, or a list of them, also at s3:// or gs://: "
            ".csv(.gz, .zst) .parquet .tfrecord(.gz), or text documents: .txt .md .rst .py, each "
            "also as .gz, or images in folders of their classes: .png .jpg .jpeg"
        }
    )
    label: str = key("", "the column to predict; must be set but for a causal-lm")
    text: str = key(
        "", "the column of texts that the model reads; empty: that of documents, or the only one"
    )
    image: str = key(
        "", "the column of images that the model reads; empty: that of image files, or the only one"
    )
    task: Literal["auto", "binary", "multiclass", "regression", "causal-lm", "image"] = key(
        "auto",
        "auto: told by the label's type and number of values, or by the model's kind; image: the "
        "label is the class of an image",
    )
    ignore: tuple[str, ...] = key((), "columns that are never features: leaks, row ids")
    null_values: tuple[str, ...] = key(
        ("", "NA", "NaN", "null"), "texts that stand for a missing value"
    )
    delimiter: str = key(",", "of CSV files: one ASCII character between cells")
    quote: str = key('"', "of CSV files: one ASCII character around cells that hold a delimiter")
    encoding: str = key("utf-8", "of CSV files, as Python names it")
    memory: str = key(
        "1GiB", "what the process of the data nodes may hold, whatever the size of the data"
    )
    clean: CleanSettings = key(CleanSettings, "what is changed or dropped before all else")
    augment: AugmentSettings = key(AugmentSettings, "what is changed in training batches")
    split: SplitSettings = key(SplitSettings, "which rows are held back for evaluation")

    def __post_init__(self) -> None:
        require(bool(self.files), "files", "must name at least one file; it holds []")
        for one in self.files:
            require(
                bool(one) and ("://" not in one or one.partition("://")[0] in {"s3", "gs"}),
                "files",
                "must be a path of this machine, s3:// or gs://; "
                f"it holds {config_keys.toml_text(one)}",
            )
            require(
                "://" not in one or config_keys.redacted(one) == one,
                "files",
                "must be without user and password, which come from the environment or the "
                f"storage's own files; it holds {config_keys.toml_text(one)}",
            )
        for name in ("delimiter", "quote"):
            value = getattr(self, name)
            require(
                len(value) == 1 and value.isascii() and value not in "\r\n",
                name,
                f"must be one ASCII character; it holds {json.dumps(value)}",
            )
        parse_bytes(self.memory, name="memory")
        require(self.quote != self.delimiter, "quote", "must not be the delimiter")
        require(
            _is_encoding(self.encoding),
            "encoding",
            f"must name an encoding, such as latin-1; it holds {json.dumps(self.encoding)}",
        )
        for name in ("label", "text", "image"):
            column = getattr(self, name)
            require(
                not column or column not in self.ignore,
                "ignore",
                f"must not name the {name}; it holds {json.dumps(column)}",
            )
        for name in ("text", "image"):
            column = getattr(self, name)
            require(
                not column or column != self.label,
                name,
                f"must not be the label; it holds {json.dumps(column)}",
            )


def _require_shares(one: Any) -> None:
    for name, value in {"threshold": one.threshold, **one.thresholds}.items():
        at = name if name == "threshold" else "thresholds"
        require(0 <= value <= 1, at, f"must be from 0 to 1; it holds {value}")


@dataclass(frozen=True)
class DriftSettings:
    """How far the train split may lie from that of the last data that passed."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    baseline: Literal["last-passed", "none"] = key(
        "last-passed", "the last data of this pipeline that passed the gate; none: not compared"
    )
    threshold: float = key(
        0.1, "greatest distance, 0 to 1: L-infinity of texts, Jensen-Shannon of numbers"
    )
    thresholds: dict[str, float] = key(dict, "of single columns")

    def __post_init__(self) -> None:
        _require_shares(self)


@dataclass(frozen=True)
class SkewSettings:
    """How far the eval split may lie from the train split."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    threshold: float = key(0.1, "greatest distance of eval from train, as for drift")
    thresholds: dict[str, float] = key(dict, "of single columns")

    def __post_init__(self) -> None:
        _require_shares(self)


@dataclass(frozen=True)
class ValidationSettings:
    """When the data gate refuses."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    schema: str = key("infer", "infer, from the train split, or a .pbtxt file")
    on_anomaly: Literal["stop", "warn"] = key("stop", "what an anomaly does")
    rules: dict[str, Literal["stop", "warn", "ignore"]] = key(
        dict, 'apart from that, by kind, feature or "feature:kind": stop, warn or ignore'
    )
    drift: DriftSettings = key(
        DriftSettings, "how far train may lie from the last data that passed"
    )
    skew: SkewSettings = key(SkewSettings, "how far eval may lie from train")

    def __post_init__(self) -> None:
        require(
            self.schema == "infer" or self.schema.endswith(".pbtxt"),
            "schema",
            f'must be "infer" or a .pbtxt file; it holds {json.dumps(self.schema)}',
        )


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is judged."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    slices: tuple[str, ...] = key(
        (), "columns whose values cut the eval split: metrics are told of each value's rows, too"
    )
    margin: float = key(
        0.01, "share of the last pushed model's loss by which a model may be worse on the same "
        "eval rows and still be pushed"
    )  # fmt: skip

    def __post_init__(self) -> None:
        require(self.margin >= 0, "margin", f"must be 0 or more; it holds {self.margin}")


@dataclass(frozen=True)
class TrackingSettings:
    """Where MLflow keeps the runs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    uri: str = key("", "empty: sqlite under root; or an MLflow server, https://...")
    register: str = key(
        "",
        "name in MLflow's model registry: each pushed model becomes its next version; empty: none",
    )

    def __post_init__(self) -> None:
        require(
            not set(self.register) & set("/:'\"") and self.register == self.register.strip(),
            "register",
            f"must be a name without / : and quotes; it holds {json.dumps(self.register)}",
        )
        scheme, apart, rest = self.uri.partition("://")
        known = scheme.split("+")[0] in TRACKING_SCHEMES
        require(
            not self.uri or (known and bool(apart) and bool(rest)),
            "uri",
            "must be empty, a server such as http://host:5000, or a database such as "
            f"sqlite:///mlflow.db; it holds {json.dumps(config_keys.redacted(self.uri))}",
        )


@dataclass(frozen=True)
class BeamSettings:
    """Where the data nodes' work runs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    runner: Literal["local", "flink", "spark", "dataflow"] = key(
        "local", "local: this process; others: a cluster that runs Beam"
    )
    args: tuple[str, ...] = key((), "arguments of Beam for it, such as --flink_master=host:8081")

    def __post_init__(self) -> None:
        given = {one.partition("=")[0] for one in self.args}
        require("--runner" not in given, "args", "must not name a runner, which beam.runner does")
        for name in BEAM_NEEDS[self.runner]:
            require(
                name in given,
                "args",
                f"must hold {name}=... for {self.runner}; it holds {json.dumps(list(self.args))}",
            )
        require(
            self.runner != "local" or not self.args,
            "args",
            "must be empty for local, which takes none",
        )


class PipelineConfig(BaseModel):
    """Everything that a pipeline is told. Made by `load`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, AfterValidator(_pipeline_name)] = Field(
        "pipeline", description="a-z 0-9 - _ ; names the MLflow experiment"
    )
    root: Annotated[str, AfterValidator(_local_path)] = Field(
        "runs", description="everything that the pipeline writes goes under here"
    )
    data: DataSettings = Field(description="what is read, and what is predicted")
    validation: ValidationSettings = Field(
        ValidationSettings(), description="when the data gate refuses"
    )
    model: ModelSettings = Field(ModelSettings(), description="the shape of the model")
    training: TrainingSettings = Field(TrainingSettings(), description="how it is trained")
    checkpoint: CheckpointSettings = Field(
        CheckpointSettings(), description="when the state of training is saved"
    )
    evaluation: EvaluationSettings = Field(
        EvaluationSettings(), description="how a model is judged"
    )
    tracking: TrackingSettings = Field(
        TrackingSettings(), description="where MLflow keeps the runs"
    )
    monitoring: MonitoringSettings = Field(
        MonitoringSettings(), description="how training can be watched from outside"
    )
    beam: BeamSettings = Field(BeamSettings(), description="where the data nodes' work runs")
    kubeflow: KubeflowSettings = Field(
        KubeflowSettings(), description="how it runs on Kubeflow Pipelines"
    )

    _source: Source = PrivateAttr(Source(path="pipeline.toml", tables={}))

    def model_post_init(self, context: Any, /) -> None:
        """Keep where the configuration was read from."""
        if isinstance(context, Source):
            self._source = context

    @property
    def path(self) -> Path:
        """The file, absolute."""
        return Path(self._source.path).absolute()

    @property
    def base(self) -> Path:
        """The folder that relative paths are relative to, absolute."""
        return self.path.parent

    @property
    def root_folder(self) -> Path:
        """``root``, absolute."""
        return self._absolute(self.root)

    @property
    def folder(self) -> Path:
        """Where this pipeline writes: ``root/name``, absolute."""
        return self.root_folder / self.name

    @property
    def schema_path(self) -> str | None:
        """The schema file, absolute; None when the schema is inferred."""
        chosen = self.validation.schema
        return None if chosen == "infer" else str(self._absolute(chosen))

    @property
    def tracking_uri(self) -> str:
        """Where MLflow keeps the runs; a relative sqlite file is relative to the file's folder."""
        if not self.tracking.uri:
            return f"sqlite:///{self.root_folder / 'mlflow.db'}"
        start = "sqlite:///"
        if self.tracking.uri.startswith(start):
            return start + str(self._absolute(self.tracking.uri.removeprefix(start)))
        return self.tracking.uri

    @property
    def set_keys(self) -> tuple[str, ...]:
        """Dotted keys that the file or ``--set`` holds, in order of declaration."""
        written = config_keys.leaves(self._source.tables)
        return tuple(name for name in self.flat() if name in written)

    def where(self, name: str) -> str:
        """Return ``file:line: key`` of a dotted key, for messages."""
        return self._source.where(tuple(name.split(".")))

    def flat(self) -> dict[str, Any]:
        """Return every key, dotted, with its value; passwords in addresses are left out."""
        values = self.model_dump(mode="json")
        found = config_keys.leaves(values)
        return {name: config_keys.redacted(value) for name, value in found.items()}

    def _absolute(self, path: str) -> Path:
        return Path(os.path.normpath(self.base / path))


def load(path: str | os.PathLike[str], sets: Sequence[str] = ()) -> PipelineConfig:
    """Read a configuration.

    Args:
        path: the TOML file.
        sets: ``KEY=VALUE`` texts that come after the file.

    Raises:
        InputError: the file is missing or is no TOML.
        SettingError: a key is unknown, or holds what it cannot hold; the message names its line.
    """
    source = config_file.read(os.fspath(path), sets)
    tables = _settled(source)
    try:
        loaded = PipelineConfig.model_validate_json(json.dumps(tables), context=source)
    except ValidationError as error:
        refused = _refusal(error, source, tables)
        raise refused from None
    if refused := model_keys.refusal(loaded):
        raise refused
    return loaded


def declared() -> dict[str, Declared]:
    """Return every key by its dotted name, in order; tables are not among them."""
    return {name: one for name, one in config_keys.declared(PipelineConfig).items() if one.is_leaf}


def table() -> list[tuple[str, str, str]]:
    """Return key, default as TOML (empty: must be set) and explanation of every key."""
    return [
        (name, "" if one.required else config_keys.toml_text(one.default), one.help)
        for name, one in declared().items()
    ]


def _settled(source: Source) -> dict[str, Any]:
    """Return the tables with loose texts read as their key's type wants them."""
    known = config_keys.declared(PipelineConfig)

    def settle(value: Any, at: Key) -> Any:
        if isinstance(value, dict):
            return {name: settle(one, (*at, name)) for name, one in value.items()}
        if isinstance(value, list):
            return [settle(one, at) for one in value]
        one = known.get(config_file.dotted(at))
        annotation = one.annotation if one else str
        if isinstance(value, str) and at in source.loose:
            value = config_keys.from_loose(value, annotation)
        _require_json(value, source.where(at), annotation)
        return value

    return settle(source.tables, ())


def _require_json(value: Any, where: str, annotation: Any) -> None:
    """Refuse what TOML has and no key takes: dates, times, infinity and NaN.

    Raises:
        SettingError: when it is one of them.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError("must be finite", where=where, holds=str(value))
    if not isinstance(value, str | int | float | list | dict):
        wanted = config_keys.wanted(annotation)
        raise SettingError(
            f"must be {wanted}, not a date or a time",
            where=where,
            holds=str(value),
            right="write it in quotes" if wanted == config_keys.wanted(str) else "",
        )


def _refusal(error: ValidationError, source: Source, tables: dict[str, Any]) -> SettingError:
    known = config_keys.declared(PipelineConfig)
    found: dict[Key, SettingError] = {}
    for one in error.errors(include_url=False):
        at, refused = config_keys.refusal(one, known, tables)
        refused.where = source.where(at)
        found.setdefault(at, refused)
    order = sorted(found, key=lambda at: source.lines.get(at, math.inf))
    first = found[order[0]]
    if len(order) > 1:
        others = ", ".join(config_file.dotted(at) for at in order[1:4])
        more = f" and {len(order) - 4} more" if len(order) > 4 else ""
        also = f"wrong as well: {others}{more}"
        first.right = f"{first.right}; {also}" if first.right else also
    return SettingError(first.what, where=first.where, holds=first.holds, right=first.right)
