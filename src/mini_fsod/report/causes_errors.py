"""Causes in what the detector does on the test set: `errors` in the stage's score file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mini_fsod.config.schema import Config
from mini_fsod.eval.errors import OTHER_NAMES
from mini_fsod.mining.audit import BACKGROUND, LOOSE
from mini_fsod.report.causes_data import is_poor
from mini_fsod.report.causes_mining import higher_threshold, more_boxes
from mini_fsod.report.finding import MAJOR, SOME, Finding, new_setting
from mini_fsod.report.run_files import RunFiles

ENOUGH = 5  # boxes or detections from which on a share means something
CONFUSED = 0.25  # share of a class's boxes that is taken for one other class
BADLY_PLACED = 0.3
UNSEEN = 0.5  # share of a class's boxes found at any score
ON_BACKGROUND = 0.5  # share of a class's detections that is on background


def error_findings(run: RunFiles) -> Iterator[Finding]:
    errors = run.errors
    if errors is None or run.config is None:
        return
    for name in run.novel:
        row = errors["classes"].get(name)
        if row is None or row["boxes"] < ENOUGH or not is_poor(run, name):
            continue
        yield from _confused(run, run.config, name, row)
        yield from _placed(run.config, name, row)
        sees_too_much = list(_on_background(run, run.config, name, row))
        yield from _unseen(run, run.config, name, row, may_mine=not sees_too_much)
        yield from sees_too_much


def _share(part: int, whole: int) -> float:
    return part / whole if whole >= ENOUGH else 0.0


def _confused(
    run: RunFiles, config: Config, name: str, row: Mapping[str, Any]
) -> Iterator[Finding]:
    other_words = set(OTHER_NAMES.values())
    missed = {k: n for k, n in row["missed_as"].items() if k not in other_words}
    taken = {k: n for k, n in row["false_on"].items() if k not in other_words}
    for other, number in missed.items():
        if number >= ENOUGH and _share(number, row["boxes"]) >= CONFUSED:
            yield Finding(
                MAJOR,
                f"{name} is mistaken for {other}",
                f"{number} of {row['boxes']} boxes of {name} in the test set are detected as "
                f"{other}",
                _against_confusion(config, other in run.novel),
            )
    for other, number in taken.items():
        if number >= ENOUGH and _share(number, row["detections"]) >= CONFUSED:
            yield Finding(
                MAJOR,
                f"{other} is mistaken for {name}",
                f"{number} of {row['detections']} detections of {name} above its best threshold "
                f"are on {other}",
                _against_confusion(config, other in run.novel),
            )


def _against_confusion(config: Config, is_novel: bool) -> tuple[str, ...]:
    """What helps to tell two classes apart that is not set yet."""
    wanted = []
    if is_novel and config.online.mingle.nms != "agnostic":
        wanted.append("online.mingle.nms=agnostic")
    if not is_novel and not config.mine.drop_on_base:
        wanted.append("mine.drop_on_base=true")
    if not is_novel and config.transfer.data != "known":
        wanted.append("transfer.data=known")
    if config.discriminator.weights == "none":
        wanted.append("discriminator.weights=resnet50:IMAGENET1K_V1")
    return (*wanted, "shots that show what tells the two apart")


def _placed(config: Config, name: str, row: Mapping[str, Any]) -> Iterator[Finding]:
    number = row["missed_as"].get(OTHER_NAMES[LOOSE], 0)
    if number >= ENOUGH and _share(number, row["boxes"]) >= BADLY_PLACED:
        changes = [] if config.mine.box_correction else ["mine.box_correction=true"]
        changes += [] if config.online.mined_boxes == "pool" else ["online.mined_boxes=pool"]
        yield Finding(
            SOME,
            f"Boxes of {name} are badly placed",
            f"{number} of {row['boxes']} boxes in the test set are detected with an IoU below 0.5",
            (*changes, "shots whose boxes fit the object tightly"),
        )


def _unseen(
    run: RunFiles, config: Config, name: str, row: Mapping[str, Any], may_mine: bool
) -> Iterator[Finding]:
    """`may_mine`: whether more mined boxes may help; not where background is taken for the class
    too, since more boxes are less sure ones.
    """
    any_score = row["recall_any"]
    background = row["missed_as"].get(OTHER_NAMES[BACKGROUND], 0)
    if any_score is not None and any_score < UNSEEN and 2 * background > row["boxes"]:
        changes = ["more shots (shots.k)"]
        if may_mine and run.thresholds:
            changes = [*more_boxes(config, run.thresholds.get(name, {}).get("kept", 0)), *changes]
        if not config.online.ignore_candidates:
            changes.append(new_setting("online.ignore_candidates", True))
        yield Finding(
            SOME,
            f"Most objects of {name} are missed at any score",
            f"only {any_score:.0%} of {row['boxes']} boxes in the test set are found at any score "
            f"above detector.score_threshold={config.detector.score_threshold:g}",
            tuple(changes),
        )


def _on_background(
    run: RunFiles, config: Config, name: str, row: Mapping[str, Any]
) -> Iterator[Finding]:
    number = row["false_on"].get(OTHER_NAMES[BACKGROUND], 0)
    if number >= ENOUGH and _share(number, row["detections"]) >= ON_BACKGROUND:
        kept = run.thresholds.get(name, {}).get("kept", 0)
        yield Finding(
            SOME,
            f"Background is mistaken for {name}",
            f"{number} of {row['detections']} detections above its best threshold "
            "are on no annotated object",
            (
                f"look at them in the report: are objects of {name} not annotated there?",
                *(higher_threshold(config, kept) if kept else ()),
            ),
        )
