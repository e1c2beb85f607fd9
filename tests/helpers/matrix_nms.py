"""NMS by rounds over a matrix of overlaps: the rule in a few lines, as a reference for the kernel
and the loop, and without waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mini_fsod.detector.boxes import pairwise_iou


def nms_by_matrix(
    boxes: Tensor, valid: Tensor, threshold: float, group: Tensor | None = None, rounds: int = 12
) -> Tensor:
    """A box is kept unless a better kept one overlaps it, starting from "all kept". With sorted
    boxes that settles after as many rounds as the longest chain of suppressions.
    """
    rank = torch.arange(boxes.shape[1], device=boxes.device)
    overlaps = pairwise_iou(boxes, boxes).double() > threshold  # torchvision compares so too
    suppresses = overlaps & (rank < rank[:, None])
    if group is not None:
        suppresses &= group[:, :, None] == group[:, None, :]
    keep = valid
    for _ in range(rounds):
        keep = valid & ~(suppresses & keep[:, None, :]).any(-1)
    return keep


def compute_as_on_a_device(monkeypatch: Any) -> None:
    """Make the CPU wait for nothing and use fixed shapes, as CUDA does."""
    for module in ("detector.nms", "detector.postprocess", "online.mingling"):
        monkeypatch.setattr(f"mini_fsod.{module}.nms", nms_by_matrix)
    monkeypatch.setattr("mini_fsod.detector.model.eager_on_cpu", lambda _: False)
