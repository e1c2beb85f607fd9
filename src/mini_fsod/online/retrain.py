"""The stage `online`: a detector of all classes, re-trained on base boxes and mined ones, with a
teacher that goes on mining (paper, section 3.3) or without.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mini_fsod import console
from mini_fsod.data.dataset import Floats
from mini_fsod.detector.matching import draw_number
from mini_fsod.detector.model import Detector
from mini_fsod.errors import UserError
from mini_fsod.files import digest, is_file, write_bytes
from mini_fsod.loader.augment import draw_strong, strong_view
from mini_fsod.loader.resident import Batch
from mini_fsod.loader.schedule import Plan
from mini_fsod.mining.audit import annotated, seem_complete
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.delta import Deltas, expected_objects
from mini_fsod.mining.extra import read_extra
from mini_fsod.mining.pool_io import read_candidates, read_pool
from mini_fsod.online import health
from mini_fsod.online.targets import (
    Extra,
    Learnt,
    an_epoch,
    base_truth,
    losses_with_mined,
    oracle,
    with_extra,
    with_shots,
)
from mini_fsod.online.teacher import Teaching, losses_with_teacher
from mini_fsod.runs import folder
from mini_fsod.runs.base import load_base, load_stage, new_detector, onto, take
from mini_fsod.runs.data import Batches, InputsOf
from mini_fsod.runs.run import Run
from mini_fsod.tfa.widen import widened
from mini_fsod.train import log
from mini_fsod.train.ema import Average
from mini_fsod.train.step import Inputs


def online(run: Run) -> None:
    """Re-training on base ground truth and the pool H."""
    begun = time.perf_counter()
    config, own = run.config, run.config.online
    labels = run.material.labels
    if own.checkpoint is not None:
        take(run, "online", *load_stage(run, "online", own.checkpoint, labels.classes), begun)
        return
    extra = None if own.oracle else read_extra(run)
    candidates = _candidates(run)
    learnt = _learnt(run, extra, candidates if own.ignore_candidates else None)
    hidden = oracle(run.material.mined, labels).mined  # gauges alone look at them
    student, weights = _student(run)
    also = [(learnt.mined, learnt.scores), (learnt.ignored, None), (hidden, None)]
    batches, sizes = run.material.batches(learnt.data, also)
    epoch = an_epoch(learnt, labels, own.repeat)
    schedule = run.schedule(sizes, own, epoch)
    seed = config.seed if own.strong else None
    teacher = watch = None
    if own.teacher:
        teacher = Average(student, run.device)
        objects = annotated(run.material.mined, run.material.shots, labels)
        known = extra is None and seem_complete(objects, len(learnt.mined))
        how = _teaching(run, truth_known=known)
        delta = torch.full((len(labels.novel),), own.delta, device=run.device)
        losses = losses_with_teacher(student, teacher.model, how, delta)
        share = np.bincount(epoch, minlength=len(learnt.data)) / len(epoch)
        watch = _watch(run, learnt, share, how)
        if own.adapt_delta and candidates is not None:
            watch.deltas = _deltas(run, share, extra, candidates, delta)
        inputs = _both_views(batches, seed, run.device)
    else:
        losses = losses_with_mined(
            student, own.mined_weight, own.mined_boxes != "none", config.mine.drop_nested
        )
        inputs = _one_view(batches, seed, run.device)
    feed = run.material.feed(
        learnt.data, schedule, inputs, run.team, own.accumulate, (learnt.mined, learnt.ignored)
    )
    if own.teacher:  # what the pool's boxes score decides what is mingled
        scores = hashlib.sha256(learnt.scores.tobytes())
        feed = replace(feed, identity=f"{feed.identity} {scores.hexdigest()[:16]}")
    run.train("online", student, labels, losses, feed, own, weights, begun, teacher, watch)


def _student(run: Run) -> tuple[Detector, str | float | None]:
    """The detector that is trained, and what its backbone began as."""
    config, own, labels = run.config, run.config.online, run.material.labels
    torch.manual_seed(config.seed)
    if own.start == "weights":
        detector = new_detector(config, len(labels.classes), iou_branch=own.iou_branch)
        return onto(detector, run.device), config.detector.weights
    if own.start == "transfer":
        _, saved = load_stage(run, "transfer", config.transfer.checkpoint, labels.classes)
        settings = replace(saved.detector.settings, iou_branch=own.iou_branch)
        detector = Detector(settings)  # a new one: in TFA's all but the predictors is frozen
        detector.load_state_dict(saved.detector.state_dict(), strict=False)
        return onto(detector, run.device), saved.about.get("weights")
    _, saved = load_base(run)
    base = onto(saved.detector, run.device)
    detector = widened(base, labels, config.seed, "linear", own.iou_branch)
    return onto(detector, run.device), saved.about.get("weights")


def _teaching(run: Run, truth_known: bool) -> Teaching:
    own = run.config.online
    return Teaching(
        run.material.labels,
        ignore_above=own.ignore_above,
        nms_iou=run.config.detector.nms,
        join_proposals=own.mingle.rpn,
        join_instances=own.mingle.rcnn,
        by_class=own.mingle.nms == "class",
        use_iou=own.iou_branch,
        weight=own.mined_weight,
        box_losses=own.mined_boxes,
        keep_pool=own.mingle.keep_pool,
        off_base=run.config.mine.drop_on_base,
        drop_nested=run.config.mine.drop_nested,
        truth_known=truth_known,
    )


def _watch(run: Run, learnt: Learnt, share: Floats, how: Teaching) -> health.Watch:
    """`share` (I,) of what is seen is each image."""
    labels, mined = how.labels, learnt.mined
    an_image = np.bincount(
        mined.label - len(labels.base), share[mined.image], minlength=len(labels.novel)
    )
    pool = dict(zip(labels.novel, an_image.tolist(), strict=True))
    before = log.read_log(run.out / "online" / log.FILE)  # of a run that was killed
    own = run.config.online
    normal = health.Normal.of(own.batch, how.instances, pool, own.iterations)
    return health.Watch(normal, health.looks_of(before))


def _deltas(
    run: Run, share: Floats, extra: Extra | None, candidates: Candidates, delta: torch.Tensor
) -> Deltas:
    """Of images without annotations only the pool is known to show something."""
    novel = run.material.labels.novel
    sure = candidates.score_detector * share[candidates.image]
    right = expected_objects(sure, candidates.label, len(novel))
    if extra is not None:  # each of its images has a box of the pool: the largest share
        right += np.bincount(extra.pool.label, minlength=len(novel)) * share.max()
    an_image = dict(zip(novel, right.tolist(), strict=True))
    return Deltas(delta, an_image, run.config.online.batch, run.config.online.delta)


def _candidates(run: Run) -> Candidates | None:
    """All that was mined, chosen or not, where it is asked for."""
    if run.config.online.asks_for_candidates is None:
        return None
    place = run.out / "mine" / folder.CANDIDATES
    _refuse_missing(place)
    return read_candidates(place, run.material.mined, run.material.labels)


def _refuse_missing(place: Path) -> None:
    if not is_file(place):
        raise UserError(f"{place}: it is not there.", "Repeat with --from mine.")


def _learnt(run: Run, extra: Extra | None, ignored: Candidates | None) -> Learnt:
    """What there is to learn from, as the configuration says."""
    own, labels, data = run.config.online, run.material.labels, run.material.mined
    if own.oracle:
        learnt = oracle(data, labels)
    else:
        place = run.out / "mine" / folder.POOL
        _refuse_missing(place)
        pool = read_pool(place, data, labels)
        for line in pool.notes:
            console.note(line)
        if run.team.leads:
            content = " ".join(digest(pool) for pool in folder.pools(run.out))
            write_bytes(run.out / "online" / folder.LEARNT, content.encode())
        learnt = base_truth(data, labels, pool, ignored)
        if extra is not None:
            learnt = with_extra(learnt, extra, labels)
    return with_shots(learnt, run.material.shots, labels) if own.shots else learnt


def _shared(batch: Batch, device: torch.device) -> tuple[Inputs, Inputs]:
    """What both kinds of losses take between the pictures and the number to draw by."""
    mined, ignored, _ = batch.also
    number = draw_number(batch.plan.step, batch.plan.first)
    truth = (batch.sizes, batch.boxes, batch.labels, batch.valid)
    return (
        (*truth, mined.boxes, mined.labels, mined.valid),
        (*ignored[:3], torch.full((), number, dtype=torch.int64, device=device)),
    )


def _one_view(batches: Batches, seed: int | None, device: torch.device) -> InputsOf:
    """The way from plans to what `losses_with_mined` takes; strong views where there is a seed."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Inputs]:
        for batch in batches(plans):
            before, behind = _shared(batch, device)
            yield (_strong(batch, seed), *before, *behind)

    return inputs


def _both_views(batches: Batches, seed: int | None, device: torch.device) -> InputsOf:
    """The way from plans to what `losses_with_teacher` takes: one geometry, two views."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Inputs]:
        for batch in batches(plans):
            before, (*ignored, draw) = _shared(batch, device)
            mined, _, hidden = batch.also
            yield (
                batch.images,
                _strong(batch, seed),
                *before,
                mined.scores,
                *ignored,
                *hidden[:3],
                draw,
            )

    return inputs


def _strong(batch: Batch, seed: int | None) -> torch.Tensor:
    if seed is None:
        return batch.images
    return strong_view(batch.images, batch.sizes, draw_strong(seed, batch.plan))
