"""The scan of a small random detector, against a loop over images, proposals and classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.model import Detector, build
from mini_fsod.detector.nms import by_matrix
from mini_fsod.detector.settings import IMAGENET, BackboneSettings, RoISettings, RPNSettings
from mini_fsod.discriminator.features import Discriminator
from mini_fsod.discriminator.load import LastMap
from mini_fsod.loader.cache import Pictures, cached_pictures
from mini_fsod.loader.resident import Annotations, Batch, Resident
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.mining import pairs as scanning
from mini_fsod.mining.candidates import Raw, candidates
from mini_fsod.mining.pairs import Judge, at_other_size, box_features, judged, scan
from runs import small

CPU = torch.device("cpu")
BASE, NOVEL = 2, 3
CUT = 0.16  # scores of random weights lie around 1/6
NEAR = 1e-3  # kernels for a batch and for one picture add in another order; seen: 1.4e-4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Nine pictures of four sizes: several canvases, and a batch that has to be filled up."""
    folder = tmp_path_factory.mktemp("small")
    content = small.pictures(folder, 9, seed=0)
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
            anchor_sizes=((8,), (16,), (32,), (64,), (128,)),
            before_nms_test=60,
            after_nms_test=40,
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
    return Discriminator(body, body.dimension, body.stride, IMAGENET, "random")


def batches_of(pictures: Pictures, boxes: Boxes) -> Callable[[Iterable[Plan]], Iterator[Batch]]:
    return Resident(pictures, Annotations.of(boxes, len(pictures.files)), CPU).batches


def plans_of(pictures: Pictures, batch: int = 2) -> list[Plan]:
    return each_once(pictures.sizes, batch, 64, 96)


@pytest.fixture(scope="module")
def judge(pictures: Pictures, discriminator: Discriminator) -> Judge:
    torch.manual_seed(2)
    size = discriminator.dimension
    plans = at_other_size(plans_of(pictures), pictures.sizes, 96, 192)
    return Judge(discriminator, torch.rand(NOVEL, size), torch.rand(size), plans)


def scanned(
    detector: Detector, pictures: Pictures, data: Dataset, judge: Judge | None, cut: float = CUT
) -> Raw:
    source = batches_of(pictures, data.boxes)
    return scan(detector, source, plans_of(pictures), BASE, cut, CPU, False, judge)


def in_order(raw: Raw) -> Raw:
    """Pairs by image, class, score: an order that does not depend on how they were found."""
    rows = np.lexsort((raw.score, raw.label, raw.image))
    columns = {n: getattr(raw, n)[rows] for n in ("image", "label", "score", "xywh", "proposal")}
    return replace(raw, **columns)


def same(one: Raw, other: Raw) -> None:
    a, b = in_order(one), in_order(other)
    assert a.image.tolist() == b.image.tolist()
    assert a.label.tolist() == b.label.tolist()
    np.testing.assert_allclose(a.score, b.score, rtol=NEAR)
    np.testing.assert_allclose(a.xywh, b.xywh, rtol=NEAR, atol=0.01)
    for centre in (False, True):
        cosines = [r.dots.cosine(r.proposal, r.label, 1.0, centre) for r in (a, b)]
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
    detector: Detector, pictures: Pictures, data: Dataset, judge: Judge
) -> list[tuple[int, int, float, list[float], float, float]]:
    """(image, class, score, xywh, cosine, centred cosine) of every pair, one at a time."""
    show = batches_of(pictures, data.boxes)
    others = {int(plan.images[0]): plan for plan in one_by_one(judge.plans)}
    rows = []
    for plan in one_by_one(plans_of(pictures)):
        image = int(plan.images[0])
        (batch,) = show([plan])
        (large,) = show([others[image]])
        height, width = pictures.sizes[image].tolist()
        with torch.no_grad():
            found = detector.infer(batch.images, batch.sizes, exact=True)
        # from the canvas to the picture, and to the discriminator's canvas
        size, shown = batch.sizes[0].tolist(), large.sizes[0].tolist()
        own = torch.tensor([width / size[1], height / size[0]]).repeat(2)
        there = torch.tensor([shown[1] / width, shown[0] / height]).repeat(2)
        for p in range(found.scores.shape[1]):
            for c in range(NOVEL):
                score = found.scores[0, p, BASE + c].item()
                if not (found.proposals.valid[0, p] and score > CUT):
                    continue
                box = found.boxes[0, p, BASE + c] * own
                seen = found.proposals.boxes[0, p] * own * there
                feature = judge.discriminator.features(
                    large.images, large.sizes, seen[None, None], torch.ones(1, 1).bool()
                )[0, 0]
                similar = F.cosine_similarity(feature, judge.prototypes[c], dim=0)
                centred = F.cosine_similarity(
                    feature - judge.mean, judge.prototypes[c] - judge.mean, dim=0
                )
                left, top, right, bottom = box.tolist()
                xywh = [left, top, right - left, bottom - top]
                rows.append((image, c, score, xywh, similar.item(), centred.item()))
    return sorted(rows, key=lambda row: (*row[:2], row[2]))


def test_a_scan_is_the_loop_over_everything(
    detector: Detector, pictures: Pictures, data: Dataset, judge: Judge
) -> None:
    raw = in_order(scanned(detector, pictures, data, judge))
    rows = naive(detector, pictures, data, judge)
    assert 50 < len(rows) < 9 * 40 * NOVEL  # some are above the cut, and some are not
    assert {row[0] for row in rows} == set(range(len(data)))
    assert {row[1] for row in rows} == set(range(NOVEL))
    image, label, score, xywh, similar, centred = zip(*rows, strict=True)
    assert raw.image.tolist() == list(image)
    assert raw.label.tolist() == list(label)
    np.testing.assert_allclose(raw.score, score, rtol=NEAR)
    np.testing.assert_allclose(raw.xywh, xywh, rtol=NEAR, atol=0.01)
    for expected, centre in ((similar, False), (centred, True)):
        found = raw.dots.cosine(raw.proposal, raw.label, 1.0, centre)
        np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-3, atol=1e-5)
    assert raw.cut == CUT
    # pairs of one proposal share its row, and no row is there for nothing
    assert np.unique(raw.proposal).tolist() == list(range(len(raw.dots.square)))
    assert len(raw.dots.square) < len(raw)


def test_boxes_lie_in_their_pictures(detector: Detector, pictures: Pictures, data: Dataset) -> None:
    raw = scanned(detector, pictures, data, None)
    assert raw.dots is None
    right_bottom = raw.xywh[:, :2] + raw.xywh[:, 2:]
    assert (raw.xywh[:, :2] >= 0).all()
    assert (right_bottom <= pictures.sizes[raw.image][:, ::-1] + 1e-3).all()


@pytest.fixture
def looks(detector: Detector, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every look of the detector at a batch whether it was an exact one."""
    seen: list[bool] = []
    infer = detector.infer

    def counted(*words: Tensor, exact: bool) -> Any:
        seen.append(exact)
        return infer(*words, exact=exact)

    monkeypatch.setattr(detector, "infer", counted)
    return seen


@pytest.mark.parametrize("room", [1, 7, 39])
def test_batches_without_room_are_done_again(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[bool],
    room: int,
) -> None:
    whole = scanned(detector, pictures, data, judge)
    plans = len(plans_of(pictures))
    assert looks == [False] * plans
    monkeypatch.setattr(scanning, "ROOM", room)
    monkeypatch.setattr(scanning, "FETCHED", 2)
    same(scanned(detector, pictures, data, judge), whole)
    again = looks[2 * plans :]
    assert looks[plans : 2 * plans] == [False] * plans
    assert all(again)
    assert len(again) in {1: [plans], 7: [plans], 39: range(1, plans)}[room]


def test_batches_whose_proposals_had_not_settled_are_done_again(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    judge: Judge,
    monkeypatch: pytest.MonkeyPatch,
    looks: list[bool],
) -> None:
    whole = scanned(detector, pictures, data, judge)
    plans = len(looks)
    monkeypatch.setattr("mini_fsod.detector.nms.nms", by_matrix)  # as on a device
    monkeypatch.setattr(detector, "settings", replace(detector.settings, nms_rounds=1))
    same(scanned(detector, pictures, data, judge), whole)
    assert any(looks[2 * plans :])


@pytest.mark.parametrize(("batch", "fetched"), [(1, 64), (2, 1), (2, 2), (4, 3)])
def test_neither_batches_nor_waits_matter(
    detector: Detector,
    pictures: Pictures,
    data: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    fetched: int,
) -> None:
    """On canvases of one size: what lies around an image is seen by norms over the whole."""
    show = batches_of(pictures, data.boxes)
    square = [replace(p, canvas=(96, 96)) for p in plans_of(pictures, batch)]
    monkeypatch.setattr(scanning, "FETCHED", fetched)
    raw = in_order(scan(detector, show, square, BASE, CUT, CPU, False))
    monkeypatch.setattr(scanning, "FETCHED", 64)
    alone = [replace(p, canvas=(96, 96)) for p in one_by_one(plans_of(pictures))]
    other = in_order(scan(detector, show, alone, BASE, CUT, CPU, False))
    assert len(raw) == len(other) > 0
    for name in ("image", "label"):
        assert getattr(raw, name).tolist() == getattr(other, name).tolist()
    np.testing.assert_allclose(raw.score, other.score, rtol=NEAR)


def test_nothing_above_the_cut(
    detector: Detector, pictures: Pictures, data: Dataset, judge: Judge, tmp_path: Path
) -> None:
    raw = scanned(detector, pictures, data, judge, cut=0.999)
    assert len(raw) == 0
    assert raw.dots.prototype.shape == (0, NOVEL)
    raw.save(tmp_path / "raw.npz")
    assert len(candidates(Raw.load(tmp_path / "raw.npz"), 0.999)) == 0


def test_the_discriminators_batches_show_the_same_images(pictures: Pictures) -> None:
    plans = plans_of(pictures)
    others = at_other_size(plans, pictures.sizes, 96, 192)
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
    assert all(len(found) == 1 for found in canvases.values())  # as few recordings as the scan's


# Boxes of people and of other tools


def test_features_of_annotated_boxes(
    pictures: Pictures, data: Dataset, discriminator: Discriminator
) -> None:
    show = batches_of(pictures, data.boxes)
    plans = each_once(pictures.sizes, 3, 96, 192, images=np.array([1, 2, 5, 7]))
    found = dict[int, Tensor]()
    for box, features in box_features(discriminator, show, plans):
        for b, feature in zip(box.tolist(), features, strict=True):
            assert b not in found  # what fills a batch up is not meant
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


def test_pairs_of_another_tool(pictures: Pictures, data: Dataset, judge: Judge) -> None:
    """Any order of images; a box outside its picture has no feature."""
    rows = np.arange(len(data.boxes))[::-1]
    given = data.boxes.take(rows)
    xywh = given.xywh.copy()
    xywh[3] = -50, -50, 20, 20
    label = given.label % NOVEL
    raw = Raw.of(given.image, label, np.full(len(given), 0.5), xywh, rows[::-1], CUT)
    boxes = Boxes.of(given.image, xywh, label)
    plans = each_once(pictures.sizes, 3, 96, 192)
    own = replace(judge, plans=plans)
    found = judged(raw, boxes, own, batches_of(pictures, boxes))
    assert len(found) == len(raw)
    cosines = found.dots.cosine(found.proposal, found.label, 1.0, False)
    expected = np.zeros(len(raw))
    for box, features in box_features(judge.discriminator, batches_of(pictures, boxes), plans):
        for b, feature in zip(box.tolist(), features, strict=True):
            pair = int(boxes.record[b])
            prototype = judge.prototypes[label[pair]]
            expected[pair] = F.cosine_similarity(feature, prototype, dim=0).item()
    assert cosines[3] == expected[3] == 0
    assert (expected[np.arange(len(raw)) != 3] != 0).all()
    np.testing.assert_allclose(cosines, np.maximum(expected, 0), rtol=1e-4)
