"""How good a pool is, where the ground truth of novel classes is known. Nothing else reads it.

A candidate is true when it matches a hidden box of its class at IoU 0.5, difficult ones included.
Matching is greedy by score, so a candidate's verdict depends on better ones alone: the same for the
pool, for the best k, and for all candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.split import arranged
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.overlap import iou, pairs_within

MATCH_IOU = 0.5
LOOSE_IOU = 0.1  # from here on a false box has seen its object, and lies badly
RANKS = (10, 30, 100, 300, 600, 1000)

TRUE, DUPLICATE, FALSE = 0, 1, 2
LOOSE, BACKGROUND = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What each of n candidates really is."""

    kind: npt.NDArray[np.int8]  # (n,) TRUE, DUPLICATE (of an object found already) or FALSE
    # (n,) false ones: the class in the label map that the box lies on, LOOSE (badly on its own),
    # or BACKGROUND
    on: Ints


def judge(found: Candidates, truth: Dataset, labels: LabelMap) -> Verdict:
    """Candidates against all boxes of their images. `truth` has the images that were mined."""
    boxes = _targets(arranged(truth, labels).boxes)
    own_class = found.label + len(labels.base)
    own, other = pairs_within(found.image, boxes.image)
    overlap = iou(found.xywh[own], boxes.xywh[other])
    same = own_class[own] == boxes.label[other]
    kind = _match(found, own, other, np.where(same, overlap, 0.0), len(boxes))

    on = np.full(len(found), BACKGROUND, dtype=np.int64)
    # later ones win: a box of another class that it covers says more than a corner of its own
    on[own[same & (overlap >= LOOSE_IOU)]] = LOOSE
    wrong = np.flatnonzero(~same & (overlap >= MATCH_IOU))
    wrong = wrong[np.argsort(overlap[wrong], kind="stable")]
    on[own[wrong]] = boxes.label[other[wrong]]
    return Verdict(kind, on)


def _targets(boxes: Boxes) -> Boxes:
    """What can be found: difficult boxes too, but no crowds and regions to ignore."""
    return boxes.take(boxes.sound & ~boxes.crowd & ~boxes.ignore)


def _match(
    found: Candidates, own: Ints, other: Ints, overlap: Any, truths: int
) -> npt.NDArray[np.int8]:
    """(n,) greedy matching: the best candidates first, each takes the free box it fits best."""
    kind = np.full(len(found), FALSE, dtype=np.int8)
    near = np.flatnonzero(overlap >= MATCH_IOU)
    kind[own[near]] = DUPLICATE
    near = near[np.lexsort((other[near], -overlap[near], own[near], -found.score[own[near]]))]
    taken = np.zeros(truths, dtype=np.bool_)
    for candidate, box in zip(own[near].tolist(), other[near].tolist(), strict=True):
        if kind[candidate] != TRUE and not taken[box]:
            kind[candidate], taken[box] = TRUE, True
    return kind


def audit(
    found: Candidates,
    kept: Bools,
    truth: Dataset,
    labels: LabelMap,
    without: tuple[Candidates, Bools] | None = None,
) -> dict[str, Any]:
    """The content of `audit.json`: the pool, then each class.

    `without` is what the same pairs give when cosines are ignored; None where there are none.
    """
    table = _figures(found, kept, truth, labels)
    plain = None if without is None else _figures(*without, truth, labels)
    for name, row in table.items():
        row["without_co_mining"] = None if plain is None else plain[name]
    total = table.pop("")
    return {"iou": MATCH_IOU, "pool": total, "classes": table}


def _figures(
    found: Candidates, kept: Bools, truth: Dataset, labels: LabelMap
) -> dict[str, dict[str, Any]]:
    """The figures of each class, and of all of them under ""."""
    verdict = judge(found, truth, labels)
    hidden = _targets(arranged(truth, labels).boxes).label - len(labels.base)
    order = np.argsort(-found.score, kind="stable")
    table = {}
    ranked = []
    for place, name in enumerate(labels.novel):
        best = order[found.label[order] == place]
        ranked.append(best)
        table[name] = _row(verdict, kept, [best], int((hidden == place).sum()), labels)
    table[""] = _row(verdict, kept, ranked, int((hidden >= 0).sum()), labels)
    return table


def _row(
    verdict: Verdict, kept: Bools, ranked: list[Ints], hidden: int, labels: LabelMap
) -> dict[str, Any]:
    """Figures of some classes; `ranked` are the candidates of each, best first."""
    everything = np.concatenate([np.zeros(0, dtype=np.int64), *ranked])
    own = everything[kept[everything]]
    true = int((verdict.kind[own] == TRUE).sum())
    reached = int((verdict.kind[everything] == TRUE).sum())
    on, count = np.unique(verdict.on[own[verdict.kind[own] == FALSE]], return_counts=True)
    false_on = dict(zip(on.tolist(), count.tolist(), strict=True))
    background, loose = false_on.pop(BACKGROUND, 0), false_on.pop(LOOSE, 0)
    return {
        "hidden": hidden,
        "kept": len(own),
        "true_positives": true,
        "duplicates": int((verdict.kind[own] == DUPLICATE).sum()),
        "precision": _share(true, len(own)),
        "recall": _share(true, hidden),
        "false_on": {
            "background": background,
            "badly_placed": loose,
            "classes": {
                labels.classes[k]: n for k, n in sorted(false_on.items(), key=lambda item: -item[1])
            },
        },
        "candidates": len(everything),
        "candidates_true": reached,
        "candidates_recall": _share(reached, hidden),
        "precision_by_rank": {str(rank): _precision_at(verdict, ranked, rank) for rank in RANKS},
    }


def _precision_at(verdict: Verdict, ranked: list[Ints], rank: int) -> float | None:
    """Precision of the best so many candidates of each class; None if no class has so many."""
    if not any(len(best) >= rank for best in ranked):
        return None
    own = np.concatenate([best[:rank] for best in ranked])
    return _share(int((verdict.kind[own] == TRUE).sum()), len(own))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
