"""What a key may hold: kinds of numbers, lists and places, and what to say of a wrong one.

Files and --set give words, and the key decides what a word means: so 1e-4 is a number where one is
wanted, and a class may be called no, 1.0 or null.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check

from mini_fsod.data.text import shown
from mini_fsod.errors import nearest

NOTHING = ("", "~", "null", "Null", "NULL")  # how YAML leaves a value out


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # a number to Python
        raise ValueError(f"must be a number, not {shown(value)}")
    return value


def _truth(value: Any) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _listed(value: Any) -> Any:
    """A list may be typed without its brackets."""
    if value is None:
        return []
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value if isinstance(value, list | tuple) else [value]


def _at_home(value: Any) -> Any:
    """The shell leaves the ~ of `--set data.root=~/voc` as it is."""
    return str(Path(value).expanduser()) if str(value).startswith("~/") else value


Int = Annotated[int, BeforeValidator(_no_truth)]
Float = Annotated[float, BeforeValidator(_no_truth)]
Whole = Annotated[Int, Field(ge=0)]
Count = Annotated[Int, Field(ge=1)]
Positive = Annotated[Float, Field(gt=0)]
Share = Annotated[Float, Field(ge=0, lt=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_listed)]
Numbers = Annotated[tuple[Positive, ...], BeforeValidator(_listed)]
Place = Annotated[Path, BeforeValidator(_at_home)]
NameOrFile = Annotated[str, BeforeValidator(_at_home)]
Auto = Annotated[Literal["auto", True, False], BeforeValidator(_truth)]


def choice(value: object, known: Sequence[str]) -> str:
    """What to say of a value that is none of the known ones."""
    near = nearest(value, known) if isinstance(value, str) else ""
    return f"must be {', '.join(known[:-1])} or {known[-1]}, not {shown(value)}" + sentence(near)


def sentence(hint: str) -> str:
    """A hint after a problem, which has no full stop of its own."""
    return hint and f".{hint}"


def ascending(values: tuple[float, ...]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError(f"must ascend, not {list(values)}")


def not_both(other: str, value: Any, info: Info) -> None:
    if value and info.data.get(other):
        raise ValueError(f"cannot be given together with {other}: leave one of them out")


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @check("*", mode="before")
    @classmethod
    def _nothing(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value in NOTHING else value
