"""Text of annotation files: how to read it, which numbers and names are valid, how to quote it."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any

from mini_fsod.files import read_bytes

QUOTED = 60  # characters of a value in a message


def read_text(path: Path, limit: int) -> str:
    """A UTF-8 file of at most `limit` bytes, or an OSError."""
    try:
        return read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "not UTF-8 text") from None


def number(text: str) -> float:
    """The number that a text stands for, "nan" and "inf" included; else a ValueError.

    1_0 and digits of other scripts are numbers to Python only, and refused.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(text[:QUOTED])
    return float(text)


def score_of(value: Any) -> float:
    """A box's score from 0 to 1; nan where a file has none, or something else."""
    if isinstance(value, str):
        try:
            value = number(value)
        except ValueError:
            return math.nan
    return float(value) if type(value) in (int, float) and 0 <= value <= 1 else math.nan


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: JSON and file systems may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """A value as messages quote it: like JSON, short and printable."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        value = value[: QUOTED + 1]
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()
