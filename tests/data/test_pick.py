"""Images that represent a data set: new and rare classes first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.pick import pick_images
from mini_fsod.labels import LabelMap

CLASSES = ("cat", "owl", "dog")
LABELS = LabelMap(("cat", "dog"), ("owl",))


def dataset(images: int, boxes: list[tuple[int, str]]) -> Dataset:
    """Each box is (image, class)."""
    rows = [CLASSES.index(name) for _, name in boxes]
    found = Boxes.of([image for image, _ in boxes], np.ones((len(boxes), 4)), rows)
    names = tuple(f"{i}.png" for i in range(images))
    sizes = np.full((images, 2), 40)
    ids = tuple(range(images))
    return Dataset("coco", Path(), CLASSES, (1, 2, 3), ids, names, sizes, found, names)


@pytest.mark.parametrize(
    ("boxes", "count", "picked"),
    [
        ([], 2, [0, 3]),  # no boxes: spread evenly
        ([(5, "owl")], 1, [5]),  # the novel class first
        ([(0, "cat"), (5, "owl")], 2, [5, 0]),  # novel ones lead
        ([(0, "cat"), (1, "dog"), (2, "owl")], 3, [2, 0, 1]),
        (
            [(0, "cat"), (4, "cat"), (4, "dog"), (4, "owl")],
            2,
            [4, 0],
        ),  # 4 has all classes: 0 fills up
        ([(1, "cat")], 9, [1, 0, 2, 3, 4, 5]),  # no more than there are
        # the rarer class first, whatever the order of classes and images
        ([(0, "cat"), (1, "cat"), (2, "cat"), (3, "dog")], 2, [3, 1]),
        ([(1, "cat")], 0, []),
    ],
)
def test_pick_images_prefers_novel_classes_and_spreads_the_rest(
    boxes: list[tuple[int, str]], count: int, picked: list[int]
) -> None:
    assert pick_images(dataset(6, boxes), LABELS, count) == picked


@given(
    st.lists(st.tuples(st.integers(0, 19), st.sampled_from(["cat", "dog", "owl"]))),
    st.integers(3, 25),
)
def test_pick_images_shows_every_class(boxes: list[tuple[int, str]], count: int) -> None:
    data = dataset(20, boxes)
    picked = pick_images(data, LABELS, count)
    assert len(picked) == len(set(picked)) == min(count, 20)
    assert {name for image, name in boxes if image in picked} == {name for _, name in boxes}
