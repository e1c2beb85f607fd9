"""A plain folder of pictures without annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.pictures import is_picture


def pictures_below(folder: Path) -> list[str]:
    """Paths of all pictures below a folder, relative to it, in the same order on every machine."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        prefix = Path(place).relative_to(folder).as_posix()
        found += [
            name if prefix == "." else f"{prefix}/{name}"
            for name in files
            if is_picture(name) and not name.startswith(".")
        ]
    return sorted(found)


def unique_ids(files: Sequence[str]) -> tuple[str, ...]:
    """The stem of each file; the path without suffix for all, if two stems are the same."""
    stems = [PurePosixPath(f).stem for f in files]
    if len(set(stems)) == len(stems):
        return tuple(stems)
    paths = [str(PurePosixPath(f).with_suffix("")) for f in files]
    return tuple(paths if len(set(paths)) == len(paths) else files)


def read_folder(root: Path, files: Sequence[str]) -> Dataset:
    """Pictures alone: no classes, no boxes, sizes not declared."""
    return Dataset(
        kind="folder",
        root=root,
        classes=(),
        category_ids=(),
        ids=unique_ids(files),
        files=tuple(files),
        sizes=np.zeros((len(files), 2), dtype=np.int64),
        boxes=NO_BOXES,
        sources=tuple(files),
    )
