"""What re-training knows of images that were mined: of the training images and of extra ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Dataset
from mini_fsod.labels import LabelMap
from mini_fsod.mining.base_objects import BASE_OBJECTS, base_labels
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.pool_io import CANDIDATES, Pool, read_candidates, read_pool


@dataclass(frozen=True, slots=True, eq=False)
class MinedImages:
    """I images. Where labels of base classes are missing, detections stand in for them."""

    data: Dataset  # classes of the label map, and all boxes that people drew
    pool: Pool
    missing: Bools  # (I, B) whether boxes of each base class may be missing in each image
    candidates: Candidates | None = None  # of novel classes, chosen or not
    base: Candidates | None = None  # detections of base classes

    @classmethod
    def read(
        cls,
        data: Dataset,
        pool: Path,
        folder: Path,
        labels: LabelMap,
        missing: Bools,
        with_candidates: bool = True,
    ) -> MinedImages:
        """The run's pool, and from the folder of the mining what else is needed of it."""
        mined = read_pool(pool, data, labels)
        for line in mined.notes:
            console.note(line)
        is_open = bool(missing.any())
        candidates = base = None
        if with_candidates or is_open:
            candidates = read_candidates(folder / CANDIDATES, data, labels)
        if is_open:
            base = read_candidates(folder / BASE_OBJECTS, data, base_labels(labels))
        return cls(data, mined, missing, candidates, base)
