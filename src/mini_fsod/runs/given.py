"""A finished detector as the base detector of a run (`base.checkpoint`): its classes are the base
classes, whether the data has boxes of them or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_fsod import checkpoint, console
from mini_fsod.config.schema import Base, Config
from mini_fsod.config.values import torchvision_name
from mini_fsod.data.text import shown
from mini_fsod.detector.classes import with_classes
from mini_fsod.detector.published import classes_of, fetch_published, published_detector
from mini_fsod.errors import UserError, nearest
from mini_fsod.eval.kept_detections import detections_file
from mini_fsod.files import CHECKPOINT_FILE, is_file, real
from mini_fsod.labels import LabelMap
from mini_fsod.runs.store import copy_file


def given_classes(section: Base) -> tuple[str, ...] | None:
    """The base classes that `base.checkpoint` brings, without those of `base.drop`.

    None where a base detector is trained.
    """
    if section.checkpoint is None:
        return None
    known = _known_classes(section.checkpoint)
    unknown = [name for name in section.drop if name not in known]
    if unknown:
        hint = nearest(unknown[0], known)
        raise UserError(
            f"base.drop: {section.checkpoint} has no class {shown(unknown[0])}.{hint}",
            f"Its classes: {', '.join(known)}.",
        )
    kept = tuple(name for name in known if name not in section.drop)
    if not kept:
        raise UserError("base.drop leaves no base class.", "Name fewer classes in base.drop.")
    return kept


def _known_classes(given: Path) -> tuple[str, ...]:
    name = torchvision_name(given)
    if name is not None:
        return classes_of(name)
    return checkpoint.read_header(checkpoint.find(given, "base")).labels.classes


def with_given_classes(labels: LabelMap, section: Base) -> LabelMap:
    """The classes of `base.checkpoint` and the novel ones, which must not be the same."""
    given = given_classes(section)
    assert given is not None
    assert section.checkpoint is not None
    _refuse_shared_classes(given, labels.novel, section.checkpoint)
    left_out = [name for name in labels.base if name not in given]
    if left_out:
        console.note(
            "classes left out, which are neither new nor known to the given detector: "
            f"{', '.join(left_out)}"
        )
    return LabelMap(given, labels.novel)


def _refuse_shared_classes(base: Sequence[str], novel: Sequence[str], given: Path) -> None:
    """A UserError where a novel class is among the given detector's, however it is spelt."""
    spelt = {name.strip().casefold(): name for name in base}
    shared = [spelt[key] for name in novel if (key := name.strip().casefold()) in spelt]
    if shared:
        listed = ", ".join(map(shown, shared))
        raise UserError(
            f"{given} knows {listed} already, but data.novel names it as new.",
            f"To learn it anew from the shots, set base.drop to [{listed}]: the given detector "
            "then forgets it. To keep both, rename the new class in data.novel and in shots.file.",
        )


def check_given(config: Config) -> None:
    """Raise a UserError, before anything is computed, where the detector cannot be read."""
    section = config.base
    name = torchvision_name(section.checkpoint)
    if name is not None:
        fetch_published(name)
    given_classes(section)


def check_without_labels(config: Config, stages: Sequence[str]) -> None:
    """Raise a UserError where keys leave nothing that stands in for missing base labels."""
    if len(stages) > 1 and config.base.sure is None:
        raise UserError(
            "Base labels are missing, and base.sure is null: nothing would stand in for them, and "
            "the base classes would be forgotten.",
            "Set base.sure, for example to 0.7.",
        )
    if "online" in stages and not config.online.uses_pool:
        raise UserError(
            "Base labels are missing, so re-training needs the base detections that mining stores, "
            "but with these keys nothing is mined: online.oracle is true, or online.mingle.rpn, "
            "online.mingle.rcnn and online.ignore_candidates are all false.",
            "Set online.oracle to false, and online.mingle.rcnn to true.",
        )


def copy_with_scores(given: Path, folder: Path) -> None:
    """Copy a checkpoint into the folder of a stage. Scores and detections are copied only from a
    result in the same store: those of other people's runs are not trusted.
    """
    copy_file(given, folder / CHECKPOINT_FILE)
    source = real(given).parent
    if source.parent != real(folder.parent):
        return
    for score in source.glob("score-*.json"):
        for file in (score, detections_file(score)):
            if is_file(file):
                copy_file(file, folder / file.name)


def take_given(config: Config, folder: Path) -> dict[str, Any]:
    """Write the given base detector into the folder of the stage; its scores come along."""
    section = config.base
    assert section.checkpoint is not None
    kept = given_classes(section)
    assert kept is not None
    about: checkpoint.About
    name = torchvision_name(section.checkpoint)
    if name is not None:
        detector, classes = published_detector(name)
        about = {"stage": "base", "source": str(section.checkpoint), "weights": None}
        given = section.checkpoint
    else:
        given = checkpoint.find(section.checkpoint, "base")
        labels = checkpoint.read_header(given).labels
        if labels == LabelMap(kept, ()):
            copy_with_scores(given, folder)
            return {"checkpoint": str(given)}
        saved = checkpoint.load(given, config.detector.weights)
        detector, classes, about = saved.detector, labels.classes, saved.about
    if kept != classes:
        detector = with_classes(detector, [classes.index(name) for name in kept])
    checkpoint.save(folder / CHECKPOINT_FILE, detector, LabelMap(kept, ()), about)
    return {"checkpoint": str(given)}


def save_novel(source: Path, target: Path) -> None:
    """Write a detector of the novel classes alone; of base classes alone, all of them.

    The others still count as background, so that the scores of the novel classes stay.
    """
    saved = checkpoint.load(source)
    labels, first = saved.labels, len(saved.labels.base)
    if not labels.novel:
        copy_file(source, target)
        return
    detector = with_classes(saved.detector, range(first, len(labels.classes)))
    checkpoint.save(target, detector, LabelMap((), labels.novel), saved.about)
