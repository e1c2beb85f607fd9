"""Locks between processes, which end with their process, however that ends."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_fsod.errors import UserError
from mini_fsod.files import unwritten

_ours: set[Path] = set()  # that this process holds


@contextmanager
def lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of that file, if no other process does; True if held.

    A lock of the process (POSIX), not of the open file (flock): children that a killed worker
    leaves behind do not keep it. The file stays: taking it away would let two hold "the" lock.
    """
    place = path.resolve()
    if place in _ours:  # to open it again, and close it, would free it
        yield True
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise unwritten(path, error) from None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise UserError(
                    f"{path}: cannot be locked ({error.strerror}).",
                    "Choose a folder on a file system that has locks.",
                ) from None
            held = False
        if held:
            _ours.add(place)
        try:
            yield held
        finally:
            _ours.discard(place)  # closing the file frees it
