"""What a pool's file calls things, and pictures by the names that other tools give back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath

REVIEWED = 1.0  # score of a box that a person has accepted, or that comes back without one
REJECTED = "rejected"  # the list of places that hold no object of their class
FOLDERS = 32  # before a name that are compared
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts it before names of uploaded images


def finder(files: tuple[str, ...]) -> Callable[[str], list[int]]:
    """A function from an image's name in some tool to the images that it may be.

    Tools drop folders or add some: among images of one name those win that share most of the
    folders right before it.
    """
    exact = {file: i for i, file in enumerate(files)}
    by_name: dict[str, list[int]] = defaultdict(list)
    for i, file in enumerate(files):
        by_name[PurePosixPath(file).name].append(i)

    @cache
    def tails_of(name: str) -> dict[tuple[str, ...], list[int]]:
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for i in by_name[name]:
            for tail in _tails(PurePosixPath(files[i])):
                found[tail].append(i)
        return dict(found)

    def find(name: str) -> list[int]:
        if name in exact:
            return [exact[name]]
        path = PurePosixPath(name)
        same = by_name.get(path.name) or by_name.get(UPLOADED.sub("", path.name)) or []
        if len(same) < 2:
            return same
        # a name's own end, or that of pictures whose name the upload has changed
        tails, ends = tails_of(PurePosixPath(files[same[0]]).name), _tails(path)
        return next(tails[end] for end in ends[::-1] if end in tails)

    return find


def _tails(path: PurePosixPath) -> list[tuple[str, ...]]:
    """The folders right before a name, none to FOLDERS of them."""
    folders = path.parts[:-1][-FOLDERS:]
    return [folders[len(folders) - n :] for n in range(len(folders) + 1)]
