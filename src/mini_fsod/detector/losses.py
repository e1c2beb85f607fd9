"""The losses of RPN and R-CNN: sums over the samples that are real, divided by their number.

As torchvision divides: by all samples of the batch, positive and negative. Padding is in neither
the sum nor the number. Without any sample a loss is 0, with zero gradients. Where several processes
share a batch, each divides by the mean number of all of them, so that the mean of their losses and
gradients is that of the whole batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from mini_fsod.detector.batch import Regions, RoIOutputs, Samples, Targets
from mini_fsod.detector.boxes import Weights, clip, decode, encode, gather_rows, paired_iou
from mini_fsod.detector.matching import Matches


def rpn_losses(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    targets: Targets,
    matches: Matches,
    samples: Samples,
    weights: Weights,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Objectness (binary cross-entropy) and box loss (smooth-L1, positives only).

    logits (B, A), deltas (B, A, 4), anchors (A, 4); the rest is over the same A.
    """
    positive = matches.positive.gather(1, samples.rows) & samples.valid
    box = matches.box.gather(1, samples.rows)
    factor, box_factor = _factors(targets, box, positive)
    number = _number(samples.valid)

    logits = logits.gather(1, samples.rows)
    wish = positive.to(logits.dtype)
    entropy = F.binary_cross_entropy_with_logits(logits, wish, reduction="none")
    objectness = (entropy * factor * samples.valid).sum() / number

    wanted = encode(gather_rows(targets.boxes, box), anchors[samples.rows], weights)
    error = _box_error(gather_rows(deltas, samples.rows), wanted, positive, beta)
    return objectness, (error * box_factor).sum() / number


def roi_losses(
    outputs: RoIOutputs, regions: Regions, targets: Targets, weights: Weights, beta: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy over background and classes, and smooth-L1 of the true class's box.

    outputs (B, S, ...) are those of the regions.
    """
    _, box, _, positive, valid = regions
    label = targets.labels.gather(1, box)
    factor, box_factor = _factors(targets, box, positive)
    number = _number(valid)

    row = torch.where(positive, label + 1, 0)  # row 0 of the classifier is the background
    entropy = F.cross_entropy(outputs.logits.flatten(0, 1), row.flatten(), reduction="none")
    classifier = (entropy.view_as(factor) * factor * valid).sum() / number

    wanted = encode(gather_rows(targets.boxes, box), regions.rois, weights)
    error = _box_error(own_deltas(outputs.deltas, label), wanted, positive, beta)
    return classifier, (error * box_factor).sum() / number


def iou_loss(
    outputs: RoIOutputs, regions: Regions, targets: Targets, sizes: Tensor, weights: Weights
) -> Tensor:
    """Mean squared error of the predicted IoU (L_IoU of Eq. 8), without its weight beta.

    Positive RoIs: IoU of the true class's final box with its ground truth. As many negatives of the
    same image, the first in sampling order, which is random: the RoI's own best IoU. Boxes whose
    place is not to be trusted (`box_weights`) count as little as in the box loss.
    """
    assert outputs.iou is not None
    rois, box, iou, positive, valid = regions
    negative = valid & ~positive
    negative = negative & (negative.cumsum(1) <= positive.sum(1, keepdim=True))
    deltas = own_deltas(outputs.deltas.detach(), targets.labels.gather(1, box))
    final = clip(decode(deltas, rois, weights), sizes)
    overlap = paired_iou(final, gather_rows(targets.boxes, box)).nan_to_num()
    error = (outputs.iou.sigmoid() - torch.where(positive, overlap, iou)).square()
    used = positive | negative
    factor = torch.where(positive, _factors(targets, box, positive)[1], 1.0)
    return (error * factor * used).sum() / _number(used)


def own_deltas(deltas: Tensor, label: Tensor) -> Tensor:
    """Of deltas (B, S, C, 4) those of each region's class (B, S): (B, S, 4)."""
    return deltas.gather(2, label[..., None, None].expand(*label.shape, 1, 4)).squeeze(2)


def _number(used: Tensor) -> Tensor:
    """How many are used, at least 1; the mean over the processes that share a batch."""
    number = used.sum()
    if not (distributed.is_available() and distributed.is_initialized()):
        return number.clamp(min=1)
    distributed.all_reduce(number)
    return number.clamp(min=1) / distributed.get_world_size()


def _box_error(deltas: Tensor, wanted: Tensor, positive: Tensor, beta: float) -> Tensor:
    """Smooth-L1 (B, S), zero where not positive: `wanted` may be nan there."""
    here = positive[..., None]
    wanted = torch.where(here, wanted, 0.0)
    return (F.smooth_l1_loss(deltas, wanted, beta=beta, reduction="none") * here).sum(-1)


def _factors(targets: Targets, box: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes' weights as factors of the samples' losses (B, S): all losses, and box losses."""
    factor = torch.ones_like(box, dtype=torch.float32)
    if targets.weights is not None:
        factor = torch.where(positive, targets.weights.gather(1, box), factor)
    if targets.box_weights is None:
        return factor, factor
    return factor, factor * targets.box_weights.gather(1, box)
