"""Segmenters for tests: MobileSAM with few channels, and one that knows a colour."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.shapes import COLOURS, NOVEL
from mini_fsod.segmenter.decoder import MASKS, UPSAMPLED
from mini_fsod.segmenter.load import Segmenter
from mini_fsod.segmenter.tiny_vit import STRIDE, Widths

TINY = Widths((8, 8, 12, 16), (1, 1, 2, 1), (1, 2, 3, 2), (7, 7, 14, 7), 16, 2, 32)


def tiny_segmenter() -> Segmenter:
    """Random weights, statistics of BatchNorm too."""
    torch.manual_seed(0)
    found = Segmenter(TINY)
    for name, value in found.named_buffers():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2)
        elif name.endswith("running_mean"):
            value.normal_()
    return found.requires_grad_(False)


def write_segmenter(path: Path) -> Path:
    """A file as MobileSAM's, with tensors that no box needs."""
    state = tiny_segmenter().state_dict()
    state["image_encoder.head.weight"] = torch.zeros(10, 16)
    state["prompt_encoder.mask_downscaling.0.bias"] = torch.zeros(4)
    torch.save(state, path)
    return path


class ColourSegmenter(Segmenter):
    """Finds the colour of the novel class of `helpers.shapes` wherever the box is."""

    def __init__(self, score: float = 0.9) -> None:
        super().__init__(TINY)
        self.score = score

    def encode(self, images: Tensor, sizes: Tensor) -> Tensor:
        return F.avg_pool2d(images.float(), STRIDE // UPSAMPLED)

    def masks(
        self, cells: Tensor, image: Tensor, boxes: Tensor, side: int
    ) -> tuple[Tensor, Tensor]:
        colour = torch.tensor(COLOURS[NOVEL]).view(1, 3, 1, 1)
        logits = 50 - (cells[image] - colour).abs().amax(1)
        every = logits[:, None].expand(-1, MASKS, -1, -1)
        return every, torch.full((len(boxes), MASKS), self.score)
