"""Duplicate pictures: training pictures in the test set, and copies within an image set.

Files are compared by their SHA-256. A picture that was saved again is another one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.data.problems import Report
from mini_fsod.data.subsets import shared_images, testing_part, training_part
from mini_fsod.errors import Problem
from mini_fsod.files import digest

NAMED = 3  # copies that a note names


def same_content(paths: Sequence[Path]) -> list[list[int]]:
    """Groups of two or more indices into `paths` of files with the same content.

    Only files of equal length are read. Those that cannot be read are in no group.
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
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the GIL
        for i, found in zip(likely, pool.map(content, likely), strict=True):
            groups.setdefault(found, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def leak_problems(data: Dataset, groups: Sequence[Sequence[int]]) -> list[Problem]:
    """Test or validation pictures that are in the training set too, under any name.

    `groups` are images with the same picture. Data without image sets have no leaks.
    """
    trained, tested, names = _roles(data)
    pairs = {i: i for i in np.flatnonzero(trained & (tested >= 0)).tolist()}
    for group in groups:
        known = next((i for i in group if trained[i]), None)
        if known is not None:
            pairs |= {i: known for i in group if tested[i] >= 0 and not trained[i]}
    part = training_part(data) or "the training images"
    report = Report()
    for i, known in sorted(pairs.items()):
        file, record = data.where_image(i)
        other = data.files[known]
        name = "" if data.files[i] == other else f", as {other[:200]}"
        what = f"the picture is in {names[int(tested[i])]} and in {part}{name}"
        report("set-leak", record, what, file=file)
    return report.problems


def copy_notes(data: Dataset, groups: Sequence[Sequence[int]]) -> list[str]:
    """A note on pictures that are copies of others; leaks are problems, and not repeated here."""
    trained, tested, _ = _roles(data)
    copies = []
    for group in groups:
        leaks = any(trained[i] for i in group)
        files = [data.files[i] for i in group if trained[i] or not (leaks and tested[i] >= 0)]
        first, *others = dict.fromkeys(files) or [""]
        copies += [f"{other[:200]} of {first[:200]}" for other in others]
    if not copies:
        return []
    more = f" and {len(copies) - NAMED:,} more" if len(copies) > NAMED else ""
    count = "1 picture is a copy" if len(copies) == 1 else f"{len(copies):,} pictures are copies"
    return [f"{count} of another: {', '.join(copies[:NAMED])}{more}"]


def _roles(data: Dataset) -> tuple[Bools, Ints, list[str]]:
    """(I,) training images, (I,) the test or validation set of each or -1, names of these sets.

    VOC's val is part of trainval: scored on where there is no test set, else trained on.
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
    for n, name in enumerate(names):
        tested[data.subsets[name]] = n
    return (trained & (tested < 0) if part is None else trained), tested, names
