"""Images and boxes in, features out: what prototypes and cosines (Eq. 2 and 3) are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from mini_fsod.detector.preprocess import normalise
from mini_fsod.detector.settings import Normalisation

# RoIAlign of 7 x 7 cells with 2 samples a side in each, then the mean over the cells
SAMPLES = 7 * 2

# Crops of a pass: many keep a GPU busy; on a CPU few are as fast, and take less memory
CROPS_AT_ONCE = {"cuda": 256}
CROPS_AT_ONCE_ELSEWHERE = 8


class Discriminator(nn.Module):
    """The last map of a network (res5 of a ResNet), averaged over boxes.

    `body` takes normalised pictures (B, 3, H, W) to (B, dimension, H / stride, W / stride). With
    `crop` every box is cut out of its picture, crop x crop pixels, and seen by itself: slower, but
    nothing around the box has a say, and small objects are seen as large as others.

    The body's pass is in bfloat16 on CUDA and in float32 elsewhere; boxes and means are in float32.
    Without crops nothing waits for the device, so that a call can be recorded (`Captured`).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        dimension: int,
        stride: int,
        normalisation: Normalisation,
        identity: str,
        crop: int | None = None,
    ) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.dimension = dimension
        self.stride = stride
        self.normalisation = normalisation
        self.identity = identity  # changes with the weights and with how they are used
        self.crop = crop
        for name in ("mean", "std"):
            value = torch.tensor(getattr(normalisation, name)).view(1, 3, 1, 1)
            self.register_buffer(name, value)
        self.eval()

    @torch.no_grad()
    def features(self, images: Tensor, sizes: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
        """(B, R, dimension) float32 of boxes (B, R, 4: left, top, right, bottom on the canvas).

        images (B, 3, H, W) uint8 RGB, sizes (B, 2) height and width of the real part in the upper
        left corner: what the rest holds does not matter. H and W are multiples of 32. Boxes where
        valid (B, R) is false get zeros, whatever they hold; R may be 0.
        """
        pixels = normalise(images, sizes, self.mean, self.std, self.normalisation)
        boxes = torch.where(valid[..., None], boxes.float(), 0.0)
        if self.crop is None:
            found = mean_aligned(self._map(pixels), boxes, self.stride)
        else:
            found = self._of_crops(pixels, boxes, valid, self.crop)
        return torch.where(valid[..., None], found, 0.0)

    def _map(self, pixels: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            cells: Tensor = self.body(pixels)
        return cells.float()

    def _of_crops(self, pixels: Tensor, boxes: Tensor, valid: Tensor, crop: int) -> Tensor:
        image = torch.arange(len(boxes), device=boxes.device).view(-1, 1, 1)
        rows = torch.cat([image.expand(-1, boxes.shape[1], 1), boxes], -1)[valid]  # (S, 5); waits
        many = CROPS_AT_ONCE.get(boxes.device.type, CROPS_AT_ONCE_ELSEWHERE)
        seen = [
            self._map(roi_align(pixels, part, crop, sampling_ratio=-1, aligned=True)).mean((2, 3))
            for part in torch.split(rows, many)
            if len(part)
        ]
        whole = boxes.new_zeros(*valid.shape, self.dimension)
        whole[valid] = torch.cat([boxes.new_zeros(0, self.dimension), *seen])
        return whole


def mean_aligned(cells: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """(B, R, D) RoIAlign of 7 x 7 cells, then their mean: maps (B, D, h, w), boxes (B, R, 4).

    Both are sums over the map with weights that are a product of one along y and one along x. So
    the whole is one matrix product a batch, and the 49 cells of a box are never written down. As
    torchvision's `roi_align(..., 7, 1 / stride, sampling_ratio=2, aligned=True).mean((2, 3))`.
    """
    left, top, right, bottom = (boxes / stride - 0.5).unbind(-1)
    with torch.autocast(cells.device.type, enabled=False):
        down = axis_weights(top, bottom, cells.shape[2])
        along = axis_weights(left, right, cells.shape[3])
        weights = (down[..., :, None] * along[..., None, :]).flatten(2)  # (B, R, h w)
        return torch.bmm(weights, cells.flatten(2).mT)


def axis_weights(low: Tensor, high: Tensor, cells: int) -> Tensor:
    """(B, R, cells) the share of each cell in the mean of samples between low and high (B, R).

    Samples lie in the middle of SAMPLES equal parts and read the two cells around them; one beyond
    the outermost cell's middle reads that cell, one more than a cell beyond reads zero.
    """
    at = (torch.arange(SAMPLES, device=low.device) + 0.5) / SAMPLES
    sample = low[..., None] + (high - low)[..., None] * at  # (B, R, SAMPLES)
    seen = (sample >= -1) & (sample <= cells)
    cell = torch.arange(cells, device=low.device)
    away = (sample.clamp(0, cells - 1)[..., None] - cell).abs()  # (B, R, SAMPLES, cells)
    return (F.relu(1 - away) * seen[..., None]).mean(2)
