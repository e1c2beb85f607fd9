"""The command line `mini`: its commands, exit codes and interruptions.

Each command is one file in `mini_fsod/commands`. Heavy modules such as torch are imported inside
the commands that need them, so that `mini --help` is fast.
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
from typer import Option

from mini_fsod import __version__
from mini_fsod.commands import (  # noqa: F401 - each module registers its command
    check,
    checkpoint,
    convert,
    data,
    demo,
    doctor,
    eval,
    export,
    init,
    mine,
    predict,
    presets,
    pretrain,
    report,
    review,
    run,
    runs,
    sample,
    study,
)
from mini_fsod.commands.options import app
from mini_fsod.errors import UserError, brief
from mini_fsod.files import FREE_SPACE, is_full
from mini_fsod.train.terminate import TERMINATED, sigterm_as_interrupt

FAILED = UserError.exit_code
INTERRUPTED = 130  # exit code after Ctrl-C
RESUMABLE = ("run", "study", "pretrain", "demo")  # commands that resume where they stopped

# Parameters of glibc's mallopt (malloc.h): how much free memory at the top of the heap is kept, and
# the size from which blocks are allocated outside the heap
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MALLOC_THRESHOLDS = (1 << 30, 1 << 25)  # bytes; older versions of glibc refuse the first


def _print_version(requested: bool) -> None:
    if requested:
        print(f"mini {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version. Example: mini --version",
        ),
    ] = False,
) -> None:
    """Few-shot object detection: a detector for new classes from K labelled boxes of each."""


def main() -> None:
    # OpenMP threads that spin while they wait take cores from other processes: next to one busy
    # process, training on 2 cores fell from 25 to 2 images per second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    reuse_freed_memory()
    threading.excepthook = _report_thread_error
    for stream in (sys.stdout, sys.stderr):
        # class names in any alphabet can be printed on a terminal that only knows ASCII
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with sigterm_as_interrupt():
            app()
    except UserError as error:
        from mini_fsod import console

        console.error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # errors that no command expects: standard output on a full disk, a folder that disappears
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"Error {brief(named)}.{f' {FREE_SPACE}' * is_full(error)}", file=sys.stderr)
        sys.exit(FAILED)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer turns KeyboardInterrupt into SystemExit
        code = stop.code if isinstance(stop, SystemExit) else INTERRUPTED
        if code not in (INTERRUPTED, TERMINATED):
            raise
        word = "Terminated" if code == TERMINATED else "Interrupted"
        print(f"{word}.{_how_to_resume(sys.argv[1:])}", file=sys.stderr)
        sys.exit(code)


def reuse_freed_memory() -> None:
    """Make malloc keep freed memory instead of returning it to the system.

    Fresh memory from the system is zeroed page by page, which takes as long as a convolution
    (docs/results.md, without a GPU).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # not glibc
        return
    for size in MALLOC_THRESHOLDS:
        if mallopt(M_MMAP_THRESHOLD, size):
            mallopt(M_TRIM_THRESHOLD, size)
            return


def _how_to_resume(arguments: Sequence[str]) -> str:
    if not arguments or arguments[0] not in RESUMABLE:
        return ""
    restarts = any(word.partition("=")[0] == "--from" for word in arguments)
    return f" The same command {'without --from ' * restarts}resumes."


def _report_thread_error(failed: threading.ExceptHookArgs) -> None:
    """Ignore a full disk in TensorBoard's writer thread: the training loop reports it."""
    if not is_full(failed.exc_value):
        threading.__excepthook__(failed)
