"""How things look in a terminal. Results go to standard output, all the rest to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mini_fsod.errors import Problem, UserError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SHOWN_OF_A_KIND = 10


def error(what: UserError) -> None:
    err.print(f"[bold red]Error[/] {escape(what.what)}", soft_wrap=True)
    problems = getattr(what, "problems", ())
    if len(problems) > 1:
        show_problems(problems)
    elif what.fix:
        err.print(f"[dim]What to do:[/] {escape(what.fix)}", soft_wrap=True)


def note(text: str) -> None:
    err.print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def show_problems(problems: Sequence[Problem]) -> None:
    """Problems by kind with their fix: the first of each kind one by one, the rest as a number."""
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((problem.kind, problem.fix), []).append(problem)
    for (kind, fix), group in kinds.items():
        err.print(
            f"\n[bold red]{kind}[/] [bold]{len(group):,}[/]  [dim]fix:[/] {escape(fix)}",
            soft_wrap=True,
        )
        for problem in group[:SHOWN_OF_A_KIND]:
            err.print(f"  {escape(str(problem))}", soft_wrap=True)
        if len(group) > SHOWN_OF_A_KIND:
            err.print(f"  [dim]... and {len(group) - SHOWN_OF_A_KIND:,} more of this kind[/]")


@contextmanager
def progress(what: str, total: int = 0) -> Iterator[Callable[..., None]]:
    """A bar for long work, on standard error; called with how many are done (and of how many)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total=total: bar.update(task, completed=done, total=total)
