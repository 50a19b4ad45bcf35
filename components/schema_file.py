"""The text of a ``.pbtxt`` schema that people own: written with comments, changed entry by entry.

An entry is a feature or a domain with the comments above it. A change rewrites the entries that it
concerns and leaves every other byte as it was. Light: imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from components.schema_words import domains_of, expectation
from trainer.errors import SettingError

KEY = "validation.schema"
ACCEPTED = "# accepted "
"""How a line of the file begins that tells of a change."""


def schema_text(schema: schema_pb2.Schema) -> str:
    """Return a schema as the text of a ``.pbtxt`` file."""
    return text_format.MessageToString(schema, as_utf8=True)


def parse_schema(text: str, path: str) -> schema_pb2.Schema:
    """Return the schema that a ``.pbtxt`` file's text stands for.

    Raises:
        SettingError: naming the file and the line that cannot be parsed.
    """
    try:
        return text_format.Parse(text, schema_pb2.Schema())
    except text_format.ParseError as error:
        raise SettingError(
            f"this file is no schema: {error}",
            where=KEY,
            holds=f'"{path}"',
            right='name a .pbtxt file with a tensorflow.metadata.v0.Schema, or use "infer"',
        ) from error


def read_text(path: str | Path) -> str:
    """Return the text of a schema file.

    Raises:
        SettingError: when it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SettingError(
            f"this file cannot be read ({reason})",
            where=KEY,
            holds=f'"{path}"',
            right='name a .pbtxt file that is there, or use "infer"',
        ) from error


def commented(
    schema: schema_pb2.Schema, head: Iterable[str], tell: Callable[[str], str] = lambda _: ""
) -> str:
    """Return a schema as text for people: a head, and above each column what is asked of it.

    Args:
        schema: the schema.
        head: lines of the head, without ``#``.
        tell: gives more about a column; empty: nothing.
    """
    domains = domains_of(schema)
    parts = ["".join(f"# {line}".rstrip() + "\n" for line in head)]
    for one in schema.feature:
        more = tell(one.name)
        told = expectation(one, domains) + (f"; {more}" if more else "")
        parts.append(f"# {_one_line(told)}\n{_entry_text('feature', one)}")
    parts += [_entry_text("string_domain", one) for one in schema.string_domain]
    rest = schema_pb2.Schema()
    rest.CopyFrom(schema)
    rest.ClearField("feature")
    rest.ClearField("string_domain")
    parts.append(schema_text(rest))
    return "\n".join(part for part in parts if part)


def accepted_line(what: str, *, who: str, reason: str, when: datetime | None = None) -> str:
    """Return the comment that records a change: when, what, by whom and why."""
    stamp = (when or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    return f"{ACCEPTED}{stamp}, {_one_line(who)}: {_one_line(what)}; reason: {_one_line(reason)}"


def history(text: str) -> list[str]:
    """Return the recorded changes of a schema's text, oldest first."""
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith(ACCEPTED)]


def changed_text(text: str, after: schema_pb2.Schema, lines: Sequence[str] = ()) -> str:
    """Return a file's text with what differs in `after` changed, and lines added to its history.

    Args:
        text: the file's text before.
        after: the schema that it is to hold.
        lines: comments, as `accepted_line` gives them.
    """
    entries = list(_entries(text))
    wanted = {
        "feature": {one.name: one for one in after.feature},
        "string_domain": {one.name: one for one in after.string_domain},
    }
    written: list[str] = []
    for entry in entries:
        kind, one = entry.holds()
        if kind not in wanted:
            written.append(entry.lead + entry.text)
            continue
        new = wanted[kind].pop(one.name, None)
        if new == one:
            written.append(entry.lead + entry.text)
        elif new is not None:
            written.append(entry.lead + _entry_text(kind, new).rstrip("\n"))
    tail = entries[-1].tail if entries else text
    result = "".join(written) + (tail if tail.endswith("\n") or not tail else tail + "\n")
    for kind, others in wanted.items():
        result += "".join("\n" + _entry_text(kind, one) for one in others.values())
    if parse_schema(result, "") != after:
        # Something beside features and domains differs: all is written anew, and comments go.
        result = "".join(f"{line}\n" for line in _head(text)) + schema_text(after)
    return _with_lines(result, lines)


def _with_lines(text: str, lines: Sequence[str]) -> str:
    """Return the text with comments added behind those that it begins with."""
    if not lines:
        return text
    head = _head(text)
    at = sum(len(line) + 1 for line in head)
    return text[:at] + "".join(f"{line}\n" for line in lines) + text[at:]


def _head(text: str) -> list[str]:
    """Return the comments that a file begins with."""
    head: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        head.append(line)
    return head


def _entry_text(kind: str, one: Any) -> str:
    whole = schema_pb2.Schema()
    getattr(whole, kind).append(one)
    return schema_text(whole)


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass
class _Entry:
    """A field of the file at its top level.

    Attributes:
        lead: blank space and comments above it.
        text: the field.
        tail: what stands below the last entry.
    """

    lead: str
    text: str
    tail: str = ""

    def holds(self) -> tuple[str, Any]:
        """Return the field's name and its message; another field than a feature or domain: None."""
        parsed = text_format.Parse(self.text, schema_pb2.Schema())
        for kind in ("feature", "string_domain"):
            if found := getattr(parsed, kind):
                return kind, found[0]
        return "", None


def _entries(text: str) -> list[_Entry]:
    """Return the fields at the top level of a text that parses."""
    found: list[_Entry] = []
    start, at = 0, 0
    while (begin := _skip_blank(text, at)) < len(text):
        at = _end_of_field(text, begin)
        found.append(_Entry(text[start:begin], text[begin:at]))
        start = at
    if found:
        found[-1].tail = text[start:]
    return found


def _skip_blank(text: str, at: int) -> int:
    """Return where the next thing stands that is no blank, separator or comment."""
    while at < len(text):
        if text[at] == "#":
            at = _line_end(text, at)
        elif text[at].isspace() or text[at] in ",;":
            at += 1
        else:
            break
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _end_of_field(text: str, at: int) -> int:
    """Return the end of the field that begins here: its closing brace, or the end of its line."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "\"'":
            at = _end_of_string(text, at)
            continue
        if char == "#":
            at = _line_end(text, at)
            continue
        depth += (char in "{<[") - (char in "}>]")
        at += 1
        if depth == 0 and (char in "}>]" or text[at : at + 1] == "\n"):
            return at
    return at


def _end_of_string(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1
