"""What was mined, as the report shows it: candidates, the pool, and the verdict on each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.labels import LabelMap
from mini_fsod.mining.audit import (
    TRUE,
    GroundTruth,
    Verdict,
    judge_candidates,
    judge_with_pool,
    seem_complete,
    why_not_judged,
)
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.pool_io import CANDIDATES, POOL, Pool, read_candidates, read_pool
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import RunFiles


@dataclass(frozen=True, slots=True, eq=False)
class Mined:
    """The result of the stage `mine`. Without (enough) annotations of hidden objects there is no
    verdict.
    """

    data: Dataset
    labels: LabelMap
    found: Candidates
    kept: Bools  # (n,) which candidates are in the pool
    verdict: Verdict | None
    why_not: str  # there is no verdict

    def ranked(self, index: int, kept: bool) -> Ints:
        """The candidates of a new class in the pool, or out of it, best first."""
        rows = np.flatnonzero((self.found.label == index) & (self.kept == kept))
        return rows[np.argsort(-self.found.score[rows], kind="stable")]


def read_mined(run: RunFiles, pictures: RunPictures) -> Mined | None:
    """None where nothing was mined by this run, or its data is not here; UserError where the files
    do not fit the data.
    """
    folder = run.folder / "mine"
    if "mine" not in run.figures or not (folder / CANDIDATES).is_file():
        return None
    data, labels, shots = pictures.mined, pictures.labels, pictures.shots
    if data is None or labels is None:
        return None
    found = read_candidates(folder / CANDIDATES, data, labels)
    kept = in_pool(found, read_pool(folder / POOL, data, labels))
    verdict, objects, matched = None, 0, 0
    if shots is not None:
        truth = GroundTruth.of(data, shots, labels)
        objects = len(truth.hidden)
        judged = judge_with_pool(judge_candidates(found, truth), found, kept, truth)
        matched = int((judged.kind[kept] == TRUE).sum())
        if seem_complete(objects, int(kept.sum())):
            verdict = judged
    return Mined(
        data, labels, found, kept, verdict, why_not_judged(objects, int(kept.sum()), matched)
    )


def in_pool(found: Candidates, pool: Pool) -> Bools:
    """(n,) which candidates are in the pool of the same mining; both files have the same digits."""
    wanted = Counter(_keys(pool))
    mask = np.zeros(len(found), dtype=np.bool_)
    for n, key in enumerate(_keys(found)):
        if wanted[key] > 0:
            wanted[key] -= 1
            mask[n] = True
    return mask


def _keys(boxes: Candidates | Pool) -> list[tuple[float, ...]]:
    """Image, class, box and score of each box."""
    columns = (boxes.image[:, None], boxes.label[:, None], boxes.xywh, boxes.score[:, None])
    return [tuple(row) for row in np.concatenate(columns, axis=1).tolist()]
