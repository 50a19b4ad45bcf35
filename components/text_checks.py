"""What a text or language model needs of its data, told from the statistics of both splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from components import text_choice
from components.verdict import Anomaly, count_rows
from trainer.texts import windows_of

if TYPE_CHECKING:
    from components.checks import Split


def text_anomalies(
    splits: Sequence[Split], text: str, settings: Mapping[str, Any]
) -> Iterator[Anomaly]:
    """Yield what makes the text column useless.

    Args:
        splits: all splits, train first, none of them empty.
        text: the text column that the model reads; empty: it reads none.
        settings: ``model``, ``sequence``, ``vocabulary`` and ``global_batch``.
    """
    if not text:
        return
    if text_choice.is_language_model(settings):
        for split in splits:
            yield from _windows(split, text, settings)
    elif splits[0].is_empty(text):
        message = f"column {text} has no text in any row of the train split"
        yield Anomaly(text, "NO_TEXT", splits[0].name, message)


def _windows(split: Split, text: str, settings: Mapping[str, Any]) -> Iterator[Anomaly]:
    tokens, sequence = least_tokens(split, text, settings["vocabulary"]), settings["sequence"]
    windows = windows_of(tokens, sequence)
    if not windows:
        message = (
            f"the {split.name} split has no token to predict: {count_rows(split.rows)} of it "
            f"hold no text in column {text}"
        )
        yield Anomaly(text, "NO_WINDOW", split.name, message)
    elif few := few_windows(windows, split.name, tokens, settings, is_train=split.name == "train"):
        yield few


def few_windows(
    windows: int, split: str, tokens: int, settings: Mapping[str, Any], *, is_train: bool
) -> Anomaly | None:
    """Return the anomaly of a train split that does not fill one batch with windows.

    Words are counted when the columns are written; what is said before goes by bytes.

    Args:
        windows: how many there are.
        split: its name.
        tokens: of the split.
        settings: ``vocabulary``, ``sequence`` and ``global_batch``.
        is_train: whether the split is learned from.
    """
    batch, sequence = settings["global_batch"], settings["sequence"]
    if not is_train or settings["vocabulary"] != "bytes" or windows >= batch:
        return None
    return Anomaly(
        "",
        "FEW_WINDOWS",
        split,
        f"{split} split has {tokens:,} tokens, which make {windows:,} "
        f"{'window' if windows == 1 else 'windows'} of model.sequence ({sequence:,}), fewer than "
        f"training.global_batch ({batch:,}): each epoch is one partial batch",
    )


def least_tokens(split: Split, text: str, vocabulary: str) -> int:
    """Return the tokens of a split's stream: exact for bytes, for words at least so many.

    A text has a token at least, and its end is one more.
    """
    if text not in split.columns or split.is_empty(text):
        return 0
    stats = split.columns[text].string_stats
    documents = split.rows - split.missing(text)
    if vocabulary != "bytes":
        return 2 * documents
    return round(stats.avg_length * documents) + documents
