"""Names, values and addresses as MLflow takes them: characters, lengths, no credentials."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

NAME_LIMIT = 250
PARAMETER_LIMIT = 6000
TAG_LIMIT = 8000
"""Characters that MLflow 3 takes for a name, a parameter's value and a tag's value."""

HIDDEN = "***"
"""What stands in an address in place of ``user:password``."""

# Every literal "_x" is marked, so that "_x" in a stored name always begins a mark and reading from
# the left gives the name back. To mark only what looks like a whole mark is not enough: "_x5(" and
# a control character before "x28_" would both be stored as "_x5_x28_".
_ESCAPE = re.compile(r"_(?=x)")
_CREDENTIALS = re.compile(r"(://)[^/@\s\"']+@")


def stored_name(name: str) -> str:
    """Return `name` in characters that MLflow takes; two names never become the same one.

    Letters, digits, ``_ - .``, space and ``/`` between parts stay. Any other character becomes
    ``_x<hexadecimal code>_``, and so does an underscore before an ``x``. A part
    ``.`` or ``..``, an empty part and an empty name are written the same way, since MLflow also
    takes names for paths. What is longer than `NAME_LIMIT` ends in a digest of the whole.
    """
    marked = _ESCAPE.sub("_x5f_", name)
    parts = [_stored_part(part) for part in marked.split("/")]
    stored = parts[0]
    for before, part in pairwise(parts):
        stored += ("_x2f_" if not before or not part else "/") + part
    return cut_name(stored or "_x_")


def cut_name(stored: str) -> str:
    """Return an allowed name within `NAME_LIMIT`; what is cut ends in a digest of the whole."""
    if len(stored) <= NAME_LIMIT:
        return stored
    return stored[: NAME_LIMIT - 17] + "-" + hashlib.sha256(stored.encode()).hexdigest()[:16]


def _stored_part(part: str) -> str:
    if part in {".", ".."}:
        return "_x2e_" * len(part)
    return re.sub(r"[^\w.\- ]", lambda found: f"_x{ord(found[0]):x}_", part)


def shortened(value: str, limit: int) -> str:
    """Return `value` cut to `limit` characters, the end saying so, how long it was and its digest.

    The digest keeps two long values that only differ at the end apart.
    """
    if len(value) <= limit:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:12]
    mark = f"...(truncated, {len(value)} chars, sha256 {digest})"
    return value[: limit - len(mark)] + mark


def plain_text(value: Any) -> str:
    """Return `value` as text that every store takes: valid UTF-8, credentials in addresses gone."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return without_credentials(text.encode("utf-8", "backslashreplace").decode())


def without_credentials(text: str) -> str:
    """Replace ``user:password@`` in every address within `text` by ``***@``."""
    return _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a ``sqlite:///`` address; None for any other address."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").partition("?")[0])
