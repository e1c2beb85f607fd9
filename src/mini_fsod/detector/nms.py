"""Exact non-maximum suppression (NMS) of whole batches.

On CUDA it is a kernel (`kernels/nms.py`), on the CPU torchvision's loop over boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor


def nms(boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None = None) -> Tensor:
    """Which boxes survive, (B, N) bool.

    boxes (B, N, 4) are sorted, best first; those not valid (B, N) neither suppress nor survive.
    With `group` (B, N), only boxes of the same group (class) suppress each other. N = 0 is fine.
    """
    if group is None:
        group = torch.zeros_like(valid, dtype=torch.int32)
    if boxes.is_cuda:
        from mini_fsod.kernels.nms import nms_by_kernel  # Triton comes with CUDA only

        keep: Tensor = nms_by_kernel(boxes, valid, group, _round_down(threshold))
        return keep
    return nms_by_loop(boxes, valid, threshold, group)


def nms_by_loop(boxes: Tensor, valid: Tensor, threshold: float, group: Tensor) -> Tensor:
    """`nms` by torchvision's loop over boxes, which is fastest on the CPU."""
    keep = torch.zeros_like(valid)
    for i in range(len(boxes)):
        for label in set(group[i][valid[i]].tolist()):
            rows = (valid[i] & (group[i] == label)).nonzero().flatten()
            order = -torch.arange(len(rows), dtype=boxes.dtype)
            keep[i, rows[torchvision.ops.nms(boxes[i, rows], order, threshold)]] = True
    return keep


def nms_within_levels(
    boxes: Tensor, valid: Tensor, counts: Sequence[int], threshold: float
) -> Tensor:
    """NMS within each level of boxes (B, N, 4), which has `counts` boxes per level, in order.

    Padded to the longest level, all levels of all images are one batch: one launch on CUDA.
    """
    sizes, longest = list(counts), max(counts)
    padded = [F.pad(b, (0, 0, 0, longest - b.shape[1])) for b in torch.split(boxes, sizes, 1)]
    real = [F.pad(v, (0, longest - v.shape[1])) for v in torch.split(valid, sizes, 1)]
    keep = nms(torch.stack(padded, 1).flatten(0, 1), torch.stack(real, 1).flatten(0, 1), threshold)
    by_level = keep.view(len(boxes), len(sizes), longest).unbind(1)
    return torch.cat([level[:, :n] for level, n in zip(by_level, sizes, strict=True)], 1)


def _round_down(threshold: float) -> float:
    """The largest float32 not above the threshold.

    Comparing float32 IoUs with it gives what torchvision gets with its float64 threshold.
    """
    mantissa, exponent = math.frexp(threshold)
    return math.ldexp(math.floor(math.ldexp(mantissa, 24)), exponent - 24)
