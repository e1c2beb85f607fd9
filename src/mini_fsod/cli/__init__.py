"""The command `mini`: options in, exit code out.

What a command needs is imported inside it, so that help is there at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from mini_fsod import __version__
from mini_fsod.cli import data, runs  # noqa: F401 - they register their commands, in this order
from mini_fsod.commands.options import app
from mini_fsod.errors import UserError
from mini_fsod.files import FREE_SPACE, is_full

STOPPED = 130  # the exit code of a process that somebody has interrupted
RESUMED = ("run", "study", "pretrain", "demo")  # commands that go on where they were

# glibc's malloc.h: freed memory above the heap that goes back, and sizes that never join the heap
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = (1 << 30, 1 << 25)  # bytes; older ones of glibc refuse the first


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mini {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the version. Example: mini --version",
        ),
    ] = False,
) -> None:
    """Few-shot object detection: show it K boxes of a new class, and it finds that class."""


def main() -> None:
    # Threads that spin while they wait lose a core to any other process, and then wait for each
    # other: beside one busy process, training on 2 cores fell from 25 to 2 images a second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_memory()
    threading.excepthook = _in_thread
    for stream in (sys.stdout, sys.stderr):
        # a terminal or pipe that knows ASCII alone still gets every word
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        from mini_fsod import console

        console.error(error)
        sys.exit(2)
    except OSError as error:
        # what nobody could foresee: standard output on a full disk, a folder that goes away
        print(f"Error {error}.{f' {FREE_SPACE}' * is_full(error)}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes the one of the other
        if isinstance(end, SystemExit) and end.code != STOPPED:
            raise
        print(f"Stopped.{_how_to_go_on(sys.argv[1:])}", file=sys.stderr)
        sys.exit(STOPPED)


def _keep_memory() -> None:
    """Use freed memory again instead of asking the system for other: it hands out pages one by one,
    each filled with zeros, which takes as long as a convolution (docs/results.md, without a GPU).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # not every C library has it
        return
    for size in KEPT:
        if mallopt(M_MMAP_THRESHOLD, size):
            mallopt(M_TRIM_THRESHOLD, size)
            return


def _how_to_go_on(words: Sequence[str]) -> str:
    if not words or words[0] not in RESUMED:
        return ""
    again = any(word.partition("=")[0] == "--from" for word in words)  # it would begin anew
    return f" The same command {'without --from ' * again}goes on."


def _in_thread(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread of its own: of a full disk the training tells."""
    if not is_full(failed.exc_value):
        threading.__excepthook__(failed)
