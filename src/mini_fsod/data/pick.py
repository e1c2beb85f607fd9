"""A few images that represent a data set."""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Dataset
from mini_fsod.labels import LabelMap


def pick_images(dataset: Dataset, labels: LabelMap, count: int = 24) -> list[int]:
    """Indices of up to `count` images that represent the data set, always the same ones.

    Each class gets an image as long as `count` allows, novel classes first, and of them the rarest
    first; the others are spread evenly over the images with boxes, then over those without. Images
    are in the same order: by the first class in it that they show.
    """
    image, label = dataset.boxes.image, dataset.boxes.label
    images_of = {
        name: np.unique(image[label == k]).tolist() for k, name in enumerate(dataset.classes)
    }
    ranked_names = sorted(
        (name for name in images_of if images_of[name]),
        key=lambda name: (name not in labels.novel, len(images_of[name])),
    )
    chosen: set[int] = set()
    for name in ranked_names:
        with_class = images_of[name]
        if len(chosen) < count and not chosen.intersection(with_class):
            # Not always the first image: further into the data set from class to class.
            chosen.add(with_class[len(with_class) * len(chosen) // count])
    with_boxes = np.unique(image)
    without = np.setdiff1d(np.arange(len(dataset)), with_boxes)
    for group in (with_boxes, without):
        left = np.setdiff1d(group, sorted(chosen))
        wanted = min(count - len(chosen), len(left))
        chosen.update(left[np.arange(wanted) * len(left) // max(wanted, 1)].tolist())
    first = {
        i: rank for rank, name in reversed([*enumerate(ranked_names)]) for i in images_of[name]
    }
    return sorted(chosen, key=lambda i: (first.get(i, len(ranked_names)), i))
