"""HTML whose text is escaped unless it is known to be HTML."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_VOID = {"img", "input", "br", "meta"}


class Html(str):
    """Text that is HTML already; everything else is escaped where it enters."""

    __slots__ = ()


def tag(name: str, *content: str | None, **attributes: object) -> Html:
    """An element: `tag("p", "a < b", class_="note")`.

    Arguments:
        content: text, which is escaped, or `Html`; None is left out.
        attributes: `class_` is class, `data_x` is data-x; None and False are left out, True has no value.
    """
    opening = "".join(_attribute(attribute, value) for attribute, value in attributes.items())
    if name in _VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{join(content)}</{name}>")


def join(content: Iterable[str | None]) -> Html:
    """One after another, escaped where it is not HTML."""
    return Html("".join(safe(part) for part in content if part is not None))


def safe(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(text))


def data(value: Any) -> Html:
    """A block of JSON for the script; no text in it can end the block."""
    text = json.dumps(finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json">{text}</script>')


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
