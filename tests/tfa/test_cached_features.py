"""Fine-tuning over cached features equals fine-tuning over pictures."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import shapes
from helpers.few_shot import make_run, save_detector
from mini_fsod.data.dataset import Dataset
from mini_fsod.detector.model import Detector
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.run import Run, inputs_from
from mini_fsod.tfa import cached_features
from mini_fsod.tfa.cached_features import (
    bytes_of_views,
    cache_views,
    cached_inputs,
    free_memory,
    losses_on_views,
    why_not_cached,
)
from mini_fsod.tfa.transfer import few_shot_detector
from mini_fsod.tfa.tune import freeze_all_but
from mini_fsod.train.step import Losses, Step, losses_of, make_optimiser

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("shapes")
    return make_run(shapes.write_data(folder / "data"), folder / "run", shots__k=4)


def images_of(run: Run) -> Dataset:
    """Pictures of four shapes with one to three boxes each, and one without."""
    data = run.data.train
    return data.with_boxes(data.boxes.take(data.boxes.image != 2))


def few_shot(run: Run, **rpn: float) -> Detector:
    base = save_detector(run, "base")
    base.settings = replace(base.settings, rpn=replace(base.settings.rpn, **rpn))
    return few_shot_detector(base, run.data.labels, seed=0)


def curve(
    run: Run, detector: Detector, losses: Losses, schedule: Schedule, inputs: Any, parts: int
) -> list[list[float]]:
    """The losses of the heads in every iteration of a training."""
    optimiser = make_optimiser(detector, CPU, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(0.02)
    step = Step(losses, optimiser, CPU, bf16=False)
    feed = run.data.feed(images_of(run), schedule, inputs, run.team, parts)
    detector.train()
    values = [step(batch).clone() for batch in islice(feed.batches(0), 15)]
    names = ["loss_classifier", "loss_box_reg"]
    names += ["loss_iou"] if detector.iou_branch is not None else []
    columns = [step.names.index(name) for name in names]
    return [[float(value[column]) for column in columns] for value in values]


@pytest.mark.parametrize(
    ("flip", "shorts", "batch", "parts", "rpn", "iou_branch"),
    [
        (True, (32, 64), 1, 1, {}, False),  # landscape and portrait on canvases of their own
        (False, (64,), 4, 1, {}, False),
        (True, (64, 40, 56), 4, 2, {}, False),  # an iteration in two parts
        (True, (64,), 4, 1, {"score_cut": 1.1}, False),  # no proposals: ground truth alone
        (True, (48, 64), 4, 1, {}, True),
        (False, (64,), 1, 1, {}, True),
    ],
)
def test_cached_features_give_the_same_losses_and_weights(
    run: Run,
    flip: bool,
    shorts: tuple[int, ...],
    batch: int,
    parts: int,
    rpn: dict[str, float],
    iou_branch: bool,
) -> None:
    batches, sizes = run.data.batches(images_of(run))
    schedule = Schedule(sizes, batch, shorts, 96, seed=5, flip=flip)
    assert batch > 1 or len(schedule.canvases) > len(shorts)
    if iou_branch:
        plain = save_detector(run, "online")
        freeze_all_but(plain, "predictors")
    else:
        plain = few_shot(run, **rpn)
    other = deepcopy(plain)
    start = plain.predictor.classifier.weight.detach().clone()
    views = cache_views(other, batches, schedule, CPU, bf16=False)
    assert len(views.vectors) == 8 * len(shorts) * (1 + flip)
    assert views.iou_vectors.shape[2] == (views.vectors.shape[2] if iou_branch else 0)

    inputs = inputs_from(batches, CPU)
    expected = curve(run, plain, losses_of(plain), schedule, inputs, parts)
    inputs = cached_inputs(schedule, CPU)
    found = curve(run, other, losses_on_views(other, views), schedule, inputs, parts)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert all(first != last for first, last in zip(expected[0], expected[-1], strict=True))
    assert (plain.predictor.classifier.weight - start).abs().max() > 1e-3
    for (name, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("cached", [True, False])
def test_box_classes_leaves_novel_boxes_untrained(run: Run, cached: bool) -> None:
    batches, sizes = run.data.batches(images_of(run))
    schedule = Schedule(sizes, 4, (64,), 96, seed=5, flip=True)
    detector, known = few_shot(run), len(run.data.labels.base)
    before = detector.predictor.boxes.weight.detach().clone()
    if cached:
        views = cache_views(detector, batches, schedule, CPU, bf16=False)
        losses, inputs = losses_on_views(detector, views, known), cached_inputs(schedule, CPU)
    else:
        losses, inputs = losses_of(detector, known), inputs_from(batches, CPU)
    curve(run, detector, losses, schedule, inputs, 1)
    after = detector.predictor.boxes.weight
    torch.testing.assert_close(after[4 * known :], before[4 * known :], rtol=1e-3, atol=0)  # decay
    assert (after[: 4 * known] - before[: 4 * known]).abs().max() > 1e-3


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shorts", [(64,), (48, 64)])
def test_views_of_numbers_exactly_the_views_that_training_uses(
    run: Run, flip: bool, shorts: tuple[int, ...]
) -> None:
    _, sizes = run.data.batches(images_of(run))
    schedule = Schedule(sizes, 3, shorts, 96, seed=0, flip=flip)
    known: dict[int, tuple[object, ...]] = {}
    for plan in schedule.every_view(3):
        rows = schedule.views_of(plan)[: plan.count].tolist()
        for row, image, flipped in zip(rows, plan.images, plan.flip, strict=False):
            assert row not in known
            known[row] = (int(image), plan.short, bool(flipped), plan.canvas)
    assert sorted(known) == list(range(8 * len(shorts) * (1 + flip)))
    drawn = set()
    for n in range(60):
        plan = schedule.plan(n)
        rows = schedule.views_of(plan).tolist()
        for row, image, flipped in zip(rows, plan.images, plan.flip, strict=True):
            assert known[row] == (int(image), plan.short, bool(flipped), plan.canvas)
            drawn.add(row)
    assert drawn == set(known)


def test_cache_views_computes_a_repeated_short_side_once(run: Run) -> None:
    batches, sizes = run.data.batches(images_of(run))
    detector = few_shot(run)
    twice = Schedule(sizes, 4, (64, 48, 64), 96, seed=0)
    once = Schedule(sizes, 4, (64, 48), 96, seed=0)
    found, expected = (cache_views(detector, batches, s, CPU, bf16=False) for s in (twice, once))
    plan = twice.plan(0)
    rows, same = twice.views_of(plan), once.views_of(plan)
    torch.testing.assert_close(found.vectors[rows], expected.vectors[same], rtol=1e-4, atol=1e-5)


def test_why_not_cached_names_the_obstacle(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sizes = run.data.batches(images_of(run))
    schedule = Schedule(sizes, 4, (32, 64), 96, seed=0)
    detector = few_shot(run)
    # 8 pictures x 2 scales x 2 flips, 30 proposals and 3 boxes, 32 numbers of 4 bytes
    needed = 8 * 2 * 2 * (30 + 3) * 32 * 4
    assert bytes_of_views(detector, 32, 3, bf16=False) == needed
    assert bytes_of_views(detector, 32, 3, bf16=True) == needed // 2
    for free, fits in ((needed, False), (2 * needed, True)):
        monkeypatch.setattr(cached_features, "free_memory", lambda device, free=free: free)
        assert (why_not_cached(detector, schedule, 3, CPU, bf16=False) == "") == fits
    # a canvas of 64 x 64 pixels has fewer anchors than that, one of 96 x 96 more
    few = few_shot(run, before_nms_train=2000, after_nms_train=1800)
    assert "fewer anchors" in why_not_cached(few, schedule, 3, CPU, bf16=False)
    freeze_all_but(detector, "head")
    assert "more than the predictors" in why_not_cached(detector, schedule, 3, CPU, bf16=False)


def test_free_memory_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:   2000 kB\n")
    monkeypatch.setattr(cached_features, "MEMINFO", meminfo)
    assert free_memory(CPU) == 2000 * 1024
    monkeypatch.setattr(cached_features, "MEMINFO", tmp_path / "none")  # macOS
    assert free_memory(CPU) > 2**20
