"""The stage `transfer`: TFA's few-shot detector (protocol.md, section 2)."""

from __future__ import annotations

import time

import numpy as np

from mini_fsod import console
from mini_fsod.config.schema import Transfer, Tune
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.subsets import arranged, with_base_boxes
from mini_fsod.detector.model import Detector
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.base import load_base, load_stage, onto, take
from mini_fsod.runs.data import inputs_from
from mini_fsod.runs.run import Run
from mini_fsod.tfa import cached_features
from mini_fsod.tfa.widen import transfer
from mini_fsod.train.distributed import told_by_leader
from mini_fsod.train.step import losses_of


def fine_tune(run: Run) -> None:
    """TFA: rows for the novel classes, then both predictors on the balanced K-shot set."""
    begun = time.perf_counter()
    own, labels = run.config.transfer, run.material.labels
    if own.checkpoint is not None:
        given = load_stage(run, "transfer", own.checkpoint, labels.classes)
        take(run, "transfer", *given, begun)
        return
    _, saved = load_base(run)
    detector = transfer(
        onto(saved.detector, run.device), labels, run.config.seed, own.boxes != "new"
    )
    weights = saved.about.get("weights")  # what is frozen comes from there
    data = run.material.shots
    if own.data == "known":
        data = with_base_boxes(data, arranged(run.material.data, labels), labels)
    over_views(run, "transfer", detector, data, own, own.short, weights, begun)


def over_views(
    run: Run,
    stage: str,
    detector: Detector,
    data: Dataset,
    own: Transfer | Tune,
    shorts: tuple[int, ...] | None,
    weights: str | float | None,
    begun: float,
) -> None:
    """Train what is not frozen of a detector, its predictors, over the views of a few pictures."""
    box_classes = len(run.material.labels.base) if own.boxes == "fixed" else None
    views, device, bf16 = run.config.views, run.device, run.bf16(own)
    batches, sizes = run.material.batches(data)
    schedule = Schedule(
        sizes, own.batch, shorts or views.short, views.long, run.config.seed, flip=views.flip
    )
    keeps = own.cached
    if keeps:
        most_boxes = int(np.diff(data.offsets).max())
        why = cached_features.obstacle(detector, schedule, most_boxes, device, bf16)
        keeps = told_by_leader(not why, run.team, device) > 0  # processes must not differ in it
        if not keeps:
            console.note(f"{stage}: features are not kept, iterations take longer: {why}")
    if keeps:
        seen = cached_features.look_once(detector, batches, schedule, device, bf16)
        losses = cached_features.losses_over(detector, seen, box_classes)
        inputs = cached_features.rows_from(schedule, device)
    else:
        losses, inputs = losses_of(detector, box_classes), inputs_from(batches, device)
    feed = run.material.feed(data, schedule, inputs, run.team, own.accumulate)
    run.train(stage, detector, run.material.labels, losses, feed, own, weights, begun)
