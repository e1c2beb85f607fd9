"""The losses of RPN and RoI head: sums over the valid samples, divided by their number.

As in torchvision, the number counts all samples of the batch, positive and negative. Padding is in
neither the sum nor the number. Without samples a loss is 0, with zero gradients. Where processes
share a batch, each divides by their mean number, so that the mean of their losses and gradients is
that of the whole batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from mini_fsod.detector.batch import Regions, RoIOutputs, Targets
from mini_fsod.detector.boxes import (
    UNIT,
    Weights,
    clip,
    decode_boxes,
    encode_boxes,
    gather_rows,
    paired_iou,
)


def rpn_losses(
    logits: Tensor, deltas: Tensor, rows: Tensor, anchors: Regions, targets: Targets, beta: float
) -> tuple[Tensor, Tensor]:
    """Objectness (binary cross-entropy) and box loss (smooth-L1, positives only).

    logits (B, A), deltas (B, A, 4); rows (B, S) are the sampled anchors, `anchors` what they are
    matched to.
    """
    label = anchors.positive.to(logits.dtype)
    entropy = F.binary_cross_entropy_with_logits(logits.gather(1, rows), label, reduction="none")
    return _class_and_box_loss(entropy, gather_rows(deltas, rows), anchors, targets, UNIT, beta)


def roi_losses(
    outputs: RoIOutputs,
    regions: Regions,
    targets: Targets,
    weights: Weights,
    beta: float,
    gamma: float = 0.0,
    negatives: int = 0,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy over background and classes, and smooth-L1 of the true class's box.

    outputs (B, S, ...) and regions (B, S, ...) are of the same RoIs. With `gamma` the focal loss
    (1 - p)^gamma x cross-entropy, where p is the probability of the true row (Unbiased Teacher).
    The first class's row comes behind the background's and so many `negatives`.
    """
    label = targets.labels.gather(1, regions.box)
    # row 0 of the classifier: background
    row = torch.where(regions.positive, label + 1 + negatives, 0)
    entropy = F.cross_entropy(outputs.logits.flatten(0, 1), row.flatten(), reduction="none")
    if gamma:
        # -expm1(-e) is 1 - p; at p = 1 the gradient of a power below 1 would be infinite
        entropy = (-torch.expm1(-entropy)).clamp(min=1e-12) ** gamma * entropy
    deltas = class_deltas(outputs.deltas, label)
    return _class_and_box_loss(entropy.view_as(row), deltas, regions, targets, weights, beta)


def _class_and_box_loss(
    entropy: Tensor,
    deltas: Tensor,
    regions: Regions,
    targets: Targets,
    weights: Weights,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """The entropies (B, S) of all samples and the errors of the positives' deltas (B, S, 4)."""
    rois, box, _, positive, valid = regions
    factor, box_factor = _sample_weights(targets, box, positive)
    count = _count(valid)
    mask = positive[..., None]
    target = encode_boxes(gather_rows(targets.boxes, box), rois, weights)
    target = torch.where(mask, target, 0.0)  # may be nan where not positive
    error = (F.smooth_l1_loss(deltas, target, beta=beta, reduction="none") * mask).sum(-1)
    return (entropy * factor * valid).sum() / count, (error * box_factor).sum() / count


def iou_loss(
    outputs: RoIOutputs, regions: Regions, targets: Targets, sizes: Tensor, weights: Weights
) -> Tensor:
    """Mean squared error of the predicted IoU (L_IoU of Eq. 8), without its weight beta.

    The target of a positive RoI is the IoU of its true class's final box with the ground truth;
    that of a negative one its own highest IoU. Of each image it takes as many negatives as
    positives, the first in sampling order, which is random. `box_weights` apply as in the box loss.
    """
    assert outputs.iou is not None
    rois, box, iou, positive, valid = regions
    negative = valid & ~positive
    negative = negative & (negative.cumsum(1) <= positive.sum(1, keepdim=True))
    deltas = class_deltas(outputs.deltas.detach(), targets.labels.gather(1, box))
    final = clip(decode_boxes(deltas, rois, weights), sizes)
    overlap = paired_iou(final, gather_rows(targets.boxes, box)).nan_to_num()
    error = (outputs.iou.sigmoid() - torch.where(positive, overlap, iou)).square()
    used = positive | negative
    factor = torch.where(positive, _sample_weights(targets, box, positive)[1], 1.0)
    return (error * factor * used).sum() / _count(used)


def class_deltas(deltas: Tensor, label: Tensor) -> Tensor:
    """Deltas (B, S, 4) of each region's class (B, S), out of deltas (B, S, C, 4)."""
    return deltas.gather(2, label[..., None, None].expand(*label.shape, 1, 4)).squeeze(2)


def _count(used: Tensor) -> Tensor:
    """Number of used samples, at least 1; the mean over the processes that share a batch."""
    number = used.sum()
    if not (distributed.is_available() and distributed.is_initialized()):
        return number.clamp(min=1)
    distributed.all_reduce(number)
    return number.clamp(min=1) / distributed.get_world_size()


def _sample_weights(targets: Targets, box: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (B, S) of the samples, from their ground-truth boxes: all losses, box losses."""
    factor = torch.ones_like(box, dtype=torch.float32)
    if targets.weights is not None:
        factor = torch.where(positive, targets.weights.gather(1, box), factor)
    if targets.box_weights is None:
        return factor, factor
    return factor, factor * targets.box_weights.gather(1, box)
