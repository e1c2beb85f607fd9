"""What a person can mend: told in one message, exit code 2, never a traceback."""

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
    """One thing that is wrong with a data set: where it is, what it is, how to mend it.

    `kind` groups problems of one sort; `record` names the place inside the file
    ("annotation 17", "object 2", "line 4"), or is empty when the whole file is meant.
    """

    kind: str
    file: str
    record: str
    what: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.file}, {self.record}" if self.record else self.file
        return f"{place}: {self.what}"


class DataError(UserError):
    """A data set that cannot be used, with all the reasons at once."""

    def __init__(self, problems: Sequence[Problem], fix: str = "") -> None:
        first = problems[0]
        others = len(problems) - 1
        more = f" (and {others:,} more problem{'s' * (others > 1)})" if others else ""
        super().__init__(f"{first}{more}", fix or f"{first.fix}.")
        self.problems = tuple(problems)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most like `word`, as a hint: ' Did you mean "bird"?'; '' if none is near."""
    folded = {k.casefold(): k for k in known}
    close = get_close_matches(word.casefold(), list(folded), n=1, cutoff=0.5)
    return f' Did you mean "{folded[close[0]]}"?' if close else ""
