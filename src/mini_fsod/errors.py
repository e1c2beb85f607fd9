"""Errors the user can fix: shown as one message with an exit code, never as a traceback."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mini_fsod.limits import MESSAGE, QUOTED


class UserError(Exception):
    """Wrong input or wrong use. `fix` says what to do about it."""

    exit_code = 2

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = brief(what)
        self.fix = brief(fix)
        super().__init__(self.what)


class HopelessError(UserError):
    """A stage left nothing for later ones to build on: to go on would be wasted time.

    What was computed is kept; `--anyway` goes on.
    """

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a data set: where it is, what it is, how to fix it.

    `kind` groups similar problems; `record` is the position in the file ("annotation 17",
    "object 2", "line 4"), empty for the whole file. `count` is how many problems the line stands
    for: readers list some of a kind and count the others.
    """

    kind: str
    file: str
    record: str
    what: str
    fix: str
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.file}, {self.record}" if self.record else self.file
        return f"{where}: {self.what}"


def total(problems: Iterable[Problem]) -> int:
    return sum(problem.count for problem in problems)


class DataError(UserError):
    """A data set that cannot be used, with all its problems."""

    def __init__(self, problems: Sequence[Problem], fix: str = "") -> None:
        first = problems[0]
        others = total(problems) - 1
        more = f" (and {others:,} more problem{'s' * (others > 1)})" if others else ""
        super().__init__(f"{first}{more}", fix or f"{first.fix}.")
        self.problems = tuple(problems)


def brief(text: str) -> str:
    """A message of at most MESSAGE characters, without the middle of arguments of the command and
    other words longer than QUOTED.

    Paths, names and values in it come from files and command lines, and may have any length.
    """
    half = QUOTED // 2 - 2
    for argument in sys.argv:
        for word in (argument, argument.partition("=")[2].strip()):
            if len(word) > QUOTED:
                text = text.replace(word, f"{word[:half]}...{word[-half:]}")
    text = re.sub(rf"(\S{{{half}}})\S{{{QUOTED - 2 * half + 1},}}(\S{{{half}}})", r"\1...\2", text)
    return text if len(text) <= MESSAGE else f"{text[: MESSAGE - 3]}..."


def repeated(names: Iterable[str]) -> list[str]:
    """The names that are given more than once, sorted."""
    return sorted(name for name, n in Counter(names).items() if n > 1)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most similar to `word`, as a hint: ' Did you mean "bird"?', or ''."""
    folded = {k[:QUOTED].casefold(): k[:QUOTED] for k in known}
    close = get_close_matches(word[:QUOTED].casefold(), list(folded), n=1, cutoff=0.5)
    return f' Did you mean "{folded[close[0]]}"?' if close else ""
