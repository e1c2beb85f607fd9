"""Pictures from elsewhere, without annotations, mined beside the base images (`mine.extra`).

They have a population, thresholds, an N and files of their own, in `mine/extra`. Nobody has marked
base objects there, so where such may be is kept too (`base.json`): it is no background for sure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from mini_fsod import checkpoint, console
from mini_fsod.config.schema import Mine
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.folder import pictures_below, read_folder, unread_formats
from mini_fsod.data.pictures import PictureError, picture_sizes
from mini_fsod.errors import DataError, UserError
from mini_fsod.eval.inference import detect_all
from mini_fsod.files import is_file, is_folder, real
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import each_once
from mini_fsod.mining.candidates import Raw, candidates, from_detections
from mini_fsod.mining.pool_io import read_candidates, read_pool, write_candidates
from mini_fsod.mining.scan import at_once, once, pairs
from mini_fsod.online.targets import Extra
from mini_fsod.runs import folder
from mini_fsod.runs.base import configured, onto
from mini_fsod.runs.data import RunData, counted
from mini_fsod.runs.run import Run

EXTRA = folder.EXTRA
BASE = "base.json"
NEEDED = (folder.POOL, folder.CANDIDATES, BASE)  # to re-train
RAW_EXTRA, RAW_BASE = "raw-extra.npz", "raw-extra-base.npz"


def ready(own: Mine) -> None:
    """What is wrong with `mine.extra`, alone and together with other keys."""
    if own.given is not None:
        _ready_beside(own.given, own.extra)
    elif own.extra is None:
        if own.extra_only:
            raise UserError(
                "mine.extra_only: there are no pictures from elsewhere.",
                "Give their folder, mine.extra, or leave mine.extra_only out.",
            )
    elif own.detections is not None:
        raise UserError(
            f"{own.detections}: another tool's detections are of the training images, and know "
            f"nothing of the pictures in {own.extra}.",
            "Leave mine.detections or mine.extra out.",
        )
    else:
        _is_there(own.extra)


def _ready_beside(given: Path, extra: Path | None) -> None:
    """A pool that is given brings along what was mined elsewhere; the pictures must be there."""
    told = (folder.metrics(given.parent) or {}).get(EXTRA, {}).get("folder")
    place = given.parent / EXTRA
    if told is None and not is_folder(place):
        if extra is not None:
            raise UserError(
                f"{given}: this pool was mined without pictures from elsewhere.",
                "Leave mine.extra out, or mine.given: what is given is not mined again.",
            )
        return
    _are_there(place, "Copy it from where the pool was mined, or leave mine.given out.")
    if extra is None and told is None:
        raise UserError(
            f"{place}: nothing says which pictures this was mined from.",
            "Give their folder: mine.extra.",
        )
    _is_there(extra or Path(told))


def _is_there(pictures: Path) -> None:
    if not is_folder(pictures):
        raise UserError(f"{pictures}: there is no such folder of pictures.", "Check mine.extra.")


def _are_there(place: Path, fix: str) -> None:
    for name in NEEDED:
        if not is_file(place / name):
            raise UserError(f"{place / name}: it is not there.", fix)


def extra_images(material: RunData, pictures: Path) -> Dataset:
    """The pictures of a folder that are not the data's own, with the classes of the run.

    Annotations that may lie there are not read. Its notes say what was left out.
    """
    _is_there(pictures)
    found, problems = read_folder(pictures)
    if problems:
        raise DataError(problems)
    unread: list[str] = []
    pictures_below(pictures, problems.append, unread.append)
    kinds = unread_formats(unread)
    whole, data = material.data, material.mined
    ours = {real(whole.path(i)) for i in range(len(whole))}  # the test images, above all
    new = [i for i in range(len(found)) if real(found.path(i)) not in ours]
    torn = _torn(tuple(found.path(i) for i in new))
    sound = [i for i in new if found.path(i) not in torn]
    if not sound:
        why = "; ".join(("there is no picture in it", *kinds))
        if new:
            why = "none of its pictures can be read"
        elif len(found):
            why = "all of its pictures are in the data set"
        raise UserError(f"{pictures}: nothing to mine, {why}.", "Check mine.extra.")
    notes = [f"{pictures}: {kind}" for kind in kinds]
    if len(new) < len(found):
        known = console.count(len(found) - len(new), "picture")
        notes.append(f"{pictures}: {known} of the data itself left out")
    if torn:
        count = console.count(len(torn), "picture")
        notes.append(f"{pictures}: {count} that cannot be read left out: {min(torn).name} ...")
    return replace(
        found.select(sound),
        kind=data.kind,  # which decides how classes are numbered in files
        classes=data.classes,
        category_ids=data.category_ids,
        notes=tuple(notes),
    )


@lru_cache(maxsize=1)  # asked before mining, by it, and by re-training
def _torn(paths: tuple[Path, ...]) -> set[Path]:
    """Pictures that cannot be read: of thousands from anywhere some are always broken."""
    with console.progress("looking at pictures", len(paths)) as told:
        seen = picture_sizes(paths, decode=True, progress=told)
    return {path for path, s in zip(paths, seen, strict=True) if isinstance(s, PictureError)}


def scan_extra(run: Run, miner: Path, place: Path) -> tuple[Dataset, Raw]:
    """The pictures of `mine.extra` and their pairs; `base.json` is written."""
    assert run.config.mine.extra is not None  # the stage asks
    extra, labels = extra_images(run.material, run.config.mine.extra), run.material.labels
    for line in (
        f"{extra.root}: {console.count(len(extra), 'picture')} from elsewhere",
        *extra.notes,
    ):
        console.note(line)
    raw = pairs(run, extra, miner, RAW_EXTRA)
    base = once(run, extra, miner, lambda: base_objects(run, extra, miner), RAW_BASE)
    found = candidates(base, run.config.mine.cut)
    write_candidates(place / BASE, found, extra, _base_sought(labels))
    return extra, raw


def _base_sought(labels: LabelMap) -> LabelMap:
    """Files of candidates are of the second part of a label map: here base classes are sought."""
    return LabelMap(labels.novel, labels.base)


def base_objects(run: Run, data: Dataset, miner: Path) -> Raw:
    """What may be base objects: detections above the cut, in the place of novel pairs."""
    own, views, labels = run.config.mine, run.config.views, run.material.labels
    saved = checkpoint.load(miner, run.config.detector.weights)
    settings = configured(saved.detector.settings, run.config)
    saved.detector.settings = replace(settings, test=replace(settings.test, score_cut=own.cut))
    detector = onto(saved.detector, run.device)
    batches, sizes = run.material.batches(data)
    plans = each_once(sizes, at_once(run), views.test, views.long)
    bf16 = run.bf16(run.config.transfer)
    with console.progress("scanning for base objects", len(plans)) as told:
        found = detect_all(detector, counted(batches, told), plans, run.device, bf16)
    return from_detections(found, labels.classes, labels.base, own.cut)


def read_extra(run: Run) -> Extra | None:
    """What the stage has left of pictures from elsewhere; None where there were none."""
    told = (folder.metrics(run.out / "mine") or {}).get(EXTRA)
    if told is None:
        return None
    place, labels = run.out / "mine" / EXTRA, run.material.labels
    _are_there(place, "Repeat with --from mine.")
    extra = extra_images(run.material, Path(told["folder"]))
    pool = read_pool(place / folder.POOL, extra, labels)
    for line in pool.notes:
        console.note(line)
    novel = read_candidates(place / folder.CANDIDATES, extra, labels)
    base = read_candidates(place / BASE, extra, _base_sought(labels))
    unsure = Boxes.of(
        np.concatenate([novel.image, base.image]),
        np.concatenate([novel.xywh, base.xywh]),
        np.concatenate([novel.label + len(labels.base), base.label]),
    )
    return Extra(extra, pool, unsure)
