"""The detector as one graph: pictures in, detections out, for any picture size and batch.

Written to be traced: sizes are tensors, and no Python number depends on the input. Any
number of candidates enters NMS: results are those of `Detector.detect(exact=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from mini_fsod.detector import postprocess, rpn
from mini_fsod.detector.anchors import STRIDES, cell_anchors
from mini_fsod.detector.boxes import clip, decode_boxes, gather_rows
from mini_fsod.detector.model import Detector
from mini_fsod.detector.nms import nms_by_loop
from mini_fsod.detector.roi_align import roi_levels
from mini_fsod.export.resize import arange, canvas_size, fitted, resized_canvas

NO_LABEL = -1  # of rows that are padding
ALL_BOXES = 1 << 30  # that NMS may keep of a group


class DetectorGraph(nn.Module):
    """Preprocessing, detector, NMS, and the way back to the pictures' pixels.

    In: images (N, H, W, 3) uint8 RGB. Out: boxes (N, D, 4) float32, left, top, right and bottom in
    pixels of the input; scores (N, D); labels (N, D) int64, from 0; count (N,) int64. D is the
    largest number of detections. Rows from `count` on are padding: zeros, and label -1.
    """

    score_threshold: Tensor

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        # becomes an input of the ONNX file, with this default
        threshold = torch.tensor(detector.settings.test.score_cut)
        self.register_buffer("score_threshold", threshold)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        detector, test = self.detector, self.detector.settings.test
        size = torch._shape_as_tensor(images)[1:3]
        scaled = fitted(size, test.min_size, test.max_size)
        canvas = canvas_size(scaled, test.divisible)
        pixels = resized_canvas(images, scaled, canvas)
        sizes = scaled[None].expand(images.shape[0], 2)
        levels = detector.features(pixels, sizes)
        proposals, valid = self._propose(levels, sizes, canvas)
        scores, boxes, iou = self._score(levels, proposals, sizes)
        allowed = (scores > self.score_threshold) & valid[..., None]
        if test.use_iou and iou is not None:
            scores = (scores * iou[..., None]).sqrt()
        boxes, scores, labels, count = self._select(boxes, scores, allowed)
        to_input = (scaled.float() / size.float()).flip(0).repeat(2)
        return boxes / to_input, scores, labels, count

    def _propose(
        self, levels: Sequence[Tensor], sizes: Tensor, canvas: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Proposals (N, P, 4), and which are real (N, P): `rpn.propose`."""
        detector, settings = self.detector, self.detector.settings.rpn
        logits, deltas = detector.rpn_head(levels)
        anchors, counts = self._anchors(canvas)
        starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        best_of, rows_of, level_of = [], [], []
        for n in range(len(levels)):
            kept = _at_most(counts[n], settings.before_nms_test)
            top = logits[:, starts[n] : starts[n + 1]].topk(kept)
            best_of.append(top.values)
            rows_of.append(top.indices + starts[n])
            level_of.append(torch.full_like(top.indices, n))
        scores, rows, level = (torch.cat(parts, 1) for parts in (best_of, rows_of, level_of))
        boxes = clip(decode_boxes(gather_rows(deltas, rows), anchors[rows]), sizes)
        large = (boxes[..., 2:] - boxes[..., :2] >= rpn.SMALLEST_SIDE).all(-1)
        valid = large & (scores.sigmoid() >= settings.score_cut)
        # sorted within each level, and boxes of other levels do not matter
        keep = nms_by_onnx(boxes, level, valid, settings.nms, len(levels))
        most = _at_most(torch._shape_as_tensor(scores)[1], settings.after_nms_test)
        best = scores.masked_fill(~keep, -torch.inf).topk(most)
        valid = best.values > -torch.inf
        return gather_rows(boxes, best.indices) * valid[..., None], valid

    def _anchors(self, canvas: Tensor) -> tuple[Tensor, Tensor]:
        """Anchors (A, 4) of a canvas (2,), and their number on each level: `canvas_anchors`."""
        settings = self.detector.settings.rpn
        grids = [torch.div(canvas, stride, rounding_mode="floor") for stride in STRIDES]
        grids.append(torch.div(grids[-1] + 1, 2, rounding_mode="floor"))
        levels = []
        for grid, sizes in zip(grids, settings.anchor_sizes, strict=True):
            step = torch.div(canvas, grid, rounding_mode="floor")
            y = arange(grid[0]) * step[0]
            x = arange(grid[1]) * step[1]
            y, x = torch.meshgrid(y, x, indexing="ij")
            corner = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
            cell = cell_anchors(sizes, settings.ratios, canvas.device)
            levels.append((corner + cell).reshape(-1, 4))
        per_cell = self.detector.rpn_head.per_cell
        return torch.cat(levels), torch.stack([grid.prod() * per_cell for grid in grids])

    def _score(
        self, levels: Sequence[Tensor], proposals: Tensor, sizes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scores (N, P, C), boxes (N, P, C, 4) and the predicted IoU (N, P): `Detector.infer`.

        Proposals are pooled level by level; the order is put right after the heads, where a
        proposal is a few numbers.
        """
        detector, roi = self.detector, self.detector.settings.roi
        rois = proposals.flatten(0, 1)
        image = torch.arange(proposals.shape[0], device=rois.device)[:, None]
        image = image.expand(proposals.shape[:2]).flatten()
        rois = torch.cat((image[:, None].to(rois.dtype), rois), 1)
        level = roi_levels(proposals).flatten()
        order, pooled = [], []
        for n, stride in enumerate(STRIDES):
            rows = (level == n).nonzero().squeeze(1)
            order.append(rows)
            pooled.append(
                roi_align(levels[n], rois[rows], roi.size, 1 / stride, roi.sampling_ratio)
            )
        rows, features = torch.cat(order), torch.cat(pooled)
        back = torch.zeros_like(rows).scatter(
            0, rows, torch.arange(rows.shape[0], device=rows.device)
        )

        def in_order(values: Tensor) -> Tensor:
            return values[back].view(*proposals.shape[:2], *values.shape[1:])

        logits, deltas = map(in_order, detector.predictor(detector.box_head(features)))
        boxes = decode_boxes(deltas, proposals[:, :, None], roi.box_weights)
        branch = detector.iou_branch
        iou = None if branch is None else in_order(branch(features)).sigmoid()
        scores = logits.softmax(-1)[..., 1 + detector.settings.negatives :]
        return scores, clip(boxes, sizes), iou

    def _select(
        self, boxes: Tensor, scores: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """NMS within each class, then the best of all classes: `postprocess.select`."""
        test, classes = self.detector.settings.test, self.detector.settings.num_classes
        sides = boxes[..., 2:] - boxes[..., :2]
        allowed = (allowed & (sides >= postprocess.SMALLEST_SIDE).all(-1)).flatten(1)
        # all of them, so that nothing is approximate; one at least, since no runtime likes zero
        most: Any = allowed.sum(1).max().clamp(min=1)
        top = scores.flatten(1).masked_fill(~allowed, -torch.inf).topk(most)
        valid = top.values > -torch.inf
        best = gather_rows(boxes.flatten(1, 2), top.indices)
        label = top.indices % classes
        keep = nms_by_onnx(best, label, valid, test.nms, classes)
        # already sorted: the kept rows in their order, then padding to a fixed number of rows
        rank = torch.where(keep, _ranks(keep), 0.0)
        padded = torch.cat((rank, rank.new_zeros(rank.shape[0], test.detections)), 1)
        first = padded.topk(test.detections)
        found = first.values > 0
        rows = torch.minimum(first.indices, most - 1)
        return (
            gather_rows(best, rows) * found[..., None],
            torch.where(found, top.values.gather(1, rows), 0.0),
            torch.where(found, label.gather(1, rows), NO_LABEL),
            found.sum(1),
        )


def nms_by_onnx(
    boxes: Tensor, group: Tensor, valid: Tensor, threshold: float, groups: int
) -> Tensor:
    """The boxes (N, R, 4) that survive NMS within their group (N, R) of 0 .. groups - 1: (N, R).

    Boxes of a group are sorted, best first; those not valid neither suppress nor survive. ONNX's
    operator takes the groups as classes, and its scores are ranks: equal scores have no order.
    """
    ranks = torch.where(valid, _ranks(valid), 0.0)
    one_hot = group[:, None] == torch.arange(groups, device=group.device)[:, None]
    scores = torch.where(one_hot, ranks[:, None], 0.0)
    kept = cast(Any, _Suppress).apply(boxes, scores, threshold)  # (K, 3): image, group, row
    flags = torch.zeros_like(ranks).flatten()
    rows = kept[:, 0] * ranks.shape[1] + kept[:, 2]
    return flags.scatter(0, rows, 1.0).view_as(ranks) > 0


class _Suppress(torch.autograd.Function):
    """(K, 3) image, group and row of the boxes that NMS keeps; scores (N, G, R), 0 for none."""

    @staticmethod
    def forward(ctx: Any, boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
        valid, group = scores.max(1).values > 0, scores.argmax(1)
        keep = nms_by_loop(boxes, valid, threshold, group)
        image, row = keep.nonzero().unbind(1)
        return torch.stack((image, group[image, row], row), 1)

    @staticmethod
    def symbolic(graph: Any, boxes: Any, scores: Any, threshold: float) -> Any:
        def constant(value: Tensor) -> Any:
            return graph.op("Constant", value_t=value)

        return graph.op(
            "NonMaxSuppression",
            boxes,
            scores,
            constant(torch.tensor([ALL_BOXES])),
            constant(torch.tensor([threshold], dtype=torch.float32)),
            constant(torch.tensor([0.0])),
        )


def _ranks(rows: Tensor) -> Tensor:
    """Descending numbers R .. 1 for rows (N, R), float32."""
    number = rows.shape[1]
    return (number - torch.arange(number, device=rows.device)).float().expand_as(rows)


def _at_most(number: Tensor, limit: int) -> Any:
    """The smaller of both, as a tensor: `topk` takes it where a trace needs it, a stub says int."""
    return torch.minimum(number, torch.full_like(number, limit))
