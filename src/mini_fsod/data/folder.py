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
    folder: Path, report: Callable[[Problem], None], skip: Callable[[str], None]
) -> list[str]:
    """Sorted paths of all pictures below a folder, relative to it.

    `skip` gets the pictures of unsupported formats.
    """
    found = []

    def unreadable(error: OSError) -> None:
        path = Path(error.filename or folder)
        name = path.relative_to(folder).as_posix() if folder in path.parents else path.name
        what = f"the folder cannot be read ({error.strerror})"
        report(Problem("folder-unreadable", name, "", what, "make it readable"))

    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        prefix = Path(parent).relative_to(folder).as_posix()
        for name in _unread_pictures(files):
            skip(name if prefix == "." else f"{prefix}/{name}")
        for name in files:
            if not is_picture(name) or name.startswith("."):
                continue
            path = name if prefix == "." else f"{prefix}/{name}"
            if is_text(path):
                found.append(path)
            else:
                report(invalid_name(path))
    return sorted(found)


def _unread_pictures(names: Sequence[str]) -> list[str]:
    """Pictures of unsupported formats, without those that were converted in the same folder."""
    unread = [n for n in names if is_unread(n) and not n.startswith(".")]
    converted = {PurePosixPath(n).stem for n in names if is_picture(n)} if unread else set()
    return [n for n in unread if PurePosixPath(n).stem not in converted]


def unread_formats(files: Iterable[str]) -> tuple[str, ...]:
    """A note, if there are pictures of unsupported formats."""
    suffixes = Counter(PurePosixPath(f).suffix.lower() for f in files)
    if not suffixes:
        return ()
    found = ", ".join(f"{n:,} x {suffix}" for suffix, n in sorted(suffixes.items()))
    n = suffixes.total()
    pictures = "1 picture has an" if n == 1 else f"{n:,} pictures have an"
    return (f"{pictures} unsupported format: {found}; save as JPEG or PNG",)


def invalid_name(file: str) -> Problem:
    what = "the file name is not valid Unicode"
    return Problem("name-wrong", shown(file), "", what, "rename the file")


def unique_ids(files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ids, short ids): the stem of each file, and no short ids.

    If two stems are the same: the path without suffix, and the stems as short ids, which may be
    unique within an image set.
    """
    stems = tuple(PurePosixPath(f).stem for f in files)
    if len(set(stems)) == len(stems):
        return stems, ()
    paths = tuple(str(PurePosixPath(f).with_suffix("")) for f in files)
    return paths if len(set(paths)) == len(paths) else tuple(files), stems


def read_folder(root: Path) -> tuple[Dataset, list[Problem]]:
    """Pictures only: no classes, no boxes, sizes not declared."""
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
        notes=_unread_annotations(root, {PurePosixPath(f).stem for f in files})
        + unread_formats(unread),
    )
    return data, problems


def _unread_annotations(root: Path, stems: set[str]) -> tuple[str, ...]:
    """A note, if there are files that look like annotations of an unknown layout."""
    counts: dict[str, int] = {}
    for _, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in map(PurePosixPath, files):
            suffix = name.suffix.lower()
            likely = suffix in (".xml", ".json", ".yaml", ".yml")
            likely |= suffix == ".txt" and name.stem in stems
            if likely and not name.name.startswith("."):
                counts[suffix] = counts.get(suffix, 0) + 1
    if not counts:
        return ()
    found = ", ".join(f"{n:,} x {suffix}" for suffix, n in sorted(counts.items()))
    return (f"not read as annotations: {found}; {KNOWN}",)
