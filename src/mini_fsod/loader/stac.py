"""STAC's strong augmentation: one colour operation, an affine map inside one box, and cutouts.

The geometry of the image and its boxes stays, as in `augment`. STAC also has affine maps of whole
images; they are left out, because they would move the boxes of the student but not the teacher's.
Ranges are those of STAC's code and paper. Random numbers are drawn on the host from (seed, step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.loader.augment import erase_mask
from mini_fsod.loader.resident import upload
from mini_fsod.loader.schedule import STRONG, Plan, random_words, uniform

LEVELS = 10  # a magnitude is 1 to 9 of these


def _enhance(operation: Callable[..., Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda image, level: operation(image, 1.8 * level / LEVELS + 0.1)


# (3, h, w) uint8 and a magnitude to the same
COLOURS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "identity": lambda image, level: image,
    "autocontrast": lambda image, level: tv.autocontrast(image),
    "equalize": lambda image, level: tv.equalize(image),
    "solarize": lambda image, level: tv.solarize(image, 256 - 256 * level // LEVELS),
    "colour": _enhance(tv.adjust_saturation),
    "contrast": _enhance(tv.adjust_contrast),
    "brightness": _enhance(tv.adjust_brightness),
    "sharpness": _enhance(tv.adjust_sharpness),
    "posterize": lambda image, level: tv.posterize(image, 4 - 4 * level // LEVELS),
}
AFFINE = ("shift x", "shift y", "rotate", "shear")
SHIFT, DEGREES = 0.05, 10.0  # largest shift, as a share of the box, and largest angle
CUTOUTS, CUTOUT_SIDE = 5, 0.2  # one to so many squares; largest side, as a share of the short side
BEHIND, CUT = 125, 128  # grey behind a moved box, and in cutouts


@dataclass(frozen=True, slots=True, eq=False)
class StacDraw:
    """Random numbers for the views of b images."""

    colour: Ints  # (b,) index of the operation in COLOURS
    level: Ints  # (b,) its magnitude
    box: Floats  # (b,) in [0, 1): which of the image's boxes is moved
    affine: Ints  # (b,) index of the map in AFFINE
    amount: Floats  # (b,) from -1 to 1
    cutouts: Ints  # (b, 5, 4) top, left, height, width; height 0: none


def draw_stac(seed: int, plan: Plan) -> StacDraw:
    """Draws for the plan's images."""
    each = 6 + 3 * CUTOUTS
    words = random_words(plan.batch * each, seed, STRONG, plan.step)
    rows = slice(plan.first, plan.first + len(plan.images))
    u = uniform(words.reshape(plan.batch, each)[rows])
    height, width = plan.sizes[:, :1], plan.sizes[:, 1:]
    y, x, size = u[:, 6:].reshape(len(u), 3, CUTOUTS).transpose(1, 0, 2)
    side = np.floor(size * CUTOUT_SIDE * np.minimum(height, width))
    side[np.arange(CUTOUTS) > np.floor(u[:, 5:6] * CUTOUTS)] = 0
    squares = np.stack([y * height - side / 2, x * width - side / 2, side, side], -1)
    return StacDraw(
        colour=np.floor(u[:, 0] * len(COLOURS)).astype(np.int64),
        level=1 + np.floor(u[:, 1] * (LEVELS - 1)).astype(np.int64),
        box=u[:, 2],
        affine=np.floor(u[:, 3] * len(AFFINE)).astype(np.int64),
        amount=2 * u[:, 4] - 1,
        cutouts=np.floor(squares).astype(np.int64),
    )


def stac_view(images: Tensor, sizes: Ints, boxes: Tensor, valid: Tensor, draw: StacDraw) -> Tensor:
    """The strong view (B, 3, H, W) uint8 of a weak one (B, 3, H, W).

    sizes (B, 2) are on the host; boxes (B, M, 4) with `valid` (B, M), M may be 0. The canvas around
    an image does not change, and an image without a box has no affine map.
    """
    device, operations = images.device, [*COLOURS.values()]
    view = images.clone()
    for n, (height, width) in enumerate(sizes.tolist()):
        part = images[n, :, :height, :width]
        view[n, :, :height, :width] = operations[draw.colour[n]](part, int(draw.level[n]))
    chosen, has_box = choose_box(boxes, valid, upload(draw.box.astype(np.float32), device))
    view = move_inside(view, chosen, has_box, draw.affine, draw.amount)
    y, x = (torch.arange(n, device=device) for n in images.shape[2:])
    sides = upload(sizes, device)
    inside = (y < sides[:, :1])[:, :, None] & (x < sides[:, 1:])[:, None, :]
    cut = erase_mask(upload(draw.cutouts, device), y, x) & inside
    view = view.masked_fill(cut[:, None], CUT)
    return view.contiguous(memory_format=torch.channels_last)


def choose_box(boxes: Tensor, valid: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """One of the valid boxes (B, M, 4) of each image, by `chance` (B,) in [0, 1).

    The box (B, 4) in whole pixels, and whether the image has one (B,). M may be 0.
    """
    boxes, valid = F.pad(boxes, (0, 0, 0, 1)), F.pad(valid, (0, 1))
    wanted = (chance * valid.sum(1)).floor()[:, None]
    row = ((valid.cumsum(1) - 1 == wanted) & valid).int().argmax(1)
    chosen = boxes.gather(1, row[:, None, None].expand(-1, 1, 4)).squeeze(1)
    return chosen.floor(), valid.any(1)


def move_inside(
    images: Tensor, box: Tensor, has_box: Tensor, affine: Ints, amount: Floats
) -> Tensor:
    """Images (B, 3, H, W) uint8 with the content of a box (B, 4) each mapped around its centre.

    affine (B,) are indices of AFFINE, amount (B,) shares of the largest shift or angle. What comes
    from outside the box is grey; pixels outside of it stay.
    """
    height, width = images.shape[2:]
    matrix, shift = (upload(part, images.device) for part in _inverse_maps(affine, amount))
    y = torch.arange(height, device=images.device) + 0.5
    x = torch.arange(width, device=images.device) + 0.5
    pixel = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # (H, W, 2)
    low, high = box[:, None, None, :2], box[:, None, None, 2:]
    centre, size = (low + high) / 2, high - low
    source = torch.einsum("bij,bhwj->bhwi", matrix, pixel - centre) + centre
    source = source - shift[:, None, None] * size
    inside = ((pixel >= low) & (pixel < high)).all(-1) & has_box[:, None, None]
    known = ((source >= low) & (source < high)).all(-1)
    grid = 2 * source / torch.tensor([width, height], device=images.device) - 1
    moved = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    moved = torch.where(known[:, None], moved, BEHIND).round().to(torch.uint8)
    return torch.where(inside[:, None], moved, images)


def _inverse_maps(affine: Ints, amount: Floats) -> tuple[Floats, Floats]:
    """Maps from places in the view to their source: matrices (B, 2, 2), shifts (B, 2) as shares."""
    angle = np.deg2rad(DEGREES * amount)
    zero, one = np.zeros_like(angle), np.ones_like(angle)
    turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    sheared = np.array([[one, np.tan(angle)], [zero, one]])
    still = np.array([[one, zero], [zero, one]])
    matrix = np.where(affine == 2, turned, np.where(affine == 3, sheared, still))
    shift = np.stack([(affine == 0) * amount, (affine == 1) * amount], -1) * SHIFT
    return matrix.transpose(2, 0, 1).astype(np.float32), shift.astype(np.float32)
