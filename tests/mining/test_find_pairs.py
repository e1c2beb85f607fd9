"""Pairs of a small random detector, against a loop over images, proposals and classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor

from helpers import shapes
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.settings import IMAGENET, BackboneSettings, RoISettings, RPNSettings
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.load import LastMap
from mini_fsod.loader.cache import Pictures, cached_pictures
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.mining import find_pairs as module
from mini_fsod.mining.calibration import dot_products
from mini_fsod.mining.find_pairs import (
    PrototypeComparison,
    box_features,
    compare_given_pairs,
    find_pairs,
    plans_at_size,
)
from mini_fsod.mining.pairs import Pairs

CPU = torch.device("cpu")
BASE, NOVEL = 2, 3
MIN_SCORE = 0.16  # scores of random weights lie around 1/6
NEAR = 1e-3  # kernels for a batch and for one picture add in another order; seen: 1.4e-4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Nine pictures of four sizes: several canvases, and a batch that has to be filled up."""
    folder = tmp_path_factory.mktemp("small")
    content = shapes.pictures(folder, 9, seed=0)
    (folder / "annotations.json").write_text(json.dumps(content))
    return read(folder)


@pytest.fixture(scope="module")
def pictures(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return cached_pictures(data, tmp_path_factory.mktemp("cache"), 96, 192)


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    made = build(
        BASE + NOVEL,
        NARROW,
        norm="group",
        channels=16,
        rpn=RPNSettings(
            anchor_sizes=((8,), (16,), (32,), (64,), (128,)), before_nms_test=60, after_nms_test=40
        ),
        roi=RoISettings(width=32),
    )
    torch.nn.init.normal_(made.predictor.classifier.weight, std=0.3)
    torch.nn.init.normal_(made.rpn_head.predict.weight, std=0.1)
    return made.eval()


@pytest.fixture(scope="module")
def discriminator() -> Discriminator:
    torch.manual_seed(1)
    body = LastMap(make_backbone(BackboneSettings(NARROW, "group")))
    return Discriminator(body, body.dimension, body.stride, IMAGENET)


def batches_of(pictures: Pictures, boxes: Boxes) -> Callable[[Iterable[Plan]], Iterator[Batch]]:
    return Resident(pictures, Annotations.of(boxes, len(pictures.files)), CPU).batches


def plans_of(pictures: Pictures, batch: int = 2) -> list[Plan]:
    return each_once(pictures.sizes, batch, 64, 96)


@pytest.fixture(scope="module")
def comparison(pictures: Pictures, discriminator: Discriminator) -> PrototypeComparison:
    torch.manual_seed(2)
    size = discriminator.dimension
    plans = plans_at_size(plans_of(pictures), pictures.sizes, 96, 192)
    return PrototypeComparison(discriminator, torch.rand(NOVEL, size), plans)


def scanned(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    comparison: PrototypeComparison | None,
    min_score: float = MIN_SCORE,
) -> Pairs:
    source = batches_of(pictures, data.boxes)
    return find_pairs(detector, source, plans_of(pictures), BASE, min_score, CPU, False, comparison)


def in_order(pairs: Pairs) -> Pairs:
    """Pairs by image, class, score: an order that does not depend on how they were found."""
    rows = np.lexsort((pairs.score, pairs.label, pairs.image))
    columns = {n: getattr(pairs, n)[rows] for n in ("image", "label", "score", "xywh", "proposal")}
    return replace(pairs, **columns)


def same(one: Pairs, other: Pairs) -> None:
    a, b = in_order(one), in_order(other)
    assert a.image.tolist() == b.image.tolist()
    assert a.label.tolist() == b.label.tolist()
    np.testing.assert_allclose(a.score, b.score, rtol=NEAR)
    np.testing.assert_allclose(a.xywh, b.xywh, rtol=NEAR, atol=0.01)
    cosines = [r.products.cosine(r.proposal, r.label) for r in (a, b)]
    np.testing.assert_allclose(*cosines, rtol=1e-4, atol=1e-6)


def one_by_one(plans: Sequence[Plan]) -> Iterator[Plan]:
    """A plan for each image that is meant, on the same canvas."""
    for plan in plans:
        for k in range(plan.count):
            own = {
                name: getattr(plan, name)[k : k + 1]
                for name in ("images", "sizes", "scaled", "shift", "flip")
            }
            yield replace(plan, **own, batch=1, count=1)


def naive(
    detector: Detector, pictures: Pictures, data: Dataset, comparison: PrototypeComparison
) -> list[tuple[int, int, float, list[float], float]]:
    """(image, class, score, xywh, cosine) of every pair, one at a time."""
    show = batches_of(pictures, data.boxes)
    others = {int(plan.images[0]): plan for plan in one_by_one(comparison.plans)}
    rows = []
    for plan in one_by_one(plans_of(pictures)):
        image = int(plan.images[0])
        (batch,) = show([plan])
        (large,) = show([others[image]])
        height, width = pictures.sizes[image].tolist()
        with torch.no_grad():
            found = detector.infer(batch.images, batch.sizes)
        # from the canvas to the picture, and to the discriminator's canvas
        size, shown = batch.sizes[0].tolist(), large.sizes[0].tolist()
        own = torch.tensor([width / size[1], height / size[0]]).repeat(2)
        there = torch.tensor([shown[1] / width, shown[0] / height]).repeat(2)
        for p in range(found.scores.shape[1]):
            for c in range(NOVEL):
                score = found.scores[0, p, BASE + c].item()
                if not (found.proposals.valid[0, p] and score > MIN_SCORE):
                    continue
                box = found.boxes[0, p, BASE + c] * own
                seen = found.proposals.boxes[0, p] * own * there
                feature = comparison.discriminator.features(
                    large.images, large.sizes, seen[None, None], torch.ones(1, 1).bool()
                )[0, 0]
                cosine = F.cosine_similarity(feature, comparison.prototypes[c], dim=0)
                left, top, right, bottom = box.tolist()
                xywh = [left, top, right - left, bottom - top]
                rows.append((image, c, score, xywh, cosine.item()))
    return sorted(rows, key=lambda row: (*row[:2], row[2]))


def test_find_pairs_whatever_class_takes_the_best_of_all_classes(
    detector: Detector, pictures: Pictures, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OF_ANY_CLASS", 5)
    show = batches_of(pictures, data.boxes)
    pairs = find_pairs(
        detector, show, plans_of(pictures), BASE, MIN_SCORE, CPU, False, None, whatever_class=True
    )
    wanted = []
    for plan in one_by_one(plans_of(pictures)):
        (batch,) = show([plan])
        with torch.no_grad():
            found = detector.infer(batch.images, batch.sizes)
        score, label = found.scores[0].max(1)
        kept = found.proposals.valid[0] & (score > MIN_SCORE)
        box = found.boxes[0, torch.arange(len(label)), label][kept]
        best = torchvision.ops.nms(box, score[kept], module.SAME_PLACE)[:5]
        wanted += [(int(plan.images[0]), s) for s in score[kept][best].tolist()] * NOVEL
    got = list(zip(pairs.image.tolist(), pairs.score.tolist(), strict=True))
    np.testing.assert_allclose(sorted(got), sorted(wanted), rtol=NEAR)
    counts = np.bincount(pairs.label, minlength=NOVEL)
    assert len({*counts.tolist()}) == 1
    assert pairs.xywh[pairs.label == 0].tolist() == pairs.xywh[pairs.label == 1].tolist()


def test_find_pairs_equals_a_loop_over_everything(
    detector: Detector, pictures: Pictures, data: Dataset, comparison: PrototypeComparison
) -> None:
    pairs = in_order(scanned(detector, pictures, data, comparison))
    rows = naive(detector, pictures, data, comparison)
    assert 50 < len(rows) < 9 * 40 * NOVEL  # some are above the score threshold, and some are not
    assert {row[0] for row in rows} == set(range(len(data)))
    assert {row[1] for row in rows} == set(range(NOVEL))
    image, label, score, xywh, cosine = zip(*rows, strict=True)
    assert pairs.image.tolist() == list(image)
    assert pairs.label.tolist() == list(label)
    np.testing.assert_allclose(pairs.score, score, rtol=NEAR)
    np.testing.assert_allclose(pairs.xywh, xywh, rtol=NEAR, atol=0.01)
    found = pairs.products.cosine(pairs.proposal, pairs.label)
    np.testing.assert_allclose(found, np.maximum(cosine, 0), rtol=1e-3, atol=1e-5)
    # pairs of one proposal share its row, and every row is used
    assert np.unique(pairs.proposal).tolist() == list(range(len(pairs.products.square)))
    assert len(pairs.products.square) < len(pairs)


def test_find_pairs_gives_boxes_inside_their_images(
    detector: Detector, pictures: Pictures, data: Dataset
) -> None:
    pairs = scanned(detector, pictures, data, None)
    assert pairs.products is None
    right_bottom = pairs.xywh[:, :2] + pairs.xywh[:, 2:]
    assert (pairs.xywh[:, :2] >= 0).all()
    assert (right_bottom <= pictures.sizes[pairs.image][:, ::-1] + 1e-3).all()


@pytest.fixture
def exact_calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every batch whether all its proposals were asked for."""
    calls: list[bool] = []
    top_proposals = module.top_proposals

    def counted(*words: Any) -> Any:
        calls.append(words[-1])
        return top_proposals(*words)

    monkeypatch.setattr(module, "top_proposals", counted)
    return calls


@pytest.mark.parametrize("proposals", [1, 7, 39])
def test_find_pairs_repeats_batches_with_too_many_proposals(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    comparison: PrototypeComparison,
    monkeypatch: pytest.MonkeyPatch,
    exact_calls: list[bool],
    proposals: int,
) -> None:
    whole = scanned(detector, pictures, data, comparison)
    plans = len(plans_of(pictures))
    assert exact_calls == [False] * plans
    monkeypatch.setattr(module, "PROPOSALS", proposals)
    monkeypatch.setattr(module, "FETCHED", 2)
    same(scanned(detector, pictures, data, comparison), whole)
    again = exact_calls[2 * plans :]
    assert exact_calls[plans : 2 * plans] == [False] * plans
    assert all(again)
    assert len(again) in {1: [plans], 7: [plans], 39: range(1, plans)}[proposals]


@pytest.mark.parametrize(("batch", "fetched"), [(1, 64), (2, 1), (2, 2), (4, 3)])
def test_find_pairs_does_not_depend_on_batches_or_waits(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    fetched: int,
) -> None:
    """On canvases of one size, since GroupNorm sees the whole canvas."""
    show = batches_of(pictures, data.boxes)
    square = [replace(p, canvas=(96, 96)) for p in plans_of(pictures, batch)]
    monkeypatch.setattr(module, "FETCHED", fetched)
    pairs = in_order(find_pairs(detector, show, square, BASE, MIN_SCORE, CPU, False))
    monkeypatch.setattr(module, "FETCHED", 64)
    alone = [replace(p, canvas=(96, 96)) for p in one_by_one(plans_of(pictures))]
    other = in_order(find_pairs(detector, show, alone, BASE, MIN_SCORE, CPU, False))
    assert len(pairs) == len(other) > 0
    for name in ("image", "label"):
        assert getattr(pairs, name).tolist() == getattr(other, name).tolist()
    np.testing.assert_allclose(pairs.score, other.score, rtol=NEAR)


def test_find_pairs_with_nothing_above_the_score(
    detector: Detector, pictures: Pictures, data: Dataset, comparison: PrototypeComparison
) -> None:
    pairs = scanned(detector, pictures, data, comparison, min_score=0.999)
    assert len(pairs) == 0
    assert pairs.products.prototype.shape == (0, NOVEL)


def test_plans_at_size_shows_the_same_images(pictures: Pictures) -> None:
    plans = plans_of(pictures)
    others = plans_at_size(plans, pictures.sizes, 96, 192)
    assert len({p.canvas for p in plans}) > 1
    canvases: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for plan, other in zip(plans, others, strict=True):
        assert other.images is plan.images
        assert (other.count, other.batch) == (plan.count, plan.batch)
        assert (other.sizes.min(1) == 96).all()
        assert (other.sizes <= other.canvas).all()
        assert all(side % 32 == 0 for side in other.canvas)
        ratio = other.sizes / pictures.sizes[plan.images]
        np.testing.assert_allclose(ratio[:, 0], ratio[:, 1], rtol=0.02)
        canvases.setdefault(plan.canvas, set()).add(other.canvas)
    assert all(len(found) == 1 for found in canvases.values())  # as few CUDA graphs as the scan has


# Boxes of people and of other tools


def test_box_features_of_annotated_boxes(
    pictures: Pictures, data: Dataset, discriminator: Discriminator
) -> None:
    show = batches_of(pictures, data.boxes)
    plans = each_once(pictures.sizes, 3, 96, 192, images=np.array([1, 2, 5, 7]))
    found = dict[int, Tensor]()
    for box, features in box_features(discriminator, show, plans):
        for b, feature in zip(box.tolist(), features, strict=True):
            assert b not in found  # images that fill up a batch do not count
            found[b] = feature
    meant = np.flatnonzero(np.isin(data.boxes.image, [1, 2, 5, 7])).tolist()
    assert sorted(found) == meant
    for plan in one_by_one(plans):
        (batch,) = show([plan])
        for slot, b in enumerate(batch.box_index[0].tolist()):
            if b < 0:
                continue
            scale = torch.from_numpy(plan.sizes[0] / pictures.sizes[plan.images[0]]).flip(0)
            box = torch.from_numpy(data.boxes.xyxy[b]).view(2, 2) * scale
            feature = discriminator.features(
                batch.images, batch.sizes, box.view(1, 1, 4).float(), torch.ones(1, 1).bool()
            )
            torch.testing.assert_close(found[b], feature[0, 0], rtol=1e-3, atol=1e-5)
            assert batch.targets.valid[0, slot]


def test_compare_given_pairs_equals_single_boxes(
    pictures: Pictures, data: Dataset, comparison: PrototypeComparison
) -> None:
    """In any order of images; a box outside its image has no feature."""
    rows = np.arange(len(data.boxes))[::-1]
    given = data.boxes.take(rows)
    xywh = given.xywh.copy()
    xywh[3] = -50, -50, 20, 20
    label = given.label % NOVEL
    pairs = Pairs.of(given.image, label, np.full(len(given), 0.5), xywh, rows[::-1])
    boxes = Boxes.of(given.image, xywh, label)
    plans = each_once(pictures.sizes, 3, 96, 192)
    parts = [*box_features(comparison.discriminator, batches_of(pictures, boxes), plans)]
    box, features = (torch.cat(column) for column in zip(*parts, strict=True))
    products = dot_products(features, comparison.prototypes)
    found = compare_given_pairs(pairs, boxes, comparison, box, products)
    assert len(found) == len(pairs)
    cosines = found.products.cosine(found.proposal, found.label)
    expected = np.zeros(len(pairs))
    for box, features in box_features(comparison.discriminator, batches_of(pictures, boxes), plans):
        for b, feature in zip(box.tolist(), features, strict=True):
            pair = int(boxes.record[b])
            prototype = comparison.prototypes[label[pair]]
            expected[pair] = F.cosine_similarity(feature, prototype, dim=0).item()
    assert cosines[3] == expected[3] == 0
    assert (expected[np.arange(len(pairs)) != 3] != 0).all()
    np.testing.assert_allclose(cosines, np.maximum(expected, 0), rtol=1e-4)
