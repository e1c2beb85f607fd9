"""Mined boxes that end where their objects end (`mine.segmenter`).

Beyond the paper: the segmenter knows edges and no classes, so it can tell nobody what to mine. Only
pictures with a mined box are looked at.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Boxes, Dataset, Floats, Ints
from mini_fsod.data.overlap import greedy_nms
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.resident import Annotations, Batch
from mini_fsod.loader.schedule import each_once
from mini_fsod.loader.stream import Stream
from mini_fsod.mining.candidates import NMS_IOU, Candidates
from mini_fsod.runs.data import counted
from mini_fsod.segmenter.bounds import believable, mask_bounds
from mini_fsod.segmenter.decoder import WHOLE
from mini_fsod.segmenter.load import Segmenter

# Longest side of the pictures that the segmenter sees: what it was trained with; half of it where
# most pictures are no longer than that: as good there, for a quarter of the time
SIDE, SMALL_SIDE = 1024, 512
IMAGES_PER_BATCH = {"cuda": 16}
IMAGES_PER_BATCH_ELSEWHERE = 2


def tighten(
    segmenter: Segmenter, data: Dataset, found: Candidates, kept: Bools, device: torch.device
) -> tuple[Candidates, Bools]:
    """The candidates with the boxes of the pool, `kept` (n,), tightened; and the pool then.

    Where two boxes of a class now mean the same object, the better one stays in the pool, and the
    other candidate gets its own box back. n may be 0, and so may be the pool.
    """
    rows = np.flatnonzero(kept)
    xywh = found.xywh.copy()
    xywh[rows] = tightened_boxes(segmenter, data, found.take(rows), device)
    moved = replace(found, xywh=xywh)
    group = moved.image[rows] * (found.label.max(initial=0) + 1) + moved.label[rows]
    order = np.lexsort((-found.score[rows], group))
    stays = greedy_nms(xywh[rows[order]], group[order], NMS_IOU, len(rows))
    dropped = rows[order[~stays]]
    xywh[dropped] = found.xywh[dropped]
    pool = kept.copy()
    pool[dropped] = False
    tighter = console.count(int((xywh != found.xywh).any(1).sum()), "box")
    left_out = f"; {len(dropped):,} left out, on objects of better ones" if len(dropped) else ""
    console.note(f"{tighter} of {len(rows):,} tightened by the segmenter{left_out}")
    return moved, pool


def tightened_boxes(
    segmenter: Segmenter, data: Dataset, found: Candidates, device: torch.device
) -> Floats:
    """(n, 4) the boxes of n candidates, x, y, width, height, as the segmenter sees them.

    A box that is mostly outside of its picture stays as it was. n may be 0.
    """
    xyxy = np.concatenate([found.xywh[:, :2], found.xywh[:, :2] + found.xywh[:, 2:]], axis=1)
    if len(found):
        sizes = image_sizes(data)
        shown, side = np.unique(found.image), longest_side(sizes)
        plans = each_once(sizes, pictures_at_once(device), side, side, images=shown)
        prompts = Annotations.of(Boxes.of(found.image, found.xywh, found.label), len(data))
        source = Stream(data, sizes, prompts, device, side, side)
        with console.progress("tightening boxes", len(plans)) as progress:
            for batch in counted(source.batches, progress)(plans):
                rows, ends = _believed(segmenter, batch, side)
                xyxy[rows] = ends
    return np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)


def longest_side(sizes: Ints) -> int:
    """The long side at which the segmenter sees pictures of sizes (I, 2); I is not 0."""
    return SMALL_SIDE if np.median(sizes.max(1)) <= SMALL_SIDE else SIDE


def pictures_at_once(device: torch.device) -> int:
    return IMAGES_PER_BATCH.get(device.type, IMAGES_PER_BATCH_ELSEWHERE)


def _believed(segmenter: Segmenter, batch: Batch, side: int) -> tuple[Ints, Floats]:
    """(m,) indices of the boxes of a batch that end elsewhere, and their new ends (m, 4), left,
    top, right, bottom in pixels of the pictures.
    """
    valid = batch.targets.valid.clone()
    valid[batch.plan.count :] = False
    image, slot = valid.nonzero().unbind(1)
    boxes, sizes = batch.targets.boxes[image, slot], batch.sizes[image]
    logits, scores = segmenter.masks(
        segmenter.encode(batch.images, batch.sizes), image, boxes, side
    )
    bounds = mask_bounds(logits[:, WHOLE], sizes)
    chosen = believable(boxes, bounds, scores[:, WHOLE])
    in_picture = bounds / batch.scale[image].repeat(1, 2)
    rows = batch.box_index[image, slot][chosen]
    return rows.cpu().numpy(), in_picture[chosen].double().cpu().numpy()
