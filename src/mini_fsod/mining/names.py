"""What a pool's file calls things, and pictures by the names that other tools give back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import takewhile
from pathlib import PurePosixPath

REVIEWED = 1.0  # score of a box that a person has accepted, or that comes back without one
REJECTED = "rejected"  # the list of places that hold no object of their class
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

    def find(name: str) -> list[int]:
        if name in exact:
            return [exact[name]]
        path = PurePosixPath(name)
        same = by_name.get(path.name) or by_name.get(UPLOADED.sub("", path.name)) or []
        shared = [_common_tail(path.parent, PurePosixPath(files[i]).parent) for i in same]
        return [i for i, n in zip(same, shared, strict=True) if n == max(shared)]

    return find


def _common_tail(a: PurePosixPath, b: PurePosixPath) -> int:
    """How many folders the two paths share, counted from the end."""
    pairs = zip(reversed(a.parts), reversed(b.parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
