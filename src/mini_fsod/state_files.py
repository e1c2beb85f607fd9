"""Reads the files in which mini keeps its state, such as `metrics.json`: parsed, and checked.

A kind is any type that pydantic knows. What is read stays plain: the kind only says what must be
there, and of which types. Further keys are allowed.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mini_fsod.errors import UserError
from mini_fsod.files import mode, open_regular
from mini_fsod.limits import QUOTED, STATE_BYTES

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class Kind(BaseModel):
    """What a JSON object must have."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, arbitrary_types_allowed=True)


def read_state_file(path: Path, kind: Any, fix: str, max_bytes: int = STATE_BYTES) -> Any:
    """The JSON in a file that mini wrote; None where there is no file.

    A UserError names the file where it is not of this kind; `fix` says what to do then.
    """
    if not mode(path):
        return None
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"more than {max_bytes:,} bytes")
        return check_kind(json.loads(content, parse_constant=_refuse), kind)
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", None) or error)[:QUOTED]
        raise UserError(f"{path}: cannot be read ({why}).", fix) from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word}, which is not JSON")


def check_kind(value: Any, kind: Any, as_json: bool = False) -> Any:
    """The value itself; a ValueError of one line where it is not of this kind.

    `as_json`: lists stand for tuples, and objects for dataclasses.
    """
    try:
        if as_json:
            _adapter(kind).validate_json(json.dumps(value), strict=True)
        else:
            _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = re.sub(r" or instance of \w+", "", first["msg"])
        raise ValueError(f"{where}: {what}".removeprefix(": ")[:QUOTED]) from None
    return value


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
