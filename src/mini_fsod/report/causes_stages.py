"""Causes in the scores of the stages. `mini run` says them when a stage ends, `mini doctor` later.

Functions of the figures of all stages so far, by stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mini_fsod.report.finding import BLOCKS, MAJOR, SOME, Finding

Figures = Mapping[str, Any]

LITTLE = 10.0  # bAP50 of a base detector that mining cannot build on
WEAK = 30.0  # bAP50 below which a better base detector is the first thing to try
LOST = 5.0  # bAP50 that a stage costs by its settings, not by chance
WORSE = 2.0  # likewise nAP50, and bAP50 that makes the last fine-tuning one of the causes

KINDER = {  # what lets a stage forget less
    "transfer": ("a lower transfer.rate", "transfer.data=known"),
    "online": ("a lower online.rate", "a longer training (online.iterations or online.minutes)"),
    "tune": ("a lower tune.rate", "tune.data=known", "tune.data=none"),
}
EARLIER = {"online": "transfer", "tune": "online"}  # whose detector a stage should improve


def stage_findings(stage: str, figures: Mapping[str, Figures]) -> Iterator[Finding]:
    """What is wrong with the scores of a stage."""
    yield from _weak_base(stage, figures)
    yield from _base_classes_lost(stage, figures)
    yield from _new_classes_lost(stage, figures)


def _weak_base(stage: str, figures: Mapping[str, Figures]) -> Iterator[Finding]:
    base = figures.get("base", {}).get("bAP50")
    if stage != "base" or base is None or base >= WEAK:
        return
    yield Finding(
        BLOCKS if base_blocks(figures) else MAJOR,
        "The base detector is weak, and mining depends on it",
        f"bAP50 is {base:.1f} after base training",
        (
            "a longer base training (base.minutes or base.iterations)",
            "pretrained weights (detector.weights)",
            "more pictures with base boxes",
        ),
    )


def base_blocks(figures: Mapping[str, Figures]) -> bool:
    """Whether the base detector is so weak that no setting of mining helps."""
    base = figures.get("base", {}).get("bAP50")
    return base is not None and base < LITTLE


def _base_classes_lost(stage: str, figures: Mapping[str, Figures]) -> Iterator[Finding]:
    since_base = _lost(stage, figures, "bAP50", "base")
    lost = _lost(stage, figures, "bAP50", "online" if stage == "tune" else "base")
    if stage in KINDER and lost > WORSE and since_base > LOST:
        yield Finding(
            SOME,
            f"The stage {stage} lowered the AP of the base classes",
            f"bAP50 is {since_base:.1f} points lower than that of the base detector",
            KINDER[stage],
        )


def _new_classes_lost(stage: str, figures: Mapping[str, Figures]) -> Iterator[Finding]:
    earlier = EARLIER.get(stage)
    if earlier is not None and _lost(stage, figures, "nAP50", earlier) > WORSE:
        before, now = (figures[s]["nAP50"] for s in (earlier, stage))
        fix = ("tune.data=none",) if stage == "tune" else ()
        yield Finding(
            MAJOR,
            f"The stage {stage} lowered the AP of the new classes",
            f"nAP50 was {before:.1f} after the stage {earlier}, and is {now:.1f} after {stage}: "
            f"the checkpoint of {earlier} is the better detector",
            fix,
        )


def _lost(stage: str, figures: Mapping[str, Figures], name: str, since: str) -> float:
    before, now = (figures.get(s, {}).get(name) for s in (since, stage))
    return 0.0 if before is None or now is None else before - now
