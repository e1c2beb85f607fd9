"""The stage `transfer`: TFA's few-shot detector (protocol.md, section 2)."""

from __future__ import annotations

import time

from mini_fsod.feed.batches import Schedule
from mini_fsod.runs.base import load_base
from mini_fsod.runs.material import names_in, require_boxes
from mini_fsod.runs.run import Run, recipe_of
from mini_fsod.tfa import cached
from mini_fsod.tfa.transfer import transfer
from mini_fsod.train.loop import Feed, train
from mini_fsod.train.step import losses_of


def fine_tune(run: Run) -> None:
    """TFA: rows for the novel classes, then both predictors on the balanced K-shot set."""
    begun = time.perf_counter()
    config, own, labels = run.config, run.config.transfer, run.material.labels
    detector = transfer(load_base(run), labels, config.seed)
    data, bf16 = run.material.shots, run.bf16(own)
    require_boxes(data, "in the K-shot set")
    batches, sizes = run.material.batches(data)
    views = config.views
    shorts = own.short or views.short
    schedule = Schedule(sizes, own.batch, shorts, views.long, config.seed, flip=views.flip)
    recipe = recipe_of(own, bf16)
    if own.cached:
        seen = cached.look_once(detector, batches, schedule, run.device, bf16)
        losses = cached.losses_over(detector, seen)
        feed = Feed(
            lambda n: cached.batches_of_rows(schedule, n, run.device, run.team, own.accumulate),
            names_in(data, schedule),
            schedule.state(0)["schedule"],
        )
    else:
        losses = losses_of(detector)
        feed = run.material.feed(data, schedule, run.team, own.accumulate)
    learned, trained = train(
        detector, losses, feed, recipe, run.out / "transfer", "transfer", run.device, run.team
    )
    run.finish("transfer", learned, labels, trained, begun, bf16)
