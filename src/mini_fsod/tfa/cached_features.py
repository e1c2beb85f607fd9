"""Fine-tuning of the predictors over features that are computed once.

TFA and the last fine-tuning of MINI train the predictors alone. Everything before them - backbone,
pyramid, RPN, box head - gives the same answer whenever it sees the same view of a picture, and a
K-shot set has few views: each picture at a few scales, flipped or not. So each view's proposals,
their matches and their vectors are kept, and an iteration only draws RoIs and runs two matrix
products.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mini_fsod import console
from mini_fsod.detector.anchors import level_counts
from mini_fsod.detector.batch import RoIOutputs, Targets, placed
from mini_fsod.detector.matching import Matches, draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.loader.resident import Batch, upload
from mini_fsod.loader.schedule import Plan, Schedule
from mini_fsod.train.step import Losses

AT_ONCE = 8  # views that are computed together
MOST_SHARE = 0.7  # of the free memory that views may take
MEMORY = Path("/proc/meminfo")


class Views(NamedTuple):
    """V views on the device: R regions each, proposals and then ground truth, and G boxes."""

    vectors: Tensor  # (V, R, width) what the box head says of each region
    iou_vectors: Tensor  # (V, R, width) what the IoU branch's says; (V, R, 0) without a branch
    regions: Tensor  # (V, R, 4)
    box: Tensor  # (V, R), iou, positive, negative: what they are matched to (`Matches`)
    iou: Tensor
    positive: Tensor
    negative: Tensor
    truth: Tensor  # (V, G, 4)
    labels: Tensor  # (V, G)
    valid: Tensor  # (V, G)
    sizes: Tensor  # (V, 2)


def obstacle(
    detector: Detector, schedule: Schedule, most_boxes: int, device: torch.device, bf16: bool
) -> str:
    """Why the views cannot be kept, where an image has at most so many boxes; "" if they can."""
    proposals = {_proposals(detector, canvas) for canvas in schedule.canvases}
    if len(proposals) > 1:
        return "the smallest pictures have fewer anchors than detector.rpn_after"
    views = sum(plan.count for plan in schedule.every_view(AT_ONCE))
    needed, free = bytes_of_views(detector, views, most_boxes, bf16), free_memory(device)
    if needed > MOST_SHARE * free:
        return f"{console.size(needed)} of features, {console.size(free)} of memory free"
    return ""


def bytes_of_views(detector: Detector, views: int, most_boxes: int, bf16: bool) -> int:
    """How much memory the views' vectors take: nearly all that `Views` takes."""
    settings = detector.settings
    width = settings.roi.width * (2 if settings.iou_branch else 1)
    return views * (settings.rpn.after_nms_train + most_boxes) * width * (2 if bf16 else 4)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device, or in the host's memory for a CPU."""
    if device.type == "cuda":
        gc.collect()  # what an earlier stage used and no longer needs
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    if MEMORY.exists():
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _proposals(detector: Detector, canvas: tuple[int, int]) -> int:
    """How many rows the proposals of an image have in training (`rpn.propose`)."""
    rpn = detector.settings.rpn
    counts = level_counts(canvas, detector.rpn_head.per_cell)
    return min(rpn.after_nms_train, sum(min(rpn.before_nms_train, n) for n in counts))


@torch.no_grad()
def look_once(
    detector: Detector,
    batches: Callable[[Iterable[Plan]], Iterator[Batch]],
    schedule: Schedule,
    device: torch.device,
    bf16: bool,
) -> Views:
    """Every view of the schedule, numbered as `Schedule.views_of` does."""
    plans = schedule.every_view(min(AT_ONCE, schedule.images))
    number = sum(plan.count for plan in plans)
    views = None
    detector.eval()
    for plan, batch in zip(plans, batches(plans), strict=True):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            seen = _look(detector, batch)
        if views is None:
            views = Views(*(t.new_empty((number, *t.shape[1:])) for t in seen))
        rows = upload(schedule.views_of(plan)[: plan.count], device)
        for kept, part in zip(views, seen, strict=True):
            kept[rows] = part[: plan.count]
    assert views is not None  # a schedule has pictures
    return views


def _look(detector: Detector, batch: Batch) -> Views:
    """The frozen part of `Detector.losses`."""
    anchors, counts = detector.anchors(batch.images)
    levels = detector.features(batch.images, batch.sizes)
    logits, deltas = detector.rpn_head(levels)
    proposals = detector.propose(logits, deltas, anchors, counts, batch.sizes, training=True)
    regions, matches = detector.match_rois(proposals, batch.targets)
    pooled = detector.pool(levels, regions)
    vectors, branch = detector.box_head(pooled), detector.iou_branch
    iou_vectors = vectors[:, :0] if branch is None else branch.head(pooled)
    return Views(
        vectors.unflatten(0, regions.shape[:2]),
        iou_vectors.unflatten(0, regions.shape[:2]),
        regions,
        *matches,
        *batch.targets[:3],
        batch.sizes,
    )


class CachedInputs(NamedTuple):
    rows: Tensor  # (b,) int64: numbers of views
    draw: Tensor  # () int64: seeds the sampling of RoIs


def losses_over(detector: Detector, views: Views, box_classes: int | None = None) -> Losses:
    """The R-CNN's losses as a function of rows (b,) of the views and the number to draw by.

    `box_classes` as in `losses_of`.
    """

    def losses(inputs: CachedInputs) -> dict[str, Tensor]:
        rows, draw = inputs
        regions, box, iou, positive, negative, truth, labels, valid, sizes = (
            column[rows] for column in views[2:]
        )
        matches = Matches(box, iou, positive, negative)
        samples, drawn = detector.sample_rois(regions, matches, draw)
        vectors = views.vectors[rows[:, None], samples.rows]  # (b, S, width)
        logits, deltas = detector.predictor(vectors.flatten(0, 1))
        shape = vectors.shape[:2]
        overlap = None
        if detector.iou_branch is not None:
            overlap = detector.iou_branch.logits(views.iou_vectors[rows[:, None], samples.rows])
        outputs = RoIOutputs(logits.unflatten(0, shape), deltas.unflatten(0, shape), overlap)
        targets = Targets(truth, labels, valid, box_weights=placed(labels, box_classes))
        return detector.roi_losses(outputs, drawn, targets, sizes)

    return losses


def rows_from(
    schedule: Schedule, device: torch.device
) -> Callable[[Iterable[Plan]], Iterator[CachedInputs]]:
    """The way from plans to what `losses_over` takes."""

    def inputs(plans: Iterable[Plan]) -> Iterator[CachedInputs]:
        for plan in plans:
            draw = draw_number(plan.step, plan.first)
            rows = upload(schedule.views_of(plan), device)
            yield CachedInputs(rows, torch.full((), draw, dtype=torch.int64, device=device))

    return inputs
