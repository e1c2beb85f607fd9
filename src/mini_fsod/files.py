"""Files read without surprises, and written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from mini_fsod.errors import UserError

FREE_SPACE = "Free some space and repeat the command: what was begun goes on where it was."


def mode(path: Path) -> int:
    """Type and rights of a file, 0 if there is none that can be looked at.

    Never raises, whatever the name: too long, with a NUL, not text, a loop of links.
    """
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def is_file(path: Path) -> bool:
    return stat.S_ISREG(mode(path))


def is_folder(path: Path) -> bool:
    return stat.S_ISDIR(mode(path))


def real(path: Path) -> Path:
    """The path without links and dots; one that cannot be followed stays as it is."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def open_regular(path: Path) -> BinaryIO:
    """Open for reading. Folders, pipes and devices are an OSError: a pipe would wait for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return path.open("rb")
    except ValueError:  # a NUL in the name, or no text
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None


def is_full(error: BaseException | None) -> bool:
    """Whether a disk, or somebody's share of it, has no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritten(path: Path, error: OSError | ValueError) -> UserError:
    """Why a file cannot be written, and what to do."""
    return UserError(
        f"{path}: cannot be written ({getattr(error, 'strerror', error)}).",
        FREE_SPACE if is_full(error) else "Choose another place.",
    )


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside `path` and rename: a killed process leaves the old file or none, never half."""
    if mode(path) and not is_file(path):
        raise unwritten(path, OSError(errno.EEXIST, "it exists and is no regular file"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except (OSError, ValueError) as error:
        raise unwritten(path, error) from None
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(content)
        # mkstemp makes private files; what people share should have their ordinary rights
        Path(part).chmod(0o666 & ~_umask())
        Path(part).replace(path)
    except OSError as error:
        raise unwritten(path, error) from None
    finally:
        Path(part).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """JSON without NaN, a record of a list a line, the same bytes on every machine."""
    try:
        content = (dumps(value) + "\n").encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{path}: cannot be written: a name in it is not valid text "
            f"({error.object[max(error.start - 20, 0) : error.start + 20]!a}).",
            "Rename the file or class.",
        ) from None
    write_bytes(path, content)


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


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
