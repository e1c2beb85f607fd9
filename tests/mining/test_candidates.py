"""From pairs to candidates: by hand, whatever the order, and to disk and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mining.pairs import raw_of, raws, rows_of, with_cosines, with_crops

from mini_fsod.data.dataset import Boxes
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.mining.candidates import Raw, apart, candidates, from_detections
from mini_fsod.mining.overlap import iou, pairs_within

BOX = (10.0, 10.0, 20.0, 20.0)
NEAR = (11.0, 10.0, 20.0, 20.0)  # IoU 19 / 21 with BOX
APART = (50.0, 10.0, 20.0, 20.0)


def test_nms_is_by_class_within_the_image() -> None:
    raw = raw_of((1, 0, 0.5, BOX), (1, 0, 0.75, NEAR), (1, 1, 0.25, BOX), (0, 0, 0.125, BOX))
    assert rows_of(candidates(raw, 0.05)) == [
        (0, 0, 0.125, 0.125, *BOX),
        (1, 0, 0.75, 0.75, *NEAR),
        (1, 1, 0.25, 0.25, *BOX),
    ]


def test_the_calibrated_score_decides() -> None:
    """The detector prefers the first box, the discriminator the second: sqrt(0.25 x 0.81)."""
    raw = with_cosines(raw_of((0, 0, 0.5, BOX), (0, 0, 0.25, NEAR)), [0.02, 0.81])
    found = candidates(raw, 0.05)
    assert found.xywh.tolist() == [list(NEAR)]
    assert found.score.tolist() == pytest.approx([0.45])
    assert found.score_detector.tolist() == [0.25]
    assert found.cosine is not None
    assert found.cosine.tolist() == pytest.approx([0.81])


def test_below_zero_the_detector_orders() -> None:
    raw = with_cosines(raw_of((0, 0, 0.25, BOX), (0, 0, 0.5, NEAR)), [-0.25, -0.5])
    found = candidates(raw, 0.05)
    assert rows_of(found) == [(0, 0, 0.0, 0.5, *NEAR)]
    assert found.cosine is not None
    assert found.cosine.tolist() == [0]


def test_the_cut_is_of_the_detectors_score() -> None:
    raw = with_cosines(raw_of((0, 0, 0.25, BOX), (0, 1, 0.5, BOX)), [1.0, 0.01])
    assert candidates(raw, 0.25).label.tolist() == [1]
    with pytest.raises(UserError, match=r"above 0\.05, mine\.cut is 0\.01"):
        candidates(raw, 0.01)


def test_an_image_has_its_best_only() -> None:
    pairs = [(i, k, 0.2 + k / 10 + n / 100, (40.0 * n, 0, 20, 20)) for i in (0, 1) for k in (0, 1)
             for n in range(3)]  # fmt: skip
    found = candidates(raw_of(*pairs), 0.05, most=4)
    assert found.image.tolist() == [0] * 4 + [1] * 4
    assert found.label.tolist() == [1, 1, 1, 0] * 2
    assert found.score.tolist()[:4] == pytest.approx([0.32, 0.31, 0.3, 0.22])


def test_unasked_it_is_the_hundred_best() -> None:
    """protocol.md, section 3."""
    pairs = [(0, 0, 0.9 - n / 1000, (40.0 * n, 0, 20, 20)) for n in range(103)]
    assert len(candidates(raw_of(*pairs), 0.05)) == 100


def test_what_lies_on_base_goes_with_what_it_suppressed() -> None:
    horse = Boxes.of([0], [[10, 10, 20, 20]], [0])
    loose = (20.0, 10.0, 25.0, 20.0)  # IoU 2/7 with the horse, 2/3 with ...
    tight = (15.0, 10.0, 25.0, 20.0)  # ... this: IoU 1/2 with the horse
    raw = raw_of((0, 0, 0.5, tight), (0, 0, 0.25, loose), (0, 1, 0.25, APART), (1, 0, 0.3, BOX))
    found = candidates(raw, 0.05, on_base=horse)
    assert list(zip(found.image.tolist(), found.label.tolist(), strict=True)) == [(0, 1), (1, 0)]
    everything = Boxes.of([0, 0, 1], [tight, APART, BOX], [0, 0, 0])
    assert len(candidates(raw, 0.05, on_base=everything)) == 0


def test_parts_and_groups_are_not_apart() -> None:
    """The wheel of a surer motorbike and the box around two surer ones; not a surer part's whole,
    another class, another image.
    """
    whole, part, group = (0.0, 0.0, 40.0, 40.0), (0.0, 0.0, 20.0, 20.0), (0.0, 0.0, 100.0, 100.0)
    raw = raw_of(
        *((0, 0, 0.75, whole), (0, 0, 0.5, part), (0, 0, 0.25, group), (0, 1, 0.5, part)),
        *((1, 0, 0.5, part), (2, 0, 0.5, part), (2, 0, 0.25, whole)),
    )
    found = candidates(raw, 0.05)
    assert len(found) == 7
    assert rows_of(found.take(apart(found))) == [
        (0, 0, 0.75, 0.75, *whole),
        (0, 1, 0.5, 0.5, *part),
        (1, 0, 0.5, 0.5, *part),
        (2, 0, 0.5, 0.5, *part),
    ]
    assert apart(candidates(raw_of(), 0.05)).tolist() == []


def test_zero_pairs_and_boxes_without_area() -> None:
    assert len(candidates(raw_of(), 0.05)) == 0
    assert len(candidates(with_cosines(raw_of(), []), 0.05, centre=True)) == 0
    assert len(candidates(raw_of((0, 0, 0.5, (3, 3, 0, 5))), 0.05)) == 0


@settings(max_examples=60, deadline=None)
@given(raws(), st.randoms())
def test_the_order_of_pairs_does_not_matter(raw: Raw, random) -> None:
    order = list(range(len(raw)))
    random.shuffle(order)
    columns = {n: getattr(raw, n)[order] for n in ("image", "label", "score", "xywh", "proposal")}
    assert rows_of(candidates(replace(raw, **columns), 0.05)) == rows_of(candidates(raw, 0.05))


@settings(max_examples=60, deadline=None)
@given(raws(), st.permutations(range(3)))
def test_images_do_not_see_each_other(raw: Raw, place: list[int]) -> None:
    moved = candidates(replace(raw, image=np.array(place, dtype=np.int32)[raw.image]), 0.05)
    back = [(place.index(i), *rest) for i, *rest in rows_of(moved)]
    assert sorted(back) == sorted(rows_of(candidates(raw, 0.05)))


@settings(max_examples=60, deadline=None)
@given(raws(most=40))
def test_candidates_are_sorted_and_apart(raw: Raw) -> None:
    found = candidates(raw, 0.05)
    assert (np.diff(found.image) >= 0).all()
    assert (np.diff(found.score)[np.diff(found.image) == 0] <= 0).all()
    group = found.image * 2 + found.label
    own, other = pairs_within(group, group)
    apart = own != other
    assert (iou(found.xywh[own], found.xywh[other])[apart] <= 0.5).all()
    assert set(group.tolist()) == set((raw.image * 2 + raw.label).tolist())


def test_another_tools_detections() -> None:
    found = DatasetDetections.of(
        [2, 0, 1, 1], [1, 0, 2, 1], [BOX, BOX, NEAR, APART], [0.9, 0.9, 0.5, 0.04]
    )
    raw = from_detections(found, ("car", "bird", "bus"), ("bus", "bird"), 0.05)
    assert raw.image.tolist() == [2, 1]
    assert raw.label.tolist() == [1, 0]
    assert raw.proposal.tolist() == [0, 1]
    assert raw.xywh.tolist() == [list(BOX), list(NEAR)]
    assert raw.dots is None
    nothing = DatasetDetections.of([], [], [], [])
    assert len(from_detections(nothing, ("bird",), ("bird",), 0.05)) == 0


@pytest.mark.parametrize("score", [87.0, -0.1])
def test_scores_of_another_range_are_refused(score: float) -> None:
    found = DatasetDetections.of([0], [0], [BOX], [score])
    with pytest.raises(UserError, match="from 0 to 1"):
        from_detections(found, ("bird",), ("bird",), 0.05)


@settings(max_examples=90, deadline=None)
@given(raws(crops=True))
def test_a_scan_comes_back_from_disk(tmp_path_factory: pytest.TempPathFactory, raw: Raw) -> None:
    """To the last digit: mining again with nothing changed must change nothing."""
    path = tmp_path_factory.mktemp("scan") / "raw.npz"
    replace(raw, source="transfer 12ab").save(path)
    again = Raw.load(path)
    assert again is not None
    assert (again.cut, again.source) == (0.05, "transfer 12ab")
    assert (again.dots is None) == (raw.dots is None)
    assert (again.seen is None) == (raw.seen is None)
    for how in ({}, {"whiten": True, "refine": 2}):
        one, two = (candidates(each, 0.05, **how) for each in (again, raw))
        assert rows_of(one) == rows_of(two)
    if again.seen is not None and raw.seen is not None:
        assert again.seen.stretch.tolist() == raw.seen.stretch.tolist()


def _damaged(path: Path, how: str) -> None:
    raw = with_cosines(raw_of((0, 0, 0.5, BOX), (0, 1, 0.5, BOX)), [1, 1])
    changed = {
        "lengths": replace(raw, label=raw.label[:1]),
        "finite": replace(raw, score=np.array([np.nan, 1], dtype=np.float32)),
        "unknown": replace(raw, proposal=np.array([0, 2])),
        "negative": replace(raw, image=np.array([0, -1], dtype=np.int32)),
    }
    seen = with_crops(replace(raw, dots=None), seed=0)
    assert seen.seen is not None
    for name in ("candidates", "base", "shots", "stretch"):
        short = replace(seen.seen, **{name: getattr(seen.seen, name)[:1]})
        changed[f"lengths of {name}"] = replace(seen, seen=short)
    changed.get(how, raw).save(path)
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:700])
    if how == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    if how == "text":
        path.write_text("nothing of ours")
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize(
    "how",
    "lengths,lengths of candidates,lengths of base,lengths of shots,lengths of stretch,finite,"
    "unknown,negative,cut off,flipped,text,gone".split(","),
)
def test_a_damaged_scan_is_told(tmp_path: Path, how: str) -> None:
    path = tmp_path / "raw.npz"
    _damaged(path, how)
    with pytest.raises(UserError, match=r"raw\.npz: not what a scan has left") as caught:
        Raw.load(path)
    assert "made again" in caught.value.fix


def test_a_scan_of_another_version_is_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "raw.npz", format=99)
    assert Raw.load(tmp_path / "raw.npz") is None
