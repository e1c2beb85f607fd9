"""The few-shot detector over the base images: every pair of a proposal and a novel class above the
cut (Eq. 1), and what the discriminator says of the proposal (Eq. 3).

Batches are sent off one after another, and what they found is fetched many batches at a time. A
batch with more proposals above the cut than there was room for is done again with room for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mini_fsod.cuda_graph import Captured
from mini_fsod.data.dataset import Boxes, Ints
from mini_fsod.detector.boxes import gather_rows
from mini_fsod.detector.model import Detector
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.loader.resident import Batch, to_canvas, to_picture
from mini_fsod.loader.schedule import Plan, fit, up_to_stride
from mini_fsod.mining.calibration import products
from mini_fsod.mining.candidates import Dots, Raw

ROOM = 128  # proposals an image that have a novel score above the cut; hardly any has more
# Batches between two waits for the device. Until then all room is held: 20 KB an image of VOC,
# 74 KB of COCO, whose 117,264 images would take 8.7 GB.
FETCHED = 64

Part = tuple[Tensor, Tensor, Tensor, Tensor]  # image, scores, boxes, products: `_kept`
Batches = Callable[[Iterable[Plan]], Iterator[Batch]]


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """A discriminator with what it compares to: prototypes (C, D), the mean of base boxes (D,).

    `plans` show it the pictures at its own size, batch for batch the scan's.
    """

    discriminator: Discriminator
    prototypes: Tensor
    mean: Tensor
    plans: Sequence[Plan]


class Scanned(NamedTuple):
    """Of b images the R proposals with the highest novel score, and N novel classes."""

    scores: Tensor  # (b, R, N) of the detector; 0 where not above the cut
    boxes: Tensor  # (b, R, N, 4) final boxes on the canvas
    proposals: Tensor  # (b, R, 4) on the canvas
    all_there: Tensor  # (b,) bool: R was enough, and so were all fixed sizes before


def scan(
    detector: Detector,
    batches: Batches,
    plans: Sequence[Plan],
    base_classes: int,
    cut: float,
    device: torch.device,
    bf16: bool,
    judge: Judge | None = None,
) -> Raw:
    """All pairs of the plans' images (`feed.batches.each_once`), boxes in the pictures' pixels."""
    detector.eval()

    def look(images: Tensor, sizes: Tensor, exact: bool = False) -> Scanned:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return pairs_above(detector, images, sizes, base_classes, cut, exact)

    def shown(numbers: Sequence[int]) -> Iterator[tuple[Batch, Batch | None]]:
        pictures = batches([plans[n] for n in numbers])
        if judge is None:
            return ((batch, None) for batch in pictures)
        return zip(pictures, batches([judge.plans[n] for n in numbers]), strict=True)

    captured = Captured(look, device)
    features = None if judge is None else Captured(_products(judge), device)
    found: list[tuple[Tensor, ...]] = []
    again: list[int] = []
    parts: list[Part] = []
    sure: list[Tensor] = []
    for n, (batch, other) in enumerate(shown(range(len(plans))), start=1):
        seen = captured(batch.images, batch.sizes)
        parts.append(_kept(seen, batch, other, features))
        sure.append(seen.all_there[: batch.plan.count].all())
        if n % FETCHED == 0 or n == len(plans):
            whole = torch.stack(sure).tolist()  # waits
            again += [n - len(whole) + k for k, fine in enumerate(whole) if not fine]
            if any(whole):
                found.append(_pairs([p for p, fine in zip(parts, whole, strict=True) if fine]))
            parts, sure = [], []
    slowly = None if judge is None else _products(judge)
    for batch, other in shown(again):
        seen = look(batch.images, batch.sizes, exact=True)
        found.append(_pairs([_kept(seen, batch, other, slowly)]))
    return _raw(found, cut, judge)


@torch.no_grad()
def pairs_above(
    detector: Detector,
    images: Tensor,
    sizes: Tensor,
    base_classes: int,
    cut: float,
    exact: bool = False,
) -> Scanned:
    """The proposals of a batch with a novel score above the cut, best first; exact: room for all.

    Novel scores are those of the softmax over all classes, base ones and the background.
    """
    found = detector.infer(images, sizes, exact=exact)
    novel = found.scores[..., base_classes:]
    above = (novel > cut) & found.proposals.valid[..., None]  # (B, P, N)
    best = torch.where(above, novel, 0.0).amax(-1)  # (B, P)
    room = best.shape[1] if exact else min(ROOM, best.shape[1])
    rows = best.topk(room).indices
    scores = torch.where(above, novel, 0.0)
    enough = (best > 0).sum(1) <= room
    return Scanned(
        gather_rows(scores, rows),
        found.boxes[:, :, base_classes:].gather(
            1, rows[..., None, None].expand(-1, -1, novel.shape[2], 4)
        ),
        gather_rows(found.proposals.boxes, rows),
        enough & found.proposals.settled,
    )


def _kept(
    found: Scanned, batch: Batch, other: Batch | None, features: Callable[..., Tensor] | None
) -> Part:
    """(b,) images, (b, R, N) scores, (b, R, N, 4) boxes and (b, R, N + 2) products of the images
    that are meant; boxes in the pictures' pixels. Copies: recorded results are written over.
    """
    b, room, novel = found.scores.shape
    boxes = to_picture(found.boxes.flatten(1, 2), batch).view(b, room, novel, 4)
    dots = found.scores.new_zeros(b, room, 0)
    if features is not None and other is not None:
        own = to_picture(found.proposals, batch)
        placed, _ = to_canvas(own, other.scale, other.shift, other.flip, other.sizes)
        dots = features(other.images, other.sizes, placed, (found.scores > 0).any(-1))
    count = batch.plan.count
    index, scores, boxes, dots = (
        t[:count].clone() for t in (batch.image_index, found.scores, boxes, dots)
    )
    return index, scores, boxes, dots


def _products(judge: Judge) -> Callable[..., Tensor]:
    """What cosines are made of (b, R, N + 2), for boxes (b, R, 4) on the discriminator's canvas."""

    def of(images: Tensor, sizes: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
        found = judge.discriminator.features(images, sizes, boxes, valid)
        flat = products(found.flatten(0, 1), judge.prototypes, judge.mean)
        return flat.view(*found.shape[:2], -1)

    return of


@torch.no_grad()
def box_features(
    discriminator: Discriminator, batches: Batches, plans: Sequence[Plan]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch by batch: (S,) indices of annotated boxes of the plans' images, their features (S, D).

    A box outside its picture, or one without area, is left out.
    """
    for batch in batches(plans):
        meant = batch.targets.valid.clone()
        meant[batch.plan.count :] = False
        found = discriminator.features(batch.images, batch.sizes, batch.targets.boxes, meant)
        yield batch.box_index[meant], found[meant]


def judged(raw: Raw, boxes: Boxes, judge: Judge, batches: Batches) -> Raw:
    """Another tool's pairs, each its own proposal, with what the discriminator says of them.

    `boxes` are the pairs as boxes of their images (`record`: which pair), `batches` show those. A
    pair without a feature (`box_features`) has cosine 0.
    """
    rows = np.zeros((len(raw), len(judge.prototypes) + 2))
    for box, features in box_features(judge.discriminator, batches, judge.plans):
        found = products(features, judge.prototypes, judge.mean)
        rows[boxes.record[box.cpu().numpy()]] = found.cpu().numpy()
    return replace(raw, dots=_dots(rows, judge))


def _pairs(parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """The n pairs of some batches, on the host: image, class, score, box, the place of the proposal
    among the m that have one, and the products (m, N + 2) of these.
    """
    index, scores, boxes, dots = (torch.cat(column) for column in zip(*parts, strict=True))
    b, r, c = (scores > 0).nonzero().unbind(1)
    used, proposal = torch.unique(b * scores.shape[1] + r, return_inverse=True)
    columns = (index[b], c, scores[b, r, c], boxes[b, r, c], proposal, dots.flatten(0, 1)[used])
    return tuple(column.cpu() for column in columns)


def _raw(found: Sequence[tuple[Tensor, ...]], cut: float, judge: Judge | None) -> Raw:
    image, label, score, xyxy, place, rows = (
        torch.cat(c).numpy() for c in zip(*found, strict=True)
    )
    # places are counted anew in every part
    many = [len(part[5]) for part in found]
    proposal = place + np.repeat(np.cumsum(many) - many, [len(part[4]) for part in found])
    xywh = np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], 1)
    dots = None if judge is None else _dots(rows, judge)
    return Raw.of(image, label, score, xywh, proposal, cut, dots)


def _dots(rows: Any, judge: Judge) -> Dots:
    table = products(judge.prototypes, judge.prototypes, judge.mean).cpu().numpy()
    centre = products(judge.mean[None], judge.prototypes, judge.mean).cpu().numpy()
    return Dots.of(rows, table, centre)


def at_other_size(plans: Sequence[Plan], own: Ints, short: int, long: int) -> list[Plan]:
    """The same images in the same batches at another short side, for the discriminator.

    `own` (I, 2) are the pictures' heights and widths. Batches that shared a canvas share one again.
    """
    needs: dict[tuple[int, int], Ints] = {}
    for plan in plans:
        need = up_to_stride(fit(own[plan.images], short, long).max(0))
        needs[plan.canvas] = np.maximum(needs.get(plan.canvas, need), need)
    others = []
    for plan in plans:
        sizes = fit(own[plan.images], short, long)
        height, width = needs[plan.canvas].tolist()
        moved = np.zeros_like(sizes)
        others.append(
            replace(
                plan, canvas=(height, width), short=short, sizes=sizes, scaled=sizes, shift=moved
            )
        )
    return others
