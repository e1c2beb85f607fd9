"""Exact non-maximum suppression (NMS) of whole batches.

On CUDA it is a kernel (`kernels/nms.py`), on the CPU torchvision's loop over boxes. Compiled steps
and other devices repeat the rule "a box is kept unless a better kept one overlaps it", starting
from "all kept": with sorted boxes it has one solution, reached after as many rounds as the longest
chain of suppressions, 4 to 8 in practice. A fixed number of rounds never waits for the device; the
flag `settled` says whether the last round changed nothing, i.e. whether the result is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor

from mini_fsod.detector.boxes import pairwise_iou
from mini_fsod.detector.on_cpu import eager_on_cpu

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
    if group is None:
        group = torch.zeros_like(valid, dtype=torch.int32)
    if boxes.is_cuda:
        from mini_fsod.kernels.nms import nms_by_kernel  # Triton comes with CUDA only

        keep = nms_by_kernel(boxes, valid, group, _round_down(threshold))
    elif eager_on_cpu(boxes):
        keep = nms_by_loop(boxes, valid, threshold, group)
    else:
        return by_matrix(boxes, valid, threshold, group, rounds)
    return keep, keep.new_ones(len(keep))


def nms_by_loop(boxes: Tensor, valid: Tensor, threshold: float, group: Tensor) -> Tensor:
    """`nms` by torchvision's loop over boxes, which is fastest on the CPU; always exact."""
    keep = torch.zeros_like(valid)
    for i in range(len(boxes)):
        for label in set(group[i][valid[i]].tolist()):
            rows = (valid[i] & (group[i] == label)).nonzero().flatten()
            order = -torch.arange(len(rows), dtype=boxes.dtype)
            keep[i, rows[torchvision.ops.nms(boxes[i, rows], order, threshold)]] = True
    return keep


def by_matrix(
    boxes: Tensor,
    valid: Tensor,
    threshold: float,
    group: Tensor | None = None,
    rounds: int | None = 12,
) -> tuple[Tensor, Tensor]:
    """`nms` by rounds over a matrix of overlaps, a few images at a time."""
    images, n = valid.shape
    rank = torch.arange(n, device=boxes.device)
    step = max(1, LARGEST_MATRIX // max(1, n * n))
    parts = []
    for some in (slice(i, i + step) for i in range(0, images, step)):
        # suppresses[b, i, j]: j is better than i, of the same group, and overlaps it
        overlap = pairwise_iou(boxes[some], boxes[some])
        suppresses = (overlap > _round_down(threshold)) & (rank < rank[:, None])
        if group is not None:
            suppresses = suppresses & (group[some, :, None] == group[some, None, :])
        parts.append(_suppress_in_rounds(suppresses, valid[some], rounds))
    return torch.cat([keep for keep, _ in parts]), torch.cat([settled for _, settled in parts])


def _suppress_in_rounds(
    suppresses: Tensor, valid: Tensor, rounds: int | None
) -> tuple[Tensor, Tensor]:
    keep = valid
    for done in itertools.count(1):
        before = keep
        keep = valid & ~(suppresses & before[:, None, :]).any(-1)
        if done == rounds or (rounds is None and torch.equal(keep, before)):
            break
    return keep, (keep == before).all(-1)


def nms_within_levels(
    boxes: Tensor, valid: Tensor, counts: Sequence[int], threshold: float, rounds: int | None = 12
) -> tuple[Tensor, Tensor]:
    """NMS within each level of boxes (B, N, 4), which has `counts` boxes per level, in order.

    Padded to the longest level, all levels of all images are one batch: one launch on CUDA.
    """
    sizes, longest = list(counts), max(counts)
    padded = [F.pad(b, (0, 0, 0, longest - b.shape[1])) for b in torch.split(boxes, sizes, 1)]
    real = [F.pad(v, (0, longest - v.shape[1])) for v in torch.split(valid, sizes, 1)]
    keep, settled = nms(
        torch.stack(padded, 1).flatten(0, 1), torch.stack(real, 1).flatten(0, 1), threshold,
        rounds=rounds,
    )  # fmt: skip
    by_level = keep.view(len(boxes), len(sizes), longest).unbind(1)
    keep = torch.cat([level[:, :n] for level, n in zip(by_level, sizes, strict=True)], 1)
    return keep, settled.view(len(boxes), -1).all(1)


def _round_down(threshold: float) -> float:
    """The largest float32 not above the threshold.

    Comparing float32 IoUs with it gives what torchvision gets with its float64 threshold.
    """
    mantissa, exponent = math.frexp(threshold)
    return math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
