"""The region proposal network: its head, and the selection of proposals over a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from mini_fsod.detector.batch import Proposals
from mini_fsod.detector.boxes import clip, decode_boxes, gather_rows, top
from mini_fsod.detector.convolution import conv_add_relu
from mini_fsod.detector.nms import nms_within_levels
from mini_fsod.detector.on_cpu import linear
from mini_fsod.detector.settings import RPNSettings

SMALLEST_SIDE = 1e-3  # of a proposal, in pixels


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
        out = linear(self.predict, torch.cat(rows, dim=1)).float()
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
    settings: RPNSettings,
    training: bool,
) -> Proposals:
    """The best boxes of each level, after NMS within the level, then the best of all levels.

    logits (B, A), deltas (B, A, 4), anchors (A, 4) with `counts` anchors per level, sizes (B, 2)
    height and width of each image, to which proposals are clipped. The number of rows P is fixed;
    with fewer proposals the rest is padding (zero boxes). No gradient flows.
    """
    logits, deltas = logits.detach(), deltas.detach()
    before_nms = settings.before_nms_train if training else settings.before_nms_test
    after_nms = settings.after_nms_train if training else settings.after_nms_test
    kept = [min(before_nms, n) for n in counts]
    best = [top(x, k) for x, k in zip(torch.split(logits, list(counts), 1), kept, strict=True)]
    starts = accumulate(counts, initial=0)
    scores = torch.cat([values for values, _ in best], 1)
    rows = torch.cat([index + start for (_, index), start in zip(best, starts, strict=False)], 1)

    boxes = clip(decode_boxes(gather_rows(deltas, rows), anchors[rows]), sizes)
    large = (boxes[..., 2:] - boxes[..., :2] >= SMALLEST_SIDE).all(-1)
    valid = large & (scores.sigmoid() >= settings.score_cut)
    keep = nms_within_levels(boxes, valid, kept, settings.nms)

    scores, rows = top(scores.masked_fill(~keep, -torch.inf), min(after_nms, keep.shape[1]))
    valid = scores > -torch.inf
    return Proposals(gather_rows(boxes, rows) * valid[..., None], scores, valid)
