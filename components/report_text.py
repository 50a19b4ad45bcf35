"""How values become text on the report: escaped markup, readable numbers, nothing secret."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

VOID = frozenset({"input", "link", "meta"})
CLIPPED = 160
"""Characters of a name or value that are shown; the rest is replaced by an ellipsis."""
ABSENT = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Control characters may not stand in HTML: each is shown as its picture (U+2400 and on).
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
CONTROLS |= {0x7F: "\u2421", **dict.fromkeys(range(0x80, 0xA0), "\ufffd")}
SECRET_NAME = re.compile(r"password|passwd|secret|token|credential|api_?key|access_?key", re.I)
SECRET_IN_ADDRESS = re.compile(r"(://)[^/\s@]+@")
SECRET_IN_QUERY = re.compile(r"([?&](?:sig|signature|token|key|password|secret)=)[^&\s]+", re.I)


class Html(str):
    """Text that is markup already; every other text is escaped on its way into `tag`."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """Return `value` as markup that shows it literally, control characters as pictures."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(str(value).translate(CONTROLS), quote=True))


def join(parts: Iterable[Any]) -> Html:
    """Return the parts as one piece of markup, escaped where they are not markup yet."""
    return Html("".join(escape(part) for part in parts if part is not None))


def tag(element: str, *children: Any, **attributes: Any) -> Html:
    """Return one element with its children, everything escaped.

    Args:
        element: the element's name.
        children: texts and markup; None is left out.
        attributes: `class_` stands for class and `data_name` for data-name; None and False leave
            the attribute out, True writes it without a value.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if element in VOID:
        return Html(f"<{element}{written}>")
    return Html(f"<{element}{written}>{join(children)}</{element}>")


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def value_text(value: str) -> Html:
    """Return a data value or a column's name as it stands, clipped, apart from the page's text."""
    if not value:
        return tag("em", "empty text", class_="quiet")
    shown = value if len(value) <= CLIPPED else value[: CLIPPED - 1] + "…"
    return tag("bdi", shown, class_="value")


def to_float(value: Any) -> float | None:
    """Return a number of the journal as a float ("nan" and "inf" too), None when it is none."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def number(value: float | None, *, digits: int = 5) -> str:
    """Return a number with `digits` significant digits and thousands apart; whole ones exactly."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else (f"{MINUS}∞" if value < 0 else "∞")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", MINUS)
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size <= 9:
        mantissa, exponent = f"{value:.{digits - 2}e}".split("e")
        return f"{mantissa} {TIMES} 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace(
            "-", MINUS
        )
    decimals = max(digits - 1 - size, 0)
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)


def metric(value: Any) -> str:
    """Return a metric with four decimals, so that a column of them aligns."""
    value = to_float(value)
    if value is None:
        return "undefined"
    plain = math.isfinite(value) and (value == 0 or 1e-3 <= abs(value) < 1e5)
    return f"{value:,.4f}".replace("-", MINUS) if plain else number(value)


def share(part: float, whole: float) -> str:
    """Return part of whole in per cent; only nothing shows as 0 %, only all of it as 100 %."""
    if whole <= 0:
        return ABSENT
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if part in {0, whole} else f"{percent:.1f} %"


def seconds_text(seconds: float) -> str:
    """Return a span of time in its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def without_secrets(text: str) -> str:
    """Return `text` without the user and password or the signature of an address in it."""
    return SECRET_IN_QUERY.sub(r"\1•••", SECRET_IN_ADDRESS.sub(r"\1•••@", text))


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as rows of dotted key and text, secrets blotted out."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            rows += flatten(value, f"{key}.")
        elif SECRET_NAME.search(str(name)) and value:
            rows.append((key, "•••"))
        elif str(name).endswith("_bytes") and isinstance(value, int | float):
            rows.append((key, f"{value / 2**20:,.1f} MiB"))
        else:
            rows.append((key, without_secrets(_setting(value))))
    return rows


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_setting(one) for one in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_setting(one)}" for name, one in value.items()) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value, digits=12)
    return str(value) if value not in {None, ""} else "not set"
