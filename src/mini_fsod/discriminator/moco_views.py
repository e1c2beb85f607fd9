"""The two views of each image that MoCo v2 compares: crops, flips, colours, blur.

As in `loader`, random numbers are drawn on the host from the seed and the number of the batch, and
the device transforms the whole batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.loader.augment import ColourDraw, colour_draw, recoloured
from mini_fsod.loader.resident import upload
from mini_fsod.loader.schedule import Plan, random_words, uniform

# First words of the keys of random numbers, beyond those of loader.schedule
CROPS, COLOURS = 64, 65

RATIO = (3 / 4, 4 / 3)  # width to height


@dataclass(frozen=True, slots=True)
class Crops:
    """Ranges of areas: first a window of the image is drawn, then both views from the window.

    Shares of the area, drawn log-uniformly. Windows of the size of objects train features of boxes;
    MoCo v2 has views of 0.2 to 1 of the whole image.
    """

    window: tuple[float, float] | None  # of the image; None: all of it
    view: tuple[float, float]


WINDOWS = Crops((0.04, 1.0), (0.5, 1.0))
WHOLE = Crops(None, (0.2, 1.0))


def draw_crops(plan: Plan, stored: Ints, size: int, crops: Crops, flip: bool, seed: int) -> Plan:
    """The b images of a plan, each cropped twice to size x size: 2 b views, first one of each.

    stored (I, 2) are the heights and widths at which the images are stored.
    """
    b = len(plan.images)
    u = uniform(random_words(14 * b, seed, CROPS, plan.step))
    images = np.tile(plan.images, 2)
    corner, window = np.zeros((b, 2)), stored[plan.images].astype(np.float64)
    if crops.window is not None:
        corner, window = draw_part(window, crops.window, u[: 4 * b].reshape(b, 4))
    within, sides = draw_part(
        np.tile(window, (2, 1)), crops.view, u[4 * b : 12 * b].reshape(2 * b, 4)
    )
    corner = np.tile(corner, (2, 1)) + within
    # the size of the whole image at the view's scale
    scaled = np.maximum(np.rint(stored[images] * size / sides), size).astype(np.int64)
    shift = np.minimum(np.rint(corner * size / sides).astype(np.int64), scaled - size)
    return replace(
        plan,
        images=images,
        canvas=(size, size),
        sizes=np.full((2 * b, 2), size),
        scaled=scaled,
        shift=shift,
        flip=(u[12 * b :] < 0.5) & flip,
        batch=2 * b,
        count=2 * b,
    )


def draw_part(sizes: Ints | Floats, share: tuple[float, float], u: Floats) -> tuple[Floats, Floats]:
    """(n, 2) upper left corner and (n, 2) height and width of a random part of images (n, 2).

    Its share of the area and the ratio of its sides are log-uniform; a side longer than the image's
    is clipped. u (n, 4) are random numbers in [0, 1). n may be 0.
    """

    def between(limits: tuple[float, float], chance: Floats) -> Floats:
        low, high = np.log(limits)
        drawn: Floats = np.exp(low + (high - low) * chance)
        return drawn

    area = sizes.prod(1) * between(share, u[:, 0])
    ratio = between(RATIO, u[:, 1])
    sides = np.stack([np.sqrt(area / ratio), np.sqrt(area * ratio)], axis=1)
    sides = np.clip(sides, 1.0, sizes)
    return u[:, 2:] * (sizes - sides), sides


def draw_colours(plan: Plan, seed: int) -> ColourDraw:
    """MoCo v2's colour jitter, grey and blur for the images of a plan."""
    n = len(plan.images)
    words = random_words(4 + 8 * n, seed, COLOURS, plan.step)
    u = uniform(words[4:]).reshape(n, 8)
    return colour_draw(words[:4], u[:, [4, 0, 1, 2, 3, 5, 6, 7]])


def coloured(images: Tensor, sizes: Tensor, colours: ColourDraw) -> Tensor:
    """Images (n, 3, S, S) uint8 with these colour changes; sizes (n, 2) are S, S."""
    columns = [colours.colour.T, colours.grey, colours.sigma]
    sent = upload(np.vstack(columns).astype(np.float32), images.device)
    view = images.permute(0, 2, 1, 3).to(torch.float32, memory_format=torch.contiguous_format)
    view /= 255  # (n, S, 3, S), the layout of loader.augment
    inside = torch.ones_like(view[:, :, 0], dtype=torch.bool)
    view = recoloured(view, colours.order, sent, inside, sizes)
    shown = (view * 255).round().to(torch.uint8)
    return shown.permute(0, 2, 1, 3).contiguous(memory_format=torch.channels_last)
