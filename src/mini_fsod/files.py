"""Files written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mini_fsod.errors import UserError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside `path` and rename: a killed process leaves the old file or none, never half."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}).", "Choose another place."
        ) from None
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(content)
        # mkstemp makes private files; what people share should have their ordinary rights
        Path(part).chmod(0o666 & ~_umask())
        Path(part).replace(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}).", "Choose another place."
        ) from None
    finally:
        Path(part).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """JSON without NaN, a record of a list a line, the same bytes on every machine."""
    write_bytes(path, (dumps(value) + "\n").encode())


def dumps(value: Any) -> str:
    """Compact JSON that still reads and diffs well: lists of records get a line each."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    lines = []
    for key, part in value.items():
        if isinstance(part, list) and part and isinstance(part[0], dict):
            records = ",\n  ".join(json.dumps(r, ensure_ascii=False, allow_nan=False) for r in part)
            lines.append(f"{json.dumps(key)}: [\n  {records}\n ]")
        else:
            lines.append(
                f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False, allow_nan=False)}"
            )
    return "{\n " + ",\n ".join(lines) + "\n}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
