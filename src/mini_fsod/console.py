"""Terminal output. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mini_fsod.errors import Problem, UserError, brief, total

# without emoji: a class may be called :car:
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

PROBLEMS_OF_A_CHECK = 100  # shown of each kind
PROBLEMS_OF_AN_ERROR = 5

LINE_SECONDS = 30  # between progress lines where there is no terminal for a bar

# characters that move the cursor, set colours, break lines or change the writing direction
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """Text from files, shown literally: markup is escaped, control characters are spelled out."""
    visible = CONTROLS.sub(lambda m: m[0].encode("unicode_escape").decode(), str(text))
    return escape(visible)


def error(problem: UserError) -> None:
    """Show an error with what to do about it."""
    err.print(f"[bold red]Error[/] {plain(problem.what)}", soft_wrap=True)
    problems = getattr(problem, "problems", ())
    if len(problems) > 1:
        show_problems(problems, most=PROBLEMS_OF_AN_ERROR)
    elif problem.fix:
        err.print(f"[dim]What to do:[/] {plain(problem.fix)}", soft_wrap=True)


def note(text: str) -> None:
    """Show a remark."""
    err.print(f"[dim]{plain(text)}[/]", soft_wrap=True)


def show_problems(
    problems: Sequence[Problem], hint: str = "", most: int = PROBLEMS_OF_A_CHECK
) -> None:
    """Show problems by kind with their fix: the first `most` of each kind, and how many follow.

    `hint` says where to find the rest.
    """
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.kind, problem.fix), []).append(problem)
    for (kind, fix), group in kinds.items():
        number = total(group)
        title = f"\n[bold red]{kind}[/] [bold]{number:,}[/]  [dim]fix:[/] {plain(fix)}"
        err.print(title, soft_wrap=True)
        listed = [problem for problem in group if problem.count == 1][:most]
        for problem in listed:
            err.print(f"  {plain(brief(str(problem)))}", soft_wrap=True)
        if number > len(listed):
            more = f"... and {number - len(listed):,} more of this kind{hint}"
            err.print(f"  [dim]{more}[/]", soft_wrap=True)


def columns(*names: str) -> Table:
    """An empty table with these columns; a name that starts with > is aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(names))
    for name in names:
        table.add_column(name.removeprefix(">"), justify="right" if name[:1] == ">" else "left")
    return table


def table(content: Table) -> None:
    """Show a table at its full width: names are neither wrapped nor cut, not even in a pipe."""
    content.width = Measurement.get(out, out.options.update(width=100_000), content).maximum
    out.print(content, soft_wrap=True)


def count(n: int, word: str) -> str:
    """1 image, 2 images."""
    return f"{n:,} {word}" + ("" if n == 1 else "es" if word[-1] in "sx" else "s")


@contextmanager
def progress(title: str, total: int = 0) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error with the time left; yields `update(done, total=total)`.

    Without a terminal it prints a line every 30 seconds instead.
    """
    if not err.is_terminal:
        yield _progress_lines(title, total)
        return
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total=total: bar.update(task, completed=done, total=total)


def _progress_lines(title: str, total: int) -> Callable[..., None]:
    started = last_line = monotonic()

    def update(done: int, total: int = total) -> None:
        nonlocal last_line
        now = monotonic()
        if now - last_line > LINE_SECONDS:
            last_line = now
            left = ""
            if total and done:
                left = f", {duration((total - done) * (now - started) / done)} left"
            note(f"{title}: {done:,}" + (f" of {total:,}" if total else "") + left)

    return update


def size(number: int) -> str:
    """A number of bytes as 3.2 GiB or 14.0 MiB."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """12 s, 3:05 min, 2:10 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
