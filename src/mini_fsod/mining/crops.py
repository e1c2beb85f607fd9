"""Features of boxes from the discriminator, for the stage `scan`: of people's boxes, and of the
pairs that NMS leaves, cropped (`crop_similarity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod import console
from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.data.overlap import best_of_each
from mini_fsod.data.subsets import arranged
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.schedule import each_once
from mini_fsod.mining.box_correction import CORRECTIONS, best_correction, corrected_boxes
from mini_fsod.mining.calibration import prototypes
from mini_fsod.mining.candidates import Candidates, select_candidates
from mini_fsod.mining.crop_similarity import CropFeatures, principal_axes
from mini_fsod.mining.find_pairs import PrototypeComparison, box_features
from mini_fsod.mining.pairs import Pairs
from mini_fsod.runs.data import counted
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import gather

IMAGES_PER_BATCH = {"cuda": 16}
IMAGES_PER_BATCH_ELSEWHERE = 2
BASE_IMAGES = 4096  # whose base boxes are compared with
CENTRE_IMAGES = 512  # whose base boxes the cheap comparison is relative to
THINNED = 6_000  # proposals of a class that are cropped
CORRECTED = 100  # best candidates of a class that its box correction is fitted to


@dataclass(frozen=True, slots=True, eq=False)
class CropReference:
    """Crops of known boxes, and the principal axes of base boxes' features."""

    discriminator: Discriminator
    shots: Tensor  # (s, D) features
    shots_label: Tensor  # (s,) among the novel classes
    base: Tensor  # (b, D) features
    base_label: Tensor  # (b,) among the base classes
    mean: Tensor  # (D,) of the base boxes' features
    axes: Tensor  # (D, d)
    prototypes: Tensor  # (C, D) Eq. 2, relative to the mean


def images_per_batch(run: Run) -> int:
    return IMAGES_PER_BATCH.get(run.device.type, IMAGES_PER_BATCH_ELSEWHERE)


def discriminator_sides(run: Run) -> tuple[int, int]:
    """The short side of the images that the discriminator sees, and the largest long side."""
    short = run.config.discriminator.short
    return short, 2 * short


def feature_batches(
    run: Run, discriminator: Discriminator, data: Dataset, title: str, images: Ints | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """`box_features` of the boxes of this process's part of these images; None: of all images with
    a box. `gather_parts` puts the parts together.
    """
    images = np.unique(data.boxes.image) if images is None else images
    batches, sizes = run.data.batches(data)
    sides = discriminator_sides(run)
    plans = run.team.part(each_once(sizes, images_per_batch(run), *sides, images=images))
    with console.progress(title, len(plans)) as progress:
        yield from box_features(discriminator, counted(batches, progress), plans)


def gather_parts(
    run: Run, parts: Sequence[tuple[Tensor, Tensor]], dimension: int
) -> tuple[Tensor, Tensor]:
    """(n,) indices of boxes and their numbers (n, `dimension`), of all processes; n may be 0."""
    none = torch.zeros(0, dtype=torch.long), torch.zeros(0, dimension)
    of_process = tuple(
        torch.cat([c.cpu() for c in column]) for column in zip(none, *parts, strict=True)
    )
    every = gather(of_process, run.team)
    box, numbers = (torch.cat(column).to(run.device) for column in zip(*every, strict=True))
    return box, numbers


def features_of(
    run: Run, discriminator: Discriminator, data: Dataset, images: Ints | None = None
) -> tuple[Tensor, Tensor]:
    """Features (n, D) and labels (n,) of the boxes of these images; None: of all."""
    parts = [*feature_batches(run, discriminator, data, "looking at known boxes", images)]
    box, features = gather_parts(run, parts, discriminator.dimension)
    return features, torch.from_numpy(data.boxes.label).to(run.device)[box]


def reference_of(run: Run, discriminator: Discriminator) -> PrototypeComparison | CropReference:
    """What boxes are compared with: the prototypes of the shots; for a discriminator of crops also
    the base boxes of up to BASE_IMAGES images.
    """
    novel, base = run.data.labels.novel, run.data.base
    shots = arranged(run.data.shots, LabelMap(novel, ()))
    of_shots, shots_label = features_of(run, discriminator, shots)
    if discriminator.crop is None:
        return PrototypeComparison(discriminator, prototypes(of_shots, shots_label, novel))
    count = min(BASE_IMAGES, len(base))
    some = np.unique(np.linspace(0, len(base) - 1, count).astype(np.int64))
    of_base, base_label = features_of(run, discriminator, base, some)
    mean, axes = principal_axes(of_base)
    relative = prototypes(of_shots - mean, shots_label, novel)
    return CropReference(
        discriminator, of_shots, shots_label, of_base, base_label, mean, axes, relative
    )


def cheap_comparison(run: Run, discriminator: Discriminator) -> PrototypeComparison:
    """The same network over whole pictures: a cosine for many proposals, relative to base boxes."""
    pooled = Discriminator(
        discriminator.body,
        discriminator.dimension,
        discriminator.stride,
        discriminator.normalisation,
    ).to(run.device)
    novel, base = run.data.labels.novel, run.data.base
    of_shots, label = features_of(run, pooled, arranged(run.data.shots, LabelMap(novel, ())))
    some = np.unique(np.linspace(0, len(base) - 1, min(CENTRE_IMAGES, len(base))).astype(np.int64))
    mean = features_of(run, pooled, base, some)[0].mean(0)
    return PrototypeComparison(pooled, prototypes(of_shots - mean, label, novel), mean=mean)


def thinned(run: Run, data: Dataset, pairs: Pairs) -> Pairs:
    """The THINNED pairs of each class with the best calibrated scores, off base boxes."""
    on_base = arranged(data, LabelMap(run.data.labels.base, ())).boxes
    found = select_candidates(pairs, on_base=on_base)
    best = best_of_each(found.label, found.score, THINNED)
    found = found.take(np.sort(best))
    return Pairs.of(
        found.image, found.label, found.score_detector, found.xywh, np.arange(len(found))
    )


def with_crop_features(run: Run, data: Dataset, reference: CropReference, pairs: Pairs) -> Pairs:
    """The pairs that NMS leaves, by the detector's score, with the features of their crops."""
    found = select_candidates(pairs)
    after_nms = Pairs.of(found.image, found.label, found.score, found.xywh, np.arange(len(found)))
    mean, axes = reference.mean, reference.axes
    crops = CropFeatures(
        pairs=_to_numpy(_relative_features(run, data, reference, found, "looking at crops", axes)),
        base=_to_numpy((reference.base - mean) @ axes),
        base_label=reference.base_label.cpu().numpy(),
        shots=_to_numpy((reference.shots - mean) @ axes),
        shots_label=reference.shots_label.cpu().numpy(),
        correction=np.tile(CORRECTIONS[:1], (len(run.data.labels.novel), 1)),
    )
    after_nms = replace(after_nms, crops=crops)
    if run.config.mine.box_correction:
        crops = replace(crops, correction=_box_corrections(run, data, reference, after_nms))
    return replace(after_nms, crops=crops)


def _relative_features(
    run: Run,
    data: Dataset,
    reference: CropReference,
    found: Candidates,
    title: str,
    axes: Tensor | None = None,
) -> Tensor:
    """(n, D) features of n candidates, by image, less the mean; (n, d) along axes. n may be 0."""
    size = len(reference.mean) if axes is None else axes.shape[1]
    features = torch.zeros(len(found), size, device=run.device)
    if len(found):
        boxes = data.with_boxes(Boxes.of(found.image, found.xywh, found.label))
        parts = []
        for box, part in feature_batches(run, reference.discriminator, boxes, title):
            relative = part - reference.mean
            parts.append((box, relative if axes is None else relative @ axes))
        rows, relative = gather_parts(run, parts, size)
        features[rows] = relative
    return features


def _to_numpy(features: Tensor) -> Floats:
    return features.double().cpu().numpy()


def _box_corrections(run: Run, data: Dataset, reference: CropReference, pairs: Pairs) -> Floats:
    """(C, 3) the box correction of each class, fitted to the best of its candidates."""
    labels, count = run.data.labels, len(CORRECTIONS)
    on_base = arranged(data, LabelMap(labels.base, ())).boxes
    found = select_candidates(pairs, on_base=on_base, whiten=True, refine=CORRECTED)
    found = found.take(np.sort(best_of_each(found.label, found.score, CORRECTED)))  # by image
    variants = found.take(np.repeat(np.arange(len(found)), count))
    sizes = image_sizes(data)[variants.image][:, ::-1]
    xywh = corrected_boxes(variants.xywh, np.tile(CORRECTIONS, (len(found), 1)), sizes)
    variants = replace(variants, xywh=xywh)
    features = _relative_features(run, data, reference, variants, "correcting boxes")
    table = features.cpu().numpy().reshape(len(found), count, len(reference.mean))
    shots = reference.prototypes.cpu().numpy()
    chosen = [best_correction(table[found.label == c], shots[c]) for c in range(len(shots))]
    for name, (width, height, _) in zip(labels.novel, CORRECTIONS[chosen], strict=True):
        if (width, height) != (1, 1):
            console.note(f"boxes of {name} are resized: {width:g} x width, {height:g} x height")
    return np.asarray(CORRECTIONS[chosen])
