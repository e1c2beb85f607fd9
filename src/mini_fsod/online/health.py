"""Is the self-training healthy? Warnings with advice, and an error when the teacher has collapsed.

The rules are functions of all readings of the gauges so far (`teacher.gauges`), the latest last.
A reading holds means over the iterations since the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mini_fsod import console
from mini_fsod.errors import HopelessError
from mini_fsod.train.step import is_loss

# A rule looks at a window of the latest readings: at least MIN_READINGS of them, over at least
SHORT_WINDOW = 100  # iterations, or,
LONG_WINDOW = 500  # where the numbers vary with the images, over these
UNTRAINED = 3_000  # iterations in which a detector has learnt to find something
MIN_READINGS = 3
MIN_BOXES = 100  # boxes shown before a ratio of boxes means something
MIN_BOXES_LEARNT = 1_000  # pool boxes of a class shown before the teacher must find it

MAX_MINED = 3.0  # mined boxes per base box
MAX_MINED_SHARE = 0.5  # of the loss
MIN_RATIO = 0.2  # an agreement or precision below it is too low to fall
CONFIDENT, BLIND = 0.5, 0.05  # confidence of a teacher that finds objects, and of a collapsed one
FULL = 0.8  # share of the most boxes that the teacher may find
CROWDED = 0.2  # share of them that the pool has: then so many objects are plausible

RATIOS = {  # of two gauges
    "agreement": ("agreed", "pool"),
    "placement": ("overlap", "agreed"),
    "precision": ("right", "mined"),
}
FALLS = {  # smallest share of a ratio's best value that is no warning, and the advice below it
    "agreement": (0.5, "The teacher forgets the pool: lower online.rate."),
    "precision": (2 / 3, "The teacher's errors reinforce themselves: raise online.delta."),
    "placement": (  # IoUs of agreeing boxes lie between 0.5 and 0.9
        0.85,
        "The teacher's boxes drift away from the pool's, because it learns from its own boxes: "
        "set online.mined_boxes to pool and online.mingle.keep_pool to true.",
    ),
}


class Reading(NamedTuple):
    step: int  # iterations done
    means: Mapping[str, float]  # by gauge


@dataclass(frozen=True, slots=True)
class Setup:
    """The training that the readings are of."""

    batch: int  # images per iteration
    instances: int  # the most boxes that the teacher may find in an image
    pool: Mapping[str, float]  # pool boxes of each class, per image shown
    long_window: int = LONG_WINDOW

    @classmethod
    def of(
        cls, batch: int, instances: int, pool: Mapping[str, float], iterations: int | None
    ) -> Setup:
        """The setup, with a shorter long window where the training is short."""
        window = LONG_WINDOW
        if iterations is not None:
            window = min(LONG_WINDOW, max(SHORT_WINDOW, iterations // 5))
        return cls(batch, instances, pool, window)


def readings_of(lines: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """The readings in the lines of a training log."""
    return [
        Reading(line["step"], {name: value for name, value in line.items() if name != "loss"})
        for line in lines  # "loss" is the sum of the other losses
    ]


def ratios(means: Mapping[str, float]) -> dict[str, float]:
    """Ratios of the gauges, where the denominator is not 0.

    `agreement`: share of the pool that the teacher finds too; `placement`: mean IoU of these pairs;
    `precision` of the mined boxes, where it is known; `mined_share` of the loss.
    """
    loss = sum(value for name, value in means.items() if is_loss(name))
    pairs = {name: (means.get(part), means.get(whole)) for name, (part, whole) in RATIOS.items()}
    pairs["mined_share"] = means.get("mined_loss"), loss
    return {
        name: part / whole for name, (part, whole) in pairs.items() if part is not None and whole
    }


def find_warnings(readings: Sequence[Reading], setup: Setup) -> dict[str, str]:
    """What is out of bounds, with advice, by a name for each kind of warning."""
    found = {}
    short = latest(readings, SHORT_WINDOW)
    long = latest(readings, setup.long_window)
    if short:
        mined, base = mean(short, "mined"), mean(short, "base")
        if mined > MAX_MINED * max(base, 1.0):
            found["many"] = (
                f"{mined:.1f} mined boxes per image, against {base:.1f} base boxes. Unless novel "
                "objects are that frequent, raise online.delta."
            )
        share = ratios({name: mean(short, name) for name in short[-1].means}).get("mined_share", 0)
        if share > MAX_MINED_SHARE:
            found["share"] = (
                f"{share:.0%} of the loss comes from mined boxes, so their errors outweigh the "
                "annotated boxes. Lower online.mined_weight, or raise online.delta or mine.alpha."
            )
    if long and mean(long, "mined") == 0:
        found["nothing"] = (
            f"no mined box in {setup.long_window} iterations: novel objects are trained as "
            "background. Lower online.delta; if the pool is empty, lower mine.alpha or "
            "mine.threshold; set online.mingle.rcnn to true, so that the student sees the pool."
        )
    for name, (drop, advice) in FALLS.items():
        now, best = now_and_best(readings, RATIOS[name], setup)
        if best >= MIN_RATIO and now < drop * best:
            found[name] = f"the {name} fell from {best:.2f} to {now:.2f}. {advice}"
    for name, per_image in setup.pool.items():
        shown = per_image * setup.batch * (readings[-1].step if long else 0)
        if shown >= MIN_BOXES_LEARNT and mean(readings, f"found_{name}") == 0:
            found[f"unfound {name}"] = (
                f"the teacher has never found a {name}, although the pool showed it about "
                f"{shown:,.0f} boxes. Lower online.delta, or check the pool's boxes of {name}."
            )
    for name in lost_classes(readings, setup):
        found[f"lost {name}"] = (
            f"the teacher has found no {name} in the last {setup.long_window} iterations, though "
            "it did before. Use a lower online.rate or a higher online.ema, or go on for the other "
            "classes."
        )
    return found


def find_collapse(readings: Sequence[Reading], setup: Setup) -> tuple[str, str] | None:
    """How the teacher has collapsed, and what to do about it; None as long as it has not."""
    short = latest(readings, SHORT_WINDOW)
    if not short:
        return None
    was_confident = max(reading.means["confidence"] for reading in readings) >= CONFIDENT
    if all(reading.means["confidence"] < BLIND for reading in short) and (
        was_confident or readings[-1].step >= UNTRAINED
    ):
        return (
            "it takes everything for background",
            "Use a lower online.rate, a longer online.warm_up or an online.clip",
        )
    full = FULL * setup.instances
    if (
        all(reading.means["found"] >= full for reading in short)
        and sum(setup.pool.values()) < CROWDED * full
    ):
        return (
            f"it finds {mean(short, 'found'):.0f} novel objects in every image",
            "Use a higher online.delta or a lower online.rate",
        )
    lost = lost_classes(readings, setup)
    if lost and mean(latest(readings, setup.long_window), "found") == 0:
        return (
            f"it has found no {' and no '.join(lost)} in the last {setup.long_window} iterations, "
            "though the pool showed them",
            "Use a lower online.rate or a higher online.ema",
        )
    return None


def lost_classes(readings: Sequence[Reading], setup: Setup) -> list[str]:
    """Classes of the pool that the teacher found before, and not in the last long window."""
    last, *earlier = windows(readings, setup.long_window) or [()]
    names = []
    for name, per_image in setup.pool.items():
        shown, found = per_image * setup.batch * setup.long_window, f"found_{name}"
        best = max((mean(window, found) for window in earlier), default=0.0)
        if shown >= MIN_BOXES and best >= MIN_RATIO * per_image and mean(last, found) == 0:
            names.append(name)
    return names


@dataclass(slots=True)
class HealthCheck:
    """Watches the training loop: prints each warning once, and stops when the teacher collapses.

    `readings` are those in the log of a training that is resumed.
    """

    setup: Setup
    readings: list[Reading] = field(default_factory=list)
    anyway: bool = False  # a collapse is a warning, too
    _warned: set[str] = field(default_factory=set)

    def begin(self, step: int) -> None:
        """The training starts, or resumes, after `step` iterations: later readings are dropped."""
        self.readings = [reading for reading in self.readings if reading.step <= step]

    def look(self, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """A reading after `step` iterations. Returns its `ratios`, which are logged too."""
        extra = ratios(means)
        self.readings.append(Reading(step, {**means, **extra}))
        collapse = find_collapse(self.readings, self.setup)
        if collapse is not None and not self.anyway:
            what, fix = collapse
            raise HopelessError(
                f"The teacher has collapsed: at iteration {step}, {what}.",
                f"{fix}, and run again. log.jsonl and TensorBoard show where it began; the last "
                "training state is kept, and --anyway goes on with it.",
            )
        for name, text in find_warnings(self.readings, self.setup).items():
            if name not in self._warned:
                self._warned.add(name)
                console.note(f"warning, at iteration {step}: {text}")
        return extra


def latest(readings: Sequence[Reading], iterations: int) -> Sequence[Reading]:
    """The fewest latest readings, at least MIN_READINGS, that cover so many iterations; empty where
    there are too few.
    """
    for n in range(MIN_READINGS, len(readings) + 1):
        before = readings[-n - 1].step if n < len(readings) else 0
        if readings[-1].step - before >= iterations:
            return readings[-n:]
    return ()


def windows(readings: Sequence[Reading], iterations: int) -> list[Sequence[Reading]]:
    """The readings cut into windows of so many iterations, the latest first. The earliest readings
    are left out where they do not fill a window.
    """
    parts = []
    while part := latest(readings, iterations):
        parts.append(part)
        readings = readings[: -len(part)]
    return parts


def mean(readings: Sequence[Reading], name: str) -> float:
    """The mean of a gauge; 0 for a reading without it."""
    return sum(reading.means.get(name, 0.0) for reading in readings) / max(len(readings), 1)


def now_and_best(
    readings: Sequence[Reading], pair: tuple[str, str], setup: Setup
) -> tuple[float, float]:
    """The ratio of two gauges in the last long window, and the best one in the windows before.

    Windows with fewer than MIN_BOXES boxes are left out; (1, 0) where there is nothing to compare.
    """
    found = []
    for window in windows(readings, setup.long_window):
        part, whole = (mean(window, name) for name in pair)
        enough = whole * setup.batch * setup.long_window >= MIN_BOXES
        found.append(part / whole if enough else None)
    now, *before = found or [None]
    best = max((ratio for ratio in before if ratio is not None), default=0.0)
    return (1.0, 0.0) if now is None else (now, best)
