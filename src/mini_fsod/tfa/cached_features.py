"""Fine-tuning of the predictors over features that are computed once.

Everything before the predictors gives the same output for the same view of a picture, and a K-shot
set has few views: each picture at a few scales, flipped or not. So the proposals of each view,
their matches and their feature vectors are cached; an iteration samples RoIs and runs the
predictors.
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
from mini_fsod.detector.batch import RoIOutputs, Targets, class_box_weights
from mini_fsod.detector.matching import Matches
from mini_fsod.detector.model import Detector
from mini_fsod.detector.rpn import propose
from mini_fsod.loader.resident import Batch, upload
from mini_fsod.loader.schedule import Plan, Schedule
from mini_fsod.train.step import Losses, draw_of

VIEWS_PER_BATCH = 8
MAX_MEMORY_SHARE = 0.7  # of the free memory
MEMINFO = Path("/proc/meminfo")
PREDICTORS = ("predictor.", "iou_branch.predict.")


class CachedViews(NamedTuple):
    """V views on the device: R regions each, proposals and then targets, and G targets."""

    vectors: Tensor  # (V, R, width) output of the box head
    iou_vectors: Tensor  # (V, R, width) output of the IoU branch's head; (V, R, 0) without a branch
    regions: Tensor  # (V, R, 4)
    box: Tensor  # (V, R); this, iou, positive and negative are the regions' `Matches`
    iou: Tensor
    positive: Tensor
    negative: Tensor
    boxes: Tensor  # (V, G, 4); this, labels and valid are the `Targets`
    labels: Tensor  # (V, G)
    valid: Tensor  # (V, G)
    sizes: Tensor  # (V, 2)


class CachedInputs(NamedTuple):
    views: Tensor  # (b,) int64: rows of `CachedViews`
    draw: Tensor  # () int64: seeds the sampling of RoIs


def why_not_cached(
    detector: Detector, schedule: Schedule, max_boxes: int, device: torch.device, bf16: bool
) -> str:
    """Why the views cannot be cached, with at most so many boxes per image; "" if they can."""
    trained = [name for name, p in detector.named_parameters() if p.requires_grad]
    if not all(name.startswith(PREDICTORS) for name in trained):
        return "more than the predictors is trained"
    proposals = {_proposals(detector, canvas) for canvas in schedule.canvases}
    if len(proposals) > 1:
        return "the smallest pictures have fewer anchors than detector.rpn_post_nms"
    views = sum(plan.count for plan in schedule.every_view(VIEWS_PER_BATCH))
    needed, free = bytes_of_views(detector, views, max_boxes, bf16), free_memory(device)
    if needed > MAX_MEMORY_SHARE * free:
        return f"they take {console.size(needed)}, and {console.size(free)} of memory are free"
    return ""


def bytes_of_views(detector: Detector, views: int, max_boxes: int, bf16: bool) -> int:
    """The memory that the vectors take; the rest of `CachedViews` is small."""
    settings = detector.settings
    width = settings.roi.width * (2 if settings.iou_branch else 1)
    return views * (settings.rpn.after_nms_train + max_boxes) * width * (2 if bf16 else 4)


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; for a CPU, in the host's memory."""
    if device.type == "cuda":
        gc.collect()  # memory of earlier stages
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    if MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _proposals(detector: Detector, canvas: tuple[int, int]) -> int:
    """The number of proposals of an image in training (`rpn.propose`), padding included."""
    rpn = detector.settings.rpn
    counts = level_counts(canvas, detector.rpn_head.per_cell)
    return min(rpn.after_nms_train, sum(min(rpn.before_nms_train, n) for n in counts))


@torch.no_grad()
def cache_views(
    detector: Detector,
    batches: Callable[[Iterable[Plan]], Iterator[Batch]],
    schedule: Schedule,
    device: torch.device,
    bf16: bool,
) -> CachedViews:
    """Every view of the schedule, in the order of `Schedule.views_of`."""
    plans = schedule.every_view(min(VIEWS_PER_BATCH, schedule.images))
    number = sum(plan.count for plan in plans)
    views = None
    detector.eval()
    for plan, batch in zip(plans, batches(plans), strict=True):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            computed = _views_of_batch(detector, batch)
        if views is None:
            views = CachedViews(*(t.new_empty((number, *t.shape[1:])) for t in computed))
        rows = upload(schedule.views_of(plan)[: plan.count], device)
        for column, part in zip(views, computed, strict=True):
            column[rows] = part[: plan.count]
    assert views is not None  # a schedule has pictures
    return views


def _views_of_batch(detector: Detector, batch: Batch) -> CachedViews:
    """The frozen part of `Detector.losses`."""
    anchors, counts = detector.anchors(batch.images)
    levels = detector.features(batch.images, batch.sizes)
    logits, deltas = detector.rpn_head(levels)
    rpn = detector.settings.rpn
    proposals = propose(logits, deltas, anchors, counts, batch.sizes, rpn, training=True)
    regions, matches = detector.match_rois(proposals, batch.targets)
    pooled = detector.pool(levels, regions)
    vectors, branch = detector.box_head(pooled), detector.iou_branch
    iou_vectors = vectors[:, :0] if branch is None else branch.head(pooled)
    return CachedViews(
        vectors.unflatten(0, regions.shape[:2]),
        iou_vectors.unflatten(0, regions.shape[:2]),
        regions,
        *matches,
        *batch.targets[:3],
        batch.sizes,
    )


def losses_on_views(
    detector: Detector, views: CachedViews, box_classes: int | None = None
) -> Losses:
    """The losses of the R-CNN heads on `CachedInputs`; `box_classes` as in `losses_of`."""

    def losses(inputs: CachedInputs) -> dict[str, Tensor]:
        rows, draw = inputs
        regions, box, iou, positive, negative, boxes, labels, valid, sizes = (
            column[rows] for column in views[2:]
        )
        matches = Matches(box, iou, positive, negative)
        samples, sampled = detector.sample_rois(regions, matches, draw)
        vectors = views.vectors[rows[:, None], samples.rows]  # (b, S, width)
        logits, deltas = detector.predictor(vectors.flatten(0, 1))
        shape, branch = vectors.shape[:2], detector.iou_branch
        iou_vectors = views.iou_vectors[rows[:, None], samples.rows]
        overlap = None if branch is None else branch.logits(iou_vectors)
        outputs = RoIOutputs(logits.unflatten(0, shape), deltas.unflatten(0, shape), overlap)
        targets = Targets(boxes, labels, valid, box_weights=class_box_weights(labels, box_classes))
        return detector.roi_losses(outputs, sampled, targets, sizes)

    return losses


def cached_inputs(
    schedule: Schedule, device: torch.device
) -> Callable[[Iterable[Plan]], Iterator[CachedInputs]]:
    """A function from plans to the inputs of `losses_on_views`."""

    def inputs(plans: Iterable[Plan]) -> Iterator[CachedInputs]:
        for plan in plans:
            yield CachedInputs(upload(schedule.views_of(plan), device), draw_of(plan, device))

    return inputs
