"""Fine-tuning over kept features is fine-tuning over pictures."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from mini_fsod.config import load
from mini_fsod.data.dataset import Dataset
from mini_fsod.detector.model import Detector
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.base import new_detector
from mini_fsod.runs.data import Material, inputs_from
from mini_fsod.tfa import cached_features
from mini_fsod.tfa.widen import transfer
from mini_fsod.train.distributed import Team
from mini_fsod.train.step import Losses, Step, losses_of, make_optimiser
from runs import small

CPU = torch.device("cpu")
LABELS = LabelMap(small.CLASSES[:2], small.CLASSES[2:])


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("small")
    source = folder / "small.yaml"
    source.touch()
    sets = small.sets(small.write_data(folder / "data"), shots__k=4)
    return Material(load.resolve(str(source), sets), CPU)


def images_of(material: Material) -> Dataset:
    """Pictures of four shapes with one to three boxes each, and one without."""
    data = material.train
    return data.with_boxes(data.boxes.take(data.boxes.image != 2))


def few_shot(material: Material, **rpn: float) -> Detector:
    torch.manual_seed(0)
    base = new_detector(material._config, 2)
    base.settings = replace(base.settings, rpn=replace(base.settings.rpn, **rpn))
    return transfer(base, LABELS, seed=0)


def curve(
    detector: Detector, losses: Losses, material: Material, schedule: Schedule, inputs, parts: int
) -> list[list[float]]:
    """Classifier's and boxes' loss of every iteration; the detector learns meanwhile."""
    optimiser = make_optimiser(detector, CPU, 0.9, 1e-4)
    optimiser.param_groups[0]["lr"].fill_(0.02)
    step = Step(losses, optimiser, CPU, bf16=False)
    feed = material.feed(images_of(material), schedule, inputs, Team(), parts)
    detector.train()
    values = [step(batch).clone() for batch in islice(feed.batches(0), 15)]
    places = [step.names.index(name) for name in ("loss_classifier", "loss_box_reg")]
    return [[float(value[place]) for place in places] for value in values]


@pytest.mark.parametrize(
    ("flip", "shorts", "batch", "parts", "rpn"),
    [
        (True, (32, 64), 1, 1, {}),  # landscape and portrait on canvases of their own
        (False, (64,), 4, 1, {}),
        (True, (64, 40, 56), 4, 2, {}),  # an iteration in two parts
        (True, (64,), 4, 1, {"score_cut": 1.1}),  # no proposals: ground truth alone
    ],
)
def test_kept_features_give_the_same_curve_and_predictor(
    material: Material,
    flip: bool,
    shorts: tuple[int, ...],
    batch: int,
    parts: int,
    rpn: dict[str, float],
) -> None:
    batches, sizes = material.batches(images_of(material))
    schedule = Schedule(sizes, batch, shorts, 96, seed=5, flip=flip)
    assert batch > 1 or len(schedule.canvases) > len(shorts)
    plain = few_shot(material, **rpn)
    kept = deepcopy(plain)
    start = plain.predictor.classifier.weight.detach().clone()
    views = cached_features.look_once(kept, batches, schedule, CPU, bf16=False)
    assert len(views.vectors) == 8 * len(shorts) * (1 + flip)

    wanted = curve(plain, losses_of(plain), material, schedule, inputs_from(batches, CPU), parts)
    found = curve(
        kept,
        cached_features.losses_over(kept, views),
        material,
        schedule,
        cached_features.rows_from(schedule, CPU),
        parts,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert wanted[-1] != wanted[0]
    assert (plain.predictor.classifier.weight - start).abs().max() > 1e-3
    for (name, one), other in zip(plain.named_parameters(), kept.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("keeps", [True, False])
def test_boxes_of_new_classes_may_stay_as_they_are(material: Material, keeps: bool) -> None:
    batches, sizes = material.batches(images_of(material))
    schedule = Schedule(sizes, 4, (64,), 96, seed=5, flip=True)
    detector, known = few_shot(material), len(material.labels.base)
    before = detector.predictor.boxes.weight.detach().clone()
    if keeps:
        views = cached_features.look_once(detector, batches, schedule, CPU, bf16=False)
        losses = cached_features.losses_over(detector, views, known)
        inputs = cached_features.rows_from(schedule, CPU)
    else:
        losses, inputs = losses_of(detector, known), inputs_from(batches, CPU)
    curve(detector, losses, material, schedule, inputs, 1)
    after = detector.predictor.boxes.weight
    torch.testing.assert_close(after[4 * known :], before[4 * known :], rtol=1e-3, atol=0)  # decay
    assert (after[: 4 * known] - before[: 4 * known]).abs().max() > 1e-3


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shorts", [(64,), (48, 64)])
def test_views_are_numbered_without_gaps_as_plans_name_them(
    material: Material, flip: bool, shorts: tuple[int, ...]
) -> None:
    _, sizes = material.batches(images_of(material))
    schedule = Schedule(sizes, 3, shorts, 96, seed=0, flip=flip)
    said: dict[int, tuple[object, ...]] = {}
    for plan in schedule.every_view(3):
        rows = schedule.views_of(plan)[: plan.count].tolist()
        for row, image, flipped in zip(rows, plan.images, plan.flip, strict=False):
            assert row not in said
            said[row] = (int(image), plan.short, bool(flipped), plan.canvas)
    assert sorted(said) == list(range(8 * len(shorts) * (1 + flip)))
    drawn = set()
    for n in range(60):
        plan = schedule.plan(n)
        for row, image, flipped in zip(
            schedule.views_of(plan).tolist(), plan.images, plan.flip, strict=True
        ):
            assert said[row] == (int(image), plan.short, bool(flipped), plan.canvas)
            drawn.add(row)
    assert drawn == set(said)  # what is kept is what training shows


def test_a_short_side_that_is_named_twice_is_one_view(material: Material) -> None:
    batches, sizes = material.batches(images_of(material))
    twice = Schedule(sizes, 4, (64, 48, 64), 96, seed=0)
    detector = few_shot(material)
    views = cached_features.look_once(detector, batches, twice, CPU, bf16=False)
    plan = twice.plan(0)
    rows = twice.views_of(plan)
    alone = cached_features._look(detector.eval(), next(iter(batches([plan]))))
    torch.testing.assert_close(views.vectors[rows], alone.vectors, rtol=1e-4, atol=1e-5)


def test_what_hinders(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sizes = material.batches(images_of(material))
    schedule = Schedule(sizes, 4, (32, 64), 96, seed=0)
    detector = few_shot(material)
    # 8 pictures x 2 scales x 2 flips, 30 proposals and 3 boxes, 32 numbers of 4 bytes
    needed = 8 * 2 * 2 * (30 + 3) * 32 * 4
    assert cached_features.bytes_of_views(detector, 32, 3, bf16=False) == needed
    assert cached_features.bytes_of_views(detector, 32, 3, bf16=True) == needed // 2
    for free, fits in ((needed, False), (2 * needed, True)):
        monkeypatch.setattr(cached_features, "free_memory", lambda device, free=free: free)
        assert (cached_features.obstacle(detector, schedule, 3, CPU, bf16=False) == "") == fits
    # a canvas of 64 x 64 pixels has fewer anchors than that, one of 96 x 96 more
    few = few_shot(material, before_nms_train=2000, after_nms_train=1800)
    assert "fewer anchors" in cached_features.obstacle(few, schedule, 3, CPU, bf16=False)


def test_free_memory_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "meminfo"
    said.write_text("MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:   2000 kB\n")
    monkeypatch.setattr(cached_features, "MEMORY", said)
    assert cached_features.free_memory(CPU) == 2000 * 1024
    monkeypatch.setattr(cached_features, "MEMORY", tmp_path / "none")  # macOS
    assert cached_features.free_memory(CPU) > 2**20
