"""Faster R-CNN with a feature pyramid, over whole padded batches.

Classes. Labels are 0 .. C-1, in the order of the label map. The background has no label: it is row
0 of the classifier, class c is row c + 1; the box predictor has rows for the classes only. So a new
class is a row at the end of both. Rows of classes that are known but not reported (`negatives` of
the settings) lie between the two. Only `predict` uses torchvision's labels, which start at 1.

Images. A batch is images (B, 3, H, W) on one canvas, RGB, uint8 0..255 or float 0..1, and sizes
(B, 2), height and width of each image, which lies in the upper left corner. H and W are multiples
of 32. The model normalises.

Steps. `losses` and `detect` only chain the methods below and the heads, each with fixed shapes and
without waiting for the device, so that each can be timed, compiled or cached alone. Boxes and
losses are float32 under autocast, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mini_fsod.detector.anchors import cached_anchors, level_counts
from mini_fsod.detector.backbone import default_normalisation, make_backbone
from mini_fsod.detector.batch import (
    Detections,
    PaddedBoxes,
    Proposals,
    Regions,
    RoIOutputs,
    Samples,
    ScoredProposals,
    Targets,
)
from mini_fsod.detector.boxes import clip, decode_boxes
from mini_fsod.detector.fpn import FeaturePyramid
from mini_fsod.detector.losses import iou_loss, roi_losses, rpn_losses
from mini_fsod.detector.matching import Matches, draw_samples, match, random_keys, sampled_regions
from mini_fsod.detector.on_cpu import eager_on_cpu
from mini_fsod.detector.postprocess import select
from mini_fsod.detector.preprocess import batch_images, normalise
from mini_fsod.detector.roi import BoxHead, IoUBranch, Predictor
from mini_fsod.detector.roi_align import pool_rois
from mini_fsod.detector.rpn import RPNHead, propose
from mini_fsod.detector.settings import BackboneSettings, DetectorSettings, Norm, Normalisation
from mini_fsod.errors import UserError


def build(
    num_classes: int,
    backbone: str = "resnet50",
    weights: str | Path | None = None,
    *,
    norm: Norm = "frozen",
    stride_in_1x1: bool = False,
    frozen_stages: int | None = None,
    normalisation: Normalisation | None = None,
    **others: Any,
) -> Detector:
    """A new detector with random heads; see `make_backbone` for its backbone and `weights`.

    By default `frozen_stages` is 2 (stem and res2) with weights and 0 without, and `normalisation`
    that of torchvision's or timm's weights. `others` are fields of `DetectorSettings`.
    """
    normalisation = normalisation or default_normalisation(backbone)
    if frozen_stages is None:
        frozen_stages = 0 if weights is None else 2
    body = BackboneSettings(backbone, norm, stride_in_1x1, frozen_stages, normalisation)
    return Detector(DetectorSettings(num_classes, body, **others), weights)


class Detector(nn.Module):
    """Backbone, feature pyramid, RPN and RoI head; see the top of this module."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: DetectorSettings, weights: str | Path | None = None) -> None:
        super().__init__()
        if settings.num_classes < 1:
            raise UserError("A detector needs at least one class.", "Check num_classes.")
        self.settings = settings
        self.backbone = make_backbone(settings.backbone, weights)
        self.fpn = FeaturePyramid(self.backbone.channels, settings.channels)
        for name in ("mean", "std"):
            value = torch.tensor(getattr(settings.backbone.normalisation, name)).view(1, 3, 1, 1)
            self.register_buffer(name, value, persistent=False)
        roi = settings.roi
        per_cell = len(settings.rpn.ratios) * len(settings.rpn.anchor_sizes[0])
        self.rpn_head = RPNHead(settings.channels, per_cell, settings.rpn.convs)
        self.box_head = BoxHead(settings.channels, roi.size, roi.convs, roi.layers, roi.width)
        self.predictor = Predictor(
            roi.width, settings.num_classes, settings.classifier, settings.negatives
        )
        self.iou_branch = (
            IoUBranch(settings.channels, roi.size, roi.width) if settings.iou_branch else None
        )

    # The steps

    def features(self, images: Tensor, sizes: Tensor) -> list[Tensor]:
        """P2 to P6 of a batch."""
        normalisation = self.settings.backbone.normalisation
        pixels = normalise(images, sizes, self.mean, self.std, normalisation)
        levels: list[Tensor] = self.fpn(self.backbone(pixels))
        return levels

    def anchors(self, images: Tensor) -> tuple[Tensor, list[int]]:
        """Anchors (A, 4) of the batch's canvas, and the number of each level."""
        canvas = (images.shape[2], images.shape[3])
        rpn = self.settings.rpn
        anchors = cached_anchors(canvas, rpn.anchor_sizes, rpn.ratios, images.device)
        return anchors, level_counts(canvas, self.rpn_head.per_cell)

    def pool(self, levels: Sequence[Tensor], boxes: Tensor, rows: Tensor | None = None) -> Tensor:
        """RoI features (B * R, channels, size, size) of boxes (B, R, 4) on P2 to P5.

        With `rows` (n,) of only these of the B * R boxes.
        """
        roi = self.settings.roi
        return pool_rois(levels[:-1], boxes, roi.size, roi.sampling_ratio, rows)

    def roi_outputs(self, pooled: Tensor, images: int) -> RoIOutputs:
        """Outputs (B, R, ...) of the heads for RoI features (B * R, ...). R = 0 is fine."""
        shape = (images, len(pooled) // images)
        logits, deltas = self.predictor(self.box_head(pooled))
        iou = None if self.iou_branch is None else self.iou_branch(pooled).view(shape)
        return RoIOutputs(logits.unflatten(0, shape), deltas.unflatten(0, shape), iou)

    def outputs_of_valid(
        self, levels: Sequence[Tensor], boxes: Tensor, valid: Tensor
    ) -> RoIOutputs:
        """Outputs (B, R, ...) of the heads for boxes (B, R, 4), of which some are valid (B, R).

        On a CPU padding is left out, and its outputs are zero; elsewhere it is like any other box.
        """
        if not eager_on_cpu(valid) or bool(valid.all()):
            return self.roi_outputs(self.pool(levels, boxes), len(boxes))
        rows = valid.flatten().nonzero().flatten()
        outputs = self.roi_outputs(self.pool(levels, boxes, rows), 1)

        def padded(part: Tensor) -> Tensor:
            whole = part.new_zeros(valid.numel(), *part.shape[2:])
            return whole.index_copy(0, rows, part[0]).view(*valid.shape, *part.shape[2:])

        logits, deltas, iou = outputs
        return RoIOutputs(padded(logits), padded(deltas), None if iou is None else padded(iou))

    # Training

    def losses(
        self,
        images: Tensor,
        sizes: Tensor,
        targets: Targets,
        draw: Tensor | int = 0,
        rpn_samples: Samples | None = None,
        roi_samples: Samples | None = None,
    ) -> dict[str, Tensor]:
        """The four losses under torchvision's names, and `loss_iou` with an IoU branch.

        Their sum is Eq. 8 plus the RPN's losses. `draw` (`matching.draw_number`) alone decides
        which anchors and RoIs are sampled; a compiled or captured step needs it as a tensor ()
        int64 on the device. `rpn_samples` (rows of the anchors) and `roi_samples` (rows of
        [proposals, ground truth]) replace the drawn samples. Images without boxes are fine.
        """
        if isinstance(draw, int):
            draw = torch.full((), draw, dtype=torch.int64, device=images.device)
        rpn = self.settings.rpn
        anchors, counts = self.anchors(images)
        matches = match(anchors, None, targets, rpn.positive_iou, rpn.negative_iou, forced=True)
        if rpn_samples is None:
            keys = random_keys(draw, 0, *matches.positive.shape)
            rpn_samples = draw_samples(matches, rpn.samples, rpn.positive_share, keys)
        levels = self.features(images, sizes)
        logits, deltas = self.rpn_head(levels)
        sampled = sampled_regions(anchors, matches, rpn_samples)
        objectness, rpn_box = rpn_losses(
            logits, deltas, rpn_samples.rows, sampled, targets, rpn.beta
        )
        proposals = propose(logits, deltas, anchors, counts, sizes, rpn, training=True)
        regions = self.sample_rois(*self.match_rois(proposals, targets), draw, roi_samples)[1]
        outputs = self.outputs_of_valid(levels, regions.rois, regions.valid)
        return {
            "loss_objectness": objectness,
            "loss_rpn_box_reg": rpn_box,
            **self.roi_losses(outputs, regions, targets, sizes),
        }

    def match_rois(self, proposals: Proposals, targets: Targets) -> tuple[Tensor, Matches]:
        """The proposals, then the ground truth, as boxes (B, P + G, 4), and their matches."""
        roi = self.settings.roi
        boxes = torch.cat((proposals.boxes, targets.boxes), dim=1)
        valid = torch.cat((proposals.valid, targets.valid), dim=1)
        ious = roi.positive_iou, roi.negative_iou
        return boxes, match(boxes, valid, targets, *ious, forced=False)

    def sample_rois(
        self, boxes: Tensor, matches: Matches, draw: Tensor, samples: Samples | None = None
    ) -> tuple[Samples, Regions]:
        """Draw the boxes (B, R, 4) that carry loss: which rows, and what they are matched to."""
        roi = self.settings.roi
        if samples is None:
            keys = random_keys(draw, 1, *matches.positive.shape)
            samples = draw_samples(matches, roi.samples, roi.positive_share, keys)
        return samples, sampled_regions(boxes, matches, samples)

    def roi_losses(
        self, outputs: RoIOutputs, regions: Regions, targets: Targets, sizes: Tensor
    ) -> dict[str, Tensor]:
        """Losses of the heads; takes no images, so outputs may come from cached features."""
        roi = self.settings.roi
        classifier, box = roi_losses(
            outputs,
            regions,
            targets,
            roi.box_weights,
            roi.beta,
            roi.focal_gamma,
            self.settings.negatives,
        )
        losses = {"loss_classifier": classifier, "loss_box_reg": box}
        if self.iou_branch is not None:
            error = iou_loss(outputs, regions, targets, sizes, roi.box_weights)
            losses["loss_iou"] = roi.iou_weight * error
        return losses

    # Inference

    def infer(
        self,
        images: Tensor,
        sizes: Tensor,
        extra: PaddedBoxes | None = None,
    ) -> ScoredProposals:
        """Scores and boxes of every proposal: no threshold, no NMS yet.

        The extra boxes, clipped to their image, are the last proposals.
        """
        anchors, counts = self.anchors(images)
        levels = self.features(images, sizes)
        logits, deltas = self.rpn_head(levels)
        rpn = self.settings.rpn
        proposals = propose(logits, deltas, anchors, counts, sizes, rpn, training=False)
        if extra is not None:
            rank = torch.where(extra.valid, torch.inf, -torch.inf)
            proposals = Proposals(
                torch.cat((proposals.boxes, clip(extra.boxes, sizes)), 1),
                torch.cat((proposals.logits, rank), 1),
                torch.cat((proposals.valid, extra.valid), 1),
            )
        scores, deltas, iou = self.outputs_of_valid(levels, proposals.boxes, proposals.valid)
        boxes = decode_boxes(deltas, proposals.boxes[:, :, None], self.settings.roi.box_weights)
        return ScoredProposals(
            proposals,
            scores.softmax(-1)[..., 1 + self.settings.negatives :],
            clip(boxes, sizes),
            None if iou is None else iou.sigmoid(),
        )

    def choose(self, candidates: ScoredProposals, *, exact: bool = False) -> Detections:
        """Score threshold, NMS by class, then the best of each image."""
        test = self.settings.test
        scores = candidates.scores
        allowed = (scores > test.score_cut) & candidates.proposals.valid[..., None]
        if test.use_iou and candidates.iou is not None:
            scores = (scores * candidates.iou[..., None]).sqrt()
        return select(
            candidates.boxes,
            scores,
            allowed,
            nms_iou=test.nms,
            detections=test.detections,
            candidates=None if exact else test.candidates,
        )

    @torch.no_grad()
    def detect(self, images: Tensor, sizes: Tensor, *, exact: bool = False) -> Detections:
        """Detections of a batch, in pixels of the canvas.

        `exact` lifts the fixed size of what enters NMS, which waits for the device; without it the
        detections' flag `exact` is false where that did not suffice.
        """
        return self.choose(self.infer(images, sizes), exact=exact)

    @torch.no_grad()
    def predict(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Detect as torchvision's models do: images (3, h, w) in 0..1 of any sizes, one dict each.

        `boxes` (n, 4) in the image's own pixels, `scores` (n,) and `labels` (n,), from 1.
        """
        if not images:
            return []
        test, device = self.settings.test, self.mean.device
        batch, sizes = batch_images(
            [image.to(device) for image in images], test.min_size, test.max_size, test.divisible
        )
        found = self.detect(batch, sizes)
        if not found.exact.all():
            found = self.detect(batch, sizes, exact=True)
        original = torch.tensor([image.shape[1:] for image in images], device=device)
        boxes = found.boxes * (original / sizes).flip(1).repeat(1, 2)[:, None]
        rows = (boxes, found.scores, found.labels + 1)
        return [
            dict(zip(("boxes", "scores", "labels"), (part[i, :n] for part in rows), strict=True))
            for i, n in enumerate(found.valid.sum(1).tolist())
        ]
