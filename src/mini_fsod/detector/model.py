"""Faster R-CNN with a feature pyramid, over whole padded batches.

Classes. Labels are 0 .. C-1, in the order of the label map. The background has no label: it is row
0 of the classifier, class c is row c + 1; the box predictor has rows for the classes only. So a new
class is a row at the end of both. Only `predict` uses torchvision's labels, which start at 1.

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

import torch
from torch import Tensor, nn

from mini_fsod.detector.anchors import cached_anchors, canvas_anchors, level_counts
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
from mini_fsod.detector.boxes import clip, decode_boxes, gather_rows
from mini_fsod.detector.fpn import FeaturePyramid
from mini_fsod.detector.losses import iou_loss, roi_losses, rpn_losses
from mini_fsod.detector.matching import Matches, draw_samples, match, random_keys
from mini_fsod.detector.postprocess import select
from mini_fsod.detector.preprocess import batch_images, normalise
from mini_fsod.detector.roi import BoxHead, IoUBranch, Predictor
from mini_fsod.detector.roi_align import pool_rois
from mini_fsod.detector.rpn import BOX_WEIGHTS, RPNHead, propose
from mini_fsod.detector.settings import (
    BackboneSettings,
    Classifier,
    DetectorSettings,
    Norm,
    Normalisation,
    RoISettings,
    RPNSettings,
    TestSettings,
)
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
    channels: int = 256,
    classifier: Classifier = "linear",
    iou_branch: bool = False,
    rpn: RPNSettings | None = None,
    roi: RoISettings | None = None,
    test: TestSettings | None = None,
) -> Detector:
    """A new detector with random heads; see `make_backbone` for its backbone and `weights`.

    By default `frozen_stages` is 2 (stem and res2) with weights and 0 without, and `normalisation`
    that of torchvision's or timm's weights.
    """
    normalisation = normalisation or default_normalisation(backbone)
    if frozen_stages is None:
        frozen_stages = 0 if weights is None else 2
    body = BackboneSettings(backbone, norm, stride_in_1x1, frozen_stages, normalisation)
    settings = DetectorSettings(
        num_classes,
        body,
        channels=channels,
        classifier=classifier,
        iou_branch=iou_branch,
        rpn=rpn or RPNSettings(),
        roi=roi or RoISettings(),
        test=test or TestSettings(),
    )
    return Detector(settings, weights)


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
        how = settings.backbone.normalisation
        self.register_buffer("mean", torch.tensor(how.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(how.std).view(1, 3, 1, 1), persistent=False)
        roi = settings.roi
        per_cell = len(settings.rpn.ratios) * len(settings.rpn.anchor_sizes[0])
        self.rpn_head = RPNHead(settings.channels, per_cell, settings.rpn.convs)
        self.box_head = BoxHead(settings.channels, roi.size, roi.convs, roi.layers, roi.width)
        self.predictor = Predictor(roi.width, settings.num_classes, settings.classifier)
        self.iou_branch = (
            IoUBranch(settings.channels, roi.size, roi.width) if settings.iou_branch else None
        )

    # The steps

    def features(self, images: Tensor, sizes: Tensor) -> list[Tensor]:
        """P2 to P6 of a batch."""
        how = self.settings.backbone.normalisation
        pixels = normalise(images, sizes, self.mean, self.std, how)
        levels: list[Tensor] = self.fpn(self.backbone(pixels))
        return levels

    def anchors(self, images: Tensor) -> tuple[Tensor, list[int]]:
        """Anchors (A, 4) of the batch's canvas, and the number of each level."""
        canvas = (images.shape[2], images.shape[3])
        rpn = self.settings.rpn
        # A compiled step keeps them as constants and warns about a cache.
        make = canvas_anchors if torch.compiler.is_compiling() else cached_anchors
        anchors = make(canvas, rpn.anchor_sizes, rpn.ratios, images.device)
        return anchors, level_counts(canvas, self.rpn_head.per_cell)

    def propose(
        self,
        logits: Tensor,
        deltas: Tensor,
        anchors: Tensor,
        counts: Sequence[int],
        sizes: Tensor,
        extra: PaddedBoxes | None = None,
        *,
        training: bool,
        exact: bool = False,
    ) -> Proposals:
        """Proposals (`rpn.propose`), then the extra boxes, clipped to their image."""
        rpn = self.settings.rpn
        found = propose(
            logits,
            deltas,
            anchors,
            counts,
            sizes,
            before_nms=rpn.before_nms_train if training else rpn.before_nms_test,
            after_nms=rpn.after_nms_train if training else rpn.after_nms_test,
            nms_iou=rpn.nms,
            score_cut=rpn.score_cut,
            rounds=None if exact else self.settings.nms_rounds,
        )
        return found if extra is None else _append(found, extra, sizes)

    def pool(self, levels: Sequence[Tensor], boxes: Tensor) -> Tensor:
        """RoI features (B * R, channels, size, size) of boxes (B, R, 4) on P2 to P5."""
        roi = self.settings.roi
        return pool_rois(levels[:-1], boxes, roi.size, roi.sampling_ratio).flatten(0, 1)

    def roi_outputs(self, pooled: Tensor, images: int) -> RoIOutputs:
        """Outputs (B, R, ...) of the heads for RoI features (B * R, ...)."""
        logits, deltas = self.predictor(self.box_head(pooled))
        iou = None if self.iou_branch is None else self.iou_branch(pooled).view(images, -1)
        shape = (images, -1)
        return RoIOutputs(logits.unflatten(0, shape), deltas.unflatten(0, shape), iou)

    # Training

    def losses(
        self,
        images: Tensor,
        sizes: Tensor,
        targets: Targets,
        draw: Tensor | int = 0,
        extra: PaddedBoxes | None = None,
        rpn_samples: Samples | None = None,
        roi_samples: Samples | None = None,
    ) -> dict[str, Tensor]:
        """The four losses under torchvision's names, and `loss_iou` with an IoU branch.

        Their sum is Eq. 8 plus the RPN's losses. `draw` (`matching.draw_number`) alone decides
        which anchors and RoIs are sampled; a compiled or captured step needs it as a tensor ()
        int64 on the device. `rpn_samples` (rows of the anchors) and `roi_samples` (rows of
        [proposals, extra boxes, ground truth]) replace the drawn samples. Images without boxes are
        fine.
        """
        if isinstance(draw, int):
            draw = torch.full((), draw, dtype=torch.int64, device=images.device)
        anchors, counts = self.anchors(images)
        matches, rpn_samples = self.sample_anchors(anchors, targets, draw, rpn_samples)
        levels = self.features(images, sizes)
        logits, deltas = self.rpn_head(levels)
        objectness, rpn_box = rpn_losses(
            logits,
            deltas,
            anchors,
            targets,
            matches,
            rpn_samples,
            BOX_WEIGHTS,
            self.settings.rpn.beta,
        )
        proposals = self.propose(logits, deltas, anchors, counts, sizes, extra, training=True)
        regions = self.sample_rois(*self.match_rois(proposals, targets), draw, roi_samples)[1]
        outputs = self.roi_outputs(self.pool(levels, regions.rois), len(images))
        return {
            "loss_objectness": objectness,
            "loss_rpn_box_reg": rpn_box,
            **self.roi_losses(outputs, regions, targets, sizes),
        }

    def sample_anchors(
        self, anchors: Tensor, targets: Targets, draw: Tensor, samples: Samples | None = None
    ) -> tuple[Matches, Samples]:
        """Match the anchors (A, 4) to the targets and draw those that carry loss."""
        settings = self.settings.rpn
        matches = match(
            anchors, None, targets, settings.positive_iou, settings.negative_iou, forced=True
        )
        if samples is None:
            keys = random_keys(draw, 0, *matches.positive.shape)
            samples = draw_samples(matches, settings.samples, settings.positive_share, keys)
        return matches, samples

    def match_rois(self, proposals: Proposals, targets: Targets) -> tuple[Tensor, Matches]:
        """The proposals, then the ground truth, as boxes (B, P + G, 4), and their matches."""
        settings = self.settings.roi
        boxes = torch.cat((proposals.boxes, targets.boxes), dim=1)
        valid = torch.cat((proposals.valid, targets.valid), dim=1)
        matches = match(
            boxes, valid, targets, settings.positive_iou, settings.negative_iou, forced=False
        )
        return boxes, matches

    def sample_rois(
        self, boxes: Tensor, matches: Matches, draw: Tensor, samples: Samples | None = None
    ) -> tuple[Samples, Regions]:
        """Draw the boxes (B, R, 4) that carry loss: which rows, and what they are matched to."""
        settings = self.settings.roi
        if samples is None:
            keys = random_keys(draw, 1, *matches.positive.shape)
            samples = draw_samples(matches, settings.samples, settings.positive_share, keys)
        rows, valid = samples
        regions = Regions(
            gather_rows(boxes, rows),
            matches.box.gather(1, rows),
            matches.iou.gather(1, rows),
            matches.positive.gather(1, rows) & valid,
            valid,
        )
        return samples, regions

    def roi_losses(
        self, outputs: RoIOutputs, regions: Regions, targets: Targets, sizes: Tensor
    ) -> dict[str, Tensor]:
        """Losses of the heads; takes no images, so outputs may come from cached features."""
        settings = self.settings.roi
        classifier, box = roi_losses(outputs, regions, targets, settings.box_weights, settings.beta)
        losses = {"loss_classifier": classifier, "loss_box_reg": box}
        if self.iou_branch is not None:
            error = iou_loss(outputs, regions, targets, sizes, settings.box_weights)
            losses["loss_iou"] = settings.iou_weight * error
        return losses

    # Inference

    def infer(
        self,
        images: Tensor,
        sizes: Tensor,
        extra: PaddedBoxes | None = None,
        *,
        exact: bool = False,
    ) -> ScoredProposals:
        """Every proposal, extra boxes last, with its scores and boxes: no threshold, no NMS yet."""
        anchors, counts = self.anchors(images)
        levels = self.features(images, sizes)
        logits, deltas = self.rpn_head(levels)
        proposals = self.propose(
            logits, deltas, anchors, counts, sizes, extra, training=False, exact=exact
        )
        outputs = self.roi_outputs(self.pool(levels, proposals.boxes), len(images))
        return self.candidates(proposals, outputs, sizes)

    def candidates(
        self, proposals: Proposals, outputs: RoIOutputs, sizes: Tensor
    ) -> ScoredProposals:
        """Scores and final boxes from the heads' outputs for the proposals."""
        references = proposals.boxes[:, :, None]
        boxes = clip(decode_boxes(outputs.deltas, references, self.settings.roi.box_weights), sizes)
        scores = outputs.logits.softmax(-1)[..., 1:]
        iou = None if outputs.iou is None else outputs.iou.sigmoid()
        return ScoredProposals(proposals, scores, boxes, iou)

    def choose(self, candidates: ScoredProposals, *, exact: bool = False) -> Detections:
        """Score threshold, NMS by class, then the best of each image."""
        test = self.settings.test
        scores = candidates.scores
        allowed = (scores > test.score_cut) & candidates.proposals.valid[..., None]
        if test.use_iou and candidates.iou is not None:
            scores = (scores * candidates.iou[..., None]).sqrt()
        found = select(
            candidates.boxes,
            scores,
            allowed,
            nms_iou=test.nms,
            detections=test.detections,
            candidates=None if exact else test.candidates,
            rounds=None if exact else self.settings.nms_rounds,
        )
        return found._replace(exact=found.exact & candidates.proposals.settled)

    @torch.no_grad()
    def detect(
        self,
        images: Tensor,
        sizes: Tensor,
        extra: PaddedBoxes | None = None,
        *,
        exact: bool = False,
    ) -> Detections:
        """Detections of a batch, in pixels of the canvas.

        `exact` lifts the fixed sizes and numbers of rounds, which waits for the device; without it
        the detections' flag `exact` is false where they did not suffice.
        """
        return self.choose(self.infer(images, sizes, extra, exact=exact), exact=exact)

    @torch.no_grad()
    def predict(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """As torchvision's models: images (3, h, w) in 0..1 of any sizes in, one dict each out.

        `boxes` (n, 4) in the image's own pixels, `scores` (n,) and `labels` (n,), from 1.
        """
        if not images:
            return []
        test, device = self.settings.test, self.mean.device
        batch, sizes = batch_images(
            [image.to(device) for image in images], test.min_size, test.max_size, test.divisible
        )
        found = self.detect(batch, sizes)
        number, exact = torch.stack((found.valid.sum(1), found.exact)).tolist()  # the only wait
        if not all(exact):
            found = self.detect(batch, sizes, exact=True)
            number = found.valid.sum(1).tolist()
        original = torch.tensor([image.shape[1:] for image in images], device=device)
        boxes = found.boxes * (original / sizes).flip(1).repeat(1, 2)[:, None]
        return [
            {
                "boxes": boxes[i, :n],
                "scores": found.scores[i, :n],
                "labels": found.labels[i, :n] + 1,
            }
            for i, n in enumerate(number)
        ]


def _append(proposals: Proposals, extra: PaddedBoxes, sizes: Tensor) -> Proposals:
    rank = torch.where(extra.valid, torch.inf, -torch.inf)
    return Proposals(
        torch.cat((proposals.boxes, clip(extra.boxes, sizes)), 1),
        torch.cat((proposals.logits, rank), 1),
        torch.cat((proposals.valid, extra.valid), 1),
        proposals.settled,
    )
