"""Small results of a scan for the tests of mining."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from helpers import tiny
from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.read import read
from mini_fsod.data.subsets import arranged
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import GroundTruth
from mini_fsod.mining.calibration import DotProducts
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.crop_similarity import CropFeatures
from mini_fsod.mining.pairs import Pairs

LABELS = LabelMap(("car",), ("bird", "bus"))


def data_of(folder: Path, kind: str = "coco") -> Dataset:
    """The tiny data set, in the order of the label map: car, bird, bus."""
    write = {"coco": tiny.write_coco, "voc": tiny.write_voc, "yolo": tiny.write_yolo}[kind]
    return arranged(read(write(folder)), LABELS)


def ground_truth(data: Dataset, shots: Dataset | None = None) -> GroundTruth:
    """By default without shots."""
    shots = data.with_boxes(NO_BOXES).select([]) if shots is None else shots
    return GroundTruth.of(data, shots, LABELS)


def pairs_of(*rows: tuple[int, int, float, tuple[float, ...]]) -> Pairs:
    """Pairs of (image, label, score, box), each its own proposal."""
    image, label, score, xywh = zip(*rows, strict=True) if rows else ([], [], [], [])
    return Pairs.of(image, label, score, np.reshape(xywh, (-1, 4)), np.arange(len(rows)))


def with_cosines(pairs: Pairs, cosines: Any) -> Pairs:
    """Features of length 1 that have these cosines with both prototypes."""
    values = np.asarray(cosines, dtype=np.float64)
    rows = np.stack([values, values, np.ones_like(values)], axis=1)
    return replace(pairs, products=DotProducts.of(rows, [[1, 0, 1], [0, 1, 1]]))


def with_crops(pairs: Pairs, seed: int) -> Pairs:
    """Random features of crops, float32 numbers."""
    draw = np.random.default_rng(seed)

    def features(n: int) -> Any:
        return draw.normal(size=(n, 5)).astype(np.float32).astype(np.float64)

    correction = np.array([[1.2, 0.85, 0.5], [1.0, 1.4, 1.0]])
    crops = CropFeatures(
        features(len(pairs)),
        features(6),
        np.arange(6) % 3,
        features(4),
        np.arange(4) % 2,
        correction,
    )
    return replace(pairs, crops=crops)


def rows_of(found: Candidates) -> list[tuple[Any, ...]]:
    columns = (found.image, found.label, found.score, found.score_detector, found.xywh)
    return [
        (i, k, s, d, *box) for i, k, s, d, box in zip(*(c.tolist() for c in columns), strict=True)
    ]


@st.composite
def random_pairs(draw: st.DrawFn, most: int = 24, crops: bool = False) -> Pairs:
    """Coarse boxes, scores and cosines, with many overlaps and ties; with `crops`, or features."""
    n = draw(st.integers(0, most))
    numbers = st.lists(st.integers(0, 5), min_size=n, max_size=n)
    image, label, x, y, width, score, cosine = (draw(numbers) for _ in range(7))
    boxes = [(4.0 * a, 4.0 * b, 8.0 + 4 * c, 12.0) for a, b, c in zip(x, y, width, strict=True)]
    rows = zip(
        (i % 3 for i in image),
        (k % 2 for k in label),
        (0.125 + s / 8 for s in score),
        boxes,
        strict=True,
    )
    pairs = pairs_of(*rows)
    how = draw(st.sampled_from(("alone", "products", *(["crops"] if crops else []))))
    if how == "crops":
        return with_crops(pairs, draw(st.integers(0, 99)))
    return with_cosines(pairs, [c / 4 - 0.25 for c in cosine]) if how == "products" else pairs
