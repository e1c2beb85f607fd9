"""The stage `mine` on coloured shapes: its files and figures, and what is refused before a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import shapes
from helpers.mining_run import mine_again, mined, mining_config, mining_run, scan_and_mine
from helpers.shapes import NOVEL
from helpers.tiny_run import MINED_FILES
from helpers.tiny_segmenter import TINY, ColourSegmenter, write_segmenter
from mini_fsod.errors import UserError
from mini_fsod.mining import choose
from mini_fsod.mining.choose import check_mining, mine
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.scan import PAIRS
from mini_fsod.segmenter import load

NO_DISCRIMINATOR = {"discriminator__weights": "none"}


def threshold_of(out: Path) -> dict[str, Any]:
    row: dict[str, Any] = mined(out, "thresholds.json")["classes"][NOVEL]
    return row


def test_mine_writes_files_that_agree_with_each_other(shapes_data: Path, tmp_path: Path) -> None:
    figures = scan_and_mine(shapes_data, tmp_path)
    found, thresholds, pool, audit = (mined(tmp_path, name) for name in MINED_FILES)
    assert {*figures} == {"candidates", "kept", "best_score", "precision", "recall"}
    assert len(found) == figures["candidates"] > 10
    assert list(thresholds["classes"]) == [NOVEL]
    row = threshold_of(tmp_path)
    assert (thresholds["min_score"], row["alpha"], row["N"]) == (0.01, 1.5, 8)
    assert (row["candidates"], row["kept"]) == (figures["candidates"], figures["kept"])

    score = np.array([c["score"] for c in found])
    assert figures["best_score"] == pytest.approx(score.max())
    assert row["mean"] == pytest.approx(score.mean())
    assert row["deviation"] == pytest.approx(score.std())
    assert row["delta"] == pytest.approx(score.mean() + 1.5 * score.std())
    for c in found:
        assert c["category"] == NOVEL
        assert c["score_detector"] > 0.01
        assert 0 <= c["cosine"] <= 1
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)

    best = sorted((c for c in found if c["score"] >= row["delta"]), key=lambda c: -c["score"])[:8]
    names = {image["id"]: image["file_name"] for image in pool["images"]}
    assert len(names) == 8
    in_pool = [
        (a["image_id"], names[a["image_id"]], a["category_id"], a["bbox"], a["score"])
        for a in pool["annotations"]
    ]
    keys = ("image_id", "file_name", "category_id", "bbox", "score")
    assert sorted(in_pool) == sorted(tuple(c[key] for key in keys) for c in best)
    assert 0 < len(best) == figures["kept"] < len(found)

    total = audit["pool"]
    assert (total["kept"], total["candidates"]) == (figures["kept"], figures["candidates"])
    assert total["hidden"] == 4  # without the shot
    assert total["without_co_mining"]["candidates"] > 0
    assert (total["precision"], total["recall"]) == (figures["precision"], figures["recall"])
    files = {path.name for path in (tmp_path / "mine").iterdir()}
    assert files == {*MINED_FILES, "1-blue--light.png"}


def test_mine_with_other_thresholds(shapes_data: Path, finished: Path, tmp_path: Path) -> None:
    before = threshold_of(finished)
    loose = mine_again(shapes_data, tmp_path, finished, mine__alpha=0.5, mine__per_class=300)
    row = threshold_of(tmp_path)
    assert row["kept"] == loose["kept"] > before["kept"]
    assert (row["mean"], row["deviation"]) == (before["mean"], before["deviation"])
    assert row["delta"] == pytest.approx(row["mean"] + 0.5 * row["deviation"])

    few = mine_again(shapes_data, tmp_path, finished, mine__alpha=0.5, mine__per_class=2)
    assert few["kept"] == 2
    fixed = mine_again(shapes_data, tmp_path, finished, mine__threshold=0.0)
    assert fixed["kept"] == fixed["candidates"]
    row = threshold_of(tmp_path)
    assert (row["delta"], row["alpha"], row["N"]) == (0.0, None, None)
    scaled = mine_again(shapes_data, tmp_path, finished, mine__tau=0.25)
    assert scaled["kept"] == before["kept"]  # tau only rescales
    assert threshold_of(tmp_path)["mean"] == pytest.approx(before["mean"] / 2)


def test_mine_notes_classes_with_few_boxes(
    shapes_data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine_again(shapes_data, tmp_path, finished)
    assert f"few boxes were mined of {NOVEL}: " in capsys.readouterr().err


# Which images, which boxes


@pytest.mark.parametrize("shots", [1, 3])
def test_mine_without_hidden_annotations_writes_no_audit(tmp_path: Path, shots: int) -> None:
    data = shapes.write_data(tmp_path / "data")
    annotations = data / "annotations" / "train.json"
    content = shapes.json_of(annotations)
    novel = [a["id"] for a in content["annotations"] if a["category_id"] == 3]
    gone = novel[shots:]
    content["annotations"] = [a for a in content["annotations"] if a["id"] not in gone]
    annotations.write_text(json.dumps(content))
    figures = scan_and_mine(data, tmp_path / "run", shots__k=shots, **NO_DISCRIMINATOR)
    assert not (tmp_path / "run" / "mine" / "audit.json").exists()
    assert {*figures} == {"candidates", "kept", "best_score"}
    assert (tmp_path / "run" / "mine" / "1-blue--light.png").exists()


def test_mine_of_images_with_and_without_base_boxes(tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data")
    path = data / "annotations" / "train.json"
    content = shapes.json_of(path)
    content["annotations"] = [
        a for a in content["annotations"] if a["image_id"] > 2 or a["category_id"] == 3
    ]
    path.write_text(json.dumps(content))
    for images, count in (("all", 8), ("base", 6)):
        out = tmp_path / images
        scan_and_mine(data, out, mine__images=images, **NO_DISCRIMINATOR)
        assert len(mined(out, "pool.json")["images"]) == count
        files = {c["file_name"] for c in mined(out, "candidates.json")}
        assert ({"train/0.png", "train/1.png"} <= files) == (images == "all")


def write_detections(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_mine_drop_on_base(shapes_data: Path, tmp_path: Path) -> None:
    """Detections of the novel class on all objects, moved by a pixel."""
    truth = shapes.json_of(shapes_data / "annotations" / "train.json")["annotations"]
    rows = []
    for a in truth:
        x, y, w, h = a["bbox"]
        row = {"image_id": a["image_id"], "category_id": 3, "bbox": [x + 1, y, w, h]}
        rows.append(row | {"score": 0.5 + a["id"] / 100})
    keys = {"mine__detections": write_detections(tmp_path / "given.json", rows)}
    everything = scan_and_mine(shapes_data, tmp_path, **keys, **NO_DISCRIMINATOR)["candidates"]
    assert everything == len(rows)
    dropped = {"mine__drop_on_base": "true", **keys, **NO_DISCRIMINATOR}
    mine_again(shapes_data, tmp_path, tmp_path, **dropped)
    novel = [r["score"] for r, a in zip(rows, truth, strict=True) if a["category_id"] == 3]
    scores = [c["score"] for c in mined(tmp_path, "candidates.json")]
    assert sorted(scores) == pytest.approx(sorted(novel))


def test_mine_drop_nested(shapes_data: Path, tmp_path: Path) -> None:
    """Each box of the novel class, and the left 0.4 of it."""
    truth = shapes.json_of(shapes_data / "annotations" / "train.json")["annotations"]
    rows = []
    for a in (a for a in truth if a["category_id"] == 3):
        x, y, w, h = a["bbox"]
        for score, width in ((0.9, w), (0.8, 0.4 * w)):
            box = {"image_id": a["image_id"], "category_id": 3, "bbox": [x, y, width, h]}
            rows.append(box | {"score": score})
    given = write_detections(tmp_path / "given.json", rows)
    keys = {"mine__detections": given, "mine__threshold": 0.5, **NO_DISCRIMINATOR}
    both = scan_and_mine(shapes_data, tmp_path, **keys)
    alone = mine_again(shapes_data, tmp_path, tmp_path, mine__drop_nested="true", **keys)
    assert both["candidates"] == both["kept"] == alone["candidates"] == len(rows)
    assert alone["kept"] == len(rows) / 2
    scores = [a["score"] for a in mined(tmp_path, "pool.json")["annotations"]]
    assert scores == pytest.approx([0.9] * (len(rows) // 2))


def hidden_and_wrong(data: Path) -> list[dict[str, Any]]:
    """Detections of all annotated boxes, base objects too, and a wrong one in each image."""
    content = shapes.json_of(data / "annotations" / "train.json")
    rows = [
        {"image_id": a["image_id"], "category_id": a["category_id"], "bbox": a["bbox"]}
        | {"score": 0.9}
        for a in content["annotations"]
    ]
    wrong = {"category_id": 3, "bbox": [0, 0, 5, 5], "score": 0.2}
    return rows + [{"image_id": image["id"]} | wrong for image in content["images"]]


def test_mine_of_given_detections(shapes_data: Path, tmp_path: Path) -> None:
    rows = hidden_and_wrong(shapes_data)
    given = write_detections(tmp_path / "given.json", rows)
    keys = {"mine__detections": given, **NO_DISCRIMINATOR}
    figures = scan_and_mine(shapes_data, tmp_path, **keys, mine__threshold=0.5)
    found = mined(tmp_path, "candidates.json")
    assert sorted((c["image_id"], *c["bbox"], c["score"]) for c in found) == sorted(
        (r["image_id"], *r["bbox"], pytest.approx(r["score"]))
        for r in rows
        if r["category_id"] == 3
    )
    assert figures.pop("best_score") == pytest.approx(0.9)
    assert figures == {"candidates": 13, "kept": 5, "precision": 1.0, "recall": 1.0}
    figures = mine_again(shapes_data, tmp_path, tmp_path, **keys, mine__threshold=0.1)
    assert figures["precision"] == pytest.approx(4 / 12, abs=1e-6)  # the shot does not count


def test_mine_with_few_annotations_estimates_no_precision(
    shapes_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A box on no annotation may be right: not all objects are annotated."""
    rows = hidden_and_wrong(shapes_data)
    rows += [r | {"bbox": [30, 30, 6, 6]} for r in rows if r["bbox"] == [0, 0, 5, 5]]
    given = write_detections(tmp_path / "given.json", rows)
    keys = {"mine__detections": given, "mine__threshold": 0.1, **NO_DISCRIMINATOR}
    figures = scan_and_mine(shapes_data, tmp_path, **keys)
    assert figures.pop("best_score") == pytest.approx(0.9)
    assert figures == {"candidates": 21, "kept": 21}
    assert not (tmp_path / "mine" / "audit.json").exists()
    text = " ".join(capsys.readouterr().err.split())
    assert "Only 4 hidden objects are annotated for 21 mined boxes; 4 match." in text


# A given pool


def test_mine_with_a_segmenter(
    shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hidden object is found a fifth too low, one of them twice."""
    content = shapes.json_of(shapes_data / "annotations" / "train.json")["annotations"]
    rows = []
    for a in (a for a in content if a["category_id"] == 3):
        x, y, w, h = a["bbox"]
        row = {"image_id": a["image_id"], "category_id": 3, "bbox": [x, y, w, 0.8 * h]}
        rows.append(row | {"score": 0.9})
    x, y, w, h = rows[0]["bbox"]
    rows.append(rows[0] | {"bbox": [x, y + 0.7 * h, w, 0.5 * h], "score": 0.6})
    given = write_detections(tmp_path / "given.json", rows)
    keys = {"mine__detections": given, "mine__threshold": 0.5, **NO_DISCRIMINATOR}
    scan_and_mine(shapes_data, tmp_path, **keys)
    assert all("bbox_found" not in box for box in mined(tmp_path, "pool.json")["annotations"])

    monkeypatch.setattr(choose, "load_segmenter", lambda path, device: ColourSegmenter())
    figures = mine_again(shapes_data, tmp_path, tmp_path, mine__segmenter="a.pt", **keys)
    found, _, pool, audit = (mined(tmp_path, name) for name in MINED_FILES)
    boxes = pool["annotations"]
    assert len(boxes) == figures["kept"] == threshold_of(tmp_path)["kept"] == len(rows) - 1
    assert len(found) == len(rows)
    moved = [box for box in boxes if "bbox_found" in box]
    assert 0 < len(moved) <= len(boxes)
    assert all(box["bbox"][3] != box["bbox_found"][3] for box in moved)
    in_candidates = [(c["image_id"], c["bbox"]) for c in found]
    assert all((box["image_id"], box["bbox"]) in in_candidates for box in boxes)
    after, before = audit["pool"], audit["pool"]["without_segmenter"]
    assert before["kept"] == len(rows)
    assert after["placement"]["mean_iou"] > before["placement"]["mean_iou"]
    assert audit["pool"]["without_co_mining"] is None


def test_mine_with_the_file_of_a_segmenter(
    shapes_data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MOBILE_SAM", TINY)
    file = write_segmenter(tmp_path / "tiny.pt")
    figures = mine_again(shapes_data, tmp_path, finished, mine__segmenter=file)
    assert 0 < figures["kept"] <= threshold_of(finished)["kept"]
    check_mining(mining_config(shapes_data, mine__segmenter=file))


def test_mine_copies_a_given_pool(shapes_data: Path, finished: Path, tmp_path: Path) -> None:
    figures = {"candidates": 3, "kept": 2, "seconds": 9.0}
    given = tmp_path / "given"
    shutil.copytree(finished / "mine", given)
    (given / "metrics.json").write_text(json.dumps(figures))
    run = mining_run(shapes_data, tmp_path / "run", mine__pool=given)
    found = mine(run, run.folder("mine"))
    assert found == {"candidates": 3, "kept": 2, "given": str(given / "pool.json")}
    for name in MINED_FILES:
        content = (finished / "mine" / name).read_bytes()
        assert (tmp_path / "run" / "mine" / name).read_bytes() == content


def test_mine_copies_the_corrected_pool_of_a_run(
    shapes_data: Path, finished: Path, tmp_path: Path
) -> None:
    """Its other files are in the folder of the stage."""
    shutil.copytree(finished / "mine", tmp_path / "given" / "mine")
    pool = mined(finished, "pool.json") | {"annotations": []}
    (tmp_path / "given" / "pool.json").write_text(json.dumps(pool))
    run = mining_run(shapes_data, tmp_path / "run", mine__pool=tmp_path / "given")
    mine(run, run.folder("mine"))
    assert mined(tmp_path / "run", "pool.json") == pool
    assert mined(tmp_path / "run", "candidates.json") == mined(finished, "candidates.json")


# What is refused


def test_mine_refuses_a_scan_of_other_images(
    shapes_data: Path, finished: Path, tmp_path: Path
) -> None:
    pairs = Pairs.load(finished / "scan" / PAIRS)
    Pairs.of(pairs.image, pairs.label, pairs.score, pairs.xywh, pairs.proposal).save(
        tmp_path / "scan" / PAIRS
    )
    with pytest.raises(UserError, match="other images than when it was scanned") as caught:
        mine_again(shapes_data, tmp_path, tmp_path)
    assert str(tmp_path / "scan") in caught.value.fix
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discriminator__weights": "nowhere.safetensors"}, "no such weights file"),
        ({"discriminator__weights": "resnet18:nosuch"}, "nosuch"),
        ({"discriminator__weights": "resnet81"}, "resnet81"),
        ({"mine__detections": "nowhere.json"}, r"nowhere\.json: there is no such file"),
        ({"mine__segmenter": "nowhere.pt"}, r"nowhere\.pt: there is no such weights file"),
        ({"mine__pool": "nowhere.json"}, r"nowhere\.json: there is no such pool"),
        (
            {**NO_DISCRIMINATOR, "mine__candidates": "proposals"},
            "proposals needs a discriminator to tell classes apart",
        ),
        ({"mine__candidates": "proposals"}, "proposals need features of crops"),
        (
            {**NO_DISCRIMINATOR, "transfer__calibration": "prototypes"},
            "prototypes compares candidates with the shots, which needs a discriminator",
        ),
    ],
)
def test_check_mining_refuses_what_would_fail_later(
    shapes_data: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_mining(mining_config(shapes_data, **changes))


def test_check_mining_needs_candidates_for_ignore_candidates(
    shapes_data: Path, finished: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "pool.json"
    shutil.copy(finished / "mine" / "pool.json", pool)
    config = mining_config(shapes_data, mine__pool=pool, online__ignore_candidates="true")
    with pytest.raises(UserError, match=r"needs candidates\.json beside it"):
        check_mining(config)
    shutil.copy(finished / "mine" / "candidates.json", tmp_path)
    check_mining(config)


def test_check_mining_notes_keys_without_effect(
    shapes_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = {"discriminator__refine": 100, "discriminator__whiten": "true"}
    check_mining(mining_config(shapes_data, **NO_DISCRIMINATOR, **unused))
    text = " ".join(capsys.readouterr().err.split())
    assert "these keys have no effect: discriminator.whiten, discriminator.refine" in text


def test_mine_by_prototypes_chooses_other_boxes(
    shapes_data: Path, finished: Path, tmp_path: Path
) -> None:
    mine_again(shapes_data, tmp_path, finished, transfer__calibration="prototypes")
    before, after = (
        {tuple(c["bbox"]): c for c in mined(out, "candidates.json")} for out in (finished, tmp_path)
    )
    same = before.keys() & after.keys()
    assert same
    for box in same:
        of_tfa = before[box]
        mean = (of_tfa["score_detector"] + of_tfa["cosine"]) / 2
        assert after[box]["score_detector"] == pytest.approx(mean, abs=1e-5)
