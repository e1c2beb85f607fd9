"""Types of values: numbers, lists and paths, and the messages for invalid ones.

Files and --set give strings; the type of the key decides what a string means. So 1e-4 is a number
where a number is wanted, and a class may be called no, 1.0 or null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import ValidationInfo as Info
from pydantic import field_validator as check
from pydantic_core import ErrorDetails

from mini_fsod.data.text import number, shown
from mini_fsod.errors import nearest, repeated
from mini_fsod.files import is_folder
from mini_fsod.labels import SPLITS
from mini_fsod.remote import as_path

NULLS = ("", "~", "null", "Null", "NULL")  # the ways to write null in YAML

TORCHVISION = "torchvision:"  # before the name of a detector that torchvision publishes
TORCHVISION_DETECTORS = ("fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2")

# Messages for pydantic's types of errors
MESSAGES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "too_short": "must have at least one value",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):  # a number to Python
        raise ValueError(f"must be a number, not {shown(value)}")
    return value


def _parse_bool(value: Any) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _parse_list(value: Any) -> Any:
    """A list may be written without its brackets."""
    if value is None:
        return []
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value if isinstance(value, list | tuple) else [value]


def _expand_home(value: Any) -> Any:
    """The shell does not expand the ~ of `--set data.root=~/voc`."""
    return str(Path(value).expanduser()) if str(value).startswith("~/") else value


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError(f"must ascend, not {list(values)}")
    return values


def _length(length: int, meaning: str) -> AfterValidator:
    def check_length(values: tuple[float, ...]) -> tuple[float, ...]:
        if len(values) != length:
            raise ValueError(f"must be {meaning}, not {len(values)}")
        return values

    return AfterValidator(check_length)


def _fractions(values: tuple[float, ...]) -> tuple[float, ...]:
    if max(values, default=0) > 1:
        raise ValueError(f"must be fractions of the run, at most 1, not {list(values)}")
    return values


def _threshold(value: Any) -> Any:
    with suppress(ValueError, TypeError):
        if value == "adaptive" or (not isinstance(value, bool) and 0 <= float(value) <= 1):
            return value
    raise ValueError(f"must be adaptive or a number from 0 to 1, not {shown(value)}")


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = repeated(values)
    if twice:
        raise ValueError(f"names {', '.join(twice[:10])} twice")
    return values


def _matching(pattern: str, known: Sequence[str]) -> AfterValidator:
    def check_name(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(choice(value, known))
        return value

    return AfterValidator(check_name)


def torchvision_name(value: Path | None) -> str | None:
    """The name in `torchvision:NAME`; None for a path."""
    text = str(value)
    return text.removeprefix(TORCHVISION) if text.startswith(TORCHVISION) else None


def _without_folder(value: Any) -> Any:
    """Runs of early versions have stored ../../torchvision:NAME, as if it were a file."""
    name = Path(value).name if isinstance(value, str | Path) else ""
    known = name.removeprefix(TORCHVISION) in TORCHVISION_DETECTORS
    return name if known and name.startswith(TORCHVISION) else value


def _known_detector(value: Path) -> Path:
    name = torchvision_name(value)
    if name is not None and name not in TORCHVISION_DETECTORS:
        known = [f"{TORCHVISION}{known}" for known in TORCHVISION_DETECTORS]
        raise ValueError(choice(str(value), ["a file or a run", *known]))
    return value


def _pool_of_run(value: Path) -> Path:
    return value / "pool.json" if is_folder(value) else value


Int = Annotated[int, BeforeValidator(_reject_bool), Field(gt=-(1 << 53), lt=1 << 53)]
Float = Annotated[float, BeforeValidator(_reject_bool)]
NonNegative = Annotated[Int, Field(ge=0)]
Count = Annotated[Int, Field(ge=1)]
Positive = Annotated[Float, Field(gt=0)]
Fraction = Annotated[Float, Field(ge=0, lt=1)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]
Names = Annotated[tuple[str, ...], BeforeValidator(_parse_list), AfterValidator(_unique)]
Sizes = Annotated[tuple[Count, ...], BeforeValidator(_parse_list), Field(min_length=1)]
Numbers = Annotated[tuple[Positive, ...], BeforeValidator(_parse_list), AfterValidator(_ascending)]
Anchors = Annotated[Numbers, _length(5, "5 sizes, one per pyramid level")]
Interval = Annotated[Numbers, _length(2, "two factors, as in [0.5, 1.25]")]
Fractions = Annotated[Numbers, AfterValidator(_fractions)]
UserPath = Annotated[Path, BeforeValidator(_expand_home)]
DataPath = Annotated[UserPath, AfterValidator(as_path)]  # may be a URL
DetectorPath = Annotated[
    UserPath, BeforeValidator(_without_folder), AfterValidator(_known_detector)
]
PoolPath = Annotated[UserPath, AfterValidator(_pool_of_run)]
NameOrFile = Annotated[str, BeforeValidator(_expand_home)]
Auto = Annotated[Literal["auto", True, False], BeforeValidator(_parse_bool)]
StrongViews = Annotated[Literal[True, False, "stac"], BeforeValidator(_parse_bool)]
AdaptiveOrNumber = Annotated[Literal["adaptive"] | float, BeforeValidator(_threshold)]
SplitName = Annotated[str, _matching("|".join(SPLITS), [*SPLITS])]
Device = Annotated[str, _matching("auto|cpu|cuda(:[0-9]+)?", ["auto", "cpu", "cuda", "cuda:1"])]


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )
    either: ClassVar[tuple[str, str] | None] = None  # two keys that exclude each other

    @check("*", mode="before")
    @classmethod
    def _null(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value in NULLS else value

    @check("*")
    @classmethod
    def _not_both(cls, value: Any, info: Info) -> Any:
        other, name = cls.either or ("", "")
        if value and info.field_name == name and info.data.get(other):
            raise ValueError(f"cannot be given together with {other}: remove one of them")
        return value


def choice(value: object, known: Sequence[str]) -> str:
    """The message for a value that is none of the known ones."""
    hint = nearest(value, known) if isinstance(value, str) else ""
    message = f"must be {', '.join(known[:-1])} or {known[-1]}, not {shown(value)}"
    return message + (hint and f".{hint}")


def explain(error: ErrorDetails) -> str:
    """pydantic's error in plain English."""
    value, context = error["input"], error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] == "literal_error":
        known = str(context["expected"]).replace("'", "").replace(" or ", ", ").lower()
        return choice(value, known.split(", "))
    if error["type"] not in MESSAGES:
        return error["msg"]
    return f"{MESSAGES[error['type']].format(**context)}, not {quoted(value)}"


def quoted(value: Any) -> str:
    """A value in a message. Numbers are strings in files, and need no quotes."""
    if isinstance(value, str) and len(value) < 30:
        with suppress(ValueError):
            number(value)
            return value
    return shown(value)
