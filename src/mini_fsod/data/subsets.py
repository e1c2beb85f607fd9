"""Image sets: which one a run trains on and which one it is scored on, where nobody says so."""

from __future__ import annotations

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset


def training_part(data: Dataset) -> str | None:
    """The image set that shots are drawn from where the data has several; None for all images."""
    for name in ("trainval", "train"):
        if name in data.subsets:
            return name
    named = [name for name in data.subsets if name.startswith("train")]
    return named[0] if len(named) == 1 else None


def testing_part(data: Dataset) -> str | None:
    """The image set to score on where none is named: one with boxes called test, else val."""
    boxes = np.diff(data.offsets)
    counts = {name: int(boxes[images].sum()) for name, images in data.subsets.items()}
    for word in ("test", "val"):
        named = [name for name in counts if name.startswith(word) and counts[name]]
        if word in named or len(named) == 1:
            return word if word in named else named[0]
    return None


def shared(data: Dataset, other: Dataset | None) -> Bools:
    """(I,) whether the picture of each image is one of the other's; without another none is."""
    known = set() if other is None else {*other.files}
    return np.array([file in known for file in data.files], dtype=np.bool_)


def training_set(data: Dataset) -> tuple[str, Dataset]:
    """What to call the images that a run trains on unless it is told otherwise, and these images.

    Nothing that is tested is trained on, though VOC's trainval may hold val. Data without image
    sets are all of them, and have no name: "".
    """
    part, test = training_part(data), testing_part(data)
    images = data if part is None else data.subset(part)
    both = shared(images, None if test is None else data.subset(test))
    if both.any():
        images = images.select(np.flatnonzero(~both))
    if part is None:
        return (f"all but {test}" if test else "all image sets" if data.subsets else ""), images
    return (f"{part} without {test}" if both.any() else part), images
