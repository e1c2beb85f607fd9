"""Causes in the data: the test set, the shots, the scale, and what there is to mine in.

They are in `data.json` (`runs/facts.py`) and in the scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from mini_fsod import console
from mini_fsod.report.finding import BLOCKS, MAJOR, SOME, WORTH_KNOWING, Finding, new_setting
from mini_fsod.report.run_files import RunFiles

POOR = 0.6  # of the base classes' mean AP50: a new class below it needs an explanation
SIMILAR = 0.82  # two spellings of one name
WIDE = 20.0  # points of nAP50 in its 95 % interval: too wide to compare settings by
FEW_BOXES = 15  # test boxes of a class
OTHER_SIZE = 2.0  # shots this many times as large as the objects of the test set
OTHER_SCALE = 1.6  # training and test pictures
FEW_PICTURES = 100  # to mine in
NOTHING_NEW = 2  # pictures to mine in, per picture with a shot: hardly more than the shots' own


def data_findings(run: RunFiles) -> Iterator[Finding]:
    facts = run.facts
    if facts is None:
        return
    yield from _no_test_set(run, facts)
    yield from _test_names(facts)
    yield from _wide_interval(run, facts)
    yield from _tiny_shots(run, facts)
    yield from _unlike_shots(run, facts)
    yield from _other_scale(facts)
    yield from _below_anchors(run, facts)
    yield from _little_to_mine(run, facts)


def is_poor(run: RunFiles, name: str) -> bool:
    """Whether the AP of a new class needs an explanation."""
    ap, base = run.ap(name), run.headline("bAP50")
    return ap is not None and ap < POOR * (base or 100.0)


def _classes(facts: Mapping[str, Any], novel: bool) -> dict[str, Mapping[str, Any]]:
    return {name: row for name, row in facts["classes"].items() if row["novel"] == novel}


def _no_test_set(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["test_images"] is None and run.last_scored is None:
        yield Finding(
            SOME,
            "There is no test set, so nothing is scored",
            "no image set is called test or val, and data.test names none",
            ("data.test=NAME", "name a folder or annotation file of labelled pictures “test”"),
        )


def _test_names(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """New classes without test boxes, or with another spelling in the test set."""
    if not facts["test_images"]:
        return
    classes = facts["classes"]
    for name, row in _classes(facts, novel=True).items():
        if row["test"]:
            continue
        twins = [
            other
            for other, its in classes.items()
            if other != name and its["test"] and not its["train"] and same_word(name, other)
        ]
        if twins:
            yield Finding(
                BLOCKS,
                f"{name} is spelt differently in the test set",
                f"the test set has 0 boxes of {name}, and "
                f"{console.count(classes[twins[0]]['test'], 'box')} of {twins[0]}, which no "
                "training picture has",
                (f"write {name} in the annotations of the test set too",),
            )
        else:
            yield Finding(
                SOME,
                f"{name} cannot be scored",
                f"the test set has no box of {name}, so its AP is not known",
                (f"label {name} in the test pictures", "another image set: data.test=NAME"),
            )


def same_word(one: str, other: str) -> bool:
    """Whether two class names look like spellings of one: Bolts and bolt, traffic-cone."""
    a, b = (re.sub(r"[\W_]+", "", name.casefold()).removesuffix("s") for name in (one, other))
    if a == b:
        return bool(a)
    return min(len(a), len(b)) >= 4 and SequenceMatcher(None, a, b).ratio() >= SIMILAR


def _wide_interval(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    interval = (run.errors or {}).get("interval95", {}).get("nAP50")
    if not interval or interval[1] - interval[0] <= WIDE:
        return
    boxes = {name: row["test"] or 0 for name, row in _classes(facts, novel=True).items()}
    few = [f"{name} {n}" for name, n in boxes.items() if n < FEW_BOXES]
    least = f"; test boxes: {', '.join(few)}" if few else f"; {sum(boxes.values()):,} test boxes"
    yield Finding(
        WORTH_KNOWING,
        "The test set is too small to compare settings",
        f"the 95 % interval of nAP50 over test pictures is {interval[0]:.0f} to "
        f"{interval[1]:.0f}{least}",
        ("label more test pictures of the new classes",),
    )


def _tiny_shots(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    lines = [
        line
        for line in facts["tiny"]
        if (name := line.partition(": ")[0]) not in run.novel
        or run.ap(name) is None
        or is_poor(run, name)
    ]
    if lines:
        larger = new_setting("views.test", round(1.5 * facts["short"]))
        yield Finding(
            MAJOR,
            "The shots are tiny at the detector's scale",
            "; ".join(lines),
            ("choose larger objects as shots (shots.file, or another shots.seed)", larger),
        )


def _unlike_shots(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, row in _classes(facts, novel=True).items():
        shot, test = row["shot_side"], row["test_side"]
        if not shot or not test or not is_poor(run, name):
            continue
        ratio = max(shot / test, test / shot)
        if ratio > OTHER_SIZE:
            how = "larger" if shot > test else "smaller"
            yield Finding(
                SOME,
                f"The shots of {name} differ in size from the test objects",
                f"a shot's median side is {shot:.0f} pixels, {ratio:.1f} times {how} than that of "
                f"the objects in the test set ({test:.0f})",
                ("choose more typical shots (shots.file)", "views.zoom=[0.5, 1.25]"),
            )


def _other_scale(facts: Mapping[str, Any]) -> Iterator[Finding]:
    pairs = [
        (row["train_side"], row["test_side"])
        for row in _classes(facts, novel=False).values()
        if row["train_side"] and row["test_side"]
    ]
    if len(pairs) < 2:
        return
    train, test = (sorted(sides)[len(sides) // 2] for sides in zip(*pairs, strict=True))
    ratio = max(train / test, test / train)
    if ratio > OTHER_SCALE:
        how = "smaller" if test < train else "larger"
        wanted = round(facts["short"] * train / test)
        yield Finding(
            MAJOR,
            f"Objects in test pictures are {how} than in training pictures",
            f"the median side of base objects is {train:.0f} pixels in training pictures and "
            f"{test:.0f} in test pictures, at the same short side of {facts['short']}",
            (new_setting("views.test", wanted), "views.zoom=[0.5, 1.25]"),
        )


def _below_anchors(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    if run.config is None:
        return
    least = min(run.config.detector.anchors)
    too_small = [
        f"{name} {row['test_side']:.0f}"
        for name, row in _classes(facts, novel=True).items()
        if row["test_side"] and row["test_side"] < 0.75 * least and is_poor(run, name)
    ]
    if too_small:
        halved = ", ".join(f"{anchor / 2:g}" for anchor in run.config.detector.anchors)
        yield Finding(
            SOME,
            "New objects are smaller than the smallest anchor",
            f"median side in test pictures at the detector's scale: {', '.join(too_small)}; the "
            f"smallest anchor has {least:g}",
            (
                new_setting("views.test", 2 * facts["short"]),
                f"detector.anchors=[{halved}]",
            ),
        )


def _little_to_mine(run: RunFiles, facts: Mapping[str, Any]) -> Iterator[Finding]:
    mined = facts["mined_images"]
    shots = sum(row["shots"] or 0 for row in _classes(facts, novel=True).values())
    if run.is_oracle or run.config is None or run.config.mine.extra is not None or mined == 0:
        return
    if "mine" in run.figures and (mined < FEW_PICTURES or mined < NOTHING_NEW * shots):
        yield Finding(
            SOME,
            "There are few images to mine",
            f"mining looked at {console.count(mined, 'picture')}, for {shots} shots",
            ("mine.extra=FOLDER with more pictures, which need no labels",),
        )
