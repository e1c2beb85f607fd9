"""Pictures beside those of the annotations that these do not list: nobody has labelled them yet.

Labelling tools write a file for each picture that was labelled, or a list of them; YOLO alone reads
all pictures of a folder. Where image sets are lists, a picture in none of them is left out on
purpose.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod.data.dataset import Dataset, ImageId
from mini_fsod.data.file_names import is_picture
from mini_fsod.data.layout import is_archive, names_in
from mini_fsod.data.text import is_text

LISTS = {"train", "val", "trainval", "valid", "test"}  # image sets of VOC and YOLO


def unlisted(data: Dataset) -> tuple[str, ...]:
    """The files of such pictures, relative to the root: in the folders of those that are listed."""
    if data.kind == "folder" or (data.kind in ("voc", "yolo") and LISTS & data.subsets.keys()):
        return ()
    listed = {posixpath.normpath(name) for name in data.files}
    folders = sorted({posixpath.dirname(name) for name in listed})
    beside = (
        posixpath.join(folder, name)
        for folder in folders
        for name in names_in(data.root / folder)
        if is_picture(name) and is_text(name)
    )
    return tuple(name for name in beside if name not in listed)


def folder_of(data: Dataset, files: Sequence[str]) -> Path:
    """The folder that holds all of these files of a data set."""
    return data.root / posixpath.commonpath([posixpath.dirname(name) or "." for name in files])


def unlisted_notes(data: Dataset, path: Path) -> list[str]:
    """What can be done with such pictures of the data set in `path`, where there are any."""
    files = unlisted(data)
    if not files:
        return []
    archive = is_archive(path)
    folder = path if archive else folder_of(data, files)
    without = "unpacked, mine.extra" if archive else f"mine.extra: {folder}"
    return [
        f"{len(files):,} of {len(files) + len(data):,} pictures in {folder} are not in the "
        "annotations: left out. With a given detector (base.checkpoint), data.unlisted: true makes "
        f"them pictures without labels; without one, {without} mines them"
    ]


def with_unlisted(data: Dataset, part: str | None) -> Dataset:
    """The data set with these pictures too, without boxes; in the image set `part`, if named."""
    files = unlisted(data)
    n = len(data)
    subsets = dict(data.subsets)
    if part is not None and part in subsets:
        subsets[part] = np.concatenate([subsets[part], np.arange(n, n + len(files))])
    return replace(
        data,
        ids=(*data.ids, *_new_ids(data.ids, files)),
        short_ids=data.short_ids and (*data.short_ids, *_new_ids(data.short_ids, files)),
        files=(*data.files, *files),
        sources=(*data.sources, *files),
        sizes=np.concatenate([data.sizes, np.zeros((len(files), 2), dtype=np.int64)]),
        subsets=subsets,
    )


def _new_ids(known: Sequence[ImageId], files: Sequence[str]) -> list[ImageId]:
    """Further numbers, or the stems of the files: whatever the known ids are."""
    numbers = [i for i in known if isinstance(i, int)]
    if len(numbers) == len(known):
        return list(range(max(numbers, default=0) + 1, max(numbers, default=0) + 1 + len(files)))
    used = set(known)
    ids: list[ImageId] = []
    for name in files:
        stem = PurePosixPath(name).stem
        ids.append(name if stem in used else stem)
        used.add(stem)
    return ids
