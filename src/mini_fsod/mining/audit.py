"""How good a pool is, where the ground truth of novel classes is known. Nothing else reads it.

A candidate is true when it matches a hidden box of its class at IoU 0.5, difficult ones included.
The shots are not hidden: to find them again is neither right nor wrong. Matching is greedy by
score, so a candidate's verdict depends on better ones alone. The pool is judged by itself: a better
candidate that may not be chosen (`mine.drop_nested`) takes no object from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.subsets import arranged
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.overlap import iou, pairs_within

MATCH_IOU = 0.5
LOOSE_IOU = 0.1  # from here on a false box has seen its object, and lies badly
SAME_BOX = 0.9  # IoU of a shot with itself, whatever a file in between has rounded
ENOUGH = 0.25  # annotated objects for each mined box: with fewer, most are just not annotated
RANKS = (10, 30, 100, 300, 600, 1000)

TRUE, DUPLICATE, FALSE, SHOWN = 0, 1, 2, 3
LOOSE, BACKGROUND = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What each of n candidates really is."""

    kind: npt.NDArray[np.int8]  # (n,) TRUE, DUPLICATE (of a box found already), FALSE or SHOWN
    # (n,) false ones: the class in the label map that the box lies on, LOOSE (badly on its own),
    # or BACKGROUND
    on: Ints


def annotated(truth: Dataset, shots: Dataset, labels: LabelMap) -> int:
    """How many novel objects are annotated beyond the shots. Both data sets have one root."""
    boxes = _targets(arranged(truth, labels).boxes)
    hidden = (boxes.label >= len(labels.base)) & ~_are_shots(boxes, truth, shots)
    return int(hidden.sum())


def seem_complete(objects: int, mined: int) -> bool:
    """Whether so many annotated objects can tell how many of the mined boxes are right. Whoever has
    drawn a few more than the shots has not drawn all, and a box on none of them may be right.
    """
    return 0 < objects >= ENOUGH * mined


def judge(found: Candidates, truth: Dataset, shots: Dataset, labels: LabelMap) -> Verdict:
    """Candidates against all boxes of their images. `truth` has the images that were mined, and
    the root and classes of `shots`.
    """
    boxes = _targets(arranged(truth, labels).boxes)
    own_class = found.label + len(labels.base)
    own, other = pairs_within(found.image, boxes.image)
    overlap = iou(found.xywh[own], boxes.xywh[other])
    same = own_class[own] == boxes.label[other]
    shown = _are_shots(boxes, truth, shots)
    kind = _match(found, own, other, np.where(same, overlap, 0.0), shown)

    on = np.full(len(found), BACKGROUND, dtype=np.int64)
    # later ones win: a box of another class that it covers says more than a corner of its own
    on[own[same & (overlap >= LOOSE_IOU)]] = LOOSE
    wrong = np.flatnonzero(~same & (overlap >= MATCH_IOU))
    wrong = wrong[np.argsort(overlap[wrong], kind="stable")]
    on[own[wrong]] = boxes.label[other[wrong]]
    return Verdict(kind, on)


def with_pool(
    verdict: Verdict,
    found: Candidates,
    kept: Bools,
    truth: Dataset,
    shots: Dataset,
    labels: LabelMap,
) -> Verdict:
    """The verdict of all candidates, but for those that are kept (n,): they are judged by
    themselves.
    """
    kind = verdict.kind.copy()
    kind[kept] = judge(found.take(kept), truth, shots, labels).kind
    return replace(verdict, kind=kind)


def _targets(boxes: Boxes) -> Boxes:
    """What can be found: difficult boxes too, but no crowds and regions to ignore."""
    return boxes.take(boxes.sound & ~boxes.crowd & ~boxes.ignore)


def _are_shots(boxes: Boxes, truth: Dataset, shots: Dataset) -> Bools:
    """(n,) which boxes of the images of `truth` are among the shots, whose classes are the same."""
    place = {file: i for i, file in enumerate(truth.files)}
    image = np.array([place.get(file, -1) for file in shots.files], dtype=np.int64)
    own, other = pairs_within(boxes.image, image[shots.boxes.image])
    same = boxes.label[own] == shots.boxes.label[other]
    same &= iou(boxes.xywh[own], shots.boxes.xywh[other]) >= SAME_BOX
    found = np.zeros(len(boxes), dtype=np.bool_)
    found[own[same]] = True
    return found


def _match(
    found: Candidates, own: Ints, other: Ints, overlap: Any, shown: Bools
) -> npt.NDArray[np.int8]:
    """(n,) greedy matching: the best candidates first, each takes the free box it fits best; boxes
    may be `shown` (truths,).
    """
    kind = np.full(len(found), FALSE, dtype=np.int8)
    near = np.flatnonzero(overlap >= MATCH_IOU)
    kind[own[near]] = DUPLICATE
    near = near[np.lexsort((other[near], -overlap[near], own[near], -found.score[own[near]]))]
    taken = np.zeros(len(shown), dtype=np.bool_)
    for candidate, box in zip(own[near].tolist(), other[near].tolist(), strict=True):
        if kind[candidate] == DUPLICATE and not taken[box]:
            kind[candidate], taken[box] = SHOWN if shown[box] else TRUE, True
    return kind


def audit(
    found: Candidates,
    kept: Bools,
    truth: Dataset,
    shots: Dataset,
    labels: LabelMap,
    without: tuple[Candidates, Bools] | None = None,
) -> dict[str, Any]:
    """The content of `audit.json`: the pool, then each class.

    `without` is what the same pairs give when cosines are ignored; None where there are none.
    """
    table = _figures(found, kept, truth, shots, labels)
    plain = None if without is None else _figures(*without, truth, shots, labels)
    for name, row in table.items():
        row["without_co_mining"] = None if plain is None else plain[name]
    total = table.pop("")
    return {"iou": MATCH_IOU, "pool": total, "classes": table}


def _figures(
    found: Candidates, kept: Bools, truth: Dataset, shots: Dataset, labels: LabelMap
) -> dict[str, dict[str, Any]]:
    """The figures of each class, and of all of them under ""."""
    verdict = judge(found, truth, shots, labels)
    of_pool = with_pool(verdict, found, kept, truth, shots, labels)
    boxes = _targets(arranged(truth, labels).boxes)
    hidden = boxes.label[~_are_shots(boxes, truth, shots)] - len(labels.base)
    order = np.argsort(-found.score, kind="stable")
    table = {}
    ranked = []
    for place, name in enumerate(labels.novel):
        best = order[found.label[order] == place]
        ranked.append(best)
        number = int((hidden == place).sum())
        table[name] = _row(verdict, of_pool, kept, [best], number, labels)
    table[""] = _row(verdict, of_pool, kept, ranked, int((hidden >= 0).sum()), labels)
    return table


def _row(
    verdict: Verdict,
    of_pool: Verdict,
    kept: Bools,
    ranked: list[Ints],
    hidden: int,
    labels: LabelMap,
) -> dict[str, Any]:
    """Figures of some classes; `ranked` are the candidates of each, best first."""
    everything = np.concatenate([np.zeros(0, dtype=np.int64), *ranked])
    own = everything[kept[everything]]
    kind = of_pool.kind[own]
    true, shown = int((kind == TRUE).sum()), int((kind == SHOWN).sum())
    reached = int((verdict.kind[everything] == TRUE).sum())
    on, count = np.unique(verdict.on[own[kind == FALSE]], return_counts=True)
    false_on = dict(zip(on.tolist(), count.tolist(), strict=True))
    background, loose = false_on.pop(BACKGROUND, 0), false_on.pop(LOOSE, 0)
    return {
        "hidden": hidden,
        "kept": len(own),
        "on_shots": shown,
        "true_positives": true,
        "duplicates": int((kind == DUPLICATE).sum()),
        "precision": _share(true, len(own) - shown),
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
    own = own[verdict.kind[own] != SHOWN]
    return _share(int((verdict.kind[own] == TRUE).sum()), len(own))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
