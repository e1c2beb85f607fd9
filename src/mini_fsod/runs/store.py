"""Kept results: RUNS/.stages/STAGE-HASH holds what a stage computed, for every run that needs it.

A run's folder has a link for each of its stages. `metrics.json` is written last: a folder without
it is unfinished, and the stage resumes there. Nothing in a finished folder ever changes, but for
scores on further test sets.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from pydantic import create_model

from mini_fsod import console
from mini_fsod.config.schema import STAGES, TRAINED
from mini_fsod.errors import UserError
from mini_fsod.eval.score import NAMES
from mini_fsod.files import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    copy_content,
    digest,
    is_file,
    is_folder,
    lock,
    part_of,
    unwritten,
)
from mini_fsod.state_files import Count, Finite, Kind, read_state_file

STORE = ".stages"
LOCKS = "locks"  # a folder in the store
METRICS = "metrics.json"
CELLS = "cells"  # the folder of a study's runs
DEEPEST = 3  # levels below the runs' folder at which a run may lie
PAUSE = 0.5  # seconds between looks at a lock that another process holds


class Busy(Exception):
    """Another process is computing a stage that this run needs."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"another process is computing {stage}")
        self.stage = stage


@dataclass(frozen=True, slots=True)
class Kept:
    """A stage's result in the store."""

    stage: str
    name: str
    folder: Path
    bytes: int
    finished: bool
    busy: bool  # another process works on it
    used_by: tuple[str, ...]  # folders of runs, relative to the runs' folder


# what the files of results must hold; all scores are optional
_SCORES: dict[str, Any] = dict.fromkeys(NAMES, (Finite | None, None))
_Scores: Any = create_model("_Scores", __base__=Kind, **_SCORES)


class ExtraFigures(Kind):
    """The figures of mine.extra."""

    folder: str | None = None
    candidates: Count = 0
    kept: Count = 0


class Figures(_Scores):  # type: ignore[misc]
    """The figures of one stage."""

    seconds: Finite | None = None
    training_seconds: Finite | None = None
    images_per_second: Finite | None = None
    checkpoint: str | None = None
    given: str | None = None
    iterations: Count | None = None
    images: Count = 0
    of_images: Count = 0
    extra_images: Count = 0
    pairs: Count | None = None
    extra_pairs: Count = 0
    crop: Count | None = None  # of the discriminator
    candidates: Count = 0
    kept: Count | None = None
    best_score: Finite | None = None
    extra: ExtraFigures = ExtraFigures()


class Metrics(Figures):
    seconds: Finite


class TrainedMetrics(Metrics):
    checkpoint_sha256: str


class BestThreshold(Kind):
    """The score threshold of a class with the best F1 on the test set."""

    score: Finite
    precision: Finite
    recall: Finite
    f1: Finite


class ClassErrors(Kind):
    """What `eval.errors.error_figures` says of a class."""

    boxes: Count
    recall_any: Finite | None
    best: BestThreshold | None
    detections: Count
    right: Count
    twice: Count
    false_on: dict[str, Count]
    missed_as: dict[str, Count]


class Errors(Kind):
    classes: dict[str, ClassErrors]
    interval95: dict[str, list[Finite]]


class Score(Figures):
    metric: str
    errors: Errors | None = None  # not in the scores of earlier versions


def result_folder(store: Path, stage: str, key: str) -> Path:
    return store / f"{stage}-{key}"


@contextmanager
def computing(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a result while it is computed; wait for another process, or raise Busy."""
    path = _lock_file(folder)
    waiting = False
    while True:
        with lock(path) as free:
            if free:
                yield
                return
        stage = folder.name.partition("-")[0]
        if not wait:
            raise Busy(stage)
        if not waiting:
            console.note(f"{stage}: another process is computing it; waiting")
            waiting = True
        sleep(PAUSE)


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """The figures of a finished result; None where it is not finished."""
    trained = folder.name.partition("-")[0] in TRAINED
    return read_figures(folder / METRICS, TrainedMetrics if trained else Metrics)


def is_stage_finished(folder: Path) -> bool:
    """Whether a result is here whole: its figures, and the detector that they were written for."""
    metrics = read_metrics(folder)
    path = folder / CHECKPOINT_FILE
    if metrics is None or folder.name.partition("-")[0] not in TRAINED:
        return metrics is not None
    if is_file(path) and digest(path) != metrics["checkpoint_sha256"]:
        raise UserError(
            f"{path}: damaged, or not the detector that this stage has trained (its SHA-256 is not "
            f"the one in {METRICS}).",
            f"Delete {folder}, and the same command computes it again.",
        )
    return is_file(path)


def read_score(path: Path) -> dict[str, Any] | None:
    return read_figures(path, Score)


def read_figures(path: Path, kind: type[Figures]) -> dict[str, Any] | None:
    """The figures in a file of a stage; None where there is no file."""
    fix = "Delete the file; the same command computes it again."
    found: dict[str, Any] | None = read_state_file(path, kind, fix)
    return found


def link(run: Path, stage: str, folder: Path) -> None:
    """Let RUN/STAGE lead to a result. The link is relative: both may be moved together.

    Says so where it led to a finished one, and this one is still to be computed.
    """
    target = os.path.relpath(folder.resolve(), run.resolve())
    path = run / stage
    if path.is_symlink() and str(path.readlink()) == target:
        return
    if path.is_symlink() and is_file(path / METRICS) and not is_file(folder / METRICS):
        console.note(
            f"{stage}: to be computed again, because settings, data or mini's version changed; the "
            f"earlier result stays in {os.path.normpath(run / path.readlink())}"
        )
    part = part_of(path)
    try:
        part.symlink_to(target, target_is_directory=True)
        part.replace(path)
    except OSError as error:
        raise unwritten(path, error) from None


def without_results(run: Path, store: Path) -> UserError:
    return UserError(
        f"{run}: its results are not here: {store} is missing.",
        f"Copy {STORE} along with the run, or delete the links in {run} to compute "
        "everything again.",
    )


def refuse_moved(run: Path) -> None:
    """UserError where none of the run's links leads to a result: the folder was moved alone."""
    links = [run / stage for stage in STAGES if (run / stage).is_symlink()]
    if links and not any(is_folder(link) for link in links):
        raise without_results(run, Path(os.path.normpath(run / links[0].readlink())).parent)


def unlink(run: Path, stage: str) -> None:
    """Take the link of a stage away, if there is one; the result stays."""
    if (run / stage).is_symlink():
        (run / stage).unlink()


def copy_file(source: Path, target: Path) -> None:
    """The same content under another name: a hard link where the file system has them.

    Both are safe from each other's changes: files are replaced, never written into.
    """
    part = part_of(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source.resolve(), part)
        if target.exists() and target.samefile(part):  # to replace a file by itself does nothing
            part.unlink()
            return
        part.replace(target)
    except OSError:
        copy_content(source, target)


def discard(folder: Path) -> None:
    """Delete a result; a kill in between leaves none that looks finished."""
    (folder / METRICS).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def users(runs: Path, name: str | None = None) -> dict[str, tuple[str, ...]]:
    """The runs below a folder that use each kept result, by the result's name."""
    found: dict[str, list[str]] = {}
    store = (runs / STORE).resolve()
    for run in run_folders(runs):
        for stage in STAGES:
            path = run / stage
            if path.is_symlink():
                target = path.parent.resolve() / path.readlink()
                if Path(os.path.normpath(target)).parent == store:
                    found.setdefault(target.name, []).append(run.relative_to(runs).as_posix())
    return {result: tuple(runs) for result, runs in found.items() if name in (None, result)}


def run_folders(runs: Path) -> list[Path]:
    """Folders of runs below a folder, those of a study's cells among them."""
    found = []
    for root, folders, files in os.walk(runs):
        depth = len(Path(root).relative_to(runs).parts)
        here = Path(root)
        if CONFIG_FILE in files and any((here / stage).is_symlink() for stage in STAGES):
            found.append(here)
        folders[:] = sorted(
            name
            for name in folders
            if depth < DEEPEST and name != STORE and not (here / name).is_symlink()
        )
    return found


def kept(runs: Path) -> list[Kept]:
    """All results that are kept below a folder of runs, by stage and name."""
    store = runs / STORE
    if not is_folder(store):
        return []
    used_by = users(runs)
    found = []
    for folder in sorted(store.iterdir()):
        stage = folder.name.partition("-")[0]
        if stage not in STAGES or not is_folder(folder):
            continue
        sizes = (p.lstat().st_size for p in folder.rglob("*") if not p.is_dir())
        with lock(_lock_file(folder)) as free:
            found.append(
                Kept(
                    stage,
                    folder.name,
                    folder,
                    sum(sizes),
                    is_file(folder / METRICS),
                    not free,
                    used_by.get(folder.name, ()),
                )
            )
    return sorted(found, key=lambda item: (STAGES.index(item.stage), item.name))


def prune(runs: Path, items: Sequence[Kept]) -> None:
    """Delete kept results, except those that a run uses or another process works on by now."""
    used = users(runs)
    for item in items:
        with lock(_lock_file(item.folder)) as free:
            if free and item.name not in used:
                discard(item.folder)


def _lock_file(folder: Path) -> Path:
    return folder.parent / LOCKS / f"{folder.name}.lock"
