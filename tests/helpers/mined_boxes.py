"""Pools and candidates from rows of image, class among the novel ones, box, score."""

from __future__ import annotations

import numpy as np

from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.pool_io import Pool


def pool_with(*rows: tuple[int, int, tuple[float, ...], float]) -> Pool:
    image, label, xywh, score = zip(*rows, strict=True) if rows else ([], [], [], [])
    return Pool(
        np.array(image, dtype=np.int64),
        np.array(label, dtype=np.int64),
        np.array(xywh, dtype=np.float64).reshape(-1, 4),
        np.array(score, dtype=np.float64),
        (),
    )


def candidates_with(*rows: tuple[int, int, tuple[float, ...], float]) -> Candidates:
    image, label, xywh, score = (np.array(column) for column in zip(*rows, strict=True))
    return Candidates(image, label, xywh.astype(np.float64), score, score, None)
