"""Mined shots (beyond the paper): the few-shot detector is fine-tuned twice, the second time with
its own best finds as further shots.

Few shots teach little of how a class looks: at K = 1 the detector's score reaches few hidden
objects. Of the boxes that it is surest of most are right, and a few dozen of them teach it more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mini_fsod import console
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.data.shots import balanced_set, draw_shots
from mini_fsod.data.subsets import arranged, is_of, united
from mini_fsod.files import is_file
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.choose import best_mined
from mini_fsod.mining.scan import BASE_PAIRS, PAIRS, reference_for, scan_training_images
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import broadcast_from_leader, wait_for_all

SAME_BOX = 0.5  # IoU from which a mined box is on a shot


def is_scanned(run: Run, folder: Path) -> bool:
    """Whether `folder` has all that `with_mined_shots` reads; all processes agree."""
    is_open = run.data.missing(run.data.mined).any()
    names = [PAIRS, *([BASE_PAIRS] if is_open else [])]
    found = run.team.leads and all(is_file(folder / name) for name in names)
    return bool(broadcast_from_leader(int(found), run.team, run.device))


def scan_for_shots(run: Run, folder: Path, checkpoint: Path) -> None:
    """Scan the training images with a few-shot detector, as the stage `scan` does."""
    detector = to_device(load_detector(run, "transfer", checkpoint).detector, run.device)
    scan_training_images(run, folder, detector, reference_for(run))
    wait_for_all(run.team)


def with_mined_shots(run: Run, folder: Path, per_class: int) -> tuple[Dataset, dict[str, int]]:
    """The balanced set, with up to `per_class` mined boxes of each novel class as further shots and
    that many more shots of each base class; and the number of mined ones by class.

    The boxes are the best of the pool that the stage `mine` would choose from the scan in `folder`.
    None of them is on a shot. A class of which nothing was mined keeps its shots alone.
    """
    data, labels = run.data, run.data.labels
    novel = data.shots.with_boxes(data.shots.boxes.take(is_of(data.shots, labels.novel)))
    novel = novel.select(np.unique(novel.boxes.image))
    mined = best_mined(run, folder, per_class)
    mined = mined.take(~_on_shots(mined, data.mined, novel, len(labels.base)))
    boxes = Boxes.of(mined.image, mined.xywh, mined.label + len(labels.base))
    shots = united(novel, data.mined.with_boxes(boxes).select(np.unique(boxes.image)))
    train = arranged(data.known if data.is_open else data.train, labels)
    base, k = LabelMap(labels.base, ()), data.shots_per_class + per_class
    drawn = draw_shots(train, base, k, run.config.shots.seed, fewer=True)
    counts = np.bincount(mined.label, minlength=len(labels.novel)).tolist()
    found = dict(zip(labels.novel, counts, strict=True))
    if run.team.leads:
        of_each = ", ".join(f"{name} {count}" for name, count in found.items())
        console.note(f"transfer: fine-tuning again, with mined boxes as further shots: {of_each}")
    return united(shots, arranged(balanced_set(train, drawn), labels)), found


def _on_shots(
    mined: Candidates, images: Dataset, shots: Dataset, base_classes: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) whether a mined box is on a shot of its class."""
    index = {file: i for i, file in enumerate(images.files)}
    image = np.array([index.get(file, -1) for file in shots.files], dtype=np.int64)
    row, other = pairs_within(mined.image, image[shots.boxes.image])
    same = mined.label[row] + base_classes == shots.boxes.label[other]
    same &= iou(mined.xywh[row], shots.boxes.xywh[other]) >= SAME_BOX
    on_shot = np.zeros(len(mined), dtype=np.bool_)
    on_shot[row[same]] = True
    return on_shot
