"""The strong augmentation of a batch in four passes over its pixels, not about 100."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # pixels, or colour values of a row, per program

# rows of `draws` behind the four strengths, as `loader.augment` lays them out
GREY, SIGMA, NOISE, ERASE, ORDER = (tl.constexpr(row) for row in (4, 5, 6, 7, 19))


@triton.jit
def _luma(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _scaled(value, centre, factor):
    """Scale the distance from the centre, clamped to 0..1."""
    return tl.minimum(tl.maximum(centre + (value - centre) * factor, 0.0), 1.0)


@triton.jit
def _channel(value, chroma, away):
    away = away - 6.0 * tl.floor(away / 6.0)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(away, 4.0 - away), 0.0), 1.0)


@triton.jit
def _colours(
    images, sizes, draws, sums, out, number, height, width, SUM: tl.constexpr, N: tl.constexpr
):
    """Colour jitter in the order drawn, then greyscale, of N pixels of an image; out (B, H, W, 3).

    With SUM it only sums the brightness in front of the contrast step, into sums (B, blocks);
    without, sums (B,) is the mean of that brightness over the image.
    """
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pixel = block * N + tl.arange(0, N)
    mask = pixel < height * width
    offset = (image * height * width + pixel) * 3
    red = tl.load(images + offset, mask, 0).to(tl.float32) / 255.0
    green = tl.load(images + offset + 1, mask, 0).to(tl.float32) / 255.0
    blue = tl.load(images + offset + 2, mask, 0).to(tl.float32) / 255.0
    for turn in tl.static_range(4):
        operation = tl.load(draws + (ORDER + turn) * number + image).to(tl.int32)
        strength = tl.load(draws + operation * number + image)
        if (operation == 1) & SUM:  # what follows does not matter to the sum
            row, column = pixel // width, pixel % width
            in_rows = row < tl.load(sizes + image * 2)
            inside = in_rows & (column < tl.load(sizes + image * 2 + 1))
            total = tl.sum(tl.where(inside & mask, _luma(red, green, blue), 0.0))
            tl.store(sums + image * tl.num_programs(1) + block, total)
        if operation == 3:
            value = tl.maximum(tl.maximum(red, green), blue)
            chroma = value - tl.minimum(tl.minimum(red, green), blue)
            safe = tl.where(chroma > 0, chroma, 1.0)
            sixth = tl.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe)
            sixth = tl.where(value == red, (green - blue) / safe, sixth) + 6.0 * strength
            red = _channel(value, chroma, 5.0 + sixth)
            green = _channel(value, chroma, 3.0 + sixth)
            blue = _channel(value, chroma, 1.0 + sixth)
        else:
            # brightness: 0, contrast: the mean, saturation: the pixel's luma
            centre = tl.where(operation == 2, _luma(red, green, blue), 0.0)
            if not SUM:
                centre = tl.where(operation == 1, tl.load(sums + image), centre)
            red = _scaled(red, centre, strength)
            green = _scaled(green, centre, strength)
            blue = _scaled(blue, centre, strength)
    if not SUM:
        grey, left = _luma(red, green, blue), 1.0 - tl.load(draws + GREY * number + image)
        tl.store(out + offset, _scaled(red, grey, left), mask)
        tl.store(out + offset + 1, _scaled(green, grey, left), mask)
        tl.store(out + offset + 2, _scaled(blue, grey, left), mask)


@triton.jit
def _reflected(position, last):
    """Reflect a position at the ends of a line; it may still lie outside afterwards."""
    return tl.where(
        position < 0, -position, tl.where(position > last, 2 * last - position, position)
    )


@triton.jit
def _gaussian(tap, sigma):
    return tl.exp(-(tap * tap) / (2.0 * sigma * sigma))


@triton.jit
def _blur_down(
    view, sizes, draws, out, number, height, width, RADIUS: tl.constexpr, N: tl.constexpr
):
    """Vertical blur of N colour values of a row (B, H, 3 W)."""
    row = tl.program_id(0)
    image, y = (row // height).to(tl.int64), row % height
    offset = tl.program_id(1) * N + tl.arange(0, N)
    mask = offset < 3 * width
    view += image * height * width * 3
    sigma = tl.load(draws + SIGMA * number + image)
    value = tl.load(view + y * width * 3 + offset, mask, 0.0)
    last = tl.load(sizes + image * 2).to(tl.int32) - 1
    if (sigma > 0) & (y <= last):
        value, total_weight = tl.zeros_like(value), 0.0
        for tap in tl.static_range(2 * RADIUS + 1):
            other = _reflected(y + tap - RADIUS, last)
            inside = (other >= 0) & (other <= last)
            weight = tl.where(inside, _gaussian(tap - RADIUS, sigma), 0.0)
            other = tl.where(inside, other, 0)
            value += weight * tl.load(view + other * width * 3 + offset, mask, 0.0)
            total_weight += weight
        value /= total_weight
    tl.store(out + image * height * width * 3 + y * width * 3 + offset, value, mask)


@triton.jit
def _blur_along(
    view, images, sizes, draws, out, number, height, width,
    RADIUS: tl.constexpr, ERASINGS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Horizontal blur of N colour values of a row (B, H, 3 W), as bytes; noise in the erased
    rectangles; the canvas outside the image stays as it was.
    """
    row = tl.program_id(0)
    image, y = (row // height).to(tl.int64), row % height
    offset = tl.program_id(1) * N + tl.arange(0, N)
    mask = offset < 3 * width
    x, channel = offset // 3, offset % 3
    row_start = (image * height + y) * width * 3
    sigma = tl.load(draws + SIGMA * number + image)
    value = tl.load(view + row_start + offset, mask, 0.0)
    image_height = tl.load(sizes + image * 2).to(tl.int32)
    last = tl.load(sizes + image * 2 + 1).to(tl.int32) - 1
    if (sigma > 0) & (y < image_height):
        value, total_weight = tl.zeros_like(value), tl.zeros_like(value)
        for tap in tl.static_range(2 * RADIUS + 1):
            other = _reflected(x + tap - RADIUS, last)
            inside = mask & (other >= 0) & (other <= last)
            weight = tl.where(inside, _gaussian(tap - RADIUS, sigma), 0.0)
            value += weight * tl.load(view + row_start + other * 3 + channel, inside, 0.0)
            total_weight += weight
        value /= tl.maximum(total_weight, 1e-6)  # outside the image no tap counts
    # round half to even: adding 1.5 x 2^23 leaves no bits for a fraction
    byte = ((value * 255.0 + 12582912.0) - 12582912.0).to(tl.uint8)

    erased = offset < 0
    for k in tl.static_range(ERASINGS):
        rectangle = draws + (ERASE + 4 * k) * number + image
        top, left = tl.load(rectangle).to(tl.int32), tl.load(rectangle + number).to(tl.int32)
        in_rows = y - top < tl.load(rectangle + 2 * number)
        erased_width = tl.where((y >= top) & in_rows, tl.load(rectangle + 3 * number), 0.0)
        erased |= (x >= left) & (x - left < erased_width)
    key = tl.load(draws + NOISE * number + image).to(tl.uint32)
    bits = (y * width + x).to(tl.uint32) + key * 256
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0x735A2D97
    bits = bits ^ (bits >> 15)
    byte = tl.where(erased, ((bits >> (8 * channel).to(tl.uint32)) & 255).to(tl.uint8), byte)
    original = tl.load(images + row_start + offset, mask, 0)
    last = tl.where(y < image_height, last, -1)
    tl.store(out + row_start + offset, tl.where(x <= last, byte, original), mask)


def fused_strong_view(images: Tensor, sizes: Tensor, draws: Tensor, radius: int) -> Tensor:
    """The strong view (B, 3, H, W) uint8, channels last, of the weak one; B = 0 is fine.

    sizes (B, 2); draws (23, B) float32: strengths of brightness, contrast, saturation and hue,
    grey, sigma, the noise's key, three rectangles, and the four operations in their order.
    """
    weak = images.permute(0, 2, 3, 1).contiguous()
    b, height, width, _ = weak.shape
    sizes, draws = sizes.contiguous(), draws.contiguous()
    view, blurred = (torch.empty(weak.shape, device=weak.device) for _ in range(2))
    out = torch.empty_like(weak)
    blocks = triton.cdiv(height * width, BLOCK)
    sums = view.new_empty(b, blocks)
    shape = (b, height, width)
    if b:
        fused = {"N": BLOCK, "enable_fp_fusion": True}
        _colours[(b, blocks)](weak, sizes, draws, sums, view, *shape, SUM=True, **fused)
        means = sums.sum(1) / sizes.prod(1)
        _colours[(b, blocks)](weak, sizes, draws, means, view, *shape, SUM=False, **fused)
        rows = (b * height, triton.cdiv(3 * width, BLOCK))
        _blur_down[rows](view, sizes, draws, blurred, *shape, RADIUS=radius, **fused)
        _blur_along[rows](
            blurred, weak, sizes, draws, out, *shape, RADIUS=radius, ERASINGS=3, **fused
        )
    return out.permute(0, 3, 1, 2)
