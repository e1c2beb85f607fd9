"""Errors the user can fix: shown as one message with exit code 2, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class UserError(Exception):
    """Wrong input or wrong use. `fix` says what to do about it."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a data set: where it is, what it is, how to fix it.

    `kind` groups similar problems; `record` is the position in the file ("annotation 17",
    "object 2", "line 4"), empty for the whole file.
    """

    kind: str
    file: str
    record: str
    what: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}, {self.record}" if self.record else self.file
        return f"{where}: {self.what}"


class DataError(UserError):
    """A data set that cannot be used, with all its problems."""

    def __init__(self, problems: Sequence[Problem], fix: str = "") -> None:
        first = problems[0]
        others = len(problems) - 1
        more = f" (and {others:,} more problem{'s' * (others > 1)})" if others else ""
        super().__init__(f"{first}{more}", fix or f"{first.fix}.")
        self.problems = tuple(problems)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most similar to `word`, as a hint: ' Did you mean "bird"?', or ''."""
    folded = {k.casefold(): k for k in known}
    close = get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.5)
    return f' Did you mean "{folded[close[0]]}"?' if close else ""
