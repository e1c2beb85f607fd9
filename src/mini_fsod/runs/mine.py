"""The stage `mine`: offline mining of the base images (paper, section 3.2).

It is not resumed half way: its files are written one after another, each whole, and the figures
last, so that a killed stage starts again. What the scan has found lies beside the stages' folders
(`raw.npz`), and outlives a repeated stage.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mini_fsod import checkpoint, show
from mini_fsod.data.dataset import Boxes, Dataset, Ints
from mini_fsod.data.split import arranged, is_of
from mini_fsod.detector.settings import CAFFE, IMAGENET
from mini_fsod.discriminator.load import load, parse
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import read_detections
from mini_fsod.feed.batches import Plan, each_once
from mini_fsod.files import is_file, write_bytes, write_json
from mini_fsod.keys import Mine
from mini_fsod.labels import LabelMap
from mini_fsod.mining import files
from mini_fsod.mining.audit import audit, judge
from mini_fsod.mining.calibration import prototypes
from mini_fsod.mining.candidates import Candidates, Raw, candidates, from_detections
from mini_fsod.mining.scan import Judge, at_other_size, box_features, judged, scan
from mini_fsod.mining.sheet import write_sheets
from mini_fsod.mining.thresholds import pool
from mini_fsod.runs import folder
from mini_fsod.runs.base import checkpoint_of, onto
from mini_fsod.runs.material import counted
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import wait_for_all

RAW = "raw.npz"
CANDIDATES, THRESHOLDS, POOL, AUDIT = (
    f"{name}.json" for name in ("candidates", "thresholds", "pool", "audit")
)
AT_ONCE = {"cuda": 16}  # images
AT_ONCE_ELSEWHERE = 2
LOOKED_AT = 1024  # base images whose boxes make the mean feature


def ready(own: Mine) -> None:
    """Say now, not after hours of training, what mining will lack."""
    if own.discriminator != "none":
        parse(own.discriminator)
    if own.given is not None and not is_file(own.given):
        raise UserError(f"{own.given}: there is no such pool.", "Check mine.given.")
    if own.detections is not None and not is_file(own.detections):
        raise UserError(
            f"{own.detections}: there is no such file of detections.", "Check mine.detections."
        )


def mine(run: Run) -> None:
    """Scan, unless a scan of the same detector and discriminator is there; choose; write."""
    place, given = run.out / "mine", run.config.mine.given
    if run.team.leads and given is not None:
        _take(given, place)
    elif run.team.leads:
        begun = time.perf_counter()
        place.mkdir(parents=True, exist_ok=True)
        data = run.material.mined
        raw = _raw(run, data)
        scanned = time.perf_counter() - begun
        figures = choose(run, raw, data, place)
        figures |= {"seconds": time.perf_counter() - begun, "scan_seconds": scanned}
        write_json(place / folder.METRICS, figures)
    wait_for_all(run.team)


def _take(given: Path, place: Path) -> None:
    """What another run has mined: its files, the figures last."""
    place.mkdir(parents=True, exist_ok=True)
    for name in (POOL, CANDIDATES, THRESHOLDS, AUDIT):
        if is_file(given.parent / name):
            write_bytes(place / name, (given.parent / name).read_bytes())
    figures = folder.metrics(given.parent) or {"seconds": 0.0}
    write_json(place / folder.METRICS, figures | {"given": str(given)})


def choose(run: Run, raw: Raw, data: Dataset, place: Path) -> dict[str, Any]:
    """From pairs to the pool, and all files about it; the stage's figures."""
    own, labels = run.config.mine, run.material.labels
    on_base = arranged(data, LabelMap(labels.base, ())).boxes if own.drop_on_base else None
    fixed = None if own.threshold == "adaptive" else float(own.threshold)

    def chosen(raw: Raw) -> tuple[Candidates, Any, Any]:
        found = candidates(raw, own.cut, own.tau, own.centre, on_base)
        return found, *pool(found, labels.novel, fixed, own.alpha, own.most)

    found, kept, table = chosen(raw)
    files.write_candidates(place / CANDIDATES, found, data, labels)
    files.write_thresholds(place / THRESHOLDS, own.cut, table)
    files.write_pool(place / POOL, found.take(kept), data, labels)
    figures: dict[str, Any] = {"candidates": len(found), "kept": int(kept.sum())}
    by_class = ", ".join(f"{name} {row.kept:,}" for name, row in table.items())
    show.note(f"mined {figures['kept']:,} of {figures['candidates']:,} candidates: {by_class}")
    verdict = None
    if _are_known(data, run.material.shots, labels):
        plain = None if raw.dots is None else chosen(replace(raw, dots=None))[:2]
        told = audit(found, kept, data, labels, plain)
        write_json(place / AUDIT, told)
        verdict = judge(found, data, labels)
        figures |= {"precision": told["pool"]["precision"], "recall": told["pool"]["recall"]}
        if figures["precision"] is not None:
            show.note(f"of them {100 * figures['precision']:.1f} % are right (audit.json)")
    write_sheets(place, data, found, kept, labels, verdict)
    return figures


def _are_known(data: Dataset, shots: Dataset, labels: LabelMap) -> bool:
    """Whether novel objects are annotated beyond the shots, so that mining can be judged."""

    def novel(of: Dataset) -> set[tuple[Any, ...]]:
        boxes = of.boxes.take(is_of(of, labels.novel))
        files = [of.files[i] for i in boxes.image.tolist()]
        return set(zip(files, map(tuple, boxes.xywh.tolist()), strict=True))

    return bool(novel(data) - novel(shots))


# Pairs


def _raw(run: Run, data: Dataset) -> Raw:
    """The pairs above the cut: another tool's, or those of a scan, now or earlier."""
    own, labels = run.config.mine, run.material.labels
    if own.detections is None:
        given = run.config.transfer.checkpoint
        own_file = run.out / "transfer" / folder.CHECKPOINT
        detector_file = checkpoint_of(given, "transfer") if given else own_file
        if not is_file(detector_file):
            raise UserError(
                f"{detector_file}: the few-shot detector is not there.",
                "Repeat with --from transfer.",
            )
        return _once(run, data, detector_file, lambda: _scan(run, data, detector_file))
    found = read_detections(own.detections, data)
    raw = from_detections(found, data.classes, labels.novel, own.cut)
    if own.discriminator == "none":
        return raw
    return _once(run, data, own.detections, lambda: _judged(run, data, raw))


def _once(run: Run, data: Dataset, pairs_of: Path, make: Callable[[], Raw]) -> Raw:
    """What `make` gives, kept in the run's folder with what it was made of."""
    own, path = run.config.mine, run.out / RAW
    weights = None if own.discriminator == "none" else parse(own.discriminator)[1]
    made_of = [
        folder.digest(pairs_of),
        folder.digest(weights) if isinstance(weights, Path) else weights,
        own.model_dump(include={*LOOKS}, mode="json"),
        run.config.views.model_dump(mode="json"),
        [*data.files],
    ]
    source = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
    if is_file(path):
        kept = Raw.load(path)
        if kept.source == source and kept.cut <= own.cut:
            show.note(f"{path}: scanned already")
            return kept
    raw = replace(make(), source=source)
    raw.save(path)
    return raw


LOOKS = (
    "discriminator",
    "discriminator_short_side",
    "discriminator_normalisation",
    "discriminator_stride_in_1x1",
)


def _scan(run: Run, data: Dataset, detector_file: Path) -> Raw:
    own, views, material = run.config.mine, run.config.views, run.material
    saved = checkpoint.load(detector_file, run.config.detector.weights)
    detector = onto(saved.detector, run.device)
    batches, sizes = material.batches(data)
    plans = each_once(sizes, _at_once(run), views.test, views.long)
    judge = None
    if own.discriminator != "none":
        judge = _judge(run, at_other_size(plans, sizes, *_sides(own)))
    with show.progress("scanning", len(plans)) as told:
        return scan(
            detector,
            counted(batches, told),
            plans,
            len(material.labels.base),
            own.cut,
            run.device,
            run.bf16(run.config.transfer),
            judge,
        )


def _judged(run: Run, data: Dataset, raw: Raw) -> Raw:
    """Another tool's pairs, looked at by the discriminator."""
    boxes = Boxes.of(raw.image.astype(np.int64), raw.xywh, raw.label)
    batches, sizes = run.material.batches(data.with_boxes(boxes))
    seen = np.unique(boxes.image)
    if not len(seen):
        return raw
    plans = each_once(sizes, _at_once(run), *_sides(run.config.mine), images=seen)
    with show.progress("looking", len(plans)) as told:
        return judged(raw, boxes, _judge(run, plans), counted(batches, told))


def _at_once(run: Run) -> int:
    return AT_ONCE.get(run.device.type, AT_ONCE_ELSEWHERE)


def _sides(own: Mine) -> tuple[int, int]:
    return own.discriminator_short_side, 2 * own.discriminator_short_side


def _judge(run: Run, plans: Sequence[Plan]) -> Judge:
    """The discriminator, prototypes of the K shots (Eq. 2), and the mean feature of base boxes."""
    own, labels, material = run.config.mine, run.material.labels, run.material
    normalisation = {"auto": None, "imagenet": IMAGENET, "caffe": CAFFE}
    discriminator = load(
        own.discriminator,
        run.device,
        normalisation[own.discriminator_normalisation],
        own.discriminator_stride_in_1x1,
    )

    def features(data: Dataset, images: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        batches, sizes = material.batches(data)
        shown = each_once(sizes, _at_once(run), *_sides(own), images=images)
        box, found = zip(*box_features(discriminator, batches, shown), strict=True)
        label = torch.from_numpy(data.boxes.label).to(run.device)
        return torch.cat(found), label[torch.cat(box)]

    shots = arranged(material.shots, LabelMap(labels.novel, ()))
    of_shots = prototypes(*features(shots, np.unique(shots.boxes.image)), labels.novel)
    base = material.base
    some = np.unique(np.linspace(0, len(base) - 1, min(LOOKED_AT, len(base))).astype(np.int64))
    return Judge(discriminator, of_shots, features(base, some)[0].mean(0), plans)
