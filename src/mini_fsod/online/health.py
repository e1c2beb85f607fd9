"""When self-training goes wrong: warnings with advice, and an end to a teacher that has collapsed.

The rules are functions of the looks at the gauges (`teaching.gauges`) so far, the last one last.
Each look holds means over the iterations since the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mini_fsod import console
from mini_fsod.errors import UserError
from mini_fsod.mining.delta import Deltas
from mini_fsod.train.step import is_loss

LOOKS = 3  # what must be seen at least so often to be no accident,
SOME = 100  # over so many iterations;
LONG = 500  # what comes and goes with the pictures, over so many
HOPELESS = 3_000  # iterations after which a detector has seen something
SHOWN = 100  # boxes that must have been shown to speak of their share,
MANY_SHOWN = 1_000  # and to expect that the teacher has learnt their class

TOO_MANY = 3.0  # mined boxes for each base box
MOST_OF_THE_LOSS = 0.5
WORTH = 0.2  # an agreement or precision that can be lost
AGREEMENT_LEFT = 0.5  # of the best there was
PRECISION_LEFT = 2 / 3
PLACEMENT_LEFT = 0.85  # boxes that agree overlap by half at least, and mostly by 0.8 to 0.9
SEES, BLIND = 0.5, 0.05  # confidence
FULL = 0.8  # of the instances that the teacher may find
CROWDED = 0.2  # of them already in the pool: then they may all be there

# What shares are made of: a part, and the whole
AGREEMENT = ("agreed", "pool")
PRECISION = ("right", "mined")
PLACEMENT = ("overlap", "agreed")


class Look(NamedTuple):
    step: int  # iterations done
    means: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Normal:
    """What the numbers are measured by."""

    batch: int  # images an iteration
    instances: int  # the most that the teacher may find in an image
    pool: Mapping[str, float]  # boxes an image that the pool has of each class
    long: int = LONG  # iterations after which what comes and goes with the pictures evens out

    @classmethod
    def of(
        cls, batch: int, instances: int, pool: Mapping[str, float], iterations: int | None
    ) -> Normal:
        """For a run of so many iterations, if known: of a short one less must be enough."""
        long = LONG if iterations is None else min(LONG, max(SOME, iterations // 5))
        return cls(batch, instances, pool, long)


def looks_of(lines: Sequence[Mapping[str, Any]]) -> list[Look]:
    """The looks that a log holds."""
    return [
        Look(line["step"], {name: value for name, value in line.items() if name != "loss"})
        for line in lines  # "loss" is the sum of the others
    ]


def shares(means: Mapping[str, float]) -> dict[str, float]:
    """What the gauges amount to, where there is something to divide by: the teacher's `agreement`
    with the pool, and `placement`, the overlap of their boxes where they agree; the `precision` of
    mined boxes, and their `mined_share` of the loss.
    """
    loss = sum(value for name, value in means.items() if is_loss(name))
    pairs = {
        "agreement": (means.get("agreed"), means["pool"]),
        "placement": (means.get("overlap"), means.get("agreed")),
        "precision": (means.get("right"), means["mined"]),
        "mined_share": (means.get("mined_loss"), loss),
    }
    return {
        name: part / whole for name, (part, whole) in pairs.items() if part is not None and whole
    }


def warnings(looks: Sequence[Look], normal: Normal) -> dict[str, str]:
    """What has left sane bounds, by a name for each kind: a sentence, and advice."""
    told = {}
    some, long = recent(looks, SOME), recent(looks, normal.long)
    if some:
        mined, base = mean(some, "mined"), mean(some, "base")
        if mined > TOO_MANY * max(base, 1.0):
            told["many"] = (
                f"{mined:.1f} mined boxes an image, beside {base:.1f} base boxes. Unless novel "
                "objects are that frequent, raise online.delta."
            )
        share = shares(mean_of_all(some)).get("mined_share", 0.0)
        if share > MOST_OF_THE_LOSS:
            told["share"] = (
                f"{share:.0%} of the loss comes from mined boxes: their errors outweigh what "
                "people drew. Lower online.mined_weight, or raise online.delta or mine.alpha."
            )
    if long and mean(long, "mined") == 0:
        told["nothing"] = (
            f"not one mined box in {normal.long} iterations: novel classes are taught as "
            "background. Lower online.delta; if the pool is empty, mine.alpha or mine.threshold; "
            "online.mingle.rcnn gives the student something to begin with; a few shots do not."
        )
    for name, pair, left, advice in (
        ("agreement", AGREEMENT, AGREEMENT_LEFT, "It forgets what was mined: lower online.rate."),
        ("precision", PRECISION, PRECISION_LEFT, "Errors feed on themselves: raise online.delta."),
        (
            "placement",
            PLACEMENT,
            PLACEMENT_LEFT,
            "The teacher's boxes drift away from the pool's, because it learns where objects end "
            "from itself: set online.mined_boxes to pool and online.mingle.keep_pool to true.",
        ),
    ):
        now, best = now_and_best(looks, pair, normal)
        if best >= WORTH and now < left * best:
            told[name] = f"the {name} fell to {now:.2f}, from {best:.2f}. {advice}"
    for name, an_image in normal.pool.items():
        shown = an_image * normal.batch * (looks[-1].step if long else 0)
        if shown >= MANY_SHOWN and mean(looks, f"found_{name}") == 0:
            told[f"unfound {name}"] = (
                f"the teacher has not found a single {name}, though the pool showed it some "
                f"{shown:,.0f}. Lower online.delta, or look at the pool's boxes of it."
            )
    for name in lost(looks, normal):
        told[f"lost {name}"] = (
            f"the teacher finds no {name} any more, in {normal.long} iterations. If the others are "
            "worth going on for, let it; else take a lower online.rate or a longer online.ema."
        )
    return told


def collapse(looks: Sequence[Look], normal: Normal) -> tuple[str, str] | None:
    """In what way the teacher has collapsed, and what to do; None while it has not."""
    some = recent(looks, SOME)
    if not some:
        return None
    sees = max(look.means["confidence"] for look in looks) >= SEES
    if all(look.means["confidence"] < BLIND for look in some) and (
        sees or looks[-1].step >= HOPELESS
    ):
        return (
            "it takes everything for background",
            "Take a lower online.rate, a longer online.warm_up or an online.clip",
        )
    full = FULL * normal.instances
    if (
        all(look.means["found"] >= full for look in some)
        and sum(normal.pool.values()) < CROWDED * full
    ):
        return (
            f"it finds {mean(some, 'found'):.0f} novel objects in every image",
            "Take a higher online.delta, or a lower online.rate",
        )
    gone = lost(looks, normal)
    if gone and mean(recent(looks, normal.long), "found") == 0:
        return (
            f"it finds no {' and no '.join(gone)} any more, in {normal.long} iterations with boxes "
            "of the pool",
            "Take a lower online.rate or a longer memory (online.ema)",
        )
    return None


def lost(looks: Sequence[Look], normal: Normal) -> list[str]:
    """Classes that the teacher has found, and finds no more though the pool has shown them."""
    last, *earlier = windows(looks, normal.long) or [()]
    names = []
    for name, an_image in normal.pool.items():
        shown, found = an_image * normal.batch * normal.long, f"found_{name}"
        once = max((mean(window, found) for window in earlier), default=0.0)
        if shown >= SHOWN and once >= WORTH * an_image and mean(last, found) == 0:
            names.append(name)
    return names


@dataclass(slots=True)
class Watch:
    """Looks on for the training loop: each warning once, and an error for a collapsed teacher.

    `looks` are those of a killed run that goes on.
    """

    normal: Normal
    looks: list[Look] = field(default_factory=list)
    deltas: Deltas | None = None  # moved by what is seen
    _told: set[str] = field(default_factory=set)

    def begin(self, step: int) -> None:
        """So many iterations are done: what was logged beyond is to come once more."""
        self.looks = [look for look in self.looks if look.step <= step]
        if self.deltas is not None:
            self.deltas.begin(self._last.means)

    def look(self, step: int, means: Mapping[str, float]) -> dict[str, float]:
        """`shares` of these means, and deltas, to be logged beside them."""
        told = shares(means)
        if self.deltas is not None:
            told |= self.deltas.look(step - self._last.step, self._last.means, means)
        self.looks.append(Look(step, {**means, **told}))
        wrong = collapse(self.looks, self.normal)
        if wrong is not None:
            what, fix = wrong
            raise UserError(
                f"The teacher has collapsed: at iteration {step}, {what}.",
                f"{fix}, and begin the stage again (--from online). log.jsonl and TensorBoard show "
                "where it began; the last state that was written is kept.",
            )
        for name, text in warnings(self.looks, self.normal).items():
            if name not in self._told:
                self._told.add(name)
                console.note(f"warning, at iteration {step}: {text}")
        return told

    @property
    def _last(self) -> Look:
        return self.looks[-1] if self.looks else Look(0, {})


def recent(looks: Sequence[Look], iterations: int) -> Sequence[Look]:
    """The last looks that cover so many iterations, at least LOOKS of them; none where there are
    not enough yet.
    """
    for n in range(LOOKS, len(looks) + 1):
        before = looks[-n - 1].step if n < len(looks) else 0
        if looks[-1].step - before >= iterations:
            return looks[-n:]
    return ()


def mean(looks: Sequence[Look], name: str) -> float:
    """The mean of a gauge; 0 where it was not told."""
    return sum(look.means.get(name, 0.0) for look in looks) / max(len(looks), 1)


def mean_of_all(looks: Sequence[Look]) -> dict[str, float]:
    return {name: mean(looks, name) for name in looks[-1].means}


def windows(looks: Sequence[Look], long: int) -> list[Sequence[Look]]:
    """The looks in parts of so many iterations, the last one first; what is left over begins."""
    parts = []
    while part := recent(looks, long):
        parts.append(part)
        looks = looks[: -len(part)]
    return parts


def now_and_best(
    looks: Sequence[Look], pair: tuple[str, str], normal: Normal
) -> tuple[float, float]:
    """A share in the last window, and its best in those before; of windows with enough boxes to
    mean something. (1, 0) where there is nothing to compare.
    """
    found = []
    for window in windows(looks, normal.long):
        part, whole = (mean(window, name) for name in pair)
        enough = whole * normal.batch * normal.long >= SHOWN
        found.append(part / whole if enough else None)
    now, *before = found or [None]
    best = max((share for share in before if share is not None), default=0.0)
    return (1.0, 0.0) if now is None else (now, best)
