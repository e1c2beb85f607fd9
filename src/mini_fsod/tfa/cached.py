"""Fine-tuning of the predictors over features that are computed once.

TFA trains classifier and box predictor alone. Everything before them - backbone, pyramid, RPN, box
head - gives the same answer whenever it sees the same view of a picture, and a K-shot set has few
views: each picture at a few scales, flipped or not. So each view's proposals, their matches and
their vectors are kept, and an iteration only draws RoIs and runs two matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from mini_fsod.detector.batch import RoIOutputs, Targets
from mini_fsod.detector.matching import Matches, draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.feed.batches import Plan, Schedule
from mini_fsod.feed.resident import Batch, upload
from mini_fsod.train.distributed import Team
from mini_fsod.train.step import Inputs, Losses

AT_ONCE = 8  # views that are computed together


class Views(NamedTuple):
    """V views on the device: R regions each, proposals and then ground truth, and G boxes."""

    vectors: Tensor  # (V, R, width) what the box head says of each region
    regions: Tensor  # (V, R, 4)
    box: Tensor  # (V, R), iou, positive, negative: what they are matched to (`Matches`)
    iou: Tensor
    positive: Tensor
    negative: Tensor
    truth: Tensor  # (V, G, 4)
    labels: Tensor  # (V, G)
    valid: Tensor  # (V, G)
    sizes: Tensor  # (V, 2)


def bytes_of_views(detector: Detector, views: int, most_boxes: int, bf16: bool) -> int:
    """How much memory the views' vectors take: nearly all that `Views` takes."""
    roi, rpn = detector.settings.roi, detector.settings.rpn
    return views * (rpn.after_nms_train + most_boxes) * roi.width * (2 if bf16 else 4)


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
    rows, parts = [], []
    detector.eval()
    for plan, batch in zip(plans, batches(plans), strict=True):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            parts.append(Views(*(t[: plan.count] for t in _look(detector, batch))))
        rows.append(torch.from_numpy(schedule.views_of(plan))[: plan.count])
    order = torch.cat(rows).argsort().to(device)
    return Views(*(torch.cat(column)[order] for column in zip(*parts, strict=True)))


def _look(detector: Detector, batch: Batch) -> Views:
    """The frozen part of `Detector.losses`."""
    anchors, counts = detector.anchors(batch.images)
    levels = detector.features(batch.images, batch.sizes)
    logits, deltas = detector.rpn_head(levels)
    proposals = detector.propose(logits, deltas, anchors, counts, batch.sizes, training=True)
    targets = Targets(batch.boxes, batch.labels, batch.valid)
    regions, matches = detector.match_rois(proposals, targets)
    vectors = detector.box_head(detector.pool(levels, regions))
    return Views(
        vectors.unflatten(0, regions.shape[:2]),
        regions,
        *matches,
        batch.boxes,
        batch.labels,
        batch.valid,
        batch.sizes,
    )


def losses_over(detector: Detector, views: Views) -> Losses:
    """The R-CNN's losses as a function of rows (b,) of the views and the number to draw by."""

    def losses(rows: Tensor, draw: Tensor) -> dict[str, Tensor]:
        _, regions, box, iou, positive, negative, truth, labels, valid, sizes = (
            t[rows] if i else t for i, t in enumerate(views)
        )
        matches = Matches(box, iou, positive, negative)
        samples, drawn = detector.sample_rois(regions, matches, draw)
        vectors = views.vectors[rows[:, None], samples.rows]  # (b, S, width)
        logits, deltas = detector.predictor(vectors.flatten(0, 1))
        shape = vectors.shape[:2]
        outputs = RoIOutputs(logits.unflatten(0, shape), deltas.unflatten(0, shape), None)
        return detector.roi_losses(outputs, drawn, Targets(truth, labels, valid), sizes)

    return losses


def batches_of_rows(
    schedule: Schedule, start: int, device: torch.device, team: Team, accumulate: int
) -> Generator[Sequence[Inputs]]:
    """The inputs of `losses_over` from iteration `start` on."""
    for n in count(start):
        whole, parts = schedule.plan(n), []
        for i in range(accumulate):
            plan = whole.part(team.rank * accumulate + i, team.world * accumulate)
            draw = torch.full((), draw_number(n, plan.first), dtype=torch.int64, device=device)
            parts.append((upload(schedule.views_of(plan), device), draw))
        yield parts
