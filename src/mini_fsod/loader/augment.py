"""Strong augmentation: colour jitter, grey, blur and erasing, as in Unbiased Teacher.

The weak view is the batch itself (flip and scale); the strong view has the same geometry. All
random numbers are drawn on the host from (seed, step) alone, for the global batch: a resumed run
and any number of ranks get the same views. The device works on the whole batch, without loops over
images and without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.loader.resident import upload
from mini_fsod.loader.schedule import STRONG, Plan, random_words, uniform

JITTER = (0.4, 0.4, 0.4, 0.1)  # largest change of brightness, contrast, saturation, hue in turns
P_JITTER, P_GREY, P_BLUR = 0.8, 0.2, 0.5
SIGMA = (0.1, 2.0)
RADIUS = 6  # three times the largest sigma
# (probability, range of the share of the image's area, range of height / width)
ERASINGS = ((0.7, 0.05, 0.2, 0.3, 3.3), (0.5, 0.02, 0.2, 0.1, 6.0), (0.3, 0.02, 0.2, 0.05, 8.0))
TRIES = 10  # rectangles drawn until one fits, as in torchvision's RandomErasing

GREY = (0.2989, 0.587, 0.114)  # ITU-R 601, rounded as in torchvision


@dataclass(frozen=True, slots=True, eq=False)
class ColourDraw:
    """Random numbers for the colours of b images."""

    order: tuple[int, ...]  # of brightness, contrast, saturation, hue: one order for the batch
    colour: Floats  # (b, 4) their strengths; 1, 1, 1, 0 for no change
    grey: Floats  # (b,) 1 or 0
    sigma: Floats  # (b,) of the blur; 0: none


@dataclass(frozen=True, slots=True, eq=False)
class StrongDraw(ColourDraw):
    """Random numbers for the strong view of b images."""

    erase: Ints  # (b, 3, 4) top, left, height, width; height 0: none
    noise: Ints  # (b,) key of the noise, below 2^24


def draw_strong(seed: int, plan: Plan) -> StrongDraw:
    """Draws for the plan's images."""
    each = 9 + len(ERASINGS) * (1 + 4 * TRIES)
    words = random_words(4 + plan.batch * each, seed, STRONG, plan.step)
    part = words[4:].reshape(plan.batch, each)[plan.first : plan.first + len(plan.images)]
    u = uniform(part)
    colours = colour_draw(words[:4], u)
    chances = u[:, 9:].reshape(len(u), len(ERASINGS), 1 + 4 * TRIES)
    erase = [_rectangle(plan.sizes, chances[:, k], *e) for k, e in enumerate(ERASINGS)]
    key = (part[:, 8] >> np.uint64(40)).astype(np.int64)
    drawn = colours.order, colours.colour, colours.grey, colours.sigma
    return StrongDraw(*drawn, np.stack(erase, axis=1), key)


def colour_draw(words: NDArray[np.uint64], u: Floats) -> ColourDraw:
    """From random words (4,) for the order, and numbers u (b, 8 or more) in [0, 1): whether to
    jitter, four strengths, grey, whether to blur, sigma. b may be 0.
    """
    neutral = np.array([1.0, 1.0, 1.0, 0.0])
    jittered = neutral + (2 * u[:, 1:5] - 1) * np.array(JITTER)
    return ColourDraw(
        order=tuple(np.argsort(words, kind="stable").tolist()),
        colour=np.where(u[:, :1] < P_JITTER, jittered, neutral),
        grey=(u[:, 5] < P_GREY).astype(np.float64),
        sigma=np.where(u[:, 6] < P_BLUR, SIGMA[0] + (SIGMA[1] - SIGMA[0]) * u[:, 7], 0.0),
    )


def _rectangle(
    sizes: Ints, u: Floats, chance: float, least: float, most: float, flat: float, tall: float
) -> Ints:
    """(b, 4) top, left, height, width of a random rectangle, as in torchvision's RandomErasing.

    The share of the area is uniform, the ratio of the sides log-uniform; the first try that fits is
    used. Height 0 where the image is not erased or no try fits.
    """
    height, width = sizes[:, :1], sizes[:, 1:]
    tries = u[:, 1:].reshape(len(u), 4, TRIES)
    area = height * width * (least + (most - least) * tries[:, 0])
    ratio = np.exp(np.log(flat) + (np.log(tall) - np.log(flat)) * tries[:, 1])
    h, w = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    top = np.floor(tries[:, 2] * (height - h + 1))
    left = np.floor(tries[:, 3] * (width - w + 1))
    fits = (h >= 1) & (w >= 1) & (h < height) & (w < width)  # (b, TRIES)
    drawn = np.stack([top, left, h, w], -1).astype(np.int64)
    taken: Ints = drawn[np.arange(len(u)), fits.argmax(1)]
    taken[~fits.any(1) | (u[:, 0] >= chance)] = 0
    return taken


def strong_view(images: Tensor, sizes: Tensor, draw: StrongDraw) -> Tensor:
    """The strong view (B, 3, H, W) uint8 of a weak one; sizes (B, 2) height, width of each image.

    The canvas around an image does not change.
    """
    draws = upload(pack_draws(draw), images.device)
    if images.is_cuda:
        from mini_fsod.kernels.augment import fused_strong_view  # Triton comes with CUDA only

        return fused_strong_view(images, sizes, draws, RADIUS)
    return plain_view(images, sizes, draws, draw.order)


def pack_draws(draw: StrongDraw) -> NDArray[np.float32]:
    """The draws as rows (23, b): colour, grey, sigma, noise, erasings, order."""
    b = len(draw.grey)
    order = np.tile(draw.order, (b, 1)).T
    rows = [draw.colour.T, draw.grey, draw.sigma, draw.noise, draw.erase.reshape(b, -1).T, order]
    return np.vstack(rows).astype(np.float32)


def plain_view(images: Tensor, sizes: Tensor, draws: Tensor, order: tuple[int, ...]) -> Tensor:
    """The strong view without the CUDA kernel; draws (23, B) as `pack_draws` packs them."""
    b, _, height, width = images.shape
    y = torch.arange(height, device=images.device)
    x = torch.arange(width, device=images.device)
    inside = (y < sizes[:, :1])[:, :, None] & (x < sizes[:, 1:])[:, None, :]  # (B, H, W)

    # channels between rows and columns, so both passes of the blur are matrix products
    view = images.permute(0, 2, 1, 3).to(torch.float32, memory_format=torch.contiguous_format)
    view /= 255  # (B, H, 3, W)
    view = recoloured(view, order, draws[:6], inside, sizes)

    pixels = (view * 255).round().to(torch.uint8)
    erased = erase_mask(draws[7:19].T.reshape(b, -1, 4), y, x)
    pixels = torch.where(erased[:, :, None], noise(draws[6].long(), height, width), pixels)
    pixels = torch.where(inside[:, :, None], pixels, images.permute(0, 2, 1, 3))
    return pixels.permute(0, 2, 1, 3).contiguous(memory_format=torch.channels_last)


def recoloured(
    view: Tensor, order: tuple[int, ...], strengths: Tensor, inside: Tensor, sizes: Tensor
) -> Tensor:
    """Views (B, H, 3, W) in 0..1 after colour jitter in this order, grey and blur.

    strengths (6, B): brightness, contrast, saturation, hue, grey (1 or 0), sigma of the blur.
    """
    for operation in order:
        strength = strengths[operation][:, None, None, None]
        if operation == 0:
            view = _scaled(view, 0, strength)
        elif operation == 1:
            total = (_luma(view) * inside[:, :, None]).sum((1, 2, 3), keepdim=True)
            view = _scaled(view, total / sizes.prod(1)[:, None, None, None], strength)
        elif operation == 2:
            view = _scaled(view, _luma(view), strength)
        else:
            view = hue(view, strength)
    grey = strengths[4][:, None, None, None]
    return blur(_scaled(view, _luma(view), 1 - grey), strengths[5], sizes)


def _luma(view: Tensor) -> Tensor:
    """(B, H, 1, W) the luma of (B, H, 3, W)."""
    red, green, blue = view.unbind(2)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue)[:, :, None]


def _scaled(view: Tensor, centre: Tensor | int, factor: Tensor) -> Tensor:
    """Torchvision's adjust_brightness (centre 0), adjust_contrast (the image's mean luma) and
    adjust_saturation (each pixel's luma).
    """
    return (centre + (view - centre) * factor).clamp(0, 1)


def hue(view: Tensor, turn: Tensor) -> Tensor:
    """The hue of HSV turned by `turn` (B, 1, 1, 1) of a full circle: torchvision's adjust_hue."""
    red, green, blue = view.unbind(2)
    value = view.amax(2)
    chroma = value - view.amin(2)
    safe = torch.where(chroma > 0, chroma, 1)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * turn[:, :, 0]
    # HSV to RGB in one formula: channel n loses chroma by its distance from the hue
    channel = 5 - 2 * torch.arange(3, device=view.device)[:, None]
    away = (channel + sixth[:, :, None]) % 6
    return value[:, :, None] - chroma[:, :, None] * torch.minimum(away, 4 - away).clamp(0, 1)


def blur(view: Tensor, sigma: Tensor, sizes: Tensor) -> Tensor:
    """Gaussian blur of (B, H, 3, W) by sigma (B,), mirrored at the edges of each image."""
    b, height, _, width = view.shape
    down = blur_matrix(sigma, sizes[:, 0], height)
    along = blur_matrix(sigma, sizes[:, 1], width)
    with torch.autocast(view.device.type, enabled=False):  # bf16 has too few bits for colours
        view = torch.bmm(down, view.view(b, height, 3 * width))
        view = torch.bmm(view.view(b, 3 * height, width), along.mT)
    return view.view(b, height, 3, width)


def blur_matrix(sigma: Tensor, length: Tensor, n: int) -> Tensor:
    """(B, n, n) matrices that blur the first `length` of n numbers.

    Entry (i, j) is the weight of j at i: of j itself and of its mirror images beyond both ends,
    -j and 2 (length - 1) - j. Taps end at RADIUS. sigma 0 gives the identity.
    """
    tap = torch.arange(RADIUS + 2, device=sigma.device)
    bell = torch.exp(-tap.square() / (2 * torch.where(sigma > 0, sigma, 1).square()[:, None]))
    bell = torch.where(tap <= RADIUS, bell, 0)  # (B, RADIUS + 2); the last is for all farther taps

    i = torch.arange(n, device=sigma.device)[:, None]
    j = torch.arange(n, device=sigma.device)[None]
    far = RADIUS + 1
    before = torch.where(j >= 1, i + j, far).clamp(max=far)
    both = bell[:, (i - j).abs().clamp(max=far)] + bell[:, before]  # (B, n, n)
    last = (length - 1)[:, None, None]
    after = torch.where(j < last, (i + j - 2 * last).abs(), far).clamp(max=far)
    matrix = both + bell.gather(1, after.flatten(1)).view_as(both)
    matrix = torch.where(j <= last, matrix, 0)
    matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-6)  # rows beyond the image are 0
    return torch.where((sigma > 0)[:, None, None], matrix, (i == j).to(matrix.dtype))


def erase_mask(rectangles: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """(B, H, W) whether a pixel is in one of the rectangles (B, R, 4: top, left, height, width)."""
    top, left, height, width = rectangles[..., None].unbind(2)  # (B, R, 1)
    rows = (y >= top) & (y < top + height)  # (B, R, H)
    columns = (x >= left) & (x < left + width)  # (B, R, W)
    return (rows[..., None] & columns[:, :, None, :]).any(1)


def noise(key: Tensor, height: int, width: int) -> Tensor:
    """(B, H, 3, W) uniform random bytes, a hash of the key (B,) and the pixel's position.

    Unbiased Teacher's normal noise, wrapped to bytes, is nearly uniform too. Without a generator,
    it is the same on every device. Two rounds of multiply and shift; factors below 2^31 keep the
    32-bit products within int64.
    """
    position = torch.arange(height * width, device=key.device).view(height, width)
    bits = (position + 256 * key[:, None, None]) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    bits = bits ^ (bits >> 15)
    channel = 8 * torch.arange(3, device=key.device)[:, None]
    return (bits[:, :, None] >> channel).to(torch.uint8)  # the lowest byte of each
