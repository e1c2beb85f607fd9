"""How `transfer` and `tune` train a few layers on a few pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod import console
from mini_fsod.config.schema import Transfer, Tune
from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.detector.model import Detector
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.data import InputsOf, counted
from mini_fsod.runs.run import Run, inputs_from
from mini_fsod.tfa.cached_features import (
    VIEWS_PER_BATCH,
    cache_views,
    cached_inputs,
    losses_on_views,
    why_not_cached,
)
from mini_fsod.train.distributed import broadcast_from_leader
from mini_fsod.train.step import losses_of


def fine_tune(
    run: Run,
    stage: str,
    folder: Path,
    detector: Detector,
    data: Dataset,
    section: Transfer | Tune,
    weights: str | float | None,
    box_classes: int | None = None,
    may_cache: bool = True,
) -> dict[str, Any]:
    """Trains what is not frozen of a detector; returns the stage's figures.

    With `box_classes`, only the first so many classes have box losses.

    If only the predictors are trained and memory suffices, the features of all views of the
    pictures are computed once. Otherwise, or if not `may_cache`, every iteration runs the whole
    detector.
    """
    device, bf16 = run.device, run.bf16(section)
    batches, sizes = run.data.batches(data)
    schedule = few_shot_schedule(run, section, sizes)
    max_boxes = int(np.diff(data.offsets).max())
    why = "not asked for"
    if may_cache:
        why = why_not_cached(detector, schedule, max_boxes, device, bf16)
    # rank 0 decides: memory may differ between processes
    if broadcast_from_leader(not why, run.team, device):
        count = len(schedule.every_view(min(VIEWS_PER_BATCH, schedule.images)))
        with console.progress(f"{stage}: looking at the shots", count) as report:
            cached = cache_views(detector, counted(batches, report), schedule, device, bf16)
        losses = losses_on_views(detector, cached, box_classes)
        inputs: InputsOf = cached_inputs(schedule, device)
    else:
        if run.team.leads:
            console.note(
                f"{stage}: features are not cached ({why}); every iteration runs the whole "
                "detector, which is slower"
            )
        losses, inputs = losses_of(detector, box_classes), inputs_from(batches, device)
    feed = run.data.feed(data, schedule, inputs, run.team, section.accumulate)
    labels = run.data.labels
    return run.train(stage, folder, detector, labels, losses, feed, section, weights)


def few_shot_schedule(run: Run, section: Transfer | Tune, sizes: Ints) -> Schedule:
    """The batches of a few-shot training, for pictures of sizes (I, 2)."""
    views = run.config.views
    return Schedule(
        sizes,
        section.batch,
        views.few_shot or views.short,
        views.long,
        run.config.seed,
        flip=views.flip,
    )
