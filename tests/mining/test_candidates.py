"""From pairs to candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pairs import pairs_of, random_pairs, rows_of, with_cosines
from mini_fsod.data.dataset import Boxes
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.mining.candidates import not_nested, select_candidates
from mini_fsod.mining.crop_similarity import CropFeatures
from mini_fsod.mining.pairs import Pairs

BOX = (10.0, 10.0, 20.0, 20.0)
NEAR = (11.0, 10.0, 20.0, 20.0)  # IoU 19 / 21 with BOX
APART = (50.0, 10.0, 20.0, 20.0)


def test_select_candidates_applies_nms_by_image_and_class() -> None:
    pairs = pairs_of((1, 0, 0.5, BOX), (1, 0, 0.75, NEAR), (1, 1, 0.25, BOX), (0, 0, 0.125, BOX))
    assert rows_of(select_candidates(pairs)) == [
        (0, 0, 0.125, 0.125, *BOX),
        (1, 0, 0.75, 0.75, *NEAR),
        (1, 1, 0.25, 0.25, *BOX),
    ]


def test_select_candidates_computes_in_double_precision() -> None:
    """Products of single precision would differ from those after a file, and between machines."""
    found = select_candidates(with_cosines(pairs_of((0, 0, 1 / 3, BOX)), [0.7]))
    assert found.cosine is not None
    expected = np.sqrt(found.cosine * np.float64(np.float32(1 / 3)))
    assert found.score.tolist() == expected.tolist()
    assert {part.dtype for part in (found.image, found.label)} == {np.dtype(np.int64)}
    assert {part.dtype for part in (found.xywh, found.score_detector)} == {np.dtype(np.float64)}


def test_select_candidates_ranks_by_the_calibrated_score() -> None:
    """The detector prefers the first box, the discriminator the second: sqrt(0.25 x 0.81)."""
    pairs = with_cosines(pairs_of((0, 0, 0.5, BOX), (0, 0, 0.25, NEAR)), [0.02, 0.81])
    found = select_candidates(pairs)
    assert found.xywh.tolist() == [list(NEAR)]
    assert found.score.tolist() == pytest.approx([0.45])
    assert found.score_detector.tolist() == [0.25]
    assert found.cosine is not None
    assert found.cosine.tolist() == pytest.approx([0.81])


def test_select_candidates_breaks_ties_by_the_detector_score() -> None:
    pairs = with_cosines(pairs_of((0, 0, 0.25, BOX), (0, 0, 0.5, NEAR)), [-0.25, -0.5])
    found = select_candidates(pairs)
    assert rows_of(found) == [(0, 0, 0.0, 0.5, *NEAR)]
    assert found.cosine is not None
    assert found.cosine.tolist() == [0]


def test_select_candidates_keeps_the_best_of_an_image() -> None:
    rows = [(i, k, 0.2 + k / 10 + n / 100, (40.0 * n, 0, 20, 20)) for i in (0, 1) for k in (0, 1)
             for n in range(3)]  # fmt: skip
    found = select_candidates(pairs_of(*rows), per_image=4)
    assert found.image.tolist() == [0] * 4 + [1] * 4
    assert found.label.tolist() == [1, 1, 1, 0] * 2
    assert found.score.tolist()[:4] == pytest.approx([0.32, 0.31, 0.3, 0.22])


def test_select_candidates_keeps_100_of_an_image_by_default() -> None:
    rows = [(0, 0, 0.9 - n / 1000, (40.0 * n, 0, 20, 20)) for n in range(103)]
    assert len(select_candidates(pairs_of(*rows))) == 100


def test_select_candidates_drops_boxes_on_base_after_nms() -> None:
    horse = Boxes.of([0], [[10, 10, 20, 20]], [0])
    loose = (20.0, 10.0, 25.0, 20.0)  # IoU 2/7 with the horse, 2/3 with ...
    tight = (15.0, 10.0, 25.0, 20.0)  # ... this: IoU 1/2 with the horse
    pairs = pairs_of((0, 0, 0.5, tight), (0, 0, 0.25, loose), (0, 1, 0.25, APART), (1, 0, 0.3, BOX))
    found = select_candidates(pairs, on_base=horse)
    assert list(zip(found.image.tolist(), found.label.tolist(), strict=True)) == [(0, 1), (1, 0)]
    everything = Boxes.of([0, 0, 1], [tight, APART, BOX], [0, 0, 0])
    assert len(select_candidates(pairs, on_base=everything)) == 0


def test_not_nested_drops_parts_and_groups() -> None:
    """A wheel in a better motorbike and a box around two better ones are nested; the whole around a
    better part, another class and another image are not.
    """
    whole, part, group = (0.0, 0.0, 40.0, 40.0), (0.0, 0.0, 20.0, 20.0), (0.0, 0.0, 100.0, 100.0)
    pairs = pairs_of(
        *((0, 0, 0.75, whole), (0, 0, 0.5, part), (0, 0, 0.25, group), (0, 1, 0.5, part)),
        *((1, 0, 0.5, part), (2, 0, 0.5, part), (2, 0, 0.25, whole)),
    )
    found = select_candidates(pairs)
    assert len(found) == 7
    assert rows_of(found.take(not_nested(found))) == [
        (0, 0, 0.75, 0.75, *whole),
        (0, 1, 0.5, 0.5, *part),
        (1, 0, 0.5, 0.5, *part),
        (2, 0, 0.5, 0.5, *part),
    ]
    assert not_nested(select_candidates(pairs_of())).tolist() == []


def test_select_candidates_of_no_pairs_or_empty_boxes() -> None:
    assert len(select_candidates(pairs_of())) == 0
    assert len(select_candidates(with_cosines(pairs_of(), []))) == 0
    assert len(select_candidates(pairs_of((0, 0, 0.5, (3, 3, 0, 5))))) == 0


@settings(max_examples=60, deadline=None)
@given(random_pairs(), st.randoms())
def test_select_candidates_ignores_the_order_of_pairs(pairs: Pairs, random) -> None:
    order = list(range(len(pairs)))
    random.shuffle(order)
    columns = {n: getattr(pairs, n)[order] for n in ("image", "label", "score", "xywh", "proposal")}
    assert rows_of(select_candidates(replace(pairs, **columns))) == rows_of(
        select_candidates(pairs)
    )


@settings(max_examples=60, deadline=None)
@given(random_pairs(), st.permutations(range(3)))
def test_select_candidates_treats_images_separately(pairs: Pairs, place: list[int]) -> None:
    moved = select_candidates(replace(pairs, image=np.array(place, dtype=np.int32)[pairs.image]))
    back = [(place.index(i), *rest) for i, *rest in rows_of(moved)]
    assert sorted(back) == sorted(rows_of(select_candidates(pairs)))


@settings(max_examples=60, deadline=None)
@given(random_pairs(most=40))
def test_select_candidates_sorts_and_separates(pairs: Pairs) -> None:
    found = select_candidates(pairs)
    assert (np.diff(found.image) >= 0).all()
    assert (np.diff(found.score)[np.diff(found.image) == 0] <= 0).all()
    group = found.image * 2 + found.label
    own, other = pairs_within(group, group)
    apart = own != other
    assert (iou(found.xywh[own], found.xywh[other])[apart] <= 0.5).all()
    assert set(group.tolist()) == set((pairs.image * 2 + pairs.label).tolist())


def test_select_candidates_by_prototypes_takes_the_mean_of_score_and_cosine() -> None:
    """0.5 x 0.2 + 0.5 x 0.8 = 0.5; co-mining follows: sqrt(0.5 x 0.8)."""
    pairs = with_cosines(pairs_of((0, 0, 0.2, BOX), (0, 1, 0.9, APART)), [0.8, -0.5])
    found = select_candidates(pairs, by_prototypes=True)
    assert found.score_detector.tolist() == pytest.approx([0.5, 0.45])
    assert found.score.tolist() == pytest.approx([0.4**0.5, 0.0])


def test_select_candidates_by_prototypes_of_no_pairs() -> None:
    assert len(select_candidates(with_cosines(pairs_of(), []), by_prototypes=True)) == 0


def test_select_candidates_gives_contested_boxes_score_0() -> None:
    pairs = Pairs.of(
        [0, 0, 1], [0, 1, 1], [0.8, 0.8, 0.9], [[0, 0, 9, 9], [0, 0, 9, 9], [0, 0, 9, 9]], [0, 1, 2]
    )
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    shots = np.array([[1.0, 0.0], [0.0, 1.0]])
    two = np.array([0, 1])
    crops = CropFeatures(features, shots, two, shots, two, np.ones((2, 3)))
    found = select_candidates(replace(pairs, crops=crops), refine=1, compete=0.5)
    assert found.image.tolist() == [0, 0, 1]
    assert found.label.tolist() == [0, 1, 1]
    assert found.score.tolist() == pytest.approx([0.8**0.5, 0.0, 0.9**0.5])
