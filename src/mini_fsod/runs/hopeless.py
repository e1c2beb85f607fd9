"""When to stop a run early: a stage's result is unusable for the later ones.

Each rule gives the cause with its figures, and the next step. The pipeline ends a run there
(`errors.HopelessError`), or only says it where the stage is the last or the user goes on anyway.
A teacher that collapses during re-training is found by `online/health.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mini_fsod import console
from mini_fsod.config.schema import Config

LEAST_BAP50 = 5.0  # of a base detector that has learnt anything
OFTEN = 10.0  # times that each picture was shown: more training will hardly help

Figures = Mapping[str, Any]


class Hopeless(NamedTuple):
    """Why it is of no use to go on, and what to change."""

    what: str
    fix: str


def why_hopeless(
    stage: str, figures: Mapping[str, Figures], config: Config, pictures: int, pool: int
) -> Hopeless | None:
    """Why the stages after this one have nothing to build on; None where they have.

    `figures` are those of all stages so far, `pictures` are trained on by the stage base, and
    `pool` is the number of boxes in the run's pool, which people may have added.
    """
    of_stage = figures[stage]
    if stage == "base":
        return _base(of_stage, config, pictures)
    if stage == "scan":
        return _scan(of_stage, figures.get("transfer", {}), config)
    if stage == "mine" and not pool:
        return _mine(of_stage, config)
    return None


def _base(figures: Figures, config: Config, pictures: int) -> Hopeless | None:
    score = figures.get("bAP50")
    if score is None or score >= LEAST_BAP50:
        return None
    what = (
        f"The base detector has learnt next to nothing: bAP50 {score:.1f} on "
        f"{console.count(figures.get('images', 0), 'test image')}; mining needs at least "
        f"{LEAST_BAP50:g}."
    )
    iterations, section = figures.get("iterations"), config.base
    if not iterations:
        return Hopeless(
            what,
            "Check that base.checkpoint is a detector of these classes (`mini eval` scores it), or "
            "train one.",
        )
    shown = iterations * section.batch / max(pictures, 1)
    what += (
        f" It trained for {console.count(iterations, 'iteration')} "
        f"({console.duration(figures.get('training_seconds', 0.0))}), which showed each of "
        f"{console.count(pictures, 'picture')} {shown:.1f} times."
    )
    if config.detector.weights is None and config.detector.norm == "frozen":
        return Hopeless(what, "Start from pretrained weights: detector.weights=IMAGENET1K_V2.")
    if shown >= OFTEN:
        return Hopeless(
            what,
            f"Check the boxes (`mini check`), or try another base.rate (it was "
            f"{section.learning_rate:g}).",
        )
    key = "base.iterations" if section.minutes is None else "base.minutes"
    now = section.iterations if section.minutes is None else f"{section.minutes:g}"
    return Hopeless(
        what,
        f"Train longer: raise {key} (it was {now}); or start from a finished detector: "
        "base.checkpoint.",
    )


def _scan(figures: Figures, transfer: Figures, config: Config) -> Hopeless | None:
    images = figures.get("images", 0) + figures.get("extra_images", 0)
    if figures.get("pairs", 0) + figures.get("extra_pairs", 0) or not images:
        return None
    section = config.mine
    if section.detections is not None:
        return Hopeless(
            f"There are no candidates: {section.detections} has no box of a new class with a score "
            f"of {section.min_score:g} or more in {console.count(images, 'image')}.",
            f"Lower mine.min_score (it was {section.min_score:g}), or check the class names there.",
        )
    score = transfer.get("nAP50")
    known = "" if score is None else f" Its nAP50 is {score:.1f}."
    return Hopeless(
        f"There are no candidates: in none of {console.count(images, 'image')} has the few-shot "
        f"detector given a new class a score of {section.min_score:g} or more.{known}",
        "Give larger, more typical or more shots, raise transfer.iterations "
        f"({config.transfer.iterations:,} now), or lower mine.min_score ({section.min_score:g} "
        "now).",
    )


def _mine(figures: Figures, config: Config) -> Hopeless:
    if figures.get("given"):
        return Hopeless(
            f"The pool has no boxes: {figures['given']} is empty.",
            "Set mine.pool to a pool that has some, or leave it out to mine.",
        )
    section = config.mine
    candidates = figures.get("candidates", 0) + figures.get("extra", {}).get("candidates", 0)
    least = "mine.threshold"
    if section.threshold == "adaptive":
        least = f"mine.alpha (it was {section.alpha:g})"
        if section.mean_score is not None:
            least += f" or mine.mean_score ({section.mean_score:g})"
    best = figures.get("best_score")
    known = "" if best is None else f" (the best has a score of {best:.2f})"
    return Hopeless(
        f"Nothing was mined: none of {console.count(candidates, 'candidate')}{known} was chosen, "
        "and re-training would teach new classes as background.",
        f"Lower {least}, or give larger, more typical or more shots; the contact sheets show the "
        "candidates.",
    )
