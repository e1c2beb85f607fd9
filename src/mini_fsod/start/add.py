"""Another new class after a run: what was found for the first ones becomes ordinary labels.

The earlier new classes are base classes of the next run: its base detector is the run's detector,
which knows them, and their shots and mined boxes are annotations that train like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.load import KEYS, resolve
from mini_fsod.config.schema import TRAINED, Config
from mini_fsod.data.dataset import Bools, Boxes, Dataset
from mini_fsod.data.layout import is_archive
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.data.subsets import arranged, is_of
from mini_fsod.data.text import shown
from mini_fsod.data.write import write_coco
from mini_fsod.errors import UserError
from mini_fsod.files import CHECKPOINT_FILE, CONFIG_FILE, DETECTOR_FILE, is_file
from mini_fsod.labels import LabelMap, folded
from mini_fsod.loader.cache import image_sizes
from mini_fsod.mining.pool_io import POOL, read_pool
from mini_fsod.runs.data import RunData
from mini_fsod.start.choose import Choice

SAME_OBJECT = 0.5  # IoU from which a mined box repeats a shot

# Keys of the former run that the next one does not take over: they say what was given to it
GIVEN = (
    *("data.root", "data.pictures", "data.split", "data.novel", "data.train", "data.test"),
    *("data.unlisted", "data.leave_out"),
    *("shots.k", "shots.official", "shots.file", "shots.root", "shots.subset"),
    *("base.checkpoint", "base.drop", "base.iterations", "base.minutes", "transfer.checkpoint"),
    *("mine.pool", "mine.detections", "only_novel"),
)


class Earlier(NamedTuple):
    """What a run leaves to the next one."""

    labels: LabelMap  # all its classes are base classes now
    config: Config
    detector: Path
    data: Dataset  # its training images, with boxes of all its classes
    test: Dataset | None
    mined: int  # boxes of the pool in `data`
    shots: int  # and shots


def earlier(run: Path) -> Earlier:
    """The result of a finished run; a UserError says what it lacks."""
    if not is_file(run / CONFIG_FILE):
        raise UserError(f"{run}: no run.", "Give the folder of a run: --from runs/bolts.")
    if not is_file(run / POOL):
        raise UserError(f"{run}: nothing has been mined yet.", f"First: mini run {run}.")
    config = resolve(run / CONFIG_FILE)
    data = RunData(config, torch.device("cpu"))
    labels, train = data.labels, data.mined
    detector = _detector(run, labels)
    pool = read_pool(run / POOL, train, labels)
    first = len(labels.base)
    shots = _shots_in(train, data.novel_shots, labels)
    mined = Boxes.of(pool.image, pool.xywh, pool.label + first)
    mined = mined.take(~_repeats(mined, shots))
    known = train.boxes.take(
        is_of(train, labels.base)
    )  # annotated novel boxes are for audits alone
    kept = _with_sizes(train.with_boxes(known.joined(shots).joined(mined)))
    test = None if data.test is None else _with_sizes(arranged(data.test, labels))
    return Earlier(labels, config, detector, kept, test, len(mined), len(shots))


def _with_sizes(data: Dataset) -> Dataset:
    """COCO declares the sizes of all pictures; a plain folder declares none."""
    return replace(data, sizes=image_sizes(data)[:, ::-1])


def _detector(run: Path, labels: LabelMap) -> Path:
    """The run's last detector of all its classes."""
    stages = (run / stage / CHECKPOINT_FILE for stage in reversed(TRAINED))
    for path in (run / DETECTOR_FILE, *stages):
        if is_file(path) and set(checkpoint.read_header(path).labels.classes) == {*labels.classes}:
            return path
    new = ", ".join(map(shown, labels.novel))
    raise UserError(f"{run}: no detector of {new} yet.", f"First: mini run {run}.")


def _shots_in(train: Dataset, shots: Dataset, labels: LabelMap) -> Boxes:
    """The shots of new classes, on the training images; those in other pictures are left out."""
    novel = shots.boxes.take(is_of(shots, labels.novel))
    index = {name: i for i, name in enumerate(train.files)}
    image = np.array([index.get(name, -1) for name in shots.files], dtype=np.int64)[novel.image]
    outside = int((image < 0).sum())
    if outside:
        boxes = console.count(outside, "earlier box")
        console.note(f"{boxes} left out: in pictures that are not among the photos of the run")
    kept = Boxes.of(image, novel.xywh, novel.label)
    return kept.take(kept.image >= 0)


def _repeats(mined: Boxes, shots: Boxes) -> Bools:
    """(n,) whether a mined box is that of a shot of its class."""
    repeated = np.zeros(len(mined), dtype=np.bool_)
    m, s = pairs_within(mined.image, shots.image)
    same = mined.label[m] == shots.label[s]
    close = iou(mined.xywh[m], shots.xywh[s]) >= SAME_OBJECT
    repeated[m[same & close]] = True
    return repeated


def refuse_known(new: Sequence[str], labels: LabelMap) -> None:
    """A class of the former run cannot be added."""
    known = {folded(name): name for name in labels.classes}
    again = [known[folded(name)] for name in new if folded(name) in known]
    if again:
        raise UserError(
            f"--add: the run knows {', '.join(map(shown, again))} already.",
            "To improve it, correct the run's pool.json and run it again.",
        )


def write_labels(found: Earlier, folder: Path) -> None:
    """A file for each image set, in a folder that `data.root` can name."""
    info = {"description": "labels, boxes and mined boxes of a run"}
    write_coco(folder / "annotations" / "train.json", found.data, found.labels, info)
    if found.test is not None:
        first = len(found.data) + 1
        write_coco(folder / "annotations" / "test.json", found.test, found.labels, info, first)


def photos_of(found: Earlier) -> Path:
    """The folder of the photos: a .zip stays the .zip, since its folder in the cache may go."""
    data = found.config.data
    assert data.root is not None
    given = data.pictures or data.root
    return given if is_archive(given) else found.data.root


def taken_over(config: Config, preset: str) -> list[Choice]:
    """Keys in which the former run differs from the preset."""
    k = config.shots.k or 1
    usual = _flat(resolve(preset, [f"shots.k={k}"]).model_dump(mode="json"))
    own = _flat(config.model_dump(mode="json"))
    return [
        Choice(key, own[key], "as in the former run")
        for key in KEYS
        if key not in GIVEN and own[key] != usual[key]
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
