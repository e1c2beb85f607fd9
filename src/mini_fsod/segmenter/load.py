"""MobileSAM from its file of weights, and masks of boxes.

The file is `mobile_sam.pt` of the paper's authors, or the same tensors as .safetensors.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from mini_fsod.detector.preprocess import normalise
from mini_fsod.detector.settings import IMAGENET
from mini_fsod.detector.weights import WeightsFile, load_weights, read_weights
from mini_fsod.device import fast_bf16
from mini_fsod.errors import UserError
from mini_fsod.segmenter.decoder import MaskDecoder, PromptEncoder, cell_positions
from mini_fsod.segmenter.tiny_vit import ConvNorm, TinyViT, Widths

MOBILE_SAM = Widths()
FIX = "Set mine.segmenter to mobile_sam.pt, or leave it out."
# Of the file, but of no use here: a classifier, and prompts other than boxes
UNUSED = (
    "image_encoder.norm_head.", "image_encoder.head.", "prompt_encoder.not_a_point_embed.",
    "prompt_encoder.mask_downscaling.",
)  # fmt: skip
BOXES_PER_PASS = {"cuda": 64}  # each takes 4 MB for its copy of the image's map
BOXES_PER_PASS_ELSEWHERE = 8


class Segmenter(nn.Module):
    """Masks of boxes. Runs in bfloat16 where the device is fast at it, else in float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        self.image_encoder = TinyViT(widths)
        self.prompt_encoder = PromptEncoder(widths)
        self.mask_decoder = MaskDecoder(widths)
        self.normalisation = IMAGENET
        for name in ("mean", "std"):
            value = torch.tensor(getattr(self.normalisation, name)).view(1, 3, 1, 1)
            self.register_buffer(name, value, persistent=False)
        self.eval()

    @torch.no_grad()
    def encode(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Maps (B, D, H / 16, W / 16) of images (B, 3, H, W) uint8 RGB, H and W multiples of 16.

        sizes (B, 2) are height and width of the image in the upper left corner of its canvas.
        """
        pixels = normalise(images, sizes, self.mean, self.std, self.normalisation)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=fast_bf16(pixels.device)):
            cells: Tensor = self.image_encoder(pixels)
        return cells

    @torch.no_grad()
    def masks(
        self, cells: Tensor, image: Tensor, boxes: Tensor, side: int
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, 4, H / 4, W / 4) and scores (n, 4) of boxes (n, 4) in pixels of the canvas.

        They are in the images (n,) of maps (B, D, H / 16, W / 16); `side` is the longest side of
        images. n may be 0.
        """
        height, width = cells.shape[2:]
        parts = []
        count = BOXES_PER_PASS.get(boxes.device.type, BOXES_PER_PASS_ELSEWHERE)
        with torch.autocast(cells.device.type, torch.bfloat16, enabled=fast_bf16(cells.device)):
            grid = cell_positions(height, width, side, cells.device)
            positions = self.prompt_encoder.pe_layer(grid)
            no_mask = self.prompt_encoder.no_mask_embed.weight.view(1, -1, 1, 1)
            for of, some in zip(torch.split(image, count), torch.split(boxes, count), strict=True):
                prompts = self.prompt_encoder((some.float() + 0.5) / side)
                parts.append(self.mask_decoder(cells[of] + no_mask, positions, prompts))
        logits, scores = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(scores)


def load_segmenter(path: Path, device: torch.device) -> Segmenter:
    """MobileSAM on the device; a UserError where the file is something else."""
    weights = read_weights(path, FIX)
    if not any(name.startswith("image_encoder.patch_embed.") for name in weights.tensors):
        raise UserError(f"{path}: these are not the weights of MobileSAM.", FIX)
    used = {n: value for n, value in weights.tensors.items() if not n.startswith(UNUSED)}
    with torch.random.fork_rng(devices=[]):  # new weights are drawn, then overwritten
        found = Segmenter(MOBILE_SAM)
    load_weights(found, WeightsFile(path, used), "MobileSAM")
    for module in found.modules():
        if isinstance(module, ConvNorm):
            module.fold()
    found.requires_grad_(False).to(device)
    found.image_encoder.to(memory_format=torch.channels_last)
    return found
