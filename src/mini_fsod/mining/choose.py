"""The stage `mine`: offline mining of the base images (paper, section 3.2).

It is not resumed half way: its files are written one after another, each whole, and the figures
last, so that a killed stage starts again. What the scan has found lies beside the stages' folders
(`raw.npz`), and outlives a repeated stage. Pictures from elsewhere: see `runs.extra`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_fsod import console
from mini_fsod.config.schema import Mine
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.subsets import arranged
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file, write_bytes, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.mining import extra, pool_io
from mini_fsod.mining.audit import TRUE, annotated, audit, judge, seem_complete, with_pool
from mini_fsod.mining.box_correction import stretched
from mini_fsod.mining.candidates import Candidates, Raw, apart, candidates
from mini_fsod.mining.contact_sheet import write_sheets
from mini_fsod.mining.scan import load_discriminator, pairs
from mini_fsod.mining.thresholds import pool
from mini_fsod.runs import folder
from mini_fsod.runs.rounds import miner
from mini_fsod.runs.run import Run
from mini_fsod.train.distributed import wait_for_all

POOL, CANDIDATES = folder.POOL, folder.CANDIDATES
FEW = 10  # boxes of a class, its shots found again among them, that hardly teach it
OF_CROPS = ("discriminator_crop", "whiten", "refine", "stretch")
THRESHOLDS, AUDIT = "thresholds.json", "audit.json"


def ready(own: Mine, asked: str | None = None) -> None:
    """Say now, not after hours of training, what mining will lack, and re-training behind it.

    `asked` is the key that asks for candidates, if one does.
    """
    if own.given is None:
        load_discriminator(own, torch.device("cpu"))  # a file may be torn, a name unknown
        idle = [f"mine.{key}" for key in OF_CROPS if getattr(own, key)]
        if own.discriminator == "none" and idle:
            console.note(f"without mine.discriminator nothing comes of {', '.join(idle)}")
    if own.given is not None and not is_file(own.given):
        raise UserError(
            f"{own.given}: there is no such pool.",
            "Let mine.given name a run that has mined, or its mine/pool.json.",
        )
    if own.given is not None and asked and not is_file(own.given.parent / CANDIDATES):
        raise UserError(
            f"{own.given}: no {CANDIDATES} lies beside it, which {asked} needs.",
            f"Put it there, or set {asked} to false.",
        )
    if own.detections is not None and not is_file(own.detections):
        raise UserError(
            f"{own.detections}: there is no such file of detections.", "Check mine.detections."
        )
    extra.ready(own)


def mine(run: Run) -> None:
    """Scan, unless a scan of the same detector and discriminator is there; choose; write."""
    place, own = run.out / "mine", run.config.mine
    before = miner(run) if own.given is None else None
    if run.team.leads and own.given is not None:
        _take(own.given, own.extra, place)
    elif run.team.leads:
        begun = time.perf_counter()
        place.mkdir(parents=True, exist_ok=True)
        data = run.material.mined
        raw = Raw.of([], [], [], [], [], own.cut) if own.extra_only else pairs(run, data, before)
        scanned = time.perf_counter() - begun
        figures = choose(run, raw, data, place, own.most)
        if own.extra is not None:
            assert before is not None  # `extra.ready` says so
            others, raw = extra.scan_extra(run, before, place / extra.EXTRA)
            about = {"folder": str(own.extra), "images": len(others)}
            chosen = choose(run, raw, others, place / extra.EXTRA, own.extra_most)
            chosen["pool_sha256"] = digest(place / extra.EXTRA / POOL)
            figures[extra.EXTRA] = about | chosen
        figures |= {"seconds": time.perf_counter() - begun, "scan_seconds": scanned}
        figures["pool_sha256"] = digest(place / POOL)  # tells whether it is edited later
        write_json(place / folder.METRICS, figures)
    wait_for_all(run.team)


def _take(given: Path, pictures: Path | None, place: Path) -> None:
    """What another run has mined: its files, the figures last. Its pictures from elsewhere may lie
    in another folder now.
    """
    begun = time.perf_counter()
    place.mkdir(parents=True, exist_ok=True)
    write_bytes(place / POOL, given.read_bytes())  # whatever its name
    beside = (CANDIDATES, THRESHOLDS, AUDIT, extra.BASE)
    for name in (*beside, *(f"{extra.EXTRA}/{name}" for name in (POOL, *beside))):
        source = given.parent / name
        if is_file(source):
            write_bytes(place / name, source.read_bytes())
    figures = folder.metrics(given.parent) or {}
    figures.pop("scan_seconds", None)  # it was spent elsewhere
    figures["seconds"] = time.perf_counter() - begun
    if pictures is not None:
        figures[extra.EXTRA] = figures.get(extra.EXTRA, {}) | {"folder": str(pictures)}
    figures["pool_sha256"] = digest(place / POOL)
    if is_file(place / extra.EXTRA / POOL):
        content = digest(place / extra.EXTRA / POOL)
        figures[extra.EXTRA] = figures.get(extra.EXTRA, {}) | {"pool_sha256": content}
    write_json(place / folder.METRICS, figures | {"given": str(given)})


def choose(run: Run, raw: Raw, data: Dataset, place: Path, most: int) -> dict[str, Any]:
    """From pairs to the pool of some images, and all files about it; its figures."""
    own, labels = run.config.mine, run.material.labels
    on_base = arranged(data, LabelMap(labels.base, ())).boxes if own.drop_on_base else None
    fixed = None if own.threshold == "adaptive" else float(own.threshold)

    def chosen(raw: Raw) -> tuple[Candidates, Any, Any]:
        found = candidates(
            raw,
            own.cut,
            own.tau,
            own.centre,
            on_base,
            whiten=own.whiten,
            refine=own.refine,
        )
        eligible = apart(found) if own.drop_nested else None
        if own.stretch and raw.seen is not None:
            sizes = image_sizes(data)[found.image][:, ::-1]
            by = raw.seen.stretch[found.label]
            found = replace(found, xywh=stretched(found.xywh, by, sizes))
        return found, *pool(found, labels.novel, fixed, own.alpha, most, own.expected, eligible)

    found, kept, table = chosen(raw)
    pool_io.write_candidates(place / CANDIDATES, found, data, labels)
    pool_io.write_thresholds(place / THRESHOLDS, own.cut, table)
    pool_io.write_pool(place / POOL, found.take(kept), data, labels)
    figures: dict[str, Any] = {"candidates": len(found), "kept": int(kept.sum())}
    by_class = {name: row.kept for name, row in table.items()}
    told = ", ".join(f"{name} {number:,}" for name, number in by_class.items())
    console.note(f"mined {figures['kept']:,} of {figures['candidates']:,} candidates: {told}")
    if line := starving(by_class):
        console.note(line)
    verdict, shots = None, run.material.shots
    known = annotated(data, shots, labels)
    if seem_complete(known, figures["kept"]):
        alone = replace(raw, dots=None, seen=None)  # the detector
        plain = None if found.cosine is None else chosen(alone)[:2]
        audited = audit(found, kept, data, shots, labels, plain)
        write_json(place / AUDIT, audited)
        among_all = judge(found, data, shots, labels)
        verdict = with_pool(among_all, found, kept, data, shots, labels)
        figures |= {name: audited["pool"][name] for name in ("precision", "recall")}
        if figures["precision"] is not None:
            right = f"{100 * figures['precision']:.1f} %"
            console.note(f"of them {right} are right by the annotations (audit.json)")
    elif known:
        there = int((judge(found.take(kept), data, shots, labels).kind == TRUE).sum())
        console.note(
            f"{there} of them are among the {known:,} new objects that are annotated beyond the "
            "shots: too few are to say how many of the others are right"
        )
    write_sheets(place, data, found, kept, labels, verdict)
    return figures


def starving(kept: Mapping[str, int]) -> str:
    """What to say of classes of which next to nothing was mined; nothing if there are none."""
    if not any(kept.values()):
        return (
            "nothing was mined, and re-training on that teaches novel classes as background: lower "
            "mine.alpha, mine.threshold or mine.cut"
        )
    few = [name for name, number in kept.items() if number < FEW]
    if not few:
        return ""
    return (
        f"that is next to nothing of {', '.join(few)}: larger or more typical shots find more, a "
        "lower mine.alpha or mine.threshold keeps more; the sheets show of what"
    )
