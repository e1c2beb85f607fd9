from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_fsod.data.dataset import Boxes, Dataset, ImageId

MakeDataset = Callable[..., Dataset]


def dataset(
    ids: Sequence[ImageId],
    classes: Sequence[str],
    boxes: Sequence[tuple[int, str, Sequence[float]]] = (),
    category_ids: Sequence[int] | None = None,
    **flags: Any,
) -> Dataset:
    """A data set in memory. A box is (index of its image, class name, [x, y, width, height])."""
    n = len(ids)
    return Dataset(
        kind="coco" if n and isinstance(ids[0], int) else "voc",
        root=Path(),
        classes=tuple(classes),
        category_ids=tuple(category_ids or range(1, len(classes) + 1)),
        ids=tuple(ids),
        files=tuple(f"{i}.jpg" for i in ids),
        sizes=np.full((n, 2), 100, dtype=np.int64),
        boxes=Boxes.of(
            [i for i, _, _ in boxes],
            [b for _, _, b in boxes],
            [list(classes).index(c) for _, c, _ in boxes],
            **flags,
        ),
        sources=("truth.json",) * n,
    )


@pytest.fixture(scope="session")
def make_dataset() -> MakeDataset:
    return dataset
