"""The region proposal network: its head, and the selection of proposals over a whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mini_fsod.detector.batch import Proposals
from mini_fsod.detector.boxes import clip, decode_boxes, gather_rows
from mini_fsod.detector.convolution import conv_add_relu
from mini_fsod.detector.nms import nms_within_levels

SMALLEST_SIDE = 1e-3  # of a proposal, in pixels
BOX_WEIGHTS = (1.0, 1.0, 1.0, 1.0)


class RPNHead(nn.Module):
    """Objectness and box deltas of every anchor.

    The last layer of all levels is one matrix product: `per_cell` objectness rows, then four delta
    rows per anchor, so that its output is in the order of the anchors.
    """

    def __init__(self, channels: int, per_cell: int, convs: int) -> None:
        super().__init__()
        self.per_cell = per_cell
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(convs)
        )
        self.predict = nn.Linear(channels, 5 * per_cell)
        for layer in [*self.convs, self.predict]:
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (B, A) and deltas (B, A, 4), float32, of levels (B, channels, h, w)."""
        rows = []
        for x in levels:
            for conv in self.convs:
                x = conv_add_relu(conv, x, relu=True)
            rows.append(x.flatten(2).transpose(1, 2))  # (B, h w, channels), no copy: channels-last
        out = self.predict(torch.cat(rows, dim=1)).float()
        images = out.shape[0]
        return (
            out[..., : self.per_cell].reshape(images, -1),
            out[..., self.per_cell :].reshape(images, -1, 4),
        )


def propose(
    logits: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    counts: Sequence[int],
    sizes: Tensor,
    *,
    before_nms: int,
    after_nms: int,
    nms_iou: float,
    score_cut: float,
    rounds: int | None,
) -> Proposals:
    """The best boxes of each level, after NMS within the level, then the best of all levels.

    logits (B, A), deltas (B, A, 4), anchors (A, 4) with `counts` anchors per level, sizes (B, 2)
    height and width of each image, to which proposals are clipped. The number of rows P is fixed;
    with fewer proposals the rest is padding (zero boxes). No gradient flows.
    """
    logits, deltas = logits.detach(), deltas.detach()
    kept = [min(before_nms, n) for n in counts]
    best, index = [], []
    start = 0
    for n, k in zip(counts, kept, strict=True):
        top = logits[:, start : start + n].topk(k)
        best.append(top.values)
        index.append(top.indices + start)
        start += n
    scores, rows = torch.cat(best, 1), torch.cat(index, 1)

    boxes = clip(decode_boxes(gather_rows(deltas, rows), anchors[rows], BOX_WEIGHTS), sizes)
    large = (boxes[..., 2:] - boxes[..., :2] >= SMALLEST_SIDE).all(-1)
    valid = large & (scores.sigmoid() >= score_cut)
    keep, settled = nms_within_levels(boxes, valid, kept, nms_iou, rounds)

    top = scores.masked_fill(~keep, -torch.inf).topk(min(after_nms, keep.shape[1]))
    valid = top.values > -torch.inf
    chosen = gather_rows(boxes, top.indices) * valid[..., None]
    return Proposals(chosen, top.values, valid, settled)
