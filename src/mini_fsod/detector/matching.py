"""Match anchors and RoIs to ground-truth boxes, and sample those that carry loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mini_fsod.detector.batch import Regions, Samples, Targets
from mini_fsod.detector.boxes import box_area, gather_rows, pairwise_iou


class Matches(NamedTuple):
    """Of N anchors or RoIs per image. Those neither positive nor negative carry no loss."""

    box: Tensor  # (B, N) int64: row of the ground-truth box of highest IoU, the first of equals
    iou: Tensor  # (B, N): that IoU; 0 in an image without boxes
    positive: Tensor  # (B, N) bool
    negative: Tensor  # (B, N) bool


def match(
    candidates: Tensor,
    valid: Tensor | None,
    targets: Targets,
    positive_iou: float,
    negative_iou: float,
    forced: bool,
) -> Matches:
    """Match candidates (N, 4) or (B, N, 4) to the targets, as torchvision (Faster R-CNN, 3.1.2).

    Positive: highest IoU >= positive_iou; with `forced` (low-quality matches) also every candidate
    that has the highest IoU with some box, ties included; it is matched to the box *it* overlaps
    most. Negative: below negative_iou with every target and every region to ignore. Candidates that
    are not `valid` (B, N) are neither. Without boxes all are negative, but in images of
    `no_negatives` none is. Padding and boxes without area match nothing.
    """
    real = targets.valid & (box_area(targets.boxes) > 0)
    overlap = pairwise_iou(targets.boxes, candidates)  # (B, G, N)
    iou = torch.where(real[:, :, None], overlap, -1.0)
    if iou.shape[1] == 0:
        iou = iou.new_full((iou.shape[0], 1, iou.shape[2]), -1.0)
    best, box = iou.max(dim=1)
    positive = best >= positive_iou
    negative = best < negative_iou
    if forced:
        highest = iou.amax(dim=2, keepdim=True)  # -1 for padding, which has no best candidate
        is_highest = ((iou == highest) & (highest >= 0)).any(dim=1)
        positive = positive | is_highest
        negative = negative & ~is_highest
    if targets.ignore is not None:
        ignored = (overlap >= negative_iou) & targets.ignore[:, :, None]
        negative = negative & ~ignored.any(dim=1)
    if targets.no_negatives is not None:
        negative = negative & ~targets.no_negatives[:, None]
    if valid is not None:
        positive, negative = positive & valid, negative & valid
    return Matches(box, best.clamp(min=0), positive, negative)


def draw_samples(matches: Matches, number: int, positive_share: float, keys: Tensor) -> Samples:
    """At most `number` samples per image, at most int(number * positive_share) of them positive.

    Positives first, each kind in the order of its random keys (B, N). Slots without a sample are
    not valid and hold row 0.
    """
    n = keys.shape[1]
    slots = min(number, n)
    positives = min(int(number * positive_share), n)
    lowest = torch.iinfo(keys.dtype).min
    top = keys.masked_fill(~matches.positive, lowest).topk(positives)
    n_positive = (top.values > lowest).sum(1, keepdim=True)  # (B, 1)
    rest = keys.masked_fill(~matches.negative, lowest).topk(slots)
    n_negative = (rest.values > lowest).sum(1, keepdim=True)

    slot = torch.arange(slots, device=keys.device).expand(keys.shape[0], -1)
    padded = torch.nn.functional.pad(top.indices, (0, slots - positives))
    negative = rest.indices.gather(1, (slot - n_positive).clamp(min=0))
    index = torch.where(slot < n_positive, padded, negative)
    valid = slot < n_positive + n_negative
    return Samples(torch.where(valid, index, 0), valid)


def sampled_regions(candidates: Tensor, matches: Matches, samples: Samples) -> Regions:
    """The samples among candidates (N, 4) or (B, N, 4), and what they are matched to."""
    rows, valid = samples
    return Regions(
        candidates[rows] if candidates.dim() == 2 else gather_rows(candidates, rows),
        matches.box.gather(1, rows),
        matches.iou.gather(1, rows),
        matches.positive.gather(1, rows) & valid,
        valid,
    )


def random_keys(draw: Tensor, stream: int, images: int, n: int) -> Tensor:
    """Keys (images, n), int32 >= 0, a pure function of draw () int64, stream and position.

    The lower half of `draw` is the step, the upper half the index of the first image in the step's
    whole batch, so that processes that share a batch draw the same keys as one process with all of
    it. A hash of the position instead of a generator's state gives the same keys on every device,
    in CUDA graphs and after a resume. (A 32-bit mixer of Wellons' hash-prospector; both multipliers
    are below 2**31, so the products fit int64.)
    """
    position = torch.arange(images * n, device=draw.device, dtype=torch.int64).view(images, n)
    step, first = draw & 0xFFFFFFFF, draw >> 32
    seed = torch.full_like(draw, (stream + 1) * 0x9E3779B9 & 0xFFFFFFFF)
    return (_mix((position + first * n) ^ _mix(step ^ _mix(seed))) >> 1).to(torch.int32)


def draw_number(step: int, first: int = 0) -> int:
    """The `draw` of `random_keys` for the part of a step's batch that starts at image `first`."""
    return step + (first << 32)


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
