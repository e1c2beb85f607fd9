"""Training batches from decoded pictures that live on the device.

A batch is one gather from a flat buffer: no loop over images, no wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
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

# Canvas around the images: the mean colour of ImageNet, which normalising takes to nearly zero.
# `Batch.sizes` lets the detector set it to exactly zero.
FILL = (124, 116, 104)

# The least share of a box's area that must be seen for it to stay a target where images are cut
SEEN = 0.25

CHUNK = 256 * 2**20  # bytes that go to the device at a time


def pad_rows(image: Ints, images: int) -> Ints:
    """Row numbers by image, padded: (I, G) with -1 where an image has no more.

    `image` (N,) is the image of each row of any per-box arrays; rows of an image keep their order.
    G is the largest number of rows an image has, at least 1.
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
        cls,
        boxes: Boxes,
        images: int,
        keep: Bools | None = None,
        scores: Floats | None = None,
    ) -> Annotations:
        """The boxes where `keep` is true (all by default) as annotations of `images` images."""
        chosen = np.arange(len(boxes)) if keep is None else np.flatnonzero(keep)
        rows = pad_rows(boxes.image[chosen], images)
        real = rows >= 0
        box = np.full(rows.shape, -1, dtype=np.int64)
        box[real] = chosen[rows[real]]
        corners = np.zeros((*rows.shape, 4), dtype=np.float32)
        corners[real] = boxes.xyxy[box[real]]
        labels = np.zeros(rows.shape, dtype=np.int64)
        labels[real] = boxes.label[box[real]]
        sure = np.ones(rows.shape, dtype=np.float32)
        if scores is not None:
            sure[real] = scores[box[real]]
        return cls(
            torch.from_numpy(corners),
            torch.from_numpy(labels),
            torch.from_numpy(box),
            torch.from_numpy(sure),
        )

    def to(self, device: torch.device) -> Annotations:
        return Annotations(*(column.to(device) for column in self))


class ScoredBoxes(NamedTuple):
    """More boxes of a batch's images, such as mined ones, on the same canvas."""

    boxes: Tensor  # (B, G, 4) float32, clipped to the visible part of the image
    labels: Tensor  # (B, G) int64
    valid: Tensor  # (B, G) bool
    scores: Tensor  # (B, G) float32


class Batch(NamedTuple):
    """B images on one canvas with their padded targets, on the device."""

    plan: Plan  # known to the host: image indices, canvas, how many images are no padding
    image_index: Tensor  # (B,) int64
    images: Tensor  # (B, 3, H, W) uint8 RGB, channels last in memory
    sizes: Tensor  # (B, 2) int64 height, width of each image's visible part, top left on the canvas
    targets: Targets  # (B, G) clipped to the visible part; not valid where little of a box is left
    box_index: Tensor  # (B, G) int64 index of the target in the data set, -1 for padding
    scale: Tensor  # (B, 2) float32 canvas pixels per pixel of the original picture, along x and y
    shift: Tensor  # (B, 2) float32 canvas pixels cropped off at the left and at the top
    flip: Tensor  # (B,) bool
    extra: tuple[ScoredBoxes, ...] = ()  # in the order given to the loader


def to_canvas(
    boxes: Tensor, scale: Tensor, shift: Tensor, flip: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """Boxes (B, G, 4) of the pictures, scaled, moved, cut and flipped with their images.

    The second result (B, G) is the share of each box's area that is seen; 0 for an empty box.
    """
    whole = boxes * scale.repeat(1, 2)[:, None] - shift.repeat(1, 2)[:, None]
    height, width = sizes[:, :1].to(boxes.dtype), sizes[:, 1:].to(boxes.dtype)
    x1, x2 = (whole[..., k].clamp(min=0).minimum(width) for k in (0, 2))
    y1, y2 = (whole[..., k].clamp(min=0).minimum(height) for k in (1, 3))
    area = (whole[..., 2] - whole[..., 0]) * (whole[..., 3] - whole[..., 1])
    share = (x2 - x1) * (y2 - y1) / area
    left = torch.where(flip[:, None], width - x2, x1)
    right = torch.where(flip[:, None], width - x1, x2)
    return torch.stack([left, y1, right, y2], -1), share.nan_to_num(0.0)


def to_picture(boxes: Tensor, batch: Batch) -> Tensor:
    """Boxes (B, N, 4) on the canvas, mapped back to the pictures' own pixels."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    flip, width = batch.flip[:, None], batch.sizes[:, 1:].to(boxes.dtype)
    left, right = torch.where(flip, width - x2, x1), torch.where(flip, width - x1, x2)
    seen = torch.stack([left, y1, right, y2], -1)
    return (seen + batch.shift.repeat(1, 2)[:, None]) / batch.scale.repeat(1, 2)[:, None]


def place(
    pixels: Tensor,
    start: Tensor,
    kept: Tensor,
    scaled: Tensor,
    shift: Tensor,
    sizes: Tensor,
    flip: Tensor,
    canvas: tuple[int, int],
    exact: bool,
) -> Tensor:
    """Images (B, 3, H, W) uint8 on a canvas, gathered from a flat buffer.

    pixels (P, 3) uint8, start (B,) first pixel of each image, kept (B, 2) its height and width
    there; scaled, shift, sizes (B, 2) and flip (B,) as in `Plan`. The rest of the canvas is FILL.
    Resizing is bilinear between pixel centres (`interpolate(..., align_corners=False)`); with
    `exact` the caller says that kept equals scaled, and pixels are only moved.
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
        shown = _gather(pixels, start, kept, y, x)
    else:
        top, bottom, down = _neighbours(y, kept[:, :1], scaled[:, :1])
        left, right, along = _neighbours(x, kept[:, 1:], scaled[:, 1:])
        along = along.repeat_interleave(3, 1)[:, None]
        upper = _gather(pixels, start, kept, top, left).float()
        upper = upper.lerp(_gather(pixels, start, kept, top, right).float(), along)
        lower = _gather(pixels, start, kept, bottom, left).float()
        lower = lower.lerp(_gather(pixels, start, kept, bottom, right).float(), along)
        shown = upper.lerp(lower, down[:, :, None]).round().to(torch.uint8)
    shown = torch.where(rows & columns, shown, _fill(device).repeat(canvas[1]))
    return shown.view(-1, *canvas, 3).permute(0, 3, 1, 2)


@cache
def _fill(device: torch.device) -> Tensor:
    """Made once: a constant that goes to a GPU makes the host wait."""
    return torch.tensor(FILL, dtype=torch.uint8, device=device)


def _neighbours(at: Tensor, kept: Tensor, shown: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two source pixels around canvas pixels `at` (B or 1, L), and the weight of the second."""
    source = ((at + 0.5) * (kept / shown) - 0.5).clamp(min=0)
    first = source.floor()
    weight = source - first
    low = first.long()
    return torch.minimum(low, kept - 1), torch.minimum(low + 1, kept - 1), weight


def _gather(pixels: Tensor, start: Tensor, kept: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """(B, H, 3 W) the pixels at rows y (B, H) and columns x (B, W), clamped to each image."""
    height, width = kept[:, :1], kept[:, 1:]
    row = start[:, None] + torch.minimum(y, height - 1) * width
    column = torch.minimum(x, width - 1).clamp(min=0)
    at = row[:, :, None] + column[:, None, :]
    return pixels.index_select(0, at.flatten()).view(len(at), at.shape[1], -1)


def upload(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A small array to the device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def make_batch(
    plan: Plan,
    pixels: Tensor,
    start: Ints,
    kept: Ints,
    own: Ints,
    annotations: Annotations,
    extra: Sequence[Annotations] = (),
) -> Batch:
    """A batch from a flat buffer of pixels (P, 3) on the device.

    start (B,), kept (B, 2) and own (B, 2) speak of the plan's images; they travel in one copy.
    """
    device = pixels.device
    sides = np.stack([kept, own, plan.sizes, plan.scaled, plan.shift])  # (5, B, 2)
    columns = [plan.images, start, plan.flip, *sides.transpose(0, 2, 1).reshape(10, -1)]
    sent = upload(np.vstack(columns).astype(np.int64), device)
    index, flip = sent[0], sent[2].bool()
    kept_, own_, sizes, scaled, shift = (sent[k : k + 2].T for k in range(3, 13, 2))
    exact = bool((kept == plan.scaled).all())
    images = place(pixels, sent[1], kept_, scaled, shift, sizes, flip, plan.canvas, exact)
    scale = (scaled.float() / own_.float()).flip(1)
    moved = shift.float().flip(1)

    def on_canvas(boxes: Annotations) -> ScoredBoxes:
        clipped, share = to_canvas(boxes.boxes[index], scale, moved, flip, sizes)
        valid = (boxes.box_index[index] >= 0) & (share >= SEEN)
        return ScoredBoxes(clipped, boxes.labels[index], valid, boxes.scores[index])

    boxes, labels, valid, _ = on_canvas(annotations)
    return Batch(
        plan=plan,
        image_index=index,
        images=images,
        sizes=sizes.contiguous(),
        targets=Targets(boxes, labels, valid),
        box_index=annotations.box_index[index],
        scale=scale,
        shift=moved,
        flip=flip,
        extra=tuple(map(on_canvas, extra)),
    )


class Resident:
    """Batches of pictures that live on the device. On the CPU they stay in the mapped file."""

    def __init__(
        self,
        pictures: Pictures,
        annotations: Annotations,
        device: torch.device,
        extra: Sequence[Annotations] = (),
    ) -> None:
        self._pictures = pictures
        self._annotations = annotations.to(device)
        self._extra = [boxes.to(device) for boxes in extra]
        host = torch.from_numpy(pictures.pixels)
        self._pixels = (host if device.type == "cpu" else _send(host, device)).view(-1, 3)

    def sharing(
        self, pictures: Pictures, annotations: Annotations, extra: Sequence[Annotations] = ()
    ) -> Resident:
        """Batches of other pictures of the same cache, such as a test set: no second copy of it."""
        if pictures.pixels is not self._pictures.pixels:
            raise ValueError("the pictures lie in another buffer")
        other = copy(self)
        other._pictures = pictures
        other._annotations = annotations.to(self._pixels.device)
        other._extra = [boxes.to(self._pixels.device) for boxes in extra]
        return other

    def batch(self, plan: Plan) -> Batch:
        p, i = self._pictures, plan.images
        return make_batch(
            plan,
            self._pixels,
            p.offset[i] // 3,
            p.kept[i],
            p.own[i],
            self._annotations,
            self._extra,
        )

    def batches(self, plans: Iterable[Plan]) -> Iterator[Batch]:
        return map(self.batch, plans)


def _send(host: Tensor, device: torch.device) -> Tensor:
    """The whole buffer to the device, in pieces: the mapped file needs no second copy in memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if host.numel() > free:
            raise UserError(
                f"The decoded pictures take {console.size(host.numel())}, but {device} has only "
                f"{console.size(free)} free.",
                "A run can do without (data.loading: stream); else take a smaller short side.",
            )
    there = torch.empty(host.shape, dtype=torch.uint8, device=device)
    for at in range(0, len(host), CHUNK):
        there[at : at + CHUNK].copy_(host[at : at + CHUNK])
    return there
