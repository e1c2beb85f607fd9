"""The few-shot detector over images: every pair of a proposal and a novel class above the score
threshold (Eq. 1), and the discriminator's features of the proposals (Eq. 3).

Results are fetched many batches at a time. A batch with more proposals above the threshold than a
fixed size allows is repeated without that limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mini_fsod.cuda_graph import Captured
from mini_fsod.data.dataset import Boxes, Ints
from mini_fsod.detector.boxes import gather_rows
from mini_fsod.detector.model import Detector
from mini_fsod.detector.nms import nms
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.loader.resident import Batch, to_canvas, to_picture
from mini_fsod.loader.schedule import Plan, fit, up_to_stride
from mini_fsod.mining.calibration import DotProducts, dot_products
from mini_fsod.mining.pairs import Pairs

OF_ANY_CLASS = 64  # proposals of an image that are compared with all novel classes
SAME_PLACE = 0.7  # IoU of two of them above which one is dropped
PROPOSALS = 128  # of an image that are fetched; hardly any image has more above the threshold
# Batches between two waits for the device. Until then all PROPOSALS are kept on it: 20 KB an image
# of VOC, 74 KB of COCO, whose 117,264 images would take 8.7 GB.
FETCHED = 64

Batches = Callable[[Iterable[Plan]], Iterator[Batch]]


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeComparison:
    """A discriminator and the prototypes (C, D) that it compares proposals with."""

    discriminator: Discriminator
    prototypes: Tensor
    plans: Sequence[Plan] = ()  # the scan's batches at the discriminator's own image size
    mean: Tensor | None = None  # (D,) that features and prototypes are relative to; None: zero

    def products(self, images: Tensor, sizes: Tensor, boxes: Tensor, valid: Tensor) -> Tensor:
        """`dot_products` (B, R, C + 1) of boxes (B, R, 4) on the discriminator's canvas."""
        features = self.discriminator.features(images, sizes, boxes, valid)
        if self.mean is not None:
            features = features - self.mean
        return dot_products(features.flatten(0, 1), self.prototypes).view(*valid.shape, -1)

    def stored(self, rows: np.ndarray) -> DotProducts:
        """Rows (m, C + 1) of `dot_products` of proposals, with those of the prototypes."""
        return DotProducts.of(rows, dot_products(self.prototypes, self.prototypes).cpu().numpy())


class TopProposals(NamedTuple):
    """Of B images the R proposals with the highest novel score, with N novel classes."""

    scores: Tensor  # (B, R, N) of the detector; 0 where not above the threshold
    boxes: Tensor  # (B, R, N, 4) final boxes on the canvas
    proposals: Tensor  # (B, R, 4) on the canvas
    complete: Tensor  # (B,) bool: no proposal above the threshold was left out


class _Part(NamedTuple):
    """The results of a batch, boxes in the images' own pixels; B images without padding."""

    image: Tensor  # (B,) index in the data set
    scores: Tensor  # (B, R, N)
    boxes: Tensor  # (B, R, N, 4)
    products: Tensor  # (B, R, N + 1), (B, R, 0) without a discriminator


def find_pairs(
    detector: Detector,
    batches: Batches,
    plans: Sequence[Plan],
    base_classes: int,
    min_score: float,
    device: torch.device,
    bf16: bool,
    comparison: PrototypeComparison | None = None,
    whatever_class: bool = False,
) -> Pairs:
    """All pairs of the images of `plans`, which may be empty, boxes in the images' own pixels.

    `whatever_class`: of `proposals_of_any_class`, each with every novel class.
    """
    if not plans:
        none = Pairs.of([], [], [], [], [])
        if comparison is None:
            return none
        rows = np.zeros((0, len(comparison.prototypes) + 1))
        return replace(none, products=comparison.stored(rows))
    detector.eval()

    def detect(images: Tensor, sizes: Tensor, exact: bool = False) -> TopProposals:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            if whatever_class:
                return proposals_of_any_class(detector, images, sizes, base_classes, min_score)
            return top_proposals(detector, images, sizes, base_classes, min_score, exact)

    def both_sizes(numbers: Sequence[int]) -> Iterator[tuple[Batch, Batch | None]]:
        pictures = batches([plans[n] for n in numbers])
        if comparison is None:
            return ((batch, None) for batch in pictures)
        return zip(pictures, batches([comparison.plans[n] for n in numbers]), strict=True)

    compare = None if comparison is None else comparison.products
    captured = Captured(detect, device)
    compare_captured = None if compare is None else Captured(compare, device)
    found: list[tuple[Tensor, ...]] = []
    incomplete: list[int] = []
    parts: list[_Part] = []
    complete: list[Tensor] = []
    for n, (batch, other) in enumerate(both_sizes(range(len(plans))), start=1):
        top = captured(batch.images, batch.sizes)
        parts.append(_part(top, batch, other, compare_captured))
        complete.append(top.complete[: batch.plan.count].all())
        if len(parts) == FETCHED or n == len(plans):
            whole = torch.stack(complete).tolist()  # waits for the device
            incomplete += [n - len(whole) + k for k, fine in enumerate(whole) if not fine]
            if any(whole):
                found.append(_columns([p for p, fine in zip(parts, whole, strict=True) if fine]))
            parts, complete = [], []
    for batch, other in both_sizes(incomplete):
        top = detect(batch.images, batch.sizes, exact=True)
        found.append(_columns([_part(top, batch, other, compare)]))
    return _pairs(found, comparison)


@torch.no_grad()
def top_proposals(
    detector: Detector,
    images: Tensor,
    sizes: Tensor,
    base_classes: int,
    min_score: float,
    exact: bool = False,
) -> TopProposals:
    """The proposals of a batch with a novel score above the threshold, best first.

    images (B, 3, H, W) uint8, sizes (B, 2). `exact`: all proposals, not the first PROPOSALS. Novel
    scores are those of the softmax over all classes and the background. Images without a proposal
    above the threshold get rows of score 0.
    """
    found = detector.infer(images, sizes)
    novel = found.scores[..., base_classes:]
    above = (novel > min_score) & found.proposals.valid[..., None]  # (B, P, N)
    scores = torch.where(above, novel, 0.0)
    best = scores.amax(-1)  # (B, P)
    count = best.shape[1] if exact else min(PROPOSALS, best.shape[1])
    rows = best.topk(count).indices
    enough = (best > 0).sum(1) <= count
    return TopProposals(
        gather_rows(scores, rows),
        found.boxes[:, :, base_classes:].gather(
            1, rows[..., None, None].expand(-1, -1, novel.shape[2], 4)
        ),
        gather_rows(found.proposals.boxes, rows),
        enough,
    )


@torch.no_grad()
def proposals_of_any_class(
    detector: Detector,
    images: Tensor,
    sizes: Tensor,
    base_classes: int,
    min_score: float,
) -> TopProposals:
    """The proposals of a batch whose best score of any class is above the threshold, best first.

    The detector takes an unknown object for whatever is nearest, and its box for that class ends
    where the object ends. Every novel class gets this score and box. NMS is across classes, and
    the best OF_ANY_CLASS of an image stay.
    """
    found = detector.infer(images, sizes)
    score, label = found.scores.max(-1)  # (B, P)
    score = torch.where((score > min_score) & found.proposals.valid, score, 0.0)
    score, order = score.sort(dim=1, descending=True, stable=True)
    best = found.boxes.gather(2, label[..., None, None].expand(-1, -1, 1, 4)).squeeze(2)
    boxes, label = gather_rows(best, order), label.gather(1, order)
    kept = nms(boxes, score > 0, SAME_PLACE)
    count = min(OF_ANY_CLASS, boxes.shape[1])
    score, rows = torch.where(kept, score, 0.0).topk(count)
    boxes, novel = gather_rows(boxes, rows), found.scores.shape[2] - base_classes
    return TopProposals(
        score[..., None].expand(-1, -1, novel),
        boxes[:, :, None].expand(-1, -1, novel, 4),
        boxes,
        torch.ones_like(score[:, 0], dtype=torch.bool),
    )


def _part(
    top: TopProposals, batch: Batch, other: Batch | None, compare: Callable[..., Tensor] | None
) -> _Part:
    """Copies: the outputs of recorded calls are overwritten by the next call."""
    b, count, novel = top.scores.shape
    boxes = to_picture(top.boxes.flatten(1, 2), batch).view(b, count, novel, 4)
    products = top.scores.new_zeros(b, count, 0)
    if compare is not None and other is not None:
        in_picture = to_picture(top.proposals, batch)
        moved, _ = to_canvas(in_picture, other.scale, other.shift, other.flip, other.sizes)
        products = compare(other.images, other.sizes, moved, (top.scores > 0).any(-1))
    columns = (batch.image_index, top.scores, boxes, products)
    return _Part(*(column[: batch.plan.count].clone() for column in columns))


@torch.no_grad()
def box_features(
    discriminator: Discriminator, batches: Batches, plans: Sequence[Plan]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch by batch: (S,) indices of the annotated boxes of the plans' images, and their features
    (S, D). A box outside its image, or one without area, is left out; S may be 0.
    """
    for batch in batches(plans):
        valid = batch.targets.valid.clone()
        valid[batch.plan.count :] = False
        found = discriminator.features(batch.images, batch.sizes, batch.targets.boxes, valid)
        yield batch.box_index[valid], found[valid]


def compare_given_pairs(
    pairs: Pairs, boxes: Boxes, comparison: PrototypeComparison, box: Tensor, products: Tensor
) -> Pairs:
    """Another tool's pairs, each its own proposal, with their dot products.

    `boxes` are the pairs as boxes of their images (`record` is the row of the pair); `products`
    (n, C + 1) are the `dot_products` of the boxes with these indices (n,). A pair without any, one
    outside its image, has cosine 0.
    """
    rows = np.zeros((len(pairs), len(comparison.prototypes) + 1))
    rows[boxes.record[box.cpu().numpy()]] = products.cpu().numpy()
    return replace(pairs, products=comparison.stored(rows))


def _columns(parts: Sequence[_Part]) -> tuple[Tensor, ...]:
    """The n pairs of some batches, on the host: image, class, score, box, index of the proposal
    among the m that have a pair, and the products (m, N + 1) of these.
    """
    image, scores, boxes, products = (torch.cat(column) for column in zip(*parts, strict=True))
    b, r, c = (scores > 0).nonzero().unbind(1)
    used, proposal = torch.unique(b * scores.shape[1] + r, return_inverse=True)
    rows = products.flatten(0, 1)[used]
    columns = (image[b], c, scores[b, r, c], boxes[b, r, c], proposal, rows)
    return tuple(column.cpu() for column in columns)


def _pairs(found: Sequence[tuple[Tensor, ...]], comparison: PrototypeComparison | None) -> Pairs:
    image, label, score, xyxy, proposal, rows = (
        torch.cat(c).numpy() for c in zip(*found, strict=True)
    )
    # proposals are numbered from 0 in every part
    counts = [len(part[5]) for part in found]
    proposal = proposal + np.repeat(np.cumsum(counts) - counts, [len(part[4]) for part in found])
    xywh = np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], 1)
    pairs = Pairs.of(image, label, score, xywh, proposal)
    return replace(pairs, products=None if comparison is None else comparison.stored(rows))


def plans_at_size(plans: Sequence[Plan], sizes: Ints, short: int, long: int) -> list[Plan]:
    """The same images in the same batches at another short side, for the discriminator.

    sizes (I, 2) are the images' heights and widths. Batches that share a canvas still share one, so
    that no more CUDA graphs are recorded.
    """
    canvases: dict[tuple[int, int], Ints] = {}
    for plan in plans:
        need = up_to_stride(fit(sizes[plan.images], short, long).max(0))
        canvases[plan.canvas] = np.maximum(canvases.get(plan.canvas, need), need)
    others = []
    for plan in plans:
        fitted = fit(sizes[plan.images], short, long)
        height, width = canvases[plan.canvas].tolist()
        others.append(
            replace(
                plan,
                canvas=(height, width),
                short=short,
                sizes=fitted,
                scaled=fitted,
                shift=np.zeros_like(fitted),
            )
        )
    return others
