"""The scan with features of crops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers import shapes
from helpers.mining_run import mine_again, mined, scan_and_mine
from mini_fsod.mining import crops as module
from mini_fsod.mining.box_correction import CORRECTIONS
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.scan import PAIRS

CROPS = {"discriminator__crop": 32}


@pytest.fixture(scope="module")
def cropped(shapes_data: Path) -> Path:
    """A run with features of crops. Not to be changed."""
    out = shapes_data.parent / "cropped"
    scan_and_mine(shapes_data, out, **CROPS)
    return out


def test_with_crop_features_has_a_row_for_each_candidate(cropped: Path) -> None:
    found = mined(cropped, "candidates.json")
    assert len(found) > 10
    for c in found:
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)
    pairs = Pairs.load(cropped / "scan" / PAIRS)
    assert pairs.crops is not None
    assert pairs.products is None
    assert len(pairs.crops.pairs) == len(pairs) == len(found)  # after NMS
    assert set(pairs.crops.base_label.tolist()) == {0, 1}
    assert len(pairs.crops.shots) == 1
    without = mined(cropped, "audit.json")["pool"]["without_co_mining"]
    assert without["candidates"] == len(found)


def test_mine_whitens_and_refines_without_another_scan(
    shapes_data: Path, cropped: Path, tmp_path: Path
) -> None:
    found = mined(cropped, "candidates.json")
    cosines = [[c["cosine"] for c in found]]
    whiten, refine = {"discriminator__whiten": "true"}, {"discriminator__refine": 3}
    for n, change in enumerate((whiten, refine, whiten | refine)):
        mine_again(shapes_data, tmp_path / str(n), cropped, **CROPS, **change)
        other = mined(tmp_path / str(n), "candidates.json")
        assert sorted(c["bbox"] for c in other) == sorted(c["bbox"] for c in found)
        cosines.append([c["cosine"] for c in other])
    assert len({tuple(row) for row in cosines}) == 4


def test_with_crop_features_gives_a_shot_cosine_1_with_itself(
    shapes_data: Path, tmp_path: Path
) -> None:
    content = shapes.json_of(shapes_data / "annotations" / "train.json")
    rows = [
        {"image_id": a["image_id"], "category_id": 3, "bbox": a["bbox"], "score": 0.9}
        for a in content["annotations"]
    ]
    given = tmp_path / "given.json"
    given.write_text(json.dumps(rows))
    scan_and_mine(shapes_data, tmp_path, **CROPS, mine__detections=given)
    cosines = np.array([c["cosine"] for c in mined(tmp_path, "candidates.json")])
    assert len(cosines) == len(rows)
    assert np.isclose(cosines, 1, atol=1e-4).sum() == 1


def test_with_crop_features_fits_a_box_correction_per_class(
    shapes_data: Path, cropped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def wider(features: np.ndarray, shot: np.ndarray) -> int:
        calls.append((features, shot))
        return CORRECTIONS.tolist().index([1.2, 1.0, 0.5])

    monkeypatch.setattr(module, "best_correction", wider)
    keys = CROPS | {"mine__box_correction": "true"}
    scan_and_mine(shapes_data, tmp_path, **keys)
    ((features, shot),) = calls  # one novel class
    assert features.shape[1:] == (len(CORRECTIONS), len(shot))
    assert 2 < len(features) <= 100
    assert (features.std(axis=1).max(axis=-1) > 0).all()  # every correction was seen
    images = shapes.json_of(shapes_data / "annotations" / "train.json")["images"]
    sizes = {image["id"]: image for image in images}
    before, after = (mined(out, "candidates.json") for out in (cropped, tmp_path))
    for old, new in zip(before, after, strict=True):
        assert (new["image_id"], new["score"]) == (old["image_id"], pytest.approx(old["score"]))
        x, y, width, height = old["bbox"]
        right = min(x + 1.1 * width, sizes[new["image_id"]]["width"])
        left = max(x - 0.1 * width, 0)
        assert new["bbox"] == pytest.approx([left, y, right - left, height], abs=1e-3)
    # the correction is stored with the scan
    monkeypatch.setattr(module, "best_correction", None)
    mine_again(shapes_data, tmp_path / "again", tmp_path, **keys)
    assert mined(tmp_path / "again", "candidates.json") == after
