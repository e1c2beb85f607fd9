"""The stage `scan` on coloured shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import shapes
from helpers.mining_run import mine_again, mined, mining_config, mining_run, scan_and_mine
from helpers.tiny_run import MINED_FILES, detections
from helpers.training import in_team
from mini_fsod.data.overlap import iou, pairs_within
from mini_fsod.data.subsets import arranged
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.mining import crops
from mini_fsod.mining import scan as module
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.scan import PAIRS, discriminator_of, scan
from mini_fsod.runs.detectors import load_detector
from mini_fsod.runs.scoring import score_test_set
from mini_fsod.train.distributed import Team

CPU = torch.device("cpu")


def scanned(data: Path, out: Path, **changes: object) -> Pairs:
    run = mining_run(data, out, **changes)
    scan(run, run.folder("scan"))
    return Pairs.load(run.folder("scan") / PAIRS)


@pytest.mark.parametrize("loading", ["resident", "stream"])
def test_scan_gives_the_same_pool_however_images_are_loaded(
    shapes_data: Path, finished: Path, tmp_path: Path, loading: str
) -> None:
    scan_and_mine(shapes_data, tmp_path, data__loading=loading)
    for name in MINED_FILES:
        assert (tmp_path / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()


def test_scan_returns_its_figures(shapes_data: Path, tmp_path: Path) -> None:
    run = mining_run(shapes_data, tmp_path)
    figures = scan(run, run.folder("scan"))
    pairs = Pairs.load(run.folder("scan") / PAIRS)
    assert figures == {"images": 8, "pairs": len(pairs)}
    assert pairs.files == run.data.mined.files
    cropping = mining_run(shapes_data, tmp_path / "crops", discriminator__crop=32)
    assert scan(cropping, cropping.folder("scan"))["crop"] == 32


def test_scan_uses_the_configured_number_of_proposals(shapes_data: Path, tmp_path: Path) -> None:
    pairs = scanned(shapes_data, tmp_path, detector__rpn_post_nms=7)
    assert pairs.products is not None
    assert 0 < len(pairs.products.square) <= 8 * 7


def test_scan_keeps_pairs_above_min_score(shapes_data: Path, tmp_path: Path) -> None:
    low = scanned(shapes_data, tmp_path / "low")
    threshold = float(np.median(low.score))
    high = scanned(shapes_data, tmp_path / "high", mine__min_score=threshold)
    assert sorted(high.score.tolist()) == sorted(low.score[low.score > threshold].tolist())


def test_scan_at_several_sizes_joins_their_pairs(shapes_data: Path, tmp_path: Path) -> None:
    """The discriminator sees one size, so cosines do not change."""

    def pairs_at(sides: object) -> list[tuple[float, ...]]:
        out = tmp_path / str(sides)
        pairs = scanned(shapes_data, out, mine__scan_short=sides, mine__min_score=0.2)
        assert pairs.products is not None
        cosine = pairs.products.cosine(pairs.proposal, pairs.label)
        columns = (pairs.image, pairs.label, pairs.score, *pairs.xywh.T, cosine)
        return sorted(zip(*(column.round(3).tolist() for column in columns), strict=True))

    small, large = pairs_at(64), pairs_at(128)
    assert small == pairs_at("null")
    assert small != large
    assert pairs_at("[64, 128]") == sorted(small + large)


def test_scan_of_the_same_images_with_another_discriminator_or_shots(
    shapes_data: Path, finished: Path, tmp_path: Path
) -> None:
    before = mined(finished, "candidates.json")
    for n, change in enumerate(
        ({"seed": 1}, {"discriminator__short": 64}, {"shots__k": 2}, {"shots__seed": 1})
    ):
        out = tmp_path / str(n)
        scan_and_mine(shapes_data, out, **change)
        after = mined(out, "candidates.json")
        assert {c["score_detector"] for c in after} & {c["score_detector"] for c in before}
        assert [c["cosine"] for c in after] != [c["cosine"] for c in before]


def test_scan_of_proposals_keeps_the_best_off_base_boxes(
    shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"discriminator__crop": 32, "mine__candidates": "proposals"}
    scan_and_mine(shapes_data, tmp_path / "1", **keys)
    run = mining_run(shapes_data, tmp_path / "1", **keys)
    pairs = Pairs.load(tmp_path / "1" / "scan" / PAIRS)
    assert pairs.crops is not None
    assert len(pairs) > 10
    base = arranged(run.data.mined, LabelMap(run.data.labels.base, ())).boxes
    row, box = pairs_within(pairs.image, base.image)
    assert iou(pairs.xywh[row], base.xywh[box]).max() < 0.5
    monkeypatch.setattr(crops, "THINNED", 4)
    scan_and_mine(shapes_data, tmp_path / "2", **keys)
    few = Pairs.load(tmp_path / "2" / "scan" / PAIRS)
    assert np.bincount(few.label).max() == 4
    assert {*map(tuple, few.xywh.tolist())} <= {*map(tuple, pairs.xywh.tolist())}


def test_scan_of_given_detections_needs_no_detector(
    shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load_detector", None)
    pairs = scanned(shapes_data, tmp_path, mine__detections=detections(shapes_data))
    assert sorted(pairs.score.tolist()) == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert pairs.products is not None
    assert (pairs.products.cosine(pairs.proposal, pairs.label) > 0).all()


def test_scan_of_no_detections(shapes_data: Path, tmp_path: Path) -> None:
    given = tmp_path / "none.json"
    given.write_text("[]")
    for n, crop in enumerate(("null", 32)):
        changes = {"mine__detections": given, "discriminator__crop": crop}
        assert scan_and_mine(shapes_data, tmp_path / str(n), **changes)["candidates"] == 0


def test_scan_without_a_discriminator(shapes_data: Path, tmp_path: Path) -> None:
    scan_and_mine(shapes_data, tmp_path, discriminator__weights="none")
    assert {c["cosine"] for c in mined(tmp_path, "candidates.json")} == {None}
    assert mined(tmp_path, "audit.json")["pool"]["without_co_mining"] is None


@pytest.mark.parametrize("key", ["discriminator__whiten", "mine__box_correction"])
def test_discriminator_of_refuses_crop_keys_without_crops(shapes_data: Path, key: str) -> None:
    with pytest.raises(UserError, match="need features of crops") as caught:
        discriminator_of(mining_config(shapes_data, **{key: "true"}), CPU)
    assert "discriminator.crop" in caught.value.fix
    found = discriminator_of(
        mining_config(shapes_data, discriminator__crop=32, **{key: "true"}), CPU
    )
    assert found is not None
    assert found.crop == 32


def test_scan_runs_the_detector_once_per_stage(
    shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other keys of the stage `mine` need no scan."""
    scan_and_mine(shapes_data, tmp_path / "run")
    monkeypatch.setattr(module, "find_pairs", None)
    figures = mine_again(shapes_data, tmp_path / "other", tmp_path / "run", mine__per_class=2)
    assert figures["kept"] == 2


def scan_in_team(team: Team, data: Path, out: Path, changes: dict[str, object]) -> None:
    run = mining_run(data, out, team=team, **changes)
    figures = scan(run, run.folder("scan"))
    saved = load_detector(run, "transfer")
    found = out / "detections.npz" if team.leads else None
    scores = score_test_set(run.config, run.data, saved.detector, saved.labels, False, found, team)
    if team.leads:
        (out / "figures.json").write_text(json.dumps([figures, scores]))


CROPS = {"discriminator__crop": 32, "mine__box_correction": True}


@pytest.mark.parametrize("kind", ["pooled", "crops and extra images", "given detections"])
def test_scan_and_score_give_the_same_files_in_any_number_of_processes(
    shapes_data: Path, tmp_path: Path, kind: str
) -> None:
    changes: dict[str, object] = {}
    if kind == "crops and extra images":
        extra = tmp_path / "extra"
        shapes.pictures(extra, 3, seed=7)
        (extra / "broken.png").write_bytes(b"x")
        changes = CROPS | {"mine__extra": extra}
    if kind == "given detections":
        changes = {"mine__detections": detections(shapes_data)}
    alone = tmp_path / "1"
    alone.mkdir()
    scan_in_team(Team(), shapes_data, alone, changes)
    for world in (2, 3):
        out = tmp_path / str(world)
        out.mkdir()
        assert in_team(world, scan_in_team, shapes_data, out, changes) == [0] * world
        names = [p.relative_to(out) for p in out.rglob("*") if p.is_file()]
        assert len(names) == (5 if "extra" in kind else 3)
        for name in names:
            assert (out / name).read_bytes() == (alone / name).read_bytes(), name
