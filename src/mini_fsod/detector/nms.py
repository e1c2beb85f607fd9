"""Exact non-maximum suppression of whole batches, without a loop over boxes.

A box is kept unless a better kept one overlaps it. With the boxes sorted, this rule has exactly one
solution, and repeating it from "all kept" reaches that solution: a box is final after as many
rounds as its longest chain of suppression, 4 to 8 in practice. A fixed number of rounds needs no
wait for the device; the flag that says whether the last round still changed something is read
later, if ever. That is for compiled steps and devices without a kernel of their own: on CUDA ours
comes to rest by itself (`kernels/nms.py`), on the CPU torchvision's loop over boxes is quicker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor

from mini_fsod.detector.boxes import pairwise_iou

LARGEST_MATRIX = 2**26  # entries of the overlap matrices made at once


def nms(
    boxes: Tensor,
    valid: Tensor,
    threshold: float,
    group: Tensor | None = None,
    rounds: int | None = 12,
) -> tuple[Tensor, Tensor]:
    """Which boxes survive: keep (B, N) bool, and settled (B,) bool, true where keep is exact.

    boxes (B, N, 4) are sorted, best first; those not valid (B, N) neither suppress nor survive.
    With `group` (B, N), only boxes of one group suppress each other (classes). `rounds` None
    repeats until nothing changes, which waits for the device in every round. N = 0 is fine.
    """
    if boxes.is_cuda:
        from mini_fsod.kernels.nms import suppress  # Triton is there where CUDA is

        within = torch.zeros_like(valid, dtype=torch.int32) if group is None else group
        keep = suppress(boxes, valid, within, _below(threshold))
        return keep, keep.new_ones(len(keep))
    if boxes.device.type == "cpu" and not torch.compiler.is_compiling():
        keep = one_by_one(boxes, valid, threshold, group)
        return keep, keep.new_ones(len(keep))
    return by_matrix(boxes, valid, threshold, group, rounds)


def by_matrix(
    boxes: Tensor,
    valid: Tensor,
    threshold: float,
    group: Tensor | None = None,
    rounds: int | None = 12,
) -> tuple[Tensor, Tensor]:
    """`nms` as rounds over a matrix of overlaps, some images at a time."""
    images, n = valid.shape
    step = max(1, LARGEST_MATRIX // max(1, n * n))
    parts = [
        _chunk(
            boxes[i : i + step],
            valid[i : i + step],
            threshold,
            None if group is None else group[i : i + step],
            rounds,
        )
        for i in range(0, images, step)
    ]
    return torch.cat([keep for keep, _ in parts]), torch.cat([settled for _, settled in parts])


def one_by_one(
    boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None = None
) -> Tensor:
    """Torchvision's loop over boxes, which on the CPU beats any matrix."""
    keep = torch.zeros_like(valid)
    for i in range(len(boxes)):
        kinds = [valid[i]]
        if group is not None:
            kinds = [valid[i] & (group[i] == kind) for kind in set(group[i][valid[i]].tolist())]
        for kind in kinds:
            rows = kind.nonzero().flatten()
            order = -torch.arange(len(rows), dtype=boxes.dtype)
            keep[i, rows[torchvision.ops.nms(boxes[i, rows], order, threshold)]] = True
    return keep


def nms_parts(
    boxes: Tensor, valid: Tensor, counts: Sequence[int], threshold: float, rounds: int | None = 12
) -> tuple[Tensor, Tensor]:
    """NMS within each part of (B, N, 4), parts of `counts` boxes one behind the other."""
    sizes = list(counts)
    parts = list(zip(torch.split(boxes, sizes, 1), torch.split(valid, sizes, 1), strict=True))
    if not boxes.is_cuda:
        results = [nms(b, v, threshold, rounds=rounds) for b, v in parts]
        keep = torch.cat([keep for keep, _ in results], 1)
        return keep, torch.stack([settled for _, settled in results]).all(0)
    # padded to the longest, all parts of all images are one launch
    longest = max(counts)
    padded = torch.stack([F.pad(b, (0, 0, 0, longest - b.shape[1])) for b, _ in parts], 1)
    there = torch.stack([F.pad(v, (0, longest - v.shape[1])) for _, v in parts], 1)
    keep, settled = nms(padded.flatten(0, 1), there.flatten(0, 1), threshold)
    by_part = keep.view(len(boxes), len(sizes), longest).unbind(1)
    keep = torch.cat([k[:, :n] for k, n in zip(by_part, sizes, strict=True)], 1)
    return keep, settled.view(len(boxes), -1).all(1)


def _chunk(
    boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None, rounds: int | None
) -> tuple[Tensor, Tensor]:
    n = valid.shape[1]
    rank = torch.arange(n, device=boxes.device)
    # suppresses[b, i, j]: j is better than i and overlaps it
    suppresses = (pairwise_iou(boxes, boxes) > _below(threshold)) & (rank < rank[:, None])
    if group is not None:
        suppresses = suppresses & (group[:, :, None] == group[:, None, :])
    keep = valid
    done = 0
    while True:
        before = keep
        keep = valid & ~(suppresses & before[:, None, :]).any(-1)
        done += 1
        if done == rounds or (rounds is None and torch.equal(keep, before)):
            return keep, (keep == before).all(-1)


def _below(threshold: float) -> float:
    """The largest float32 not above the threshold.

    torchvision's kernel compares a float32 IoU with a double threshold; so do we, in float32.
    """
    mantissa, exponent = math.frexp(threshold)
    return math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
