"""What will go wrong with these photos and boxes, or may: said before anything is trained."""

from __future__ import annotations

import numpy as np

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.shots import box_sides, tiny_shots
from mini_fsod.data.subsets import is_of
from mini_fsod.data.text import shown
from mini_fsod.labels import folded
from mini_fsod.runs.estimate import RunEstimate
from mini_fsod.runs.shots import TINY
from mini_fsod.start.look import Found

FEW_TO_MINE = 50  # photos; of fewer, mining hardly adds anything
FEW_SHOTS = 3
FEW_ITERATIONS = 300  # of a time budget
NAMED = 3  # examples in a line


def warnings(found: Found, config: Config) -> list[str]:
    """One line for each thing, the worst first."""
    lines = [
        *_mining(found),
        *_shots(found, config),
        *_spellings(found),
        *_pictures(found),
    ]
    if not found.is_scored:
        lines.append(
            "No test set, so no AP: a few boxes are too few to split. Look at the contact sheets "
            "and at what `mini predict` draws. To get AP later, label some photos completely, run "
            "`mini predict RUN THESE_PHOTOS --json > found.json`, then `mini eval LABELS "
            "--detections found.json`. LABELS must have all classes of the detector; `mini run "
            "--only-novel` makes one that knows the new classes alone."
        )
    return lines


def cost_warnings(costs: RunEstimate, config: Config, memory: int) -> list[str]:
    """What the measured speed means; `memory` is what the device has, in bytes."""
    lines = []
    for stage in costs.stages:
        budget = getattr(getattr(config, stage.stage, None), "budget_minutes", 0.0)
        if budget and stage.iterations is not None and stage.iterations < FEW_ITERATIONS:
            count = console.count(stage.iterations, "iteration")
            lines.append(
                f"{stage.stage}: only {count} fit into {budget:g} minutes. That hardly teaches "
                f"anything: raise {stage.stage}.minutes, or use smaller pictures (views.short, "
                "views.test)."
            )
    if costs.memory > memory:
        lines.append(
            f"The run needs {console.size(costs.memory)}, this machine has {console.size(memory)}. "
            "Set train.batch to 8 or 4."
        )
    return lines


def _mining(found: Found) -> list[str]:
    left = found.to_mine
    if left == 0:
        return [
            "Nothing to mine: each photo has a box already. Add photos without boxes to "
            f"{found.photos_path}, or name a folder of them in mine.extra."
        ]
    if left < FEW_TO_MINE:
        return [f"Only {console.count(left, 'photo')} to mine in: more photos find more objects."]
    return []


def _shots(found: Found, config: Config) -> list[str]:
    counts = found.boxes_of
    lines = []
    few = [f"{shown(n)} has {count}" for n, count in counts.items() if count < FEW_SHOTS]
    if few:
        lines.append(
            f"Very few boxes: {', '.join(few)}. Results depend much on which ones; three to five "
            "from different photos are far better."
        )
    if found.boxes_path is not None and len(set(counts.values())) > 1:
        listed = ", ".join(f"{shown(name)} {count}" for name, count in counts.items())
        lines.append(f"Not the same number of boxes for each class: {listed}. All are used.")
    unused = [
        name
        for name in found.shots.classes
        if name not in (*found.novel, *found.base) and is_of(found.shots, (name,)).any()
    ]
    if unused:
        listed = ", ".join(map(shown, unused[:9]))
        lines.append(f"Not new classes, so their boxes are not used: {listed}.")
    short, long = config.views.test, config.views.long
    least = TINY * min(config.detector.anchors)
    usual = box_sides(found.photos, short, long)[is_of(found.photos, found.base)]
    if np.isfinite(usual).any():  # where all objects are small, shots may be too
        least = min(least, float(np.nanmedian(usual)) / 2)
    for line in tiny_shots(found.shots, found.novel, short, long, least):
        lines.append(f"{line}. Box larger ones, or raise views.test and views.short.")
    outside = found.outside
    if outside:
        pictures = console.count(len(outside), "picture")
        lines.append(
            f"{pictures} with boxes not among the photos, such as {outside[0]}: trained on, but "
            "not mined in."
        )
    return lines


def _spellings(found: Found) -> list[str]:
    """Names that differ in case, spaces or a plural s."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys((*found.novel, *found.base, *found.shots.classes)):
        groups.setdefault(folded(name).removesuffix("s"), []).append(name)
    return [
        f"{' and '.join(map(shown, names))} look like one class in several spellings: rename one."
        for names in groups.values()
        if len(names) > 1
    ]


def _pictures(found: Found) -> list[str]:
    if not found.unreadable:
        return []
    pictures = console.count(len(found.unreadable), "photo")
    listed = ", ".join(found.unreadable[:NAMED])
    return [f"{pictures} cannot be opened: {listed}. Remove them first: a run would stop there."]
