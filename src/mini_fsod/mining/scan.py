"""The stage `scan`: the few-shot detector and the discriminator look at the images to mine.

It stores pairs of a proposal and a novel class (`pairs.Pairs`), from which the stage `mine`
chooses. The keys it depends on are in `runs.identity.SCAN_KEYS` and `DISCRIMINATOR_SCAN_KEYS`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Boxes, Dataset, Ints
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import CAFFE
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.load import load_discriminator
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import read_detections
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.mining.base_objects import find_base_objects
from mini_fsod.mining.calibration import dot_products
from mini_fsod.mining.crops import (
    CropReference,
    cheap_comparison,
    discriminator_sides,
    feature_batches,
    gather_parts,
    images_per_batch,
    reference_of,
    thinned,
    with_crop_features,
)
from mini_fsod.mining.extra import extra_images
from mini_fsod.mining.find_pairs import (
    PrototypeComparison,
    compare_given_pairs,
    find_pairs,
    plans_at_size,
)
from mini_fsod.mining.pairs import Pairs, pairs_from_detections
from mini_fsod.runs.data import counted
from mini_fsod.runs.detectors import load_detector, to_device
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import gather

PAIRS = "raw.npz"  # of the training images
EXTRA_PAIRS = "raw-extra.npz"  # of `mine.extra`
BASE_PAIRS, EXTRA_BASE_PAIRS = "raw-base.npz", "raw-extra-base.npz"  # possible base objects

Reference = PrototypeComparison | CropReference | None


def scan(run: Run, folder: Path) -> dict[str, Any]:
    """Find the pairs of the images to mine; rank 0 writes them into `folder`."""
    section, detector, reference = run.config.mine, None, reference_for(run)
    if section.detections is None:
        detector = to_device(load_detector(run, "transfer").detector, run.device)
    figures = scan_training_images(run, folder, detector, reference, not section.extra_only)
    if isinstance(reference, CropReference):
        figures["crop"] = reference.discriminator.crop
    if section.extra is not None:
        assert detector is not None  # `check_extra`: not together with `mine.detections`
        extra = _extra_images(run, section.extra)
        for line in (f"{extra.root}: {console.count(len(extra), 'extra image')}", *extra.notes):
            console.note(line)
        pairs = _pairs(run, extra, detector, reference)
        _save(run, replace(pairs, files=extra.files), folder / EXTRA_PAIRS)
        found = find_base_objects(run, extra, detector, run.team)
        _save(run, found, folder / EXTRA_BASE_PAIRS)
        figures |= {"extra_images": len(extra), "extra_pairs": len(pairs)}
    return figures


def scan_training_images(
    run: Run,
    folder: Path,
    detector: Detector | None,
    reference: Reference,
    looks: bool = True,
) -> dict[str, Any]:
    """Find the pairs of the training images; with `looks` false there are none. `detector` is None
    where they come from a file (`mine.detections`).
    """
    data = run.data.mined
    pairs = Pairs.of([], [], [], [], [])
    if looks:
        pairs = _pairs(run, data, detector, reference)
    _save(run, replace(pairs, files=data.files), folder / PAIRS)
    if run.data.missing(data).any():
        finder = detector or to_device(load_detector(run, "base").detector, run.device)
        _save(run, find_base_objects(run, data, finder, run.team), folder / BASE_PAIRS)
    return {"images": len(data) if looks else 0, "pairs": len(pairs)}


def reference_for(run: Run) -> Reference:
    """What the configured discriminator compares boxes with; None without one."""
    discriminator = discriminator_of(run.config, run.device)
    return None if discriminator is None else reference_of(run, discriminator)


def _save(run: Run, pairs: Pairs, path: Path) -> None:
    if run.team.leads:
        pairs.save(path)


def _extra_images(run: Run, folder: Path) -> Dataset:
    """The extra images. One process decodes all of them to find the readable ones."""
    found = extra_images(run.data, folder) if run.team.leads else None
    files = gather(None if found is None else found.files, run.team)[0]
    return found or extra_images(run.data, folder, files)


def discriminator_of(config: Config, device: torch.device) -> Discriminator | None:
    """The configured discriminator on the device; None without one."""
    section = config.discriminator
    if section.weights == "none":
        return None
    found = load_discriminator(
        section.weights, device, CAFFE if section.caffe else None, section.caffe, section.crop
    )
    of_crops = section.whiten or section.refine or config.mine.box_correction
    if found.crop is None and (of_crops or config.mine.candidates == "proposals"):
        raise UserError(
            "discriminator.whiten, .refine, .compete, mine.box_correction and mine.candidates: "
            "proposals need features of crops.",
            "Set discriminator.crop, for example to 224, or leave these keys out.",
        )
    return found


def _pairs(run: Run, data: Dataset, detector: Detector | None, reference: Reference) -> Pairs:
    """The pairs of a data set, by the detector; None: from the file of detections."""
    comparison = reference if isinstance(reference, PrototypeComparison) else None
    any_class = run.config.mine.candidates == "proposals"
    if any_class and isinstance(reference, CropReference):
        comparison = cheap_comparison(run, reference.discriminator)
    if detector is None:
        pairs = _given_pairs(run, data)
        if comparison is not None and len(pairs):
            pairs = _compare_given_pairs(run, data, pairs, comparison)
    else:
        pairs = detected_pairs(run, data, detector, comparison)
    if any_class:
        pairs = thinned(run, data, pairs)
    if isinstance(reference, CropReference):
        pairs = with_crop_features(run, data, reference, pairs)
    return pairs


def _compare_given_pairs(
    run: Run, data: Dataset, pairs: Pairs, comparison: PrototypeComparison
) -> Pairs:
    """Another tool's pairs, compared with the shots."""
    boxes = Boxes.of(pairs.image.astype(np.int64), pairs.xywh, pairs.label)
    title = "comparing with the shots"
    features = feature_batches(run, comparison.discriminator, data.with_boxes(boxes), title)
    parts = [(box, dot_products(part, comparison.prototypes)) for box, part in features]
    box, products = gather_parts(run, parts, len(comparison.prototypes) + 1)
    return compare_given_pairs(pairs, boxes, comparison, box, products)


def detected_pairs(
    run: Run, data: Dataset, detector: Detector, comparison: PrototypeComparison | None
) -> Pairs:
    """The pairs that the few-shot detector finds in a data set."""
    section = run.config.mine
    batches, sizes = run.data.batches(data)
    plans = run.team.part(scan_plans(run, sizes))
    if comparison is not None:
        others = plans_at_size(plans, sizes, *discriminator_sides(run))
        comparison = replace(comparison, plans=others)
    with console.progress("scanning", len(plans)) as progress:
        found = find_pairs(
            detector,
            counted(batches, progress),
            plans,
            len(run.data.labels.base),
            section.min_score,
            run.device,
            run.bf16(run.config.transfer),
            comparison,
            section.candidates == "proposals",
        )
    return Pairs.joined(gather(found, run.team))


def scan_plans(run: Run, sizes: Ints) -> list[Plan]:
    """The batches of a scan, for pictures of sizes (I, 2)."""
    views = run.config.views
    return [  # the long side's limit grows with the short side
        plan
        for short in run.config.mine.scan_short or (views.test,)
        for plan in each_once(sizes, images_per_batch(run), short, views.long * short // views.test)
    ]


def _given_pairs(run: Run, data: Dataset) -> Pairs:
    """The pairs of `mine.detections`."""
    section = run.config.mine
    assert section.detections is not None  # else there is a detector
    found = read_detections(section.detections, data)
    inside = data.overlaps_picture(found.image, found.xywh)
    if not inside.all():
        boxes = console.count(int((~inside).sum()), "box")
        console.note(f"{section.detections}: {boxes} outside of the picture left out")
    return pairs_from_detections(
        found.take(inside), data.classes, run.data.labels.novel, section.min_score
    )
