"""A target of the fuzzer: valid files, and what reads them once some are damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from mini_fsod import cli, console
from mini_fsod.errors import UserError


@dataclass(frozen=True, slots=True)
class Target:
    """Valid files, those of them that are damaged, and what reads them.

    `read` returns, or raises a UserError; it is called in a copy of the files, its argument.
    """

    name: str
    write: Callable[[Path], object]
    files: tuple[str, ...]
    read: Callable[[Path], object]
    examples: int = 20  # in `make test`


refused: list[UserError] = []  # what `every` has gone on after


@cache
def _command() -> Any:
    """The command line, which takes a fifth of a second to build."""
    return typer.main.get_command(cli.app)


def mini(*words: object) -> int:
    """A command's exit code; UserErrors and what must not happen are raised."""
    console.out.quiet = console.err.quiet = True
    try:
        return _command().main([*map(str, words)], standalone_mode=False) or 0
    finally:
        console.out.quiet = console.err.quiet = False


def every(*readers: Callable[[], object]) -> None:
    """Call all of them; a UserError of one does not keep the next from being called."""
    for reader in readers:
        try:
            reader()
        except UserError as error:
            if not error.what:
                raise AssertionError("an error without words") from error
            refused.append(error)
