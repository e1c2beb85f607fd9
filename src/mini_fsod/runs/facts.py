"""`data.json` in a run's folder: what the run knows of its data, for the report and `mini doctor`.

Counts and sizes of boxes by class. Both commands then need no data set to compare a poor result
with what the detector was shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.shots import box_sides
from mini_fsod.data.subsets import base_set, is_target
from mini_fsod.files import write_json
from mini_fsod.runs.data import RunData
from mini_fsod.state_files import Count, Finite, Kind, read_state_file

DATA_FACTS = "data.json"


class ClassFacts(Kind):
    """Boxes of a class, and the median side of them at the detector's scale."""

    novel: bool
    train: Count
    test: Count | None  # without a test set
    shots: Count | None  # where no stage uses shots
    train_side: Finite | None
    test_side: Finite | None
    shot_side: Finite | None


class DataFacts(Kind):
    train_images: Count
    base_images: Count  # with a base box that people drew
    mined_images: Count
    test_images: Count | None
    short: Count  # the detector's scale: sides of images at test
    long: Count
    tiny: list[str]  # warnings of classes with tiny shots
    classes: dict[str, ClassFacts]


def write_data_facts(run: Path, data: RunData, config: Config, with_shots: bool) -> None:
    """Write `data.json`. Shots are only drawn or read where a stage of the run uses them."""
    short, long = config.views.test, config.views.long
    shots = data.novel_shots if with_shots else None
    parts = {"train": data.train, "test": data.test, "shots": shots}
    counts = {name: _counts_and_sides(part, short, long) for name, part in parts.items()}
    classes = {}
    for name in data.labels.classes:
        (train, train_side), (test, test_side), (k, shot_side) = (
            of_part.get(name, (0, None)) if parts[part] is not None else (None, None)
            for part, of_part in counts.items()
        )
        classes[name] = {
            "novel": name in data.labels.novel,
            "train": train,
            "test": test,
            "shots": k,
            "train_side": train_side,
            "test_side": test_side,
            "shot_side": shot_side,
        }
    facts = {
        "train_images": len(data.train),
        "base_images": len(base_set(data.train, data.labels)),
        "mined_images": len(data.mined),
        "test_images": None if data.test is None else len(data.test),
        "short": short,
        "long": long,
        "tiny": [] if shots is None else data.tiny_shots(),
        "classes": classes,
    }
    write_json(run / DATA_FACTS, facts)


def read_data_facts(run: Path) -> dict[str, Any] | None:
    fix = "Delete the file; `mini run` writes it again."
    facts: dict[str, Any] | None = read_state_file(run / DATA_FACTS, DataFacts, fix)
    return facts


def _counts_and_sides(
    data: Dataset | None, short: int, long: int
) -> dict[str, tuple[int, float | None]]:
    """{class: (boxes that count, median side at the detector's scale)}; the side is None where no
    size is known.
    """
    if data is None:
        return {}
    data = data.with_boxes(data.boxes.take(is_target(data)))
    sides = box_sides(data, short, long)
    found: dict[str, tuple[int, float | None]] = {}
    for label, name in enumerate(data.classes):
        mine = sides[data.boxes.label == label]
        known = mine[np.isfinite(mine)]
        found[name] = len(mine), round(float(np.median(known)), 1) if len(known) else None
    return found
