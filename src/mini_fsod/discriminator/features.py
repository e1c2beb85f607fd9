"""Features of boxes in images, from which prototypes and cosines follow (Eq. 2 and 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from mini_fsod.detector.preprocess import normalise
from mini_fsod.detector.settings import Normalisation
from mini_fsod.device import fast_bf16

# RoIAlign of 7 x 7 cells with 2 samples a side in each, then the mean over the cells
SAMPLES = 7 * 2

# Crops per forward pass: many keep a GPU busy; on a CPU few are as fast, and take less memory
CROPS_PER_PASS = {"cuda": 256}
CROPS_PER_PASS_ELSEWHERE = 8


class Discriminator(nn.Module):
    """The last feature map of a network (res5 of a ResNet), averaged over boxes.

    `body` maps normalised images (B, 3, H, W) to (B, dimension, H / stride, W / stride). With
    `crop` every box is cropped from its image and resized to crop x crop pixels: slower, but
    nothing around the box matters, and all objects have one size.

    The body runs in bfloat16 where the device is fast at it, else in float32; RoIAlign and means
    are in float32. Without crops nothing waits for the device, so that a call can be recorded
    (`Captured`).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        dimension: int,
        stride: int,
        normalisation: Normalisation,
        crop: int | None = None,
    ) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.dimension = dimension
        self.stride = stride
        self.normalisation = normalisation
        self.crop = crop
        for name in ("mean", "std"):
            value = torch.tensor(getattr(normalisation, name)).view(1, 3, 1, 1)
            self.register_buffer(name, value)
        self.eval()

    @torch.no_grad()
    def features(self, images: Tensor, sizes: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
        """(B, R, dimension) float32 of boxes (B, R, 4: left, top, right, bottom on the canvas).

        images (B, 3, H, W) uint8 RGB, sizes (B, 2) height and width of the image in the upper left
        corner of its canvas; the rest is ignored. H and W are multiples of 32. Boxes where valid
        (B, R) is false get zeros, whatever they contain; R may be 0.
        """
        pixels = normalise(images, sizes, self.mean, self.std, self.normalisation)
        boxes = torch.where(valid[..., None], boxes.float(), 0.0)
        if self.crop is None:
            found = mean_aligned(self._map(pixels), boxes, self.stride)
        else:
            found = self._crop_features(pixels, boxes, valid, self.crop)
        return torch.where(valid[..., None], found, 0.0)

    def _map(self, pixels: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=fast_bf16(pixels.device)):
            cells: Tensor = self.body(pixels)
        return cells.float()

    def _crop_features(self, pixels: Tensor, boxes: Tensor, valid: Tensor, crop: int) -> Tensor:
        image = torch.arange(len(boxes), device=boxes.device).view(-1, 1, 1)
        rows = torch.cat([image.expand(-1, boxes.shape[1], 1), boxes], -1)[
            valid
        ]  # (S, 5); waits for the device
        count = CROPS_PER_PASS.get(boxes.device.type, CROPS_PER_PASS_ELSEWHERE)
        found = [
            self._map(roi_align(pixels, part, crop, sampling_ratio=-1, aligned=True)).mean((2, 3))
            for part in torch.split(rows, count)
            if len(part)
        ]
        whole = boxes.new_zeros(*valid.shape, self.dimension)
        whole[valid] = torch.cat([boxes.new_zeros(0, self.dimension), *found])
        return whole


def mean_aligned(cells: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """(B, R, D) RoIAlign of 7 x 7 cells, then their mean: maps (B, D, h, w), boxes (B, R, 4).

    Equals torchvision's `roi_align(..., 7, 1 / stride, sampling_ratio=2, aligned=True)` and
    `.mean((2, 3))`. Both are weighted sums over the map, with weights that factor into one along y
    and one along x, so one matrix product per batch suffices and the 49 cells of a box are never
    stored. R may be 0.
    """
    left, top, right, bottom = (boxes / stride - 0.5).unbind(-1)
    with torch.autocast(cells.device.type, enabled=False):
        down = axis_weights(top, bottom, cells.shape[2])
        along = axis_weights(left, right, cells.shape[3])
        weights = (down[..., :, None] * along[..., None, :]).flatten(2)  # (B, R, h w)
        return torch.bmm(weights, cells.flatten(2).mT)


def axis_weights(low: Tensor, high: Tensor, cells: int) -> Tensor:
    """(B, R, cells) the weight of each cell in the mean of samples between low and high (B, R).

    Samples are at the centres of SAMPLES equal parts, interpolated between the two nearest cells.
    One beyond the outermost cell's centre reads that cell; one more than a cell beyond reads zero.
    """
    at = (torch.arange(SAMPLES, device=low.device) + 0.5) / SAMPLES
    sample = low[..., None] + (high - low)[..., None] * at  # (B, R, SAMPLES)
    inside = (sample >= -1) & (sample <= cells)
    cell = torch.arange(cells, device=low.device)
    distance = (sample.clamp(0, cells - 1)[..., None] - cell).abs()  # (B, R, SAMPLES, cells)
    return (F.relu(1 - distance) * inside[..., None]).mean(2)
