"""How good a pool is, where the ground truth of novel classes is known; only reports read it.

A candidate is true where it matches a hidden box of its class at IoU 0.5, difficult boxes included.
The shots are not hidden: to find one again is neither right nor wrong. Matching is greedy by score,
so the verdict on a candidate depends on better ones alone. The pool is judged by itself: a better
candidate that was not eligible (`mine.drop_nested`) takes no object from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Boxes, Dataset, Floats, Ints
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.data.subsets import arranged
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates

MATCH_IOU = 0.5
LOOSE_IOU = 0.1  # from here on, a false box is on an object of its class but badly placed
SAME_BOX_IOU = 0.9  # from here on, a ground-truth box is the shot itself, rounded in files
MIN_ANNOTATED = 0.25  # annotated objects per mined box: with fewer, most are just not annotated
# COCO's size classes: below which root of its area, in pixels of the picture, an object is in one
SIZES = (("small", 32.0), ("medium", 96.0), ("large", np.inf))
RANKS = (10, 30, 100, 300, 600, 1000)

TRUE, DUPLICATE, FALSE, SHOT = 0, 1, 2, 3
LOOSE, BACKGROUND = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """The g boxes in the images that were mined that can be found: difficult ones too, but no
    crowds and regions to ignore.
    """

    boxes: Boxes  # with the labels of the label map
    is_shot: Bools  # (g,)
    labels: LabelMap

    @classmethod
    def of(cls, data: Dataset, shots: Dataset, labels: LabelMap) -> GroundTruth:
        """Both data sets have one root and the classes of the label map."""
        boxes = arranged(data, labels).boxes
        boxes = boxes.take(boxes.sound & ~boxes.crowd & ~boxes.ignore)
        index = {file: i for i, file in enumerate(data.files)}
        image = np.array([index.get(file, -1) for file in shots.files], dtype=np.int64)
        row, other = pairs_within(boxes.image, image[shots.boxes.image])
        same = boxes.label[row] == shots.boxes.label[other]
        same &= iou(boxes.xywh[row], shots.boxes.xywh[other]) >= SAME_BOX_IOU
        is_shot = np.zeros(len(boxes), dtype=np.bool_)
        is_shot[row[same]] = True
        return cls(boxes, is_shot, labels)

    @property
    def hidden(self) -> Ints:
        """(h,) the novel objects that are annotated beyond the shots, as indices of classes."""
        novel = self.boxes.label[~self.is_shot] - len(self.labels.base)
        return novel[novel >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What each of n candidates is."""

    kind: npt.NDArray[np.int8]  # (n,) TRUE, DUPLICATE (of a box found already), FALSE or SHOT
    # (n,) for false ones: the class in the label map that the box is on, LOOSE (badly placed on an
    # object of its own class), or BACKGROUND
    on: Ints
    overlap: Floats  # (n,) IoU with the box that it takes; 0 where it takes none


def seem_complete(objects: int, mined: int) -> bool:
    """Whether so many annotated objects suffice to judge so many mined boxes.

    Who annotated a few objects beyond the shots has not annotated all: a box on none may be right.
    """
    return 0 < objects >= MIN_ANNOTATED * mined


def why_not_judged(objects: int, mined: int, matched: int) -> str:
    """What to say of a pool where annotations do not `seem_complete`."""
    if objects == 0:
        return "The hidden objects are not annotated, so it is not known which boxes are right."
    hidden, boxes = console.count(objects, "hidden object"), console.count(mined, "mined box")
    return (
        f"Only {hidden} {'is' if objects == 1 else 'are'} annotated for {boxes}; {matched:,} match."
        " Either most objects are not annotated, or most mined boxes are wrong: the precision is "
        "not known."
    )


def judge_candidates(found: Candidates, truth: GroundTruth) -> Verdict:
    """Candidates against all boxes of their images; there may be none of either."""
    boxes = truth.boxes
    label = found.label + len(truth.labels.base)
    row, other = pairs_within(found.image, boxes.image)
    overlap = iou(found.xywh[row], boxes.xywh[other])
    same = label[row] == boxes.label[other]
    kind, taken = _match(found, row, other, np.where(same, overlap, 0.0), truth.is_shot)

    on = np.full(len(found), BACKGROUND, dtype=np.int64)
    # later assignments win: another class's box that it covers says more than a corner of its own
    on[row[same & (overlap >= LOOSE_IOU)]] = LOOSE
    wrong = np.flatnonzero(~same & (overlap >= MATCH_IOU))
    wrong = wrong[np.argsort(overlap[wrong], kind="stable")]
    on[row[wrong]] = boxes.label[other[wrong]]
    return Verdict(kind, on, taken)


def judge_with_pool(
    verdict: Verdict, found: Candidates, kept: Bools, truth: GroundTruth
) -> Verdict:
    """The verdict on all candidates, except that the pool, `kept` (n,), is judged by itself."""
    kind, overlap = verdict.kind.copy(), verdict.overlap.copy()
    alone = judge_candidates(found.take(kept), truth)
    kind[kept], overlap[kept] = alone.kind, alone.overlap
    return replace(verdict, kind=kind, overlap=overlap)


def _match(
    found: Candidates, row: Ints, other: Ints, overlap: Floats, is_shot: Bools
) -> tuple[npt.NDArray[np.int8], Floats]:
    """(n,) greedy matching: the best candidates first, each takes the free box it fits best; and
    (n,) how much it overlaps that box.

    Pair by pair, candidate `row` overlaps box `other` by `overlap`; `is_shot` says it of each box.
    """
    kind = np.full(len(found), FALSE, dtype=np.int8)
    fits = np.zeros(len(found))
    near = np.flatnonzero(overlap >= MATCH_IOU)
    kind[row[near]] = DUPLICATE
    near = near[np.lexsort((other[near], -overlap[near], row[near], -found.score[row[near]]))]
    taken = np.zeros(len(is_shot), dtype=np.bool_)
    columns = (row[near].tolist(), other[near].tolist(), overlap[near].tolist())
    for candidate, box, by in zip(*columns, strict=True):
        if kind[candidate] == DUPLICATE and not taken[box]:
            kind[candidate], taken[box] = SHOT if is_shot[box] else TRUE, True
            fits[candidate] = by
    return kind, fits


def audit(
    found: Candidates,
    kept: Bools,
    truth: GroundTruth,
    without: tuple[Candidates, Bools] | None = None,
    as_found: tuple[Candidates, Bools] | None = None,
) -> dict[str, Any]:
    """The content of `audit.json`: the pool, then each class.

    `without` are candidates and pool of the detector alone; None without a discriminator.
    `as_found` are those with the detector's own boxes; None without a segmenter.
    """
    table = _figures(found, kept, truth)
    others = {"without_co_mining": without, "without_segmenter": as_found}
    for key, other in others.items():
        figures = None if other is None else _figures(*other, truth)
        for name, row in table.items():
            row[key] = None if figures is None else figures[name]
    total = table.pop("")
    return {"iou": MATCH_IOU, "pool": total, "classes": table}


def _figures(found: Candidates, kept: Bools, truth: GroundTruth) -> dict[str, dict[str, Any]]:
    """The figures of each class, and of all of them under ""."""
    verdict = judge_candidates(found, truth)
    of_pool = judge_with_pool(verdict, found, kept, truth)
    novel, hidden = truth.labels.novel, truth.hidden
    order = np.argsort(-found.score, kind="stable")
    ranked = [order[found.label[order] == index] for index in range(len(novel))]
    table = {
        name: _row(verdict, of_pool, kept, [best], int((hidden == index).sum()), truth.labels)
        | {"by_size": reached_by_size(found, truth, index)}
        for index, (name, best) in enumerate(zip(novel, ranked, strict=True))
    }
    table[""] = _row(verdict, of_pool, kept, ranked, len(hidden), truth.labels)
    return table


def reached_by_size(found: Candidates, truth: GroundTruth, index: int) -> dict[str, Any]:
    """Hidden objects of a novel class by size, and how many of them a candidate of it is on."""
    boxes = truth.boxes
    of_class = ~truth.is_shot & (boxes.label == index + len(truth.labels.base))
    boxes, candidates = boxes.take(of_class), found.take(found.label == index)
    row, other = pairs_within(candidates.image, boxes.image)
    reached = np.zeros(len(boxes), dtype=np.bool_)
    reached[other[iou(candidates.xywh[row], boxes.xywh[other]) >= MATCH_IOU]] = True
    side, low, table = np.sqrt(boxes.xywh[:, 2:].prod(axis=1)), 0.0, {}
    for name, high in SIZES:
        among = (side >= low) & (side < high)
        table[name] = {"hidden": int(among.sum()), "candidates": int(reached[among].sum())}
        low = high
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
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *ranked])
    pool = rows[kept[rows]]
    kind = of_pool.kind[pool]
    true, on_shots = int((kind == TRUE).sum()), int((kind == SHOT).sum())
    matched = int((verdict.kind[rows] == TRUE).sum())
    on, count = np.unique(verdict.on[pool[kind == FALSE]], return_counts=True)
    false_on = dict(zip(on.tolist(), count.tolist(), strict=True))
    background, loose = false_on.pop(BACKGROUND, 0), false_on.pop(LOOSE, 0)
    return {
        "hidden": hidden,
        "kept": len(pool),
        "on_shots": on_shots,
        "true_positives": true,
        "duplicates": int((kind == DUPLICATE).sum()),
        "precision": _share(true, len(pool) - on_shots),
        "recall": _share(true, hidden),
        "false_on": {
            "background": background,
            "badly_placed": loose,
            "classes": {
                labels.classes[k]: n for k, n in sorted(false_on.items(), key=lambda item: -item[1])
            },
        },
        "placement": {
            "mean_iou": _share(float(of_pool.overlap[pool[kind == TRUE]].sum()), true),
            "badly_placed": _share(loose, len(pool) - on_shots),
        },
        "candidates": len(rows),
        "candidates_true": matched,
        "candidates_recall": _share(matched, hidden),
        "precision_by_rank": {str(rank): _precision_at(verdict, ranked, rank) for rank in RANKS},
    }


def _precision_at(verdict: Verdict, ranked: list[Ints], rank: int) -> float | None:
    """Precision of the best `rank` candidates of each class; None if no class has so many."""
    if not any(len(best) >= rank for best in ranked):
        return None
    rows = np.concatenate([best[:rank] for best in ranked])
    rows = rows[verdict.kind[rows] != SHOT]
    return _share(int((verdict.kind[rows] == TRUE).sum()), len(rows))


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
