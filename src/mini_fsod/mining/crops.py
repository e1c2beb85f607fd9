"""Features of boxes from the discriminator, for the stage `scan`: of people's boxes, and of the
pairs that NMS leaves, cropped (`crop_similarity`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mini_fsod import console
from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.data.subsets import arranged
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.schedule import each_once
from mini_fsod.mining.box_correction import CORRECTIONS, best_correction, corrected_boxes
from mini_fsod.mining.calibration import prototypes
from mini_fsod.mining.candidates import select_candidates
from mini_fsod.mining.crop_similarity import CropFeatures, principal_axes
from mini_fsod.mining.find_pairs import box_features
from mini_fsod.mining.pairs import Pairs
from mini_fsod.runs.data import counted
from mini_fsod.runs.run import Run

IMAGES_PER_BATCH = {"cuda": 16}
IMAGES_PER_BATCH_ELSEWHERE = 2
BASE_IMAGES = 4096  # whose base boxes are compared with
CORRECTED = 100  # best candidates of a class that its box correction is fitted to


@dataclass(frozen=True, slots=True, eq=False)
class CropReference:
    """Crops of known boxes: features (s, D) of the shots and (b, D) of base boxes, their labels
    (s,) among the novel and (b,) among the base classes, the mean (D,) of the base boxes' features,
    and their principal axes (D, d).
    """

    discriminator: Discriminator
    shots: Tensor
    shots_label: Tensor
    base: Tensor
    base_label: Tensor
    mean: Tensor
    axes: Tensor
    prototypes: Tensor  # (C, D) Eq. 2, relative to the mean


def images_per_batch(run: Run) -> int:
    return IMAGES_PER_BATCH.get(run.device.type, IMAGES_PER_BATCH_ELSEWHERE)


def discriminator_sides(run: Run) -> tuple[int, int]:
    """The short side of the images that the discriminator sees, and the largest long side."""
    short = run.config.discriminator.short
    return short, 2 * short


def features_of(
    run: Run, discriminator: Discriminator, data: Dataset, images: Ints | None = None
) -> tuple[Tensor, Tensor]:
    """Features (n, D) and labels (n,) of the boxes of these images; None: of all."""
    if images is None:
        images = np.unique(data.boxes.image)
    found = [torch.zeros(0, discriminator.dimension, device=run.device)]
    label = torch.from_numpy(data.boxes.label).to(run.device)
    labels = [label[:0]]
    for box, part in _feature_batches(run, discriminator, data, images, "looking at known boxes"):
        found.append(part)
        labels.append(label[box])
    return torch.cat(found), torch.cat(labels)


def crop_reference(run: Run, discriminator: Discriminator) -> CropReference:
    """The crops of the shots, and of the base boxes of up to BASE_IMAGES images."""
    novel, base = run.data.labels.novel, run.data.base
    shots = arranged(run.data.shots, LabelMap(novel, ()))
    count = min(BASE_IMAGES, len(base))
    some = np.unique(np.linspace(0, len(base) - 1, count).astype(np.int64))
    of_shots, shots_label = features_of(run, discriminator, shots)
    of_base, base_label = features_of(run, discriminator, base, some)
    mean, axes = principal_axes(of_base)
    relative = prototypes(of_shots - mean, shots_label, novel)
    return CropReference(
        discriminator, of_shots, shots_label, of_base, base_label, mean, axes, relative
    )


def with_crop_features(run: Run, data: Dataset, reference: CropReference, pairs: Pairs) -> Pairs:
    """The pairs that NMS leaves, by the detector's score, with the features of their crops."""
    found = select_candidates(pairs)
    left = Pairs.of(found.image, found.label, found.score, found.xywh, np.arange(len(found)))
    mean, axes = reference.mean, reference.axes
    features = torch.zeros(len(found), axes.shape[1], device=run.device)
    if len(found):
        boxes = Boxes.of(found.image, found.xywh, found.label)  # in the same order: by image
        for box, part in _feature_batches(
            run,
            reference.discriminator,
            data.with_boxes(boxes),
            np.unique(boxes.image),
            "looking at crops",
        ):
            features[box] = (part - mean) @ axes

    crops = CropFeatures(
        _to_numpy(features),
        _to_numpy((reference.base - mean) @ axes),
        reference.base_label.cpu().numpy(),
        _to_numpy((reference.shots - mean) @ axes),
        reference.shots_label.cpu().numpy(),
        np.tile(CORRECTIONS[:1], (len(run.data.labels.novel), 1)),
    )
    left = replace(left, crops=crops)
    if run.config.mine.box_correction:
        crops = replace(crops, correction=_box_corrections(run, data, reference, left))
    return replace(left, crops=crops)


def _to_numpy(features: Tensor) -> Floats:
    return features.double().cpu().numpy()


def _box_corrections(run: Run, data: Dataset, reference: CropReference, pairs: Pairs) -> Floats:
    """(C, 3) the box correction of each class, fitted to the best of its candidates."""
    labels = run.data.labels
    on_base = arranged(data, LabelMap(labels.base, ())).boxes
    found = select_candidates(pairs, on_base=on_base, whiten=True, refine=CORRECTED)
    best = np.concatenate(
        [
            of_class[np.argsort(-found.score[of_class], kind="stable")[:CORRECTED]]
            for of_class in (np.flatnonzero(found.label == c) for c in range(len(labels.novel)))
        ]
    )
    found = found.take(np.sort(best))  # by image again
    correction = np.tile(CORRECTIONS[:1], (len(labels.novel), 1))
    if not len(found):
        return correction
    count = len(CORRECTIONS)
    image, label = (np.repeat(column, count) for column in (found.image, found.label))
    xywh = corrected_boxes(
        np.repeat(found.xywh, count, axis=0),
        np.tile(CORRECTIONS, (len(found), 1)),
        image_sizes(data)[image][:, ::-1],
    )
    size = len(reference.mean)
    features = torch.zeros(len(image), size, device=run.device)
    for box, part in _feature_batches(
        run,
        reference.discriminator,
        data.with_boxes(Boxes.of(image, xywh, label)),
        np.unique(image),
        "correcting boxes",
    ):
        features[box] = part - reference.mean
    table = features.cpu().numpy().reshape(-1, count, size)
    shots = reference.prototypes.cpu().numpy()
    for c, name in enumerate(labels.novel):
        correction[c] = CORRECTIONS[best_correction(table[found.label == c], shots[c])]
        if (correction[c, :2] != 1).any():
            width, height, _ = correction[c]
            console.note(f"boxes of {name} are resized: {width:g} x width, {height:g} x height")
    return correction


def _feature_batches(
    run: Run, discriminator: Discriminator, data: Dataset, images: Ints, title: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """`box_features` of the boxes of these images."""
    batches, sizes = run.data.batches(data)
    plans = each_once(sizes, images_per_batch(run), *discriminator_sides(run), images=images)
    with console.progress(title, len(plans)) as progress:
        yield from box_features(discriminator, counted(batches, progress), plans)
