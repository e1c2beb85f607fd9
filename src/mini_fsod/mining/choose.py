"""The stage `mine`: offline mining of the base images (paper, section 3.3), after the scan.

It reads the pairs of the stage `scan`, calibrates their scores, and chooses boxes by thresholds; no
image is looked at again. It depends on the scan, on all keys of `mine`, and on
`discriminator.whiten`, `.refine` and `.compete`. With `mine.pool` it copies a pool instead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import NO_BOXES, Bools, Boxes, Dataset
from mini_fsod.data.overlap import best_of_each
from mini_fsod.data.subsets import arranged
from mini_fsod.errors import UserError
from mini_fsod.files import copy_content, is_file, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.mining import extra, pool_io
from mini_fsod.mining.audit import (
    TRUE,
    GroundTruth,
    Verdict,
    audit,
    judge_candidates,
    judge_with_pool,
    seem_complete,
    why_not_judged,
)
from mini_fsod.mining.base_objects import BASE_OBJECTS, base_labels, sort_out
from mini_fsod.mining.box_correction import corrected_boxes
from mini_fsod.mining.candidates import Candidates, not_nested, select_candidates
from mini_fsod.mining.contact_sheet import write_sheets
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.pool_io import AUDIT, CANDIDATES, POOL, THRESHOLDS
from mini_fsod.mining.scan import (
    BASE_PAIRS,
    EXTRA_BASE_PAIRS,
    EXTRA_PAIRS,
    PAIRS,
    discriminator_of,
)
from mini_fsod.mining.thresholds import Threshold, choose_pool, few_mined_note
from mini_fsod.mining.tighten import tighten
from mini_fsod.runs.pool import EXTRA_POOL, mined_folder
from mini_fsod.runs.run import Run
from mini_fsod.segmenter.load import load_segmenter

CROP_KEYS = tuple(f"discriminator.{name}" for name in ("crop", "whiten", "refine", "compete"))


def check_mining(config: Config) -> None:
    """Raise a UserError for what would make the stages `scan`, `mine` and `online` fail after hours
    of training.
    """
    section = config.mine
    if section.pool is None:
        discriminator_of(config, torch.device("cpu"))  # its file may be damaged, its name unknown
        if section.segmenter is not None:
            load_segmenter(section.segmenter, torch.device("cpu"))
        _note_unused_keys(config)
    elif not is_file(section.pool):
        raise UserError(
            f"{section.pool}: there is no such pool.",
            "Set mine.pool to the folder of a run that has mined, or to its pool.json.",
        )
    elif (
        config.online.ignore_candidates
        and not config.online.oracle
        and not is_file(mined_folder(section.pool) / CANDIDATES)
    ):
        raise UserError(
            f"{section.pool}: online.ignore_candidates needs {CANDIDATES} beside it.",
            "Copy it there, or set online.ignore_candidates to false.",
        )
    if section.detections is not None and not is_file(section.detections):
        raise UserError(f"{section.detections}: there is no such file.", "Check mine.detections.")
    if section.candidates == "proposals" and config.discriminator.weights == "none":
        raise UserError(
            "mine.candidates: proposals needs a discriminator to tell classes apart.",
            "Set discriminator.weights and .crop, or mine.candidates to transfer.",
        )
    if config.transfer.calibration == "prototypes" and config.discriminator.weights == "none":
        raise UserError(
            "transfer.calibration: prototypes compares candidates with the shots, which needs a "
            "discriminator.",
            "Set discriminator.weights, for example to resnet50:IMAGENET1K_V1.",
        )
    extra.check_extra(section)


def _note_unused_keys(config: Config) -> None:
    section = config.discriminator
    values = {name: getattr(section, name.split(".")[1]) for name in CROP_KEYS}
    values["mine.box_correction"] = config.mine.box_correction
    unused = [name for name, value in values.items() if value not in (None, "file", 0, False)]
    if section.weights == "none" and unused:
        has = "this key has" if len(unused) == 1 else "these keys have"
        console.note(f"discriminator.weights is none, so {has} no effect: {', '.join(unused)}")


def mine(run: Run, folder: Path) -> dict[str, Any]:
    """Choose the pool, and write it with all files about it into `folder`; in one process."""
    section, data = run.config.mine, run.data.mined
    if section.pool is not None:
        return _copy(section.pool, section.extra, folder)
    scan = run.folder("scan")
    pairs = Pairs.load(scan / PAIRS)
    if pairs.files != data.files:
        raise UserError(
            f"{scan / PAIRS}: the data set has other images than when it was scanned.",
            f"Delete the folder {scan} and repeat the command: it scans again.",
        )
    missing = run.data.missing(data)
    sure = NO_BOXES
    if missing.any():
        sure = _base_objects(run, data, scan / BASE_PAIRS, folder, missing)
    figures = _choose(run, pairs, data, folder, section.per_class, sure)
    if section.extra is not None:
        pairs = Pairs.load(scan / EXTRA_PAIRS)
        images = extra.extra_images(run.data, section.extra, pairs.files)
        of_extra = folder / extra.EXTRA
        missing = extra.no_labels(images, run.data.labels)
        sure = _base_objects(run, images, scan / EXTRA_BASE_PAIRS, of_extra, missing)
        about = {"folder": str(section.extra), "images": len(images)}
        figures[extra.EXTRA] = about | _choose(
            run, pairs, images, of_extra, section.extra_per_class, sure
        )
    return figures


def best_mined(run: Run, scanned: Path, per_class: int) -> Candidates:
    """The best boxes of each novel class in the pool that `mine` would choose from the scan of the
    training images in `scanned`.
    """
    section, data, sure = run.config.mine, run.data.mined, NO_BOXES
    missing = run.data.missing(data)
    if missing.any():
        objects = select_candidates(Pairs.load(scanned / BASE_PAIRS))
        sure = sort_out(objects, missing, run.config.base.sure, NO_BOXES)[0]
    by_prototypes = run.config.transfer.calibration == "prototypes"
    found, kept, _ = _candidates_and_pool(
        run, Pairs.load(scanned / PAIRS), data, section.per_class, sure, by_prototypes
    )
    pool = found.take(kept)
    return pool.take(best_of_each(pool.label, pool.score, per_class))


def _base_objects(run: Run, data: Dataset, pairs: Path, folder: Path, missing: Bools) -> Boxes:
    """Write `base.json`; returns the detections that count as base labels (`sort_out`)."""
    found = select_candidates(Pairs.load(pairs))
    pool_io.write_candidates(folder / BASE_OBJECTS, found, data, base_labels(run.data.labels))
    return sort_out(found, missing, run.config.base.sure, NO_BOXES)[0]


def _copy(given: Path, images: Path | None, folder: Path) -> dict[str, Any]:
    """Copy a pool and the files about it. Its extra images may be in another folder now."""
    source = mined_folder(given)
    pools = {POOL: given, f"{extra.EXTRA}/{POOL}": source / extra.EXTRA / POOL}
    corrected = given.parent / EXTRA_POOL
    if is_file(corrected):
        pools[f"{extra.EXTRA}/{POOL}"] = corrected
    others = (CANDIDATES, THRESHOLDS, AUDIT, BASE_OBJECTS)
    names = (*others, *(f"{extra.EXTRA}/{name}" for name in others))
    for name, path in ({name: source / name for name in names} | pools).items():
        if is_file(path):
            copy_content(path, folder / name)
    figures = extra.figures_in(source)
    figures.pop("seconds", None)  # they were spent elsewhere
    if images is not None:
        figures[extra.EXTRA] = figures.get(extra.EXTRA, {}) | {"folder": str(images)}
    return figures | {"given": str(given)}


def _choose(
    run: Run, pairs: Pairs, data: Dataset, folder: Path, per_class: int, sure: Boxes
) -> dict[str, Any]:
    """Choose the pool of some images, write all files about it, and return its figures.

    The boxes `sure` stand in for missing base labels.
    """
    labels = run.data.labels
    by_prototypes = run.config.transfer.calibration == "prototypes"
    found, kept, table = _candidates_and_pool(run, pairs, data, per_class, sure, by_prototypes)
    as_found, boxes_as_found = None, None
    if run.config.mine.segmenter is not None:
        segmenter = load_segmenter(run.config.mine.segmenter, run.device)
        as_found = found, kept
        found, kept = tighten(segmenter, data, found, kept, run.device)
        boxes_as_found = as_found[0].xywh[kept]
        table = {
            name: replace(row, kept=int(kept[found.label == index].sum()))
            for index, (name, row) in enumerate(table.items())
        }
    pool_io.write_candidates(folder / CANDIDATES, found, data, labels)
    pool_io.write_thresholds(folder / THRESHOLDS, run.config.mine.min_score, table)
    pool_io.write_pool(folder / POOL, found.take(kept), data, labels, boxes_as_found)
    figures: dict[str, Any] = {"candidates": len(found), "kept": int(kept.sum())}
    if len(found):
        figures["best_score"] = float(found.score.max())
    by_class = {name: row.kept for name, row in table.items()}
    counts = ", ".join(f"{name} {number:,}" for name, number in by_class.items())
    console.note(f"mined {figures['kept']:,} of {figures['candidates']:,} candidates: {counts}")
    if line := few_mined_note(table):
        console.note(line)
    verdict: Verdict | None = None
    truth = GroundTruth.of(data, run.data.shots, labels)
    hidden = len(truth.hidden)
    if seem_complete(hidden, figures["kept"]):
        plain = None
        if found.cosine is not None:
            detector_alone = replace(pairs, products=None, crops=None)
            plain = _candidates_and_pool(run, detector_alone, data, per_class, sure, False)[:2]
        audited = audit(found, kept, truth, plain, as_found)
        write_json(folder / AUDIT, audited)
        verdict = judge_with_pool(judge_candidates(found, truth), found, kept, truth)
        figures |= {name: audited["pool"][name] for name in ("precision", "recall")}
        if figures["precision"] is not None:
            console.note(
                f"precision {100 * figures['precision']:.1f} % by the annotations ({AUDIT})"
            )
    elif hidden:
        kind = judge_candidates(found.take(kept), truth).kind
        console.note(why_not_judged(hidden, figures["kept"], int((kind == TRUE).sum())))
    write_sheets(folder, data, found, kept, labels, verdict)
    return figures


def _candidates_and_pool(
    run: Run,
    pairs: Pairs,
    data: Dataset,
    per_class: int,
    sure: Boxes,
    by_prototypes: bool,
) -> tuple[Candidates, Bools, dict[str, Threshold]]:
    """The candidates (Eq. 4), which of them are in the pool (Eq. 1, 5), and why."""
    section, labels = run.config.mine, run.data.labels
    on_base = None
    if section.drop_on_base:
        on_base = arranged(data, LabelMap(labels.base, ())).boxes.joined(sure)
    discriminator = run.config.discriminator
    found = select_candidates(
        pairs,
        section.tau,
        on_base,
        whiten=discriminator.whiten,
        refine=discriminator.refine,
        compete=discriminator.compete,
        by_prototypes=by_prototypes,
    )
    eligible = not_nested(found) if section.drop_nested else None
    if discriminator.compete:
        uncontested = found.score > 0
        eligible = uncontested if eligible is None else eligible & uncontested
    if section.box_correction and pairs.crops is not None:
        sizes = image_sizes(data)[found.image][:, ::-1]
        correction = pairs.crops.correction[found.label]
        found = replace(found, xywh=corrected_boxes(found.xywh, correction, sizes))
    fixed = None if section.threshold == "adaptive" else float(section.threshold)
    kept, table = choose_pool(
        found, labels.novel, fixed, section.alpha, per_class, section.mean_score, eligible
    )
    return found, kept, table
