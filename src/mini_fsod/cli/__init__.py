"""The command `mini`: options in, exit code out.

What a command needs is imported inside it, so that help is there at once.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from mini_fsod import __version__
from mini_fsod.cli import data, runs  # noqa: F401 - they register their commands, in this order
from mini_fsod.cli.options import app
from mini_fsod.errors import UserError

STOPPED = 130  # the exit code of a process that somebody has interrupted
RESUMED = ("run", "study", "pretrain", "demo")  # commands that go on where they were


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
    for stream in (sys.stdout, sys.stderr):
        # a terminal or pipe that knows ASCII alone still gets every word
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        from mini_fsod import show

        show.error(error)
        sys.exit(2)
    except OSError as error:
        # what nobody could foresee: standard output on a full disk, a folder that goes away
        print(f"Error {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes the one of the other
        if isinstance(end, SystemExit) and end.code != STOPPED:
            raise
        goes_on = sys.argv[1:2] and sys.argv[1] in RESUMED
        print(f"Stopped.{' The same command goes on.' if goes_on else ''}", file=sys.stderr)
        sys.exit(STOPPED)
