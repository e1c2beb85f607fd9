"""Numbers and words as annotation files hold them: what counts as one, and how to quote it."""

from __future__ import annotations

import json
from typing import Any

SHOWN = 60  # characters of a value in a message


def number(text: str) -> float:
    """The number a text states; "nan" and "inf" are such, as they are to other tools.

    ValueError for all else, also for what only Python takes for a number: 1_0, digits of other
    scripts.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(text[:SHOWN])
    return float(text)


def is_text(value: str) -> bool:
    """Whether it can be written anywhere: JSON and file systems let half characters through."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value in a message, as JSON writes it: short, and printable whatever it holds."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: SHOWN + 1]
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()
