"""Which keys a run of these photos needs, and why: each choice is a line of the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mini_fsod import console
from mini_fsod.config.paths import paths_for
from mini_fsod.config.presets import PRESETS
from mini_fsod.data.layout import is_archive
from mini_fsod.data.unlisted import folder_of
from mini_fsod.labels import COCO_BASE, COCO_NOVEL, folded
from mini_fsod.start.look import Found

PRETRAINED = "torchvision:fasterrcnn_resnet50_fpn"
COCO_CLASSES = (*COCO_BASE, *COCO_NOVEL)

ENLARGED = 1.3  # pictures are not enlarged by more: there is nothing to see in them
STEP = 32  # pixels, in which sizes of views are counted
LONG = 1.5625  # long side of views by their short side, as in the presets
SMALLER = (0.75, 0.875, 1.0)  # short sides of views in training, by the one at test


class Choice(NamedTuple):
    """A key of the configuration with its value, and why it has it."""

    key: str  # dotted; "preset" for the first one
    value: Any
    why: str


def choose(found: Found, gpu: bool, detector: Path | None = None) -> list[Choice]:
    """The keys that the photos and boxes decide; all others are those of the preset.

    `detector` is a finished one that knows the other classes.
    """
    name = preset_name(gpu)
    preset = PRESETS[name].keys
    return [
        Choice("preset", name, "there is a GPU" if gpu else "there is no GPU"),
        *_data(found),
        *_shots(found),
        *_base(found, detector),
        *_unlisted(found, given=detector is not None or not found.base),
        *_views(found, preset),
    ]


def as_in_file(choices: Sequence[Choice], folder: Path) -> list[Choice]:
    """The choices with paths as a configuration in this folder has them."""
    values = paths_for(folder, {choice.key: choice.value for choice in choices})
    return [choice._replace(value=values[choice.key]) for choice in choices]


def preset_name(gpu: bool) -> str:
    return "photos" if gpu else "photos-cpu"


def _data(found: Found) -> list[Choice]:
    photos = console.count(len(found.photos), "photo")
    labels = ", without labels"
    if found.base:
        labels = f", with labels of {console.count(len(found.base), 'other class')}"
    elif found.photos.kind != "folder":
        labels = ", without labels of other classes"
    chosen = [Choice("data.root", str(found.photos_path), photos + labels)]
    if found.pictures is not None:
        chosen.append(Choice("data.pictures", str(found.pictures), "where the photos are"))
    return [*chosen, Choice("data.novel", list(found.novel), "to be learned from few boxes")]


def _shots(found: Found) -> list[Choice]:
    counts = found.boxes_of
    least = min(counts.values())
    if found.boxes_path is None:
        k = min(least, 5)
        return [Choice("shots.k", k, f"boxes of each class, drawn from the {least:,} or more")]
    why = "all boxes of a class" if len(set(counts.values())) == 1 else "the least of a class"
    chosen = [
        Choice("shots.k", least, why),
        Choice("shots.file", str(found.boxes_path), "the boxes"),
    ]
    if found.shots_root is not None:
        chosen.append(Choice("shots.root", str(found.shots_root), "where their pictures are"))
    return chosen


def _base(found: Found, detector: Path | None) -> list[Choice]:
    """A published detector where the photos have no labels to train one on."""
    if detector is not None:
        why = f"it knows {', '.join(found.base)}" if len(found.base) < 5 else "it knows the others"
        return [Choice("base.checkpoint", str(detector), why)]
    if found.base:
        return []
    chosen = [
        Choice("base.checkpoint", PRETRAINED, "no labels to train on: it knows 80 everyday classes")
    ]
    known = {folded(name): name for name in COCO_CLASSES}
    shared = [known[folded(name)] for name in found.novel if folded(name) in known]
    if shared:
        why = "that detector knows it: forgotten, and learned anew from the boxes"
        chosen.append(Choice("base.drop", shared, why))
    return chosen


def _unlisted(found: Found, given: bool) -> list[Choice]:
    """Photos that nobody has labelled, beside others: without labels for a given detector; beside
    labels to train one on, they are extra ones.
    """
    if not found.unlisted:
        return []
    why = f"{console.count(len(found.unlisted), 'photo')} without labels beside the annotated ones"
    if given:
        return [Choice("data.unlisted", True, why)]
    if is_archive(found.photos_path):  # its folder in the cache may go
        return []
    folder = folder_of(found.photos, found.unlisted)
    return [Choice("mine.extra", str(folder), f"{why}: mined too")]


def _views(found: Found, preset: Mapping[str, Any]) -> list[Choice]:
    """Smaller views for small photos; `preset` has those for large ones."""
    median = float(np.median(found.sizes.min(axis=1)))
    usual = int(preset["views.test"])
    test = max(STEP, int(median * ENLARGED) // STEP * STEP)
    if test >= usual:
        return []
    short = sorted({_in_steps(test * part) for part in SMALLER})
    why = f"the photos have {median:.0f} pixels: more would not show more"
    return [
        Choice("views.short", short, why),
        Choice("views.long", _in_steps(test * LONG), ""),
        Choice("views.test", test, ""),
        Choice("discriminator.short", test, ""),
    ]


def _in_steps(pixels: float) -> int:
    return max(STEP, round(pixels / STEP) * STEP)
