"""Resizing and padding of images as torchvision does it, and the normalisation of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.detector.settings import Normalisation
from mini_fsod.errors import UserError


def normalise(
    images: Tensor, sizes: Tensor, mean: Tensor, std: Tensor, normalisation: Normalisation
) -> Tensor:
    """Images (B, 3, H, W), RGB, uint8 0..255 or float 0..1, normalised for the backbone, float32.

    mean and std (1, 3, 1, 1) are those of `normalisation`, on the device. Pixels outside an image's
    size (B, 2) become zero whatever they hold: torchvision pads after it has normalised.
    """
    white = 255.0 if images.dtype == torch.uint8 else 1.0
    pixels = images.float() * (normalisation.scale / white)
    if normalisation.order == "BGR":
        pixels = pixels.flip(1)
    row = torch.arange(images.shape[2], device=images.device) < sizes[:, 0, None]
    column = torch.arange(images.shape[3], device=images.device) < sizes[:, 1, None]
    inside = row[:, None, :, None] & column[:, None, None, :]
    return torch.where(inside, (pixels - mean) / std, 0.0)


def batch_images(
    images: Sequence[Tensor], min_size: int, max_size: int, divisible: int
) -> tuple[Tensor, Tensor]:
    """Resize images (3, h, w) and pad them to one batch (B, 3, H, W), as torchvision; sizes (B, 2).

    The short side becomes min_size unless the long one would exceed max_size; H and W are the
    largest height and width, rounded up to a multiple of `divisible`.
    """
    resized: list[Tensor] = []
    for i, image in enumerate(images):
        if image.dim() != 3 or image.shape[0] != 3 or 0 in image.shape:
            raise UserError(
                f"Image {i} has shape {tuple(image.shape)}.", "Give colour images (3, h, w)."
            )
        pixels = image.float() / 255 if image.dtype == torch.uint8 else image.float()
        short, long = sorted(image.shape[1:])
        scale = min(min_size / short, max_size / long)
        resized += F.interpolate(
            pixels[None], scale_factor=scale, mode="bilinear", recompute_scale_factor=True
        )
    height, width = (
        -(-max(image.shape[d] for image in resized) // divisible) * divisible for d in (1, 2)
    )
    canvas = resized[0].new_zeros(len(resized), 3, height, width)
    for i, image in enumerate(resized):
        canvas[i, :, : image.shape[1], : image.shape[2]] = image
    sizes = torch.tensor([image.shape[1:] for image in resized], device=canvas.device)
    return canvas, sizes
