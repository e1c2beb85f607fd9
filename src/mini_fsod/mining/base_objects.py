"""Base objects in images whose base labels are missing: detections stand in for labels.

So it is in extra images (`mine.extra`), and in a run whose base detector is given: there, people
have labelled some of the images and classes, or none. A detection with a score of at least
`base.sure` counts as a label, a less sure one is a region to ignore: nothing that may be an object
is background.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.detector.model import Detector
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.inference import detect_all
from mini_fsod.files import is_file
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.mining.candidates import Candidates, select_candidates
from mini_fsod.mining.crops import images_per_batch
from mini_fsod.mining.pairs import Pairs, pairs_from_detections
from mini_fsod.runs.data import counted
from mini_fsod.runs.detectors import configured, load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import ALONE, Team, gather, wait_for_all

BASE_OBJECTS = "base.json"  # beside `candidates.json`
SAME_OBJECT = 0.5  # IoU


def base_labels(labels: LabelMap) -> LabelMap:
    """For `base.json`: files of candidates hold the second part of a label map."""
    return LabelMap(labels.novel, labels.base)


def find_base_objects(run: Run, data: Dataset, detector: Detector, team: Team) -> Pairs:
    """Possible base objects, as pairs: detections of base classes above `mine.min_score`. The
    processes of the group share the images.
    """
    section, labels = run.config.mine, run.data.labels
    keys = run.config.detector.model_copy(update={"score_threshold": section.min_score})
    config = run.config.model_copy(update={"detector": keys})
    detector.settings = configured(detector.settings, config)
    batches, sizes = run.data.batches(data)
    plans = team.part(base_object_plans(run, sizes))
    bf16 = run.bf16(run.config.transfer)
    with console.progress("looking for base objects", len(plans)) as progress:
        part = detect_all(detector, counted(batches, progress), plans, run.device, bf16)
    found = DatasetDetections.joined(gather(part, team))
    pairs = pairs_from_detections(found, labels.classes, labels.base, section.min_score)
    return replace(pairs, files=data.files)


def base_object_plans(run: Run, sizes: Ints) -> list[Plan]:
    """The batches in which `find_base_objects` looks at pictures of sizes (I, 2)."""
    views = run.config.views
    return each_once(sizes, images_per_batch(run), views.test, views.long)


def label_for_shots(run: Run, folder: Path) -> Dataset:
    """The images of `RunData.to_label` with what the base detector is sure of as their boxes, and
    less sure detections as boxes to ignore.

    They give the base classes their shots. Kept in the folder of the stage `base`, as scores are;
    the first process writes it.
    """
    data, config = run.data.to_label, run.config
    path = file_for_shots(run, folder)
    if run.team.leads and not is_file(path):
        detector = to_device(load_detector(run, "base").detector, run.device)
        find_base_objects(run, data, detector, ALONE).save(path)
    wait_for_all(run.team)
    found = select_candidates(Pairs.load(path))
    sure, unsure = sort_out(found, run.data.missing(data), config.base.sure, data.boxes)
    unsure = replace(unsure, ignore=np.ones(len(unsure), dtype=np.bool_))
    return data.with_boxes(sure.joined(unsure))


def file_for_shots(run: Run, folder: Path) -> Path:
    """Where `label_for_shots` keeps what it found: a file for each set of images."""
    config = run.config
    keys = config.detector.model_dump(mode="json", exclude={"weights"})
    views = config.views.model_dump(include={"test", "long"})
    images = run.data.to_label.digest
    depends = [images, run.data.labels.base, keys, views, config.mine.min_score]
    name = hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:12]
    return folder / f"found-{name}.npz"


def sort_out(
    found: Candidates, missing: Bools, sure: float | None, novel: Boxes
) -> tuple[Boxes, Boxes]:
    """Base objects that count as labels, and regions to ignore; labels as in the label map.

    `missing` (I, B) says where labels of base classes are missing: elsewhere detections do not
    matter. Nor do they on the boxes `novel` of the same images: these objects are known. `sure` is
    the least score of a label; None: there are none. All may be empty.
    """
    row, other = pairs_within(found.image, novel.image)
    known = np.zeros(len(found), dtype=np.bool_)
    known[row[iou(found.xywh[row], novel.xywh[other]) >= SAME_OBJECT]] = True
    found = found.take(missing[found.image, found.label] & ~known)
    is_sure = np.zeros(len(found), dtype=np.bool_) if sure is None else found.score >= sure
    labelled, unsure = (
        Boxes.of(part.image, part.xywh, part.label)
        for part in (found.take(is_sure), found.take(~is_sure))
    )
    return labelled, unsure
