"""The batches that the steps of the detector exchange: padded tensors with a mask of valid rows.

All are NamedTuples of tensors, which CUDA graphs take as they are. B images,
G ground-truth boxes per image, P proposals, S samples, C classes, D detections. Boxes are float32:
left, top, right, bottom in pixels of the canvas. Labels are 0 .. C-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """Ground truth. A row is a target (`valid`), a region to ignore (`ignore`), or padding.

    Background samples that overlap a region to ignore, so much that they would not be background if
    the region were a target, carry no loss. A valid box must have an area.
    """

    boxes: Tensor  # (B, G, 4)
    labels: Tensor  # (B, G) int64
    valid: Tensor  # (B, G) bool
    ignore: Tensor | None = None  # (B, G) bool
    weights: Tensor | None = None  # (B, G): factor of every loss of the samples matched to the box
    box_weights: Tensor | None = None  # (B, G): a further factor of their box losses
    no_negatives: Tensor | None = None  # (B,) bool: images whose background carries no loss


def join_targets(first: Targets, second: Targets) -> Targets:
    """The rows of both, with their regions to ignore, without weights."""
    rows = Targets(*(torch.cat(pair, 1) for pair in zip(first[:3], second[:3], strict=True)))
    if first.ignore is None and second.ignore is None:
        return rows
    masks = [torch.zeros_like(t.valid) if t.ignore is None else t.ignore for t in (first, second)]
    return rows._replace(ignore=torch.cat(masks, 1))


def class_box_weights(labels: Tensor, classes: int | None) -> Tensor | None:
    """`Targets.box_weights` (B, G) that give only the first `classes` box losses; None for all."""
    return None if classes is None else (labels < classes).float()


def pad_targets(boxes: Sequence[Tensor], labels: Sequence[Tensor], width: int = 0) -> Targets:
    """Targets of images with different numbers of boxes: lists of (n, 4) and (n,).

    Padded to the longest, or to `width` rows if that is more: a fixed width compiles once.
    """
    rows = max([width, 1, *(len(b) for b in boxes)])
    device = boxes[0].device
    out = Targets(
        torch.zeros(len(boxes), rows, 4, device=device),
        torch.zeros(len(boxes), rows, dtype=torch.int64, device=device),
        torch.zeros(len(boxes), rows, dtype=torch.bool, device=device),
    )
    for i, (b, label) in enumerate(zip(boxes, labels, strict=True)):
        out.boxes[i, : len(b)] = b
        out.labels[i, : len(b)] = label
        out.valid[i, : len(b)] = True
    return out


class PaddedBoxes(NamedTuple):
    """Boxes given to the detector as additional proposals, such as mined ones."""

    boxes: Tensor  # (B, E, 4)
    valid: Tensor  # (B, E) bool


class Proposals(NamedTuple):
    """The RPN's boxes, best first, then the given ones; padding is zero boxes."""

    boxes: Tensor  # (B, P, 4)
    logits: Tensor  # (B, P) objectness; -inf for padding, +inf for given ones
    valid: Tensor  # (B, P) bool


class Samples(NamedTuple):
    """The anchors or RoIs that carry loss."""

    rows: Tensor  # (B, S) int64: indices of anchors or RoIs
    valid: Tensor  # (B, S) bool


class Regions(NamedTuple):
    """The sampled RoIs or anchors and what they were matched to."""

    rois: Tensor  # (B, S, 4)
    box: Tensor  # (B, S) int64: row of the ground-truth box of highest IoU
    iou: Tensor  # (B, S): that IoU
    positive: Tensor  # (B, S) bool
    valid: Tensor  # (B, S) bool: positive or background; the rest is padding


class RoIOutputs(NamedTuple):
    """The outputs of the heads for R regions, float32."""

    logits: Tensor  # (..., R, 1 + N + C): the background, N negatives, then the classes
    deltas: Tensor  # (..., R, C, 4)
    iou: Tensor | None  # (..., R): logit of the predicted IoU


class ScoredProposals(NamedTuple):
    """Every proposal with its score and box for every class, before thresholds and NMS."""

    proposals: Proposals
    scores: Tensor  # (B, P, C) softmax probability
    boxes: Tensor  # (B, P, C, 4) clipped to the image
    iou: Tensor | None  # (B, P) predicted IoU in 0..1


class Detections(NamedTuple):
    """The boxes after thresholds and NMS, best first."""

    boxes: Tensor  # (B, D, 4)
    scores: Tensor  # (B, D)
    labels: Tensor  # (B, D) int64
    valid: Tensor  # (B, D) bool
    proposal: Tensor  # (B, D) int64: row of the proposal it came from
    exact: Tensor  # (B,) bool: whether all fixed sizes and numbers of rounds were enough
