"""Pictures that are there more than once: in the test set what was trained on, or for nothing.

Files are compared byte by byte, by their digests. A picture that was saved anew is another one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.data.subsets import shared_images, testing_part, training_part
from mini_fsod.errors import Problem
from mini_fsod.files import digest

SHOWN = 3  # copies that a note names


def alike(paths: Sequence[Path]) -> list[list[int]]:
    """Places in `paths` of files with the same content, a group each; of no two files: none.

    Only files of one length are read. Those that cannot be read are like no other.
    """
    lengths: dict[int, list[int]] = {}
    for i, path in enumerate(paths):
        try:
            lengths.setdefault(path.stat().st_size, []).append(i)
        except (OSError, ValueError):
            continue
    likely = sorted(i for group in lengths.values() if len(group) > 1 for i in group)

    def content(i: int) -> str:
        try:
            return digest(paths[i])
        except OSError:
            return f"unread {i}"

    groups: dict[str, list[int]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing lets go of the lock
        for i, found in zip(likely, pool.map(content, likely), strict=True):
            groups.setdefault(found, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def leak_problems(data: Dataset, groups: Sequence[Sequence[int]]) -> list[Problem]:
    """Pictures to test or validate with that are trained on too, under the same or another name.

    `groups`: images whose pictures are the same. Data without image sets have no such picture.
    """
    trained, tested, names = _roles(data)
    pairs = {i: i for i in np.flatnonzero(trained & (tested >= 0)).tolist()}
    for group in groups:
        known = next((i for i in group if trained[i]), None)
        if known is not None:
            pairs |= {i: known for i in group if tested[i] >= 0 and not trained[i]}
    part = training_part(data) or "the training images"
    problems = []
    for i, known in sorted(pairs.items()):
        own, other = data.files[i], data.files[known]
        record = f"image {data.ids[i]}: {own[:200]}"
        under = "" if own == other else f", as {other[:200]}"
        what = f"the picture is in {names[int(tested[i])]}, and in {part} too{under}"
        fix = "take the picture out of one of the image sets: what was trained on tests nothing"
        problems.append(Problem("set-leak", data.sources[i], record, what, fix))
    return problems


def copy_notes(data: Dataset, groups: Sequence[Sequence[int]]) -> list[str]:
    """A sentence about pictures that are copies of others, but for those that are leaks."""
    trained, tested, _ = _roles(data)
    copies = []
    for group in groups:
        leaks = any(trained[i] for i in group)
        files = [data.files[i] for i in group if trained[i] or not (leaks and tested[i] >= 0)]
        first, *others = dict.fromkeys(files) or [""]
        copies += [f"{other[:200]} of {first[:200]}" for other in others]
    if not copies:
        return []
    more = f" and {len(copies) - SHOWN:,} more" if len(copies) > SHOWN else ""
    are = "1 picture is a copy" if len(copies) == 1 else f"{len(copies):,} pictures are copies"
    return [f"{are} of another: {', '.join(copies[:SHOWN])}{more}"]


def _roles(data: Dataset) -> tuple[Bools, Ints, list[str]]:
    """(I,) images that are trained on, (I,) the test or validation set of each or -1, their names.

    VOC's val is a part of trainval: it is tested where there is no test set, and trained on else.
    """
    part, test = training_part(data), testing_part(data)
    names = [n for n in data.subsets if n.startswith(("test", "val")) and "/" not in n]
    trained = np.full(len(data), part is None)
    if part is not None:
        trained[data.subsets[part]] = True
    if part is not None and part.startswith("trainval"):
        for name in [n for n in names if n.startswith("val")]:
            if name == test:
                trained &= ~shared_images(data, data.subset(name))
            elif shared_images(data.subset(name), data.subset(part)).all():
                names.remove(name)
    tested = np.full(len(data), -1, dtype=np.int64)
    for place, name in enumerate(names):
        tested[data.subsets[name]] = place
    return (trained & (tested < 0) if part is None else trained), tested, names
