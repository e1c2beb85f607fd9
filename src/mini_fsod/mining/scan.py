"""What mining chooses from: the pairs that a scan of images finds, or another tool has found, and
what the discriminator says of them. Kept in the run's folder (`raw.npz`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mini_fsod import checkpoint, console
from mini_fsod.config.schema import Mine
from mini_fsod.data.dataset import Boxes, Dataset, Floats, Ints
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.settings import NORMALISATIONS
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.load import load, parse
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import read_detections
from mini_fsod.files import digest, is_file, real
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.mining.box_correction import STRETCHES, best_stretch, stretched
from mini_fsod.mining.calibration import prototypes
from mini_fsod.mining.candidates import Raw, candidates, from_detections
from mini_fsod.mining.crop_similarity import Seen, principal_axes
from mini_fsod.mining.pairs import Judge, at_other_size, box_features, judged, scan
from mini_fsod.runs.base import configured, onto
from mini_fsod.runs.data import counted
from mini_fsod.runs.run import Run

RAW = "raw.npz"
AT_ONCE = {"cuda": 16}  # images
AT_ONCE_ELSEWHERE = 2
LOOKED_AT = 1024  # base images whose boxes make the mean feature
COMPARED = 4096  # base images whose boxes make a measure of likeness
LOOKS = (
    "short",
    "discriminator",
    "discriminator_short_side",
    "discriminator_crop",
    "discriminator_normalisation",
    "discriminator_stride_in_1x1",
    "stretch",
)
SEARCHES = ("rpn_before", "rpn_after", "nms", "detections", "rank_by_iou")  # of a detector
STRETCHED = 100  # of the best candidates of a class tell how its boxes are to be stretched


def pairs(run: Run, data: Dataset, miner: Path | None, name: str = RAW) -> Raw:
    """The pairs above the cut: those of a scan by the detector of a file, now or earlier, or
    another tool's. They are kept in the file `name`.
    """
    own, labels = run.config.mine, run.material.labels
    if miner is not None:
        return once(run, data, miner, lambda: _scan(run, data, miner), name)
    assert own.detections is not None  # `rounds.miner` says so
    found = read_detections(own.detections, data)
    seen = data.overlaps_picture(found.image, found.xywh)
    if not seen.all():
        boxes = console.count(int((~seen).sum()), "box")
        console.note(f"{own.detections}: {boxes} wholly outside of the picture left out")
    raw = from_detections(found.take(seen), data.classes, labels.novel, own.cut)
    if own.discriminator == "none":
        return raw
    return once(run, data, own.detections, lambda: _judged(run, data, raw), name)


def once(run: Run, data: Dataset, pairs_of: Path, make: Callable[[], Raw], name: str) -> Raw:
    """What `make` gives, kept in the run's folder with what it was made of."""
    own, path = run.config.mine, run.out / name
    weights = None if own.discriminator == "none" else parse(own.discriminator)[1]
    made_of = [
        digest(pairs_of),
        digest(weights) if isinstance(weights, Path) else weights,
        own.model_dump(include={*LOOKS}, mode="json"),
        run.config.views.model_dump(mode="json"),
        run.config.detector.model_dump(include={*SEARCHES}, mode="json"),
        [*data.files],
        # labels are counted by the classes; prototypes and mean features come from these boxes
        run.material.labels.classes,
        *(known.digest for known in (run.material.shots, run.material.base)),
    ]
    if data.root != run.material.data.root:  # two folders may hold the same names
        made_of.append(str(real(data.root)))
    source = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    if is_file(path):
        kept = Raw.load(path)
        if kept is not None and kept.source == source and kept.cut <= own.cut:
            console.note(f"{path}: scanned already")
            return kept
    raw = replace(make(), source=source)
    raw.save(path)
    return raw


def _scan(run: Run, data: Dataset, detector_file: Path) -> Raw:
    own, views, material = run.config.mine, run.config.views, run.material
    discriminator = load_discriminator(run.config.mine, run.device)
    saved = checkpoint.load(detector_file, run.config.detector.weights)
    saved.detector.settings = configured(saved.detector.settings, run.config)
    detector = onto(saved.detector, run.device)
    batches, sizes = material.batches(data)
    plans = [  # the limit of the long side grows with the short one
        plan
        for short in own.short or (views.test,)
        for plan in each_once(sizes, at_once(run), short, views.long * short // views.test)
    ]
    judge = None
    if discriminator is not None and discriminator.crop is None:
        judge = _judge(run, discriminator, at_other_size(plans, sizes, *_sides(own)))
    with console.progress("scanning", len(plans)) as told:
        raw = scan(
            detector,
            counted(batches, told),
            plans,
            len(material.labels.base),
            own.cut,
            run.device,
            run.bf16(run.config.transfer),
            judge,
        )
    if discriminator is None or discriminator.crop is None:
        return raw
    return _one_by_one(run, data, discriminator, raw)


def _judged(run: Run, data: Dataset, raw: Raw) -> Raw:
    """Another tool's pairs, looked at by the discriminator."""
    discriminator = load_discriminator(run.config.mine, run.device)
    if discriminator is None or not len(raw):
        return raw
    if discriminator.crop is not None:
        return _one_by_one(run, data, discriminator, raw)
    boxes = Boxes.of(raw.image.astype(np.int64), raw.xywh, raw.label)
    batches, sizes = run.material.batches(data.with_boxes(boxes))
    plans = each_once(sizes, at_once(run), *_sides(run.config.mine), images=np.unique(boxes.image))
    with console.progress("looking", len(plans)) as told:
        return judged(raw, boxes, _judge(run, discriminator, plans), counted(batches, told))


def at_once(run: Run) -> int:
    return AT_ONCE.get(run.device.type, AT_ONCE_ELSEWHERE)


def _sides(own: Mine) -> tuple[int, int]:
    return own.discriminator_short_side, 2 * own.discriminator_short_side


def load_discriminator(own: Mine, device: torch.device) -> Discriminator | None:
    if own.discriminator == "none":
        return None
    found = load(
        own.discriminator,
        device,
        NORMALISATIONS[own.discriminator_normalisation],
        own.discriminator_stride_in_1x1,
        own.discriminator_crop,
    )
    if found.crop is None and (own.whiten or own.refine or own.stretch):
        raise UserError(
            "mine.whiten, mine.refine and mine.stretch compare boxes that were cut out one by one.",
            "Set mine.discriminator_crop, 224 for example, or leave them out.",
        )
    return found


def _features(
    run: Run, discriminator: Discriminator, data: Dataset, images: Ints, title: str = ""
) -> Iterator[tuple[Tensor, Tensor]]:
    """`box_features` of the boxes of these images."""
    batches, sizes = run.material.batches(data)
    plans = each_once(sizes, at_once(run), *_sides(run.config.mine), images=images)
    with console.progress(title or "looking", len(plans)) as told:
        yield from box_features(discriminator, counted(batches, told), plans)


def _of_known(
    run: Run, discriminator: Discriminator, most: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Features and labels of the novel shots, and of the boxes of some base images."""
    labels, base = run.material.labels, run.material.base
    shots = arranged(run.material.shots, LabelMap(labels.novel, ()))
    some = np.unique(np.linspace(0, len(base) - 1, min(most, len(base))).astype(np.int64))

    def all_of(data: Dataset, images: Ints) -> tuple[Tensor, Tensor]:
        box, found = zip(*_features(run, discriminator, data, images), strict=True)
        label = torch.from_numpy(data.boxes.label).to(run.device)
        return torch.cat(found), label[torch.cat(box)]

    return all_of(shots, np.unique(shots.boxes.image)), all_of(base, some)


def _judge(run: Run, discriminator: Discriminator, plans: Sequence[Plan]) -> Judge:
    """The discriminator, prototypes of the K shots (Eq. 2), and the mean feature of base boxes."""
    shots, base = _of_known(run, discriminator, LOOKED_AT)
    of_shots = prototypes(*shots, run.material.labels.novel)
    return Judge(discriminator, of_shots, base[0].mean(0), plans)


def _one_by_one(run: Run, data: Dataset, discriminator: Discriminator, raw: Raw) -> Raw:
    """What NMS leaves of the pairs, each cut out of its picture and seen by itself."""
    found = candidates(raw, raw.cut)
    left = Raw.of(found.image, found.label, found.score, found.xywh, np.arange(len(found)), raw.cut)
    (shots, shots_label), (base, base_label) = _of_known(run, discriminator, COMPARED)
    prototypes(shots, shots_label, run.material.labels.novel)  # says where there is none
    mean, axes = principal_axes(base)
    boxes = Boxes.of(found.image, found.xywh, found.label)  # in the same order: by image
    seen = torch.zeros(len(found), axes.shape[1], device=run.device)
    if len(found):
        shown = data.with_boxes(boxes)
        images = np.unique(boxes.image)
        for box, features in _features(run, discriminator, shown, images, "looking closer"):
            seen[box] = (features - mean) @ axes

    def host(features: Tensor) -> Floats:
        return features.double().cpu().numpy()

    looks = Seen(
        host(seen),
        host((base - mean) @ axes),
        base_label.cpu().numpy(),
        host((shots - mean) @ axes),
        shots_label.cpu().numpy(),
        np.tile(STRETCHES[:1], (len(run.material.labels.novel), 1)),
    )
    if run.config.mine.stretch:
        drawn = prototypes(shots - mean, shots_label, run.material.labels.novel)
        before = replace(left, seen=looks)
        stretch = _stretches(run, data, discriminator, before, mean, drawn)
        looks = replace(looks, stretch=stretch)
    return replace(left, seen=looks)


def _stretches(
    run: Run, data: Dataset, discriminator: Discriminator, raw: Raw, mean: Tensor, drawn: Tensor
) -> Floats:
    """(C, 3) how boxes of each class are to be stretched, by the best of its candidates.

    mean (D,) is the mean feature of base boxes, drawn (C, D) the prototypes relative to it.
    """
    labels = run.material.labels
    on_base = arranged(data, LabelMap(labels.base, ())).boxes
    found = candidates(raw, raw.cut, on_base=on_base, whiten=True, refine=STRETCHED)
    best = np.concatenate(
        [
            own[np.argsort(-found.score[own], kind="stable")[:STRETCHED]]
            for own in (np.flatnonzero(found.label == c) for c in range(len(labels.novel)))
        ]
    )
    found = found.take(np.sort(best))  # by image again
    stretch = np.tile(STRETCHES[:1], (len(labels.novel), 1))
    if not len(found):
        return stretch
    number = len(STRETCHES)
    image, label = (np.repeat(column, number) for column in (found.image, found.label))
    xywh = stretched(
        np.repeat(found.xywh, number, axis=0),
        np.tile(STRETCHES, (len(found), 1)),
        image_sizes(data)[image][:, ::-1],
    )
    shown = data.with_boxes(Boxes.of(image, xywh, label))
    seen = torch.zeros(len(image), len(mean), device=run.device)
    for box, features in _features(run, discriminator, shown, np.unique(image), "stretching"):
        seen[box] = features - mean
    table = seen.cpu().numpy().reshape(-1, number, len(mean))
    shots = drawn.cpu().numpy()
    for c, name in enumerate(labels.novel):
        stretch[c] = STRETCHES[best_stretch(table[found.label == c], shots[c])]
        if (stretch[c, :2] != 1).any():
            width, height, _ = stretch[c]
            console.note(f"boxes of {name} are drawn {width:g} x {height:g} times as large")
    return stretch
