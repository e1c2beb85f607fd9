"""A plain folder of pictures without annotations."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.layout import KNOWN
from mini_fsod.data.pictures import is_picture, is_unread
from mini_fsod.data.text import is_text, shown
from mini_fsod.errors import Problem


def pictures_below(
    folder: Path, tell: Callable[[Problem], None], skip: Callable[[str], None]
) -> list[str]:
    """Paths of all pictures below a folder, relative to it, in the same order on every machine.

    `skip` is told of pictures of kinds that are not read.
    """
    found = []

    def unreadable(error: OSError) -> None:
        place = Path(error.filename or folder)
        name = place.relative_to(folder).as_posix() if folder in place.parents else place.name
        what = f"the folder cannot be read ({error.strerror})"
        tell(Problem("folder-unreadable", name, "", what, "make it readable"))

    for place, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        prefix = Path(place).relative_to(folder).as_posix()
        for name in _unread_among(files):
            skip(name if prefix == "." else f"{prefix}/{name}")
        for name in files:
            if not is_picture(name) or name.startswith("."):
                continue
            path = name if prefix == "." else f"{prefix}/{name}"
            if is_text(path):
                found.append(path)
            else:
                tell(wrong_name(path))
    return sorted(found)


def _unread_among(names: Sequence[str]) -> list[str]:
    """Pictures of kinds that are not read, but for those that were saved anew beside it."""
    unread = [n for n in names if is_unread(n) and not n.startswith(".")]
    anew = {PurePosixPath(n).stem for n in names if is_picture(n)} if unread else set()
    return [n for n in unread if PurePosixPath(n).stem not in anew]


def unread_kinds(files: Iterable[str]) -> tuple[str, ...]:
    """A sentence, if there are pictures of kinds that are not read."""
    kinds = Counter(PurePosixPath(f).suffix.lower() for f in files)
    found = ", ".join(f"{n:,} x {kind}" for kind, n in sorted(kinds.items()))
    if kinds.total() == 1:
        return (f"1 file is a picture of a kind that is not read: {found}; save it as JPEG or PNG",)
    what = f"{kinds.total():,} files are pictures of kinds that are not read: {found}"
    return (f"{what}; save them as JPEG or PNG",) if kinds else ()


def wrong_name(file: str) -> Problem:
    what = "the name of the file is not valid text"
    return Problem("name-wrong", shown(file), "", what, "rename it")


def unique_ids(files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ids, short ids): the stem of each file; the path without suffix for all, if two stems are
    the same. Then the stems are the short ids, which may be enough within an image set.
    """
    stems = tuple(PurePosixPath(f).stem for f in files)
    if len(set(stems)) == len(stems):
        return stems, ()
    paths = tuple(str(PurePosixPath(f).with_suffix("")) for f in files)
    return paths if len(set(paths)) == len(paths) else tuple(files), stems


def read_folder(root: Path) -> tuple[Dataset, list[Problem]]:
    """Pictures alone: no classes, no boxes, sizes not declared."""
    problems: list[Problem] = []
    unread: list[str] = []
    files = pictures_below(root, problems.append, unread.append)
    data = Dataset(
        kind="folder",
        root=root,
        classes=(),
        category_ids=(),
        ids=unique_ids(files)[0],
        files=tuple(files),
        sizes=np.zeros((len(files), 2), dtype=np.int64),
        boxes=NO_BOXES,
        sources=tuple(files),
        notes=_unread(root, {PurePosixPath(f).stem for f in files}) + unread_kinds(unread),
    )
    return data, problems


def _unread(root: Path, stems: set[str]) -> tuple[str, ...]:
    """A sentence, if files lie there that look like annotations of another layout."""
    counts: dict[str, int] = {}
    for _, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in map(PurePosixPath, files):
            suffix = name.suffix.lower()
            meant = suffix in (".xml", ".json", ".yaml", ".yml")
            meant |= suffix == ".txt" and name.stem in stems
            if meant and not name.name.startswith("."):
                counts[suffix] = counts.get(suffix, 0) + 1
    if not counts:
        return ()
    found = ", ".join(f"{n:,} x {suffix}" for suffix, n in sorted(counts.items()))
    return (f"not read as annotations: {found}; {KNOWN}",)
