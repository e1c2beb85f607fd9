"""Batches from decoded pictures in the device's memory.

A batch is one gather from a flat buffer: no loop over images, no wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Boxes, Floats, Ints
from mini_fsod.detector.batch import Targets
from mini_fsod.errors import UserError
from mini_fsod.loader.cache import Pictures
from mini_fsod.loader.schedule import Plan

# Colour of the canvas around the images: ImageNet's mean, which normalisation maps to nearly zero.
# With `Batch.sizes` the detector sets it to exactly zero.
FILL = (124, 116, 104)

MIN_VISIBLE = 0.25  # share of a box's area inside the view for it to stay a target; else ignored

CHUNK = 2**26  # pixels copied to the device at a time


def pad_rows(image: Ints, images: int) -> Ints:
    """Row numbers grouped by image: (I, G), padded with -1.

    `image` (N,) is the image of each row; the rows of an image keep their order. G is the largest
    number of rows of an image, at least 1.
    """
    order = np.argsort(image, kind="stable")
    grouped = image[order]
    slot = np.arange(len(image)) - np.searchsorted(grouped, grouped)
    rows = np.full((images, max(1, int(slot.max(initial=0)) + 1)), -1, dtype=np.int64)
    rows[grouped, slot] = order
    return rows


class Annotations(NamedTuple):
    """Boxes of I images, padded to G boxes each, in pixels of the original pictures."""

    boxes: Tensor  # (I, G, 4) float32 left, top, right, bottom
    labels: Tensor  # (I, G) int64
    box_index: Tensor  # (I, G) int64 index in the `Boxes` it came from, -1 where padded
    scores: Tensor  # (I, G) float32: of mined boxes; 1 for annotated ones

    @classmethod
    def of(
        cls, boxes: Boxes, images: int, keep: Bools | None = None, scores: Floats | None = None
    ) -> Annotations:
        """The boxes where `keep` is true (all by default) as annotations of `images` images."""
        chosen = np.arange(len(boxes)) if keep is None else np.flatnonzero(keep)
        index = np.append(chosen, -1)[pad_rows(boxes.image[chosen], images)]

        def padded(values: npt.NDArray[Any], padding: int, dtype: type) -> Tensor:
            last = np.full((1, *values.shape[1:]), padding)  # where the index is -1
            return torch.from_numpy(np.concatenate([values, last])[index].astype(dtype))

        return cls(
            padded(boxes.xyxy, 0, np.float32),
            padded(boxes.label, 0, np.int64),
            torch.from_numpy(index),
            padded(np.ones(len(boxes)) if scores is None else scores, 1, np.float32),
        )

    def to(self, device: torch.device) -> Annotations:
        return Annotations(*(column.to(device) for column in self))


class ScoredBoxes(NamedTuple):
    """More boxes of a batch's images, such as mined ones, on the same canvas."""

    boxes: Tensor  # (B, G, 4) float32, clipped to the visible part of the image
    labels: Tensor  # (B, G) int64
    valid: Tensor  # (B, G) bool
    scores: Tensor  # (B, G) float32
    # (B, G) bool: less than MIN_VISIBLE of the box is visible; not valid, and no background either
    cut: Tensor | None = None


class Batch(NamedTuple):
    """B images on one canvas with their padded targets, on the device."""

    plan: Plan  # known to the host: image indices, canvas, how many images are no padding
    image_index: Tensor  # (B,) int64
    images: Tensor  # (B, 3, H, W) uint8 RGB, channels last in memory
    sizes: Tensor  # (B, 2) int64 height, width of each image's visible part, top left on the canvas
    targets: Targets  # (B, G) clipped to the visible part; ignored where little of a box is left
    box_index: Tensor  # (B, G) int64 index of the target in the data set, -1 for padding
    scale: Tensor  # (B, 2) float32 canvas pixels per pixel of the original picture, along x and y
    shift: Tensor  # (B, 2) float32 canvas pixels cropped off at the left and at the top
    flip: Tensor  # (B,) bool
    extra: tuple[ScoredBoxes, ...] = ()  # in the order given to the loader


def to_canvas(
    boxes: Tensor, scale: Tensor, shift: Tensor, flip: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Boxes (B, G, 4) of the pictures, scaled, shifted, clipped and flipped like their images.

    The second result (B, G) is the share of each box's area inside the image; 0 for an empty box.
    """
    whole = boxes * scale.repeat(1, 2)[:, None] - shift.repeat(1, 2)[:, None]
    limit = sizes.flip(1).repeat(1, 2)[:, None].to(boxes.dtype)  # (B, 1, 4)
    visible = whole.clamp(min=0).minimum(limit)
    area, visible_area = ((b[..., 2:] - b[..., :2]).prod(-1) for b in (whole, visible))
    return _mirrored(visible, flip, sizes), (visible_area / area).nan_to_num(0.0)


def to_picture(boxes: Tensor, batch: Batch) -> Tensor:
    """Boxes (B, N, 4) on the canvas, mapped back to pixels of the original pictures."""
    unflipped = _mirrored(boxes, batch.flip, batch.sizes)
    return (unflipped + batch.shift.repeat(1, 2)[:, None]) / batch.scale.repeat(1, 2)[:, None]


def _mirrored(boxes: Tensor, flip: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (B, N, 4), mirrored in the images that are flipped."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    flip, width = flip[:, None], sizes[:, 1:].to(boxes.dtype)
    left, right = torch.where(flip, width - x2, x1), torch.where(flip, width - x1, x2)
    return torch.stack([left, y1, right, y2], -1)


def images_on_canvas(
    pixels: Tensor,
    start: Tensor,
    stored: Tensor,
    scaled: Tensor,
    shift: Tensor,
    sizes: Tensor,
    flip: Tensor,
    canvas: tuple[int, int],
    exact: bool,
) -> Tensor:
    """Images (B, 3, H, W) uint8 on a canvas, gathered from a flat buffer.

    pixels (P, 3) uint8, start (B,) first pixel of each image, stored (B, 2) its height and width
    in the buffer; scaled, shift, sizes (B, 2) and flip (B,) as in `Plan`. The rest is FILL.
    Resizing is bilinear between pixel centres (`interpolate(..., align_corners=False)`). `exact`
    says that stored equals scaled everywhere, so that pixels are only copied.
    """
    device = pixels.device
    y = torch.arange(canvas[0], device=device)[None]  # (1, H)
    x = torch.arange(canvas[1], device=device)[None]  # (1, W)
    height, width = sizes[:, :1], sizes[:, 1:]
    rows = (y < height)[:, :, None]  # (B, H, 1)
    columns = (x < width).repeat_interleave(3, 1)[:, None]  # (B, 1, 3 W)
    x = torch.where(flip[:, None], width - 1 - x, x) + shift[:, 1:]
    y = y + shift[:, :1]
    if exact:
        found = _gather(pixels, start, stored, y, x)
    else:
        top, bottom, down = _neighbours(y, stored[:, :1], scaled[:, :1])
        left, right, along = _neighbours(x, stored[:, 1:], scaled[:, 1:])
        along = along.repeat_interleave(3, 1)[:, None]
        upper = _gather(pixels, start, stored, top, left).float()
        upper = upper.lerp(_gather(pixels, start, stored, top, right).float(), along)
        lower = _gather(pixels, start, stored, bottom, left).float()
        lower = lower.lerp(_gather(pixels, start, stored, bottom, right).float(), along)
        found = upper.lerp(lower, down[:, :, None]).round().to(torch.uint8)
    found = torch.where(rows & columns, found, _fill(device).repeat(canvas[1]))
    return found.view(-1, *canvas, 3).permute(0, 3, 1, 2)


@cache
def _fill(device: torch.device) -> Tensor:
    """Cached: copying a constant to a GPU makes the host wait."""
    return torch.tensor(FILL, dtype=torch.uint8, device=device)


def _neighbours(at: Tensor, stored: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two source pixels around canvas pixels `at` (B or 1, L), and the weight of the second."""
    source = ((at + 0.5) * (stored / scaled) - 0.5).clamp(min=0)
    low = source.long()
    return torch.minimum(low, stored - 1), torch.minimum(low + 1, stored - 1), source - low


def _gather(pixels: Tensor, start: Tensor, stored: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """(B, H, 3 W) the pixels at rows y (B, H) and columns x (B, W), clamped to each image."""
    height, width = stored[:, :1], stored[:, 1:]
    row = start[:, None] + torch.minimum(y, height - 1) * width
    column = torch.minimum(x, width - 1).clamp(min=0)
    at = row[:, :, None] + column[:, None, :]
    return pixels.index_select(0, at.flatten()).view(len(at), at.shape[1], -1)


def upload(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copies a small array to the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def make_batch(
    plan: Plan,
    pixels: Tensor,
    start: Ints,
    stored: Ints,
    original: Ints,
    annotations: Annotations,
    extra: Sequence[Annotations] = (),
) -> Batch:
    """A batch from a flat buffer of pixels (P, 3) on the device.

    Of the plan's images: start (B,) first pixel, stored (B, 2) height and width in the buffer,
    original (B, 2) those of the picture. They go to the device in one copy.
    """
    device = pixels.device
    sides = np.stack([stored, original, plan.sizes, plan.scaled, plan.shift])  # (5, B, 2)
    columns = [plan.images, start, plan.flip, *sides.transpose(0, 2, 1).reshape(10, -1)]
    sent = upload(np.vstack(columns).astype(np.int64), device)
    index, flip = sent[0], sent[2].bool()
    stored_, original_, sizes, scaled, shift = (sent[k : k + 2].T for k in range(3, 13, 2))
    exact = bool((stored == plan.scaled).all())
    where = (sent[1], stored_, scaled, shift, sizes, flip)
    images = images_on_canvas(pixels, *where, plan.canvas, exact)
    scale = (scaled.float() / original_.float()).flip(1)
    crop = shift.float().flip(1)

    def on_canvas(boxes: Annotations) -> ScoredBoxes:
        clipped, share = to_canvas(boxes.boxes[index], scale, crop, flip, sizes)
        real = (boxes.box_index[index] >= 0) & (share > 0)
        valid, cut = real & (share >= MIN_VISIBLE), real & (share < MIN_VISIBLE)
        return ScoredBoxes(clipped, boxes.labels[index], valid, boxes.scores[index], cut)

    boxes, labels, valid, _, cut = on_canvas(annotations)
    return Batch(
        plan=plan,
        image_index=index,
        images=images,
        sizes=sizes.contiguous(),
        targets=Targets(boxes, labels, valid, cut),
        box_index=annotations.box_index[index],
        scale=scale,
        shift=crop,
        flip=flip,
        extra=tuple(map(on_canvas, extra)),
    )


class Resident:
    """Batches of pictures in the device's memory; `pixels`, if they were copied there before."""

    def __init__(
        self,
        pictures: Pictures,
        annotations: Annotations,
        device: torch.device,
        extra: Sequence[Annotations] = (),
        pixels: Tensor | None = None,
    ) -> None:
        self._pictures = pictures
        self._pixels = pixels_on_device(pictures, device) if pixels is None else pixels
        self._annotations = annotations.to(device)
        self._extra = [boxes.to(device) for boxes in extra]

    def batch(self, plan: Plan) -> Batch:
        p, i = self._pictures, plan.images
        start, stored, sizes = p.offset[i] // 3, p.stored[i], p.sizes[i]
        return make_batch(plan, self._pixels, start, stored, sizes, self._annotations, self._extra)

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        return map(self.batch, plans)


def pixels_on_device(pictures: Pictures, device: torch.device) -> Tensor:
    """(P, 3) all pixels, copied in chunks; on a CPU they stay in the memory-mapped file."""
    host = torch.from_numpy(pictures.pixels).view(-1, 3)
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if host.numel() > free:
            raise UserError(
                f"The decoded pictures take {console.size(host.numel())}, but {device} has only "
                f"{console.size(free)} free.",
                "Set data.loading=stream, or use smaller short sides.",
            )
    copied = torch.empty_like(host, device=device)
    for at in range(0, len(host), CHUNK):
        copied[at : at + CHUNK].copy_(host[at : at + CHUNK])
    return copied
