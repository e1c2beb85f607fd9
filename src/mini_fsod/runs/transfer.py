"""The stage `transfer`: TFA's few-shot detector (protocol.md, section 2)."""

from __future__ import annotations

import time

import numpy as np

from mini_fsod import show
from mini_fsod.feed.batches import Schedule
from mini_fsod.runs.base import load_base, onto
from mini_fsod.runs.material import inputs_from
from mini_fsod.runs.run import Run
from mini_fsod.tfa import cached
from mini_fsod.tfa.transfer import transfer
from mini_fsod.train.distributed import told_by_leader
from mini_fsod.train.step import losses_of


def fine_tune(run: Run) -> None:
    """TFA: rows for the novel classes, then both predictors on the balanced K-shot set."""
    begun = time.perf_counter()
    config, own, views, device = run.config, run.config.transfer, run.config.views, run.device
    labels, data, bf16 = run.material.labels, run.material.shots, run.bf16(own)
    _, saved = load_base(run)
    detector = transfer(onto(saved.detector, device), labels, config.seed)
    shorts = own.short or views.short
    batches, sizes = run.material.batches(data)
    schedule = Schedule(sizes, own.batch, shorts, views.long, config.seed, flip=views.flip)
    keeps = own.cached
    if keeps:
        most_boxes = int(np.diff(data.offsets).max())
        why = cached.obstacle(detector, schedule, most_boxes, device, bf16)
        keeps = told_by_leader(int(not why), run.team, device) == 1  # the same in all processes
        if not keeps:
            show.note(f"transfer: features are not kept, iterations take longer: {why}")
    if keeps:
        seen = cached.look_once(detector, batches, schedule, device, bf16)
        losses = cached.losses_over(detector, seen)
        inputs = cached.rows_from(schedule, device)
    else:
        losses, inputs = losses_of(detector), inputs_from(batches, device)
    feed = run.material.feed(data, schedule, inputs, run.team, own.accumulate)
    weights = saved.about.get("weights")  # what is frozen comes from there
    run.train("transfer", detector, labels, losses, feed, own, weights, begun)
