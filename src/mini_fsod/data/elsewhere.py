"""Where the pictures of an export lie: often not where it says, or in another folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.folder import pictures_below
from mini_fsod.data.layout import TRIED, locate_pictures
from mini_fsod.data.problems import Report
from mini_fsod.data.text import shown
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_file, is_folder

# Label Studio puts eight hexadecimal digits and a hyphen before the name of an uploaded picture
UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")


def placed(data: Dataset, path: Path, pictures: Path | None) -> tuple[Dataset, list[Problem]]:
    """The data set of an export `path` with its pictures found, and the problems of that.

    They are below the folder `pictures`, or beside the file.
    """
    if pictures is not None:
        return with_pictures_in(data, pictures)
    plain = tuple(PurePosixPath(name).name for name in data.files)
    without_upload = tuple(UPLOAD.sub("", name) for name in plain)
    for names in (data.files, plain, without_upload):
        beside, files = locate_pictures(path, names)
        if any(is_file(beside / name) for name in files[:TRIED]):
            return replace(data, root=beside, files=files), []
    return replace(data, root=path.parent), []


def with_pictures_in(data: Dataset, folder: Path) -> tuple[Dataset, list[Problem]]:
    """The data set with its pictures in `folder`, and the names that mean several pictures there.

    A picture is found by its whole name; else by the longest end of it, such as train/a.jpg of
    images/train/a.jpg; else by its last part alone, in any folder below. Names that are not found
    stay as they are: they are reported as missing when pictures are opened.
    """
    if not is_folder(folder):
        raise UserError(f"{folder}: no such folder of pictures.", "Check the path.")
    moved = replace(data, root=folder)
    tried = [data.files[i * len(data) // TRIED] for i in range(TRIED)] if len(data) else []
    if all(is_file(folder / name) for name in tried):
        return moved, []
    below = pictures_below(folder, lambda _: None, lambda _: None)
    known = set(below)
    depth = max((name.count("/") + 1 for name in below), default=1)
    by_name: dict[str, list[str]] = {}
    for name in below:
        by_name.setdefault(PurePosixPath(name).name, []).append(name)
    report = Report()
    files = []
    for i, name in enumerate(data.files):
        found = _candidates(name, depth, known, by_name)
        if len(found) > 1:
            file, record = data.where_image(i)
            listed = ", ".join(map(shown, found[:3]))
            what = f"{len(found)} pictures in {folder} may be meant: {listed}"
            report("picture-ambiguous", record, what, file=file)
        files.append(found[0] if len(found) == 1 else name)
    return replace(moved, files=tuple(files)), report.problems


def _candidates(
    name: str, depth: int, known: set[str], by_name: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part != ".."]
    for start in range(max(len(parts) - depth, 0), len(parts)):
        end = "/".join(parts[start:])
        if end in known:
            return [end]
    last = parts[-1] if parts else name
    return by_name.get(last) or by_name.get(UPLOAD.sub("", last), ())
