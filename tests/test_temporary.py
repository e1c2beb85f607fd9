"""Temporary folders end with their process, or when the next one starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_fsod.temporary import SHARED_MEMORY, memory_name, temporary_folder

START = """
import os, signal
from multiprocessing.shared_memory import SharedMemory
from multiprocessing import resource_tracker
from mini_fsod.loader import decode
from mini_fsod.temporary import memory_name, temporary_folder

if __name__ == "__main__":
    block = SharedMemory(memory_name(), create=True, size=100)
    with decode.worker_pool(1) as pool:
        pool.submit(decode.cores).result()
        print(temporary_folder(), block.name, flush=True)
        {end}
    block.close()
    block.unlink()
"""
KILL = "os.kill(resource_tracker._resource_tracker._pid, 9); os.kill(os.getpid(), 9)"


def start(folder: Path, end: str = "pass") -> tuple[int, Path, Path]:
    """A process with a folder, sockets and shared memory in it: its exit code, and both."""
    script = folder / "start.py"
    script.write_text(START.format(end=end))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == "" or done.returncode
    made, block = done.stdout.split()
    return done.returncode, Path(made), SHARED_MEMORY / block


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, so that sockets fit."""
    home = Path("/tmp") / f"mini-test-{os.getpid()}"
    home.mkdir()
    yield home
    for path in home.iterdir():
        path.unlink() if path.is_file() else path.rmdir()
    home.rmdir()


def test_temporary_folder_is_private_and_ends_with_the_process(home: Path) -> None:
    assert temporary_folder().stat().st_mode & 0o777 == 0o700
    assert temporary_folder() is temporary_folder()
    assert memory_name() != memory_name()
    code, made, block = start(home)
    assert code == 0
    assert made.parent == home
    assert [path.name for path in home.iterdir()] == ["start.py"]
    assert not block.exists()


@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="shared memory has no folder here")
def test_temporary_folder_clears_what_killed_processes_left(home: Path) -> None:
    code, killed, block = start(home, KILL)
    assert code == -signal.SIGKILL
    assert killed.is_dir()
    assert block.exists()
    others = home / "mini-0-of-another"
    others.mkdir()  # no lock in it: not one of ours, or in the making
    start(home)
    assert not killed.exists()
    assert not block.exists()
    assert others.is_dir()
