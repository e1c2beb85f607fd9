"""Exact non-maximum suppression (NMS) of whole batches.

On CUDA it is a kernel (`kernels/nms.py`), on the CPU torchvision's loop over boxes. Compiled steps
and other devices repeat the rule "a box is kept unless a better kept one overlaps it", starting
from "all kept": with sorted boxes it has one solution, reached after as many rounds as the longest
chain of suppressions, 4 to 8 in practice. A fixed number of rounds never waits for the device; the
flag `settled` says whether the last round changed nothing, i.e. whether the result is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor

from mini_fsod.detector.boxes import pairwise_iou

LARGEST_MATRIX = 2**26  # entries of the overlap matrices computed at once


def nms(
    boxes: Tensor,
    valid: Tensor,
    threshold: float,
    group: Tensor | None = None,
    rounds: int | None = 12,
) -> tuple[Tensor, Tensor]:
    """The surviving boxes: keep (B, N) bool, and settled (B,) bool, true where keep is exact.

    boxes (B, N, 4) are sorted, best first; those not valid (B, N) neither suppress nor survive.
    With `group` (B, N), only boxes of the same group (class) suppress each other. `rounds` None
    repeats until nothing changes, which waits for the device in every round. N = 0 is fine.
    """
    if boxes.is_cuda:
        from mini_fsod.kernels.nms import suppress  # Triton comes with CUDA only

        within = torch.zeros_like(valid, dtype=torch.int32) if group is None else group
        keep = suppress(boxes, valid, within, _round_down(threshold))
        return keep, keep.new_ones(len(keep))
    if boxes.device.type == "cpu" and not torch.compiler.is_compiling():
        keep = nms_by_loop(boxes, valid, threshold, group)
        return keep, keep.new_ones(len(keep))
    return by_matrix(boxes, valid, threshold, group, rounds)


def by_matrix(
    boxes: Tensor,
    valid: Tensor,
    threshold: float,
    group: Tensor | None = None,
    rounds: int | None = 12,
) -> tuple[Tensor, Tensor]:
    """`nms` by rounds over a matrix of overlaps, a few images at a time."""
    images, n = valid.shape
    step = max(1, LARGEST_MATRIX // max(1, n * n))
    parts = [
        _suppression_rounds(
            boxes[i : i + step],
            valid[i : i + step],
            threshold,
            None if group is None else group[i : i + step],
            rounds,
        )
        for i in range(0, images, step)
    ]
    return torch.cat([keep for keep, _ in parts]), torch.cat([settled for _, settled in parts])


def nms_by_loop(
    boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None = None
) -> Tensor:
    """`nms` by torchvision's loop over boxes, which is fastest on the CPU; always exact."""
    keep = torch.zeros_like(valid)
    for i in range(len(boxes)):
        groups = [valid[i]]
        if group is not None:
            groups = [valid[i] & (group[i] == g) for g in set(group[i][valid[i]].tolist())]
        for members in groups:
            rows = members.nonzero().flatten()
            order = -torch.arange(len(rows), dtype=boxes.dtype)
            keep[i, rows[torchvision.ops.nms(boxes[i, rows], order, threshold)]] = True
    return keep


def nms_within_levels(
    boxes: Tensor, valid: Tensor, counts: Sequence[int], threshold: float, rounds: int | None = 12
) -> tuple[Tensor, Tensor]:
    """NMS within each level of boxes (B, N, 4), which has `counts` boxes per level, in order."""
    sizes = list(counts)
    parts = list(zip(torch.split(boxes, sizes, 1), torch.split(valid, sizes, 1), strict=True))
    if not boxes.is_cuda:
        results = [nms(b, v, threshold, rounds=rounds) for b, v in parts]
        keep = torch.cat([keep for keep, _ in results], 1)
        return keep, torch.stack([settled for _, settled in results]).all(0)
    # padded to the longest level, all levels of all images are one kernel launch
    longest = max(counts)
    padded = torch.stack([F.pad(b, (0, 0, 0, longest - b.shape[1])) for b, _ in parts], 1)
    padded_valid = torch.stack([F.pad(v, (0, longest - v.shape[1])) for _, v in parts], 1)
    keep, settled = nms(padded.flatten(0, 1), padded_valid.flatten(0, 1), threshold)
    by_level = keep.view(len(boxes), len(sizes), longest).unbind(1)
    keep = torch.cat([k[:, :n] for k, n in zip(by_level, sizes, strict=True)], 1)
    return keep, settled.view(len(boxes), -1).all(1)


def _suppression_rounds(
    boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None, rounds: int | None
) -> tuple[Tensor, Tensor]:
    n = valid.shape[1]
    rank = torch.arange(n, device=boxes.device)
    # suppresses[b, i, j]: j is better than i and overlaps it
    suppresses = (pairwise_iou(boxes, boxes) > _round_down(threshold)) & (rank < rank[:, None])
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


def _round_down(threshold: float) -> float:
    """The largest float32 not above the threshold.

    Comparing float32 IoUs with it gives what torchvision gets with its float64 threshold.
    """
    mantissa, exponent = math.frexp(threshold)
    return math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
