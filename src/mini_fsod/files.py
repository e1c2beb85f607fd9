"""Reading only regular files, writing files atomically, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO

from mini_fsod.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

CONFIG_FILE = "config.yaml"  # in the folder of a run
CHECKPOINT_FILE = "checkpoint.safetensors"  # in the folder of a stage
DETECTOR_FILE = "detector.safetensors"  # in the folder of a run: that of its last trained stage
FREE_SPACE = "Free some space and repeat the command: it resumes where it stopped."

PART = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)

_locked: set[Path] = set()  # by this process


def default_cache_folder() -> Path:
    """The folder of caches unless data.cache names another."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mini"


def mode(path: Path) -> int:
    """Type and permissions of a file (`st_mode`), 0 if there is none or it cannot be accessed.

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
    """The path with links and dots resolved; unchanged where that fails."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return path


def open_regular(path: Path) -> BufferedReader:
    """Open for reading. Folders, pipes and devices are an OSError: a pipe could block for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return path.open("rb")
    except ValueError:  # a NUL in the name, or not text
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None


def length_of(source: BinaryIO) -> int:
    """Bytes of an open file, from its beginning."""
    length = source.seek(0, os.SEEK_END)
    source.seek(0)
    return length


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes, or an OSError before it is read."""
    with open_regular(path) as source:
        too_large = OSError(errno.EFBIG, f"larger than {limit / 2**20:,.0f} MB")
        size = length_of(source)
        if size > limit:
            raise too_large
        # to read N bytes takes the memory of N bytes, whatever is there
        content = source.read(size + 1)
        while len(content) > size:  # it grows
            size = len(content)
            content += source.read(min(limit - size, size) + 1)
            if len(content) > limit:
                raise too_large
    return content


def is_full(error: BaseException | None) -> bool:
    """Whether the disk or the quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def unwritten(path: Path, error: OSError | ValueError) -> UserError:
    """The error of a file that cannot be written, with its cause and what to do."""
    return UserError(
        f"{path}: cannot be written ({getattr(error, 'strerror', error)}).",
        FREE_SPACE if is_full(error) else "Choose another path.",
    )


def part_of(path: Path) -> Path:
    """A name beside `path` for what is not complete yet."""
    return path.with_name(f".{path.name}.{token_hex(4)}.part")


def remove_leftovers(parts: Iterable[Path]) -> None:
    """Delete those of the paths that `part_of` has named: a process that was killed left them."""
    for path in parts:
        if PART.fullmatch(path.name) and not is_folder(path):
            path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: a killed process leaves the old file or none."""
    with _written(path) as target:
        target.write(content)


def copy_content(source: Path, target: Path) -> None:
    """Like `write_bytes`, with the content of another file, which may be large."""
    with open_regular(source) as content, _written(target) as copy:
        shutil.copyfileobj(content, copy)


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    if mode(path) and not is_file(path):
        raise unwritten(path, OSError(errno.EEXIST, "it exists and is not a regular file"))
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = part.open("xb")  # readable by whom the umask lets
    except (OSError, ValueError) as error:
        raise unwritten(path, error) from None
    try:
        with target:
            yield target
        part.replace(path)
    except OSError as error:
        raise unwritten(path, error) from None
    finally:
        part.unlink(missing_ok=True)


def write_image(path: Path, image: Image, file_format: str = "PNG", **options: Any) -> None:
    """Like `write_bytes`; `options` are those of `Image.save`."""
    content = BytesIO()
    image.save(content, file_format, **options)
    write_bytes(path, content.getvalue())


def write_json(path: Path, value: Any) -> None:
    """Write JSON without NaN, one line per record of a list, the same bytes on every machine."""
    try:
        content = (dumps(value) + "\n").encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{path}: cannot be written, a name in it is not valid text "
            f"({error.object[max(error.start - 20, 0) : error.start + 20]!a}).",
            "Rename the file or class.",
        ) from None
    write_bytes(path, content)


def dumps(value: Any) -> str:
    """Compact JSON that reads and diffs well: one line per key, and per record of a list."""
    text = partial(json.dumps, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict):
        return text(value)
    lines = []
    for key, part in value.items():
        content = text(part)
        if isinstance(part, list) and part and isinstance(part[0], dict):
            content = "[\n  " + ",\n  ".join(map(text, part)) + "\n ]"
        lines.append(f"{json.dumps(key)}: {content}")
    return "{\n " + ",\n ".join(lines) + "\n}"


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with open_regular(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of that file; yields False if another process holds it and `wait` is not set.

    A lock of the process (POSIX), not of the open file (flock): it ends with the process, and child
    processes that survive do not keep it. The file is never deleted: otherwise two processes could
    hold locks of one path.
    """
    key = real(path)
    if key in _locked:  # opening and closing the file again would release the lock
        yield True
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # without waiting for the other end, where somebody put a pipe there
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        file = os.fdopen(os.open(path, flags, 0o666), "ab")
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise unwritten(path, error) from None
        raise UserError(
            f"{path}: cannot be locked ({error.strerror}).", "Delete it, or choose another folder."
        ) from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise UserError(
                    f"{path}: cannot be locked ({error.strerror}).",
                    "Choose a folder on a file system that supports locks.",
                ) from None
            locked = False
        if locked:
            _locked.add(key)
        try:
            yield locked
        finally:
            _locked.discard(key)  # closing the file releases the lock
