"""Finished stages that `--from` repeats: they lie in `.cleared` until the first of them is finished
anew, and come back where that fails before it has begun. A word that is wrong costs no hours.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mini_fsod import console
from mini_fsod.config.load import STAGES
from mini_fsod.errors import UserError
from mini_fsod.files import is_file, is_folder, write_bytes
from mini_fsod.runs import folder, inputs

CLEARED, DROPPED = ".cleared", ".dropped"
FILES = (folder.CONFIG, inputs.NAME, folder.RESULTS)


def set_aside(out: Path, place: Path, stages: Sequence[str]) -> None:
    """Stages into another folder, with a copy of what tells how they came about."""
    place.mkdir()
    for name in FILES:
        if is_file(out / name):
            shutil.copy2(out / name, place / name)
    for stage in stages:
        if is_folder(out / stage):
            (out / stage).rename(place / stage)


def bring_back(out: Path, place: Path, stages: Sequence[str]) -> None:
    """The first stage last: as long as it lies there, whoever finds it after a kill comes here.
    Stages that were not set aside yet are still in their place.
    """
    for name in FILES:
        if is_file(place / name):
            write_bytes(out / name, (place / name).read_bytes())
    for stage in reversed(stages):
        if is_folder(place / stage):
            if is_folder(out / stage):
                shutil.rmtree(out / stage)
            (place / stage).rename(out / stage)
    shutil.rmtree(place)


def put_away(out: Path, stages: Sequence[str]) -> None:
    """Those of them that are finished. What lies there from a repetition that was begun stays, if
    nothing finished has come since.
    """
    place = out / CLEARED
    finished = [stage for stage in stages if is_file(out / stage / folder.METRICS)]
    if not finished:
        return
    drop(out)
    try:
        set_aside(out, place, finished)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be cleared away ({error.strerror}).",
            "Choose another folder with --out.",
        ) from None


def is_there(out: Path) -> bool:
    return is_folder(out / CLEARED) or is_folder(out / DROPPED)


def settle(out: Path) -> None:
    """Let go of what has been repeated, or bring back what was not: now, or after a kill."""
    place = out / CLEARED
    if not is_folder(place):
        drop(out)
        return
    stages = [stage for stage in STAGES if is_folder(place / stage)]
    if not stages or is_file(out / stages[0] / folder.METRICS):
        drop(out)
    elif not folder.has_begun(out / stages[0]):
        bring_back(out, place, stages)
        console.note(f"{' and '.join(stages)} {'is' if len(stages) == 1 else 'are'} as before")


def drop(out: Path) -> None:
    """It loses its name at once: half of it, after a kill, would look like what is to come back."""
    if is_folder(out / DROPPED):
        shutil.rmtree(out / DROPPED)
    if is_folder(out / CLEARED):
        folder.keep_edited(out / CLEARED / "mine", out)
        (out / CLEARED).rename(out / DROPPED)
        shutil.rmtree(out / DROPPED)
