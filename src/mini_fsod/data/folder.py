"""A plain folder of pictures without annotations."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.file_names import is_picture, is_unread
from mini_fsod.data.layout import KNOWN
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, shown
from mini_fsod.errors import Problem
from mini_fsod.remote import walk


def pictures_below(
    folder: Path, report: Callable[[Problem], None], skip: Callable[[str], None]
) -> list[str]:
    """Sorted paths of all pictures below a folder, relative to it.

    `skip` gets the pictures of unsupported formats, without those converted in the same folder.
    """
    found: list[str] = []
    problems = Report()

    def unreadable(error: OSError) -> None:
        path = Path(error.filename or folder)
        name = path.relative_to(folder).as_posix() if folder in path.parents else path.name
        what = f"the folder cannot be read ({error.strerror})"
        problems("folder-unreadable", "", what, file=name)

    for parent, folders, files in walk(folder, unreadable):
        folders[:] = [f for f in folders if not f.startswith(".")]
        relative = PurePosixPath(os.path.relpath(parent, folder))
        names = [n for n in files if not n.startswith(".")]
        pictures = [n for n in names if is_picture(n)]
        stems = {PurePosixPath(n).stem for n in pictures}
        for name in names:
            if is_unread(name) and PurePosixPath(name).stem not in stems:
                skip(str(relative / name))
        for path in (str(relative / name) for name in pictures):
            if is_text(path):
                found.append(path)
            else:
                report_invalid_name(problems, path)
    for problem in problems.kept:
        report(problem)
    return sorted(found)


def unread_formats(files: Collection[str]) -> tuple[str, ...]:
    """A note, if there are pictures of unsupported formats."""
    if not files:
        return ()
    pictures = "1 picture has an" if len(files) == 1 else f"{len(files):,} pictures have an"
    return (f"{pictures} unsupported format: {_suffixes(files)}; save as JPEG or PNG",)


def report_invalid_name(report: Report, file: str) -> None:
    report("name-wrong", "", "the file name is not valid Unicode", file=shown(file))


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
    likely: list[str] = []
    for _, folders, files in walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in map(PurePosixPath, files):
            suffix = name.suffix.lower()
            known = suffix in (".xml", ".json", ".yaml", ".yml")
            if (known or (suffix == ".txt" and name.stem in stems)) and name.name[0] != ".":
                likely.append(name.name)
    return (f"not read as annotations: {_suffixes(likely)}; {KNOWN}",) if likely else ()


def _suffixes(files: Iterable[str]) -> str:
    """Files counted by suffix: 2 x .json, 1 x .xml."""
    counts = Counter(PurePosixPath(f).suffix.lower() for f in files)
    return ", ".join(f"{n:,} x {suffix}" for suffix, n in sorted(counts.items()))
