"""Temporary files and shared memory of this process. Those of killed ones are cleared first."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from secrets import token_hex

from mini_fsod.errors import UserError
from mini_fsod.files import is_file, lock

SHARED_MEMORY = Path("/dev/shm")
LOCK = "lock"
LAST = -200  # at the end, after multiprocessing has removed what it keeps there (-100)
LONGEST = 50  # characters of a folder in which sockets still fit: their paths have 107 at most

_folders: dict[int, Path] = {}  # by process: a fork makes one of its own
_locks = ExitStack()  # locks until the process ends


def temporary_folder() -> Path:
    """A folder that only this process writes to; it is removed at the end of the process."""
    process = os.getpid()
    if process not in _folders:
        home = Path(tempfile.gettempdir())
        home = home if len(str(home)) <= LONGEST else Path("/tmp")
        _clear(home)
        folder = home / f"{_prefix()}{token_hex(4)}"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be created ({error.strerror}).",
                "Choose another folder for temporary files with the variable TMPDIR.",
            ) from None
        _locks.enter_context(lock(folder / LOCK))
        Finalize(None, _remove, (folder,), exitpriority=LAST)  # not in a fork
        _folders[process] = folder
    return _folders[process]


def memory_name() -> str:
    """A new name for shared memory, by which it is found when this process was killed."""
    return f"{temporary_folder().name}-{token_hex(3)}"


def _prefix() -> str:
    return f"mini-{os.getuid()}-"


def _clear(home: Path) -> None:
    """Remove what processes left behind that no longer hold the lock of their folder."""
    for folder in home.glob(f"{_prefix()}*"):
        try:
            about = folder.lstat()
        except FileNotFoundError:  # its process has just ended
            continue
        # a link, somebody else's, this process's own, or without a lock: in the making
        ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
        if not ours or folder in _folders.values() or not is_file(folder / LOCK):
            continue
        with lock(folder / LOCK) as ended:
            if ended:
                _remove(folder)


def _remove(folder: Path) -> None:
    for block in SHARED_MEMORY.glob(f"{folder.name}-*"):
        block.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
