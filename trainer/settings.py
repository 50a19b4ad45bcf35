"""What training can be told: frozen dataclasses, the single declaration of each key.

They are the field types of the pydantic models above them, and travel as JSON into the training
process. ``field(metadata={"help": ...})`` holds a key's unit, choices and reason; the
configuration table of the README and the comments of written files are made from it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from trainer import addresses

FORBID_UNKNOWN_KEYS = {"extra": "forbid", "strict": True}
"""Read by pydantic when one of these dataclasses is a field of a pydantic model."""


def key(default: Any, text: str) -> Any:
    """Declare a key with its default and the sentence that explains it."""
    if callable(default):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


def require(holds: bool, name: str, what: str) -> None:
    """Refuse a value; the key's name comes first, since pydantic does not add it.

    Raises:
        ValueError: when `holds` is false.
    """
    if not holds:
        raise ValueError(f"{name}: {what}")


MODEL_KINDS = ("tabular", "text", "causal-lm", "image")
BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How ``model.kind`` names a person's own function that builds a Keras model."""


@dataclass(frozen=True)
class ModelSettings:
    """The shape of the model."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    kind: str = key(
        "tabular",
        "tabular: a Transformer over the columns; text: over the tokens of a text column; "
        "causal-lm: a language model; image: over the pixels of an image column; "
        'or "module:function" that returns a Keras model',
    )
    layers: int = key(3, "blocks: of a Transformer, or of convolutions")
    width: int = key(64, "numbers a token; a multiple of heads")
    heads: int = key(4, "attention heads")
    dropout: float = key(0.0, "share of activations dropped while training, 0 to below 1")
    sequence: int = key(256, "tokens that a text or language model sees at once")
    vocabulary: Literal["bytes", "words"] = key(
        "bytes", "tokens of a text: bytes of UTF-8, or words learned from the train split"
    )
    vocabulary_size: int = key(8192, "most words that are learned")
    network: Literal["conv", "vit"] = key(
        "conv", "of an image model; conv: convolutions; vit: a Transformer over patches"
    )
    image_size: int = key(32, "pixels a side that an image model sees; a multiple of patch")
    patch: int = key(1, "pixels a side of what an image model makes one token of")
    channels: Literal[1, 3] = key(3, "of the images that a model sees; 1: grey, 3: colours")

    def __post_init__(self) -> None:
        require(
            self.kind in MODEL_KINDS or bool(BUILDER.fullmatch(self.kind)),
            "kind",
            f"must be one of {', '.join(MODEL_KINDS)}, or module:function of your own; "
            f'it holds "{self.kind}"',
        )
        require(self.sequence >= 1, "sequence", f"must be at least 1; it holds {self.sequence}")
        require(
            self.vocabulary_size >= 1,
            "vocabulary_size",
            f"must be at least 1; it holds {self.vocabulary_size}",
        )
        require(self.layers >= 1, "layers", f"must be at least 1; it holds {self.layers}")
        require(self.patch >= 1, "patch", f"must be at least 1; it holds {self.patch}")
        require(
            self.image_size >= 1 and self.image_size % self.patch == 0,
            "image_size",
            f"must be a multiple of patch ({self.patch}); it holds {self.image_size}",
        )
        require(self.heads >= 1, "heads", f"must be at least 1; it holds {self.heads}")
        require(self.width >= 1, "width", f"must be at least 1; it holds {self.width}")
        require(
            self.width % self.heads == 0,
            "width",
            f"must be a multiple of heads ({self.heads}); it holds {self.width}",
        )
        require(0 <= self.dropout < 1, "dropout", f"must be 0 to below 1; it holds {self.dropout}")


@dataclass(frozen=True)
class EarlyStopSettings:
    """When training ends before its last epoch."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    after_rises: int = key(3, "stop after this many evaluations in a row whose loss rose; 0: never")

    def __post_init__(self) -> None:
        require(
            self.after_rises >= 0,
            "after_rises",
            f"must be 0 (never) or more; it holds {self.after_rises}",
        )


@dataclass(frozen=True)
class TrainingSettings:
    """How the model is trained."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    epochs: int = key(2, "passes over the train split; not used when steps is set")
    steps: int = key(0, "weight updates in all; 0: as many as epochs makes")
    global_batch: int = key(1024, "examples a weight update, over all micro-batches")
    micro_batch: int | Literal["auto"] = key(
        "auto", "examples a device holds at once; auto: the largest that the plan says fits"
    )
    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = key(
        "auto", "auto: mixed_float16 on a GPU, float32 on a CPU, where half precision costs time"
    )
    recompute: bool | Literal["auto"] = key(
        "auto", "tf.recompute_grad on each block; auto: only where the plan needs it"
    )
    attention: Literal["auto", "plain", "chunked"] = key(
        "auto", "chunked: O(S) memory instead of O(S * S); auto: only where the plan needs it"
    )
    token_loss: Literal["auto", "plain", "chunked"] = key(
        "auto", "of a language model; chunked: the logits of all tokens never exist at once"
    )
    shard: Literal["auto", "none", "optimizer", "gradients", "parameters"] = key(
        "none", "what each worker holds its own part of alone (ZeRO 1, 2, 3)"
    )
    offload: Literal["none", "cpu"] = key(
        "none", "cpu: the optimizer's state lives in host memory, and is updated there"
    )
    memory_limit: str = key("auto", 'such as "8GiB"; auto: what the device has free')
    learning_rate: float = key(1e-3, "the highest of the schedule")
    schedule: Literal["constant", "linear", "cosine"] = key("cosine", "how it falls towards 0")
    warmup_steps: int = key(0, "updates over which it first rises from 0")
    weight_decay: float = key(0.01, "decoupled (AdamW), on matrices only")
    clip_norm: float = key(1.0, "greatest global norm of the gradient; 0: not clipped")
    workers: int = key(1, "processes on this machine, each with its share of the global batch")
    seed: int = key(7, "decides the weights at the start, the order of rows and dropout")
    max_restarts: int = key(3, "times that a training process that died is started again")
    early_stop: EarlyStopSettings = key(EarlyStopSettings, "when to end early")

    def __post_init__(self) -> None:
        for name in ("epochs", "global_batch", "workers"):
            value = getattr(self, name)
            require(value >= 1, name, f"must be at least 1; it holds {value}")
        for name in ("steps", "warmup_steps", "weight_decay", "clip_norm", "seed", "max_restarts"):
            value = getattr(self, name)
            require(value >= 0, name, f"must be 0 or more; it holds {value}")
        require(
            0 < self.learning_rate < float("inf"),
            "learning_rate",
            f"must be above 0 and finite; it holds {self.learning_rate}",
        )
        if self.micro_batch != "auto":
            require(
                1 <= self.micro_batch <= self.global_batch,
                "micro_batch",
                f"must be 1 to global_batch ({self.global_batch}); it holds {self.micro_batch}",
            )
        if self.memory_limit != "auto":
            parse_bytes(self.memory_limit, name="memory_limit")


@dataclass(frozen=True)
class CheckpointSettings:
    """When the state of training is saved."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    every_steps: int = key(200, "weight updates between two saves")
    keep: int = key(3, "newest checkpoints kept")
    remote: str = key(
        "", "s3://bucket/prefix: whole checkpoints are copied there, and read back where there are "
        "none; empty: nowhere"
    )  # fmt: skip
    endpoint_url: str = key(
        "",
        "S3 storage other than AWS's, such as http://minio:9000; empty: AWS_ENDPOINT_URL, or AWS",
    )

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            value = getattr(self, name)
            require(value >= 1, name, f"must be at least 1; it holds {value}")
        addresses.check_s3(self.remote)
        addresses.check_http(self.endpoint_url)


@dataclass(frozen=True)
class MonitoringSettings:
    """How training can be watched from outside."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    port: int = key(
        0, "Prometheus endpoint of the first worker; the next one on this machine has the next; "
        "0: off"
    )  # fmt: skip

    def __post_init__(self) -> None:
        require(0 <= self.port < 2**16, "port", f"must be 0 to 65535; it holds {self.port}")


@dataclass(frozen=True)
class NumberFeature:
    """A numeric column as the model reads it.

    Attributes:
        name: the column's name in the data.
        kind: ``int`` (int64 in the files) or ``float``.
        edges: increasing bin edges, float64, at least two; values are encoded piecewise-linearly
            between them (Gorishniy et al. 2022, arXiv:2203.05556).
        mean, scale: of the train split; scale is never 0.
        clip: least and greatest value that plain columns are clipped to when served, as the data
            were; empty: none.
        replace: pairs of a value and what replaces it there, as texts; an empty one is missing.
    """

    name: str
    kind: Literal["int", "float"]
    edges: tuple[float, ...]
    mean: float
    scale: float
    clip: tuple[float, ...] = ()
    replace: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CategoryFeature:
    """A string column as the model reads it, or a part of one that holds times.

    Attributes:
        name: the column's name in the data; of a part ``column:part``.
        vocabulary: known values, most frequent first. Ids: 0 missing, 1 unknown, then these from 2.
        part: one of `trainer.times.PARTS`; empty: the values as they are.
        trim: whether plain columns lose the blanks around them when served, as the data did.
        blank_to_missing: whether blanks alone are missing there.
        replace: pairs of a value and what replaces it there; an empty one is missing.
    """

    name: str
    vocabulary: tuple[str, ...]
    part: str = ""
    trim: bool = False
    blank_to_missing: bool = False
    replace: tuple[tuple[str, str], ...] = ()

    @property
    def column(self) -> str:
        """The column's name in the data."""
        return self.name.removesuffix(f":{self.part}") if self.part else self.name


@dataclass(frozen=True)
class TextFeature:
    """A text column as the model reads it.

    Attributes:
        name: the column's name in the data.
        sequence: tokens that the model sees at once.
        vocabulary: words, most frequent first; empty: bytes. Ids of bytes: 0..255, and 256 for the
            end of a document and for padding. Ids of words: 0 padding, 1 unknown, 2 end of a
            document, then these from 3.
    """

    name: str
    sequence: int
    vocabulary: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageFeature:
    """A column of encoded images as the model reads it.

    Attributes:
        name: the column's name in the data.
        size: S, pixels a side that the model sees.
        channels: C, 1 or 3.
        resize: pixels that the shorter side is resized to before S x S of them are cut out.
    """

    name: str
    size: int
    channels: int
    resize: int


@dataclass(frozen=True)
class LabelFeature:
    """What is predicted.

    Attributes:
        name: the column's name in the data; of a language model, the text column's.
        task: ``binary``, ``multiclass``, ``regression`` or ``causal-lm``.
        kind: type of the column in the files.
        classes: the label's values as text in class order, sorted (numbers by value); empty for
            regression. Class i has id i.
        frequencies: share of each class in the train split; empty for regression. Of a language
            model: of each token, as `trainer.texts.unigram` counts them.
        mean, scale: of the train split, for regression; 0 and 1 otherwise.
    """

    name: str
    task: Literal["binary", "multiclass", "regression", "causal-lm"]
    kind: Literal["int", "float", "string"]
    classes: tuple[str, ...] = ()
    frequencies: tuple[float, ...] = ()
    mean: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Features:
    """The columns that the model reads, in a fixed order, and the label."""

    numbers: tuple[NumberFeature, ...]
    categories: tuple[CategoryFeature, ...]
    label: LabelFeature
    text: TextFeature | None = None
    image: ImageFeature | None = None


@dataclass(frozen=True)
class Techniques:
    """What a training does to fit its memory: the settings above with every ``auto`` decided.

    Attributes:
        micro_batch: examples a device holds at once.
        recompute: how many of the model's blocks, from the first, recompute their activations.
        attention: ``plain`` or ``chunked``.
        token_loss: ``plain`` or ``chunked``; no other model than a language model reads it.
        shard: ``none``, ``optimizer``, ``gradients`` or ``parameters``.
        offload: ``none`` or ``cpu``.
    """

    micro_batch: int
    recompute: int = 0
    attention: Literal["plain", "chunked"] = "plain"
    token_loss: Literal["plain", "chunked"] = "plain"
    shard: Literal["none", "optimizer", "gradients", "parameters"] = "none"
    offload: Literal["none", "cpu"] = "none"


@dataclass(frozen=True)
class AugmentSettings:
    """What is changed in training batches, never in evaluation; by seed, epoch and index."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID_UNKNOWN_KEYS

    noise: float = key(0.0, "on numbers, in standard deviations of the train split; 0: none")
    mask: float = key(0.0, "share of categories and tokens of texts that are masked; 0: none")
    crop: float = key(
        0.0,
        "share that an image is resized larger by than model.image_size, which is cut out of it "
        "anywhere in training, and from the middle otherwise; 0: always from the middle",
    )
    flip: bool = key(False, "whether half of the images are mirrored, left to right")

    def __post_init__(self) -> None:
        require(0 <= self.noise <= 10, "noise", f"must be from 0 to 10; it holds {self.noise}")
        require(0 <= self.mask < 1, "mask", f"must be from 0 to below 1; it holds {self.mask}")
        require(0 <= self.crop <= 1, "crop", f"must be from 0 to 1; it holds {self.crop}")

    @property
    def is_on(self) -> bool:
        """Whether any number, category or token is changed."""
        return bool(self.noise or self.mask)

    @property
    def moves_images(self) -> bool:
        """Whether images are cut out anywhere, or mirrored."""
        return bool(self.crop or self.flip)


@dataclass(frozen=True)
class Job:
    """Everything that a training process is told: the content of ``job.json``.

    Attributes:
        train, eval: folders of column files (see ``trainer/batches.py``).
        checkpoints: folder of this fingerprint's checkpoints.
        export: folder that the SavedModel is written to, whole or absent.
        events: JSON-lines file that the process appends its progress to.
        result: JSON file written last, whole or absent.
        folder: what a model of the person's own is imported from; empty: no place of its own.
        purpose: ``train``; ``plan``: say what training would need; ``measure``: measure that.
        monitoring: how the process can be watched.
        lineage: digest of what else its result depends on, as its run knows it: code, packages,
            how often it was begun anew; empty: nothing.
        augment: what is changed in training batches.
    """

    model: ModelSettings
    training: TrainingSettings
    checkpoint: CheckpointSettings
    features: Features
    train: str
    eval: str
    checkpoints: str
    export: str
    events: str
    result: str
    folder: str = ""
    purpose: Literal["train", "plan", "measure"] = "train"
    monitoring: MonitoringSettings = MonitoringSettings()
    lineage: str = ""
    augment: AugmentSettings = AugmentSettings()


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
         "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip


def parse_bytes(text: str, *, name: str) -> int:
    """Return the bytes that a text such as ``8GiB`` stands for.

    Raises:
        ValueError: beginning with `name`, when it is no number with a unit.
    """
    digits = text.strip().rstrip("BKMGTibkmgt").strip()
    unit = text.strip()[len(digits) :].strip() or "B"
    try:
        size = float(digits) * UNITS[unit]
    except (ValueError, KeyError):
        size = 0.0
    require(0 < size < 2**62, name, f'must be a size such as "8GiB" or "500MB"; it holds "{text}"')
    return int(size)


def to_json(settings: Any) -> dict[str, Any]:
    """Return a settings dataclass as JSON-ready values (tuples become lists)."""
    return dataclasses.asdict(settings)


def training_from_json(values: dict[str, Any]) -> TrainingSettings:
    """Rebuild the `TrainingSettings` that `to_json` wrote, after a pass through JSON text."""
    return TrainingSettings(**{**values, "early_stop": EarlyStopSettings(**values["early_stop"])})


def _pairs(feature: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((old, new) for old, new in feature.get("replace", ()))


def job_from_json(values: dict[str, Any]) -> Job:
    """Rebuild the `Job` that `to_json` wrote, after a pass through JSON text."""
    features = values["features"]
    label = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in features["label"].items()
    }
    text = features.get("text")
    if text is not None:
        text = TextFeature(**{**text, "vocabulary": tuple(text["vocabulary"])})
    image = features.get("image")
    return Job(
        model=ModelSettings(**values["model"]),
        training=training_from_json(values["training"]),
        checkpoint=CheckpointSettings(**values["checkpoint"]),
        monitoring=MonitoringSettings(**values["monitoring"]),
        augment=AugmentSettings(**values.get("augment", {})),
        features=Features(
            numbers=tuple(
                NumberFeature(**{
                    **one,
                    "edges": tuple(one["edges"]),
                    "clip": tuple(one.get("clip", ())),
                    "replace": _pairs(one),
                })
                for one in features["numbers"]
            ),
            categories=tuple(
                CategoryFeature(**{
                    **one, "vocabulary": tuple(one["vocabulary"]), "replace": _pairs(one)
                })
                for one in features["categories"]
            ),
            label=LabelFeature(**label),
            text=text,
            image=None if image is None else ImageFeature(**image),
        ),
        **{name: values[name] for name in
           ("train", "eval", "checkpoints", "export", "events", "result", "folder", "purpose",
            "lineage")},
    )  # fmt: skip
