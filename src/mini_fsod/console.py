"""How things look in a terminal. Results go to standard output, all the rest to standard error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mini_fsod.errors import Problem, UserError

# without emoji: a class may be called :car:
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

SHOWN_OF_A_KIND = 100  # by a check, whose business they are;
SHOWN_OF_AN_ERROR = 5  # elsewhere

LINE_SECONDS = 30  # between lines where there is no terminal to draw a bar on

# what moves the cursor, colours the screen, breaks lines or turns the direction of writing
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """Words of other people's files, literally: no markup in them, no control characters."""
    visible = CONTROLS.sub(lambda m: m[0].encode("unicode_escape").decode(), str(text))
    return escape(visible)


def error(what: UserError) -> None:
    err.print(f"[bold red]Error[/] {plain(what.what)}", soft_wrap=True)
    problems = getattr(what, "problems", ())
    if len(problems) > 1:
        show_problems(problems, most=SHOWN_OF_AN_ERROR)
    elif what.fix:
        err.print(f"[dim]What to do:[/] {plain(what.fix)}", soft_wrap=True)


def note(text: str) -> None:
    err.print(f"[dim]{plain(text)}[/]", soft_wrap=True)


def show_problems(problems: Sequence[Problem], hint: str = "", most: int = SHOWN_OF_A_KIND) -> None:
    """Problems by kind with their fix: the first of each kind one by one, the rest as a number.

    `hint` says where the rest can be seen.
    """
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.kind, problem.fix), []).append(problem)
    for (kind, fix), group in kinds.items():
        err.print(
            f"\n[bold red]{kind}[/] [bold]{len(group):,}[/]  [dim]fix:[/] {plain(fix)}",
            soft_wrap=True,
        )
        for problem in group[:most]:
            err.print(f"  {plain(problem)}", soft_wrap=True)
        if len(group) > most:
            more = f"... and {len(group) - most:,} more of this kind{hint}"
            err.print(f"  [dim]{more}[/]", soft_wrap=True)


class _Wide:
    """A table as wide as it has to be: names are not broken, nor cut where it is piped."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.update(width=100_000)
        width = Measurement.get(console, room, self.table).maximum
        yield from console.render(self.table, options.update(width=width))


def table(of: Table) -> None:
    out.print(_Wide(of), soft_wrap=True)


def count(n: int, word: str) -> str:
    """1 image, 2 images."""
    return f"{n:,} {word}" + ("" if n == 1 else "es" if word[-1] in "sx" else "s")


@contextmanager
def progress(what: str, total: int = 0) -> Iterator[Callable[..., None]]:
    """A bar for long work, on standard error; called with how many are done (and of how many).

    Where there is no terminal to draw it on: now and then a line.
    """
    if not err.is_terminal:
        yield _lines(what, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total=total: bar.update(task, completed=done, total=total)


def _lines(what: str, total: int) -> Callable[..., None]:
    spoken = monotonic()

    def told(done: int, total: int = total) -> None:
        nonlocal spoken
        if monotonic() - spoken > LINE_SECONDS:
            spoken = monotonic()
            note(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    return told


def size(number: int) -> str:
    """Bytes as 3.2 GiB, or 14.0 MiB."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """12 s, 3:05 min, 2:10 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
