"""Mining again in a finished run: what is there comes back if that fails, or is killed.

While it goes on the former files lie in `.before`; once the new pool is whole that becomes
`.former`, and is cleared away: a kill at any moment leaves one of the two, and the next command
sets it right. All of it happens under the lock of the run's folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_fsod import console
from mini_fsod.config.load import STAGES
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder
from mini_fsod.mining import extra
from mini_fsod.runs import folder
from mini_fsod.runs.cleared import bring_back, set_aside

BEFORE, FORMER = ".before", ".former"
MINED = STAGES[STAGES.index("mine") :]  # the pool, and what is made of it


@contextmanager
def aside(out: Path) -> Iterator[None]:
    """Mine again in here."""
    try:
        set_aside(out, out / BEFORE, MINED)
    except OSError as error:
        if is_folder(out / BEFORE):
            _put_back(out)
        raise UserError(
            f"{error.filename or out}: cannot be put aside ({error.strerror}).", "Check its rights."
        ) from None
    try:
        yield
    except BaseException:
        if not is_folder(out / BEFORE / "mine"):  # what is there is new
            shutil.rmtree(out / "mine", ignore_errors=True)
        _put_back(out)
        raise
    settle(out)


def was_killed(out: Path) -> bool:
    return is_folder(out / BEFORE) or is_folder(out / FORMER)


def settle(out: Path) -> None:
    """Set right what a mining again has left: its end, or what was there before."""
    before, former = out / BEFORE, out / FORMER
    if is_folder(before) and not is_file(out / "mine" / folder.METRICS):
        _put_back(out)
    elif is_folder(before) and _is_the_same(before, out):
        console.note("nothing has changed: what was made of the pool still holds")
        _put_back(out)
    elif is_folder(before):
        before.rename(former)
    if is_folder(former):
        _clear(out)


def _is_the_same(before: Path, out: Path) -> bool:
    mined = [f"mine/{name}" for name in (folder.POOL, folder.CANDIDATES)]
    elsewhere = [f"mine/{extra.EXTRA}/{name}" for name in extra.NEEDED]
    return all(
        _content(before / name) == _content(out / name)
        for name in (folder.CONFIG, *mined, *elsewhere)
    )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if is_file(path) else None


def _put_back(out: Path) -> None:
    """The pool goes last: as long as its figures are not there a kill leads here again."""
    if is_folder(out / BEFORE / "mine"):
        (out / "mine" / folder.METRICS).unlink(missing_ok=True)
    bring_back(out, out / BEFORE, MINED)


def _clear(out: Path) -> None:
    """Stages made of the former pool took hours: they get another name."""
    former = out / FORMER
    folder.keep_edited(former / "mine", out)
    for stage in MINED[1:]:
        if is_folder(former / stage):
            other = folder.free_name(out, f"{stage}-stale")
            (former / stage).rename(other)
            console.note(
                f"{stage} was made of the former pool: it is stale, and now called {other.name}"
            )
    shutil.rmtree(former)
