"""The files of mining: as written, as other tools read them, and as they come back."""

from __future__ import annotations

import json
import os
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.pairs import LABELS, data_of, pairs_of, random_pairs, with_cosines
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.errors import DataError, UserError
from mini_fsod.eval.detections import read_detections
from mini_fsod.limits import CANDIDATES_BYTES
from mini_fsod.mining.candidates import Candidates, select_candidates
from mini_fsod.mining.pool_io import (
    Pool,
    read_candidates,
    read_pool,
    write_candidates,
    write_pool,
    write_thresholds,
)
from mini_fsod.mining.thresholds import choose_pool

SIXTH = (10.125, 20.0, 30.0, 100 / 6)


def found_of() -> Candidates:
    pairs = pairs_of((2, 1, 0.5, (40, 20, 50, 30)), (0, 0, 0.25, SIXTH), (0, 0, 0.75, (0, 0, 5, 5)))
    return select_candidates(with_cosines(pairs, [0.5, 0.25, -1]))


def written(tmp_path: Path, data: Dataset, found: Candidates) -> Path:
    path = tmp_path / "pool.json"
    write_pool(path, found, data, LABELS)
    return path


def test_write_candidates_writes_coco_results(tmp_path: Path) -> None:
    write_candidates(tmp_path / "candidates.json", found_of(), data_of(tmp_path / "data"), LABELS)
    assert (tmp_path / "candidates.json").read_text() == (
        '[{"image_id": 10, "category_id": 5, "bbox": [10.125, 20.0, 30.0, 16.666666], '
        '"score": 0.25, "category": "bird", "score_detector": 0.25, "cosine": 0.25, '
        '"file_name": "a.png"},\n'
        ' {"image_id": 10, "category_id": 5, "bbox": [0.0, 0.0, 5.0, 5.0], '
        '"score": 0.0, "category": "bird", "score_detector": 0.75, "cosine": 0.0, '
        '"file_name": "a.png"},\n'
        ' {"image_id": 12, "category_id": 6, "bbox": [40.0, 20.0, 50.0, 30.0], '
        '"score": 0.5, "category": "bus", "score_detector": 0.5, "cosine": 0.5, '
        '"file_name": "c.png"}]\n'
    )


def test_write_candidates_without_a_discriminator_has_no_cosine(tmp_path: Path) -> None:
    path = tmp_path / "candidates.json"
    data = data_of(tmp_path / "data")
    write_candidates(path, select_candidates(pairs_of((1, 0, 0.5, SIXTH))), data, LABELS)
    assert json.loads(path.read_text())[0]["cosine"] is None
    write_candidates(path, select_candidates(pairs_of()), data, LABELS)
    assert json.loads(path.read_text()) == []


def test_read_candidates_refuses_a_file_beyond_the_limit(tmp_path: Path) -> None:
    path, data = tmp_path / "candidates.json", data_of(tmp_path / "data")
    path.write_text("[")
    os.truncate(path, CANDIDATES_BYTES + 1)  # sparse
    with pytest.raises(UserError, match=r"candidates\.json: .*larger than 1 GB"):
        read_candidates(path, data, LABELS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("score", 10**400),
        ("score", None),
        ("score_detector", "0.5"),
        ("bbox", [1, 2, 3]),
        ("bbox", [1, 2, 3, [4]]),
        ("bbox", [1, 2, 3, float("inf")]),
        ("category", "horse"),
        ("category", ["bird"]),
        ("file_name", "no.png"),
        ("file_name", {}),
        ("cosine", float("nan")),
    ],
)
def test_read_candidates_refuses_damaged_records(tmp_path: Path, key: str, value: Any) -> None:
    path, data = tmp_path / "candidates.json", data_of(tmp_path / "data")
    write_candidates(path, found_of(), data, LABELS)
    assert len(read_candidates(path, data, LABELS)) == 3
    content = json.loads(path.read_text())
    content[1][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"candidates\.json: ") as error:
        read_candidates(path, data, LABELS)
    assert f"Delete the folder {tmp_path}" in error.value.fix


def test_write_candidates_can_be_read_as_detections(tmp_path: Path) -> None:
    data, found = data_of(tmp_path / "data"), found_of()
    write_candidates(tmp_path / "candidates.json", found, data, LABELS)
    again = read_detections(tmp_path / "candidates.json", data)
    assert again.image.tolist() == found.image.tolist()
    assert (again.label - 1).tolist() == found.label.tolist()
    assert again.score.tolist() == found.score.tolist()
    assert np.allclose(again.xywh, found.xywh, rtol=1e-7)


def test_write_thresholds_writes_all_numbers(tmp_path: Path) -> None:
    _, table = choose_pool(
        select_candidates(pairs_of((0, 0, 0.25, SIXTH), (1, 0, 0.75, SIXTH))), LABELS.novel
    )
    write_thresholds(tmp_path / "thresholds.json", 0.05, table)
    assert json.loads((tmp_path / "thresholds.json").read_text()) == {
        "min_score": 0.05,
        "classes": {
            "bird": {
                "mean": 0.5,
                "deviation": 0.25,
                "alpha": 1.5,
                "N": 300,
                "delta": 0.875,
                "candidates": 2,
                "kept": 0,
            },
            "bus": {
                "mean": None,
                "deviation": None,
                "alpha": 1.5,
                "N": 300,
                "delta": None,
                "candidates": 0,
                "kept": 0,
            },
        },
    }


@settings(max_examples=60, deadline=None)
@given(random_pairs())
def test_write_pool_follows_from_candidates_and_thresholds(tmp_path_factory, pairs) -> None:
    """Scores are written whole: whoever applies delta and N to candidates.json gets pool.json."""
    folder = tmp_path_factory.mktemp("mine")
    data, found = data_of(folder / "data"), select_candidates(pairs)
    kept, table = choose_pool(found, LABELS.novel, alpha=0.5, per_class=2)
    write_candidates(folder / "candidates.json", found, data, LABELS)
    write_thresholds(folder / "thresholds.json", 0.05, table)
    write_pool(folder / "pool.json", found.take(kept), data, LABELS)
    rules = json.loads((folder / "thresholds.json").read_text())["classes"]
    expected = []
    for name, rule in rules.items():
        own = [r for r in json.loads((folder / "candidates.json").read_text())
               if r["category"] == name]  # fmt: skip
        good = [r for r in own if r["score"] >= rule["delta"]]
        expected += sorted(good, key=lambda r: -r["score"])[: rule["N"]]
        assert len(own) == rule["candidates"]
        if own:
            assert rule["mean"] == pytest.approx(np.mean([r["score"] for r in own]))
            assert rule["deviation"] == pytest.approx(np.std([r["score"] for r in own]))
    keys = ("image_id", "category_id", "bbox", "score")
    listed = json.loads((folder / "pool.json").read_text())["annotations"]
    assert sorted([r[k] for k in keys] for r in listed) == sorted(
        [r[k] for k in keys] for r in expected
    )


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_write_pool_suits_other_tools(tmp_path: Path, kind: str) -> None:
    data, found = data_of(tmp_path / "data", kind), found_of()
    path = written(tmp_path, data, found)
    content = json.loads(path.read_text())
    assert [c["name"] for c in content["categories"]] == ["car", "bird", "bus"]
    assert all(type(c["id"]) is int and c["id"] > 0 for c in content["categories"])
    assert [i["file_name"] for i in content["images"]] == list(data.files)
    assert all(type(i["id"]) is int for i in content["images"])
    assert [(i["width"], i["height"]) for i in content["images"]] == [(100, 80), (60, 60), (90, 50)]
    write_candidates(tmp_path / "candidates.json", found, data, LABELS)
    keys = ("image_id", "category_id", "bbox", "score")
    for box, own in zip(
        content["annotations"], json.loads((tmp_path / "candidates.json").read_text()), strict=True
    ):
        assert [box[k] for k in keys] == [own[k] for k in keys]
        assert (box["iscrowd"], box["segmentation"]) == (0, [])
        assert box["area"] == box["bbox"][2] * box["bbox"][3]
    # our own reader, and that of everybody
    assert len(read(path, root=data.root).boxes) == 3
    from pycocotools.coco import COCO

    with redirect_stdout(StringIO()):
        tool = COCO(str(path))
        assert len(tool.loadRes(str(tmp_path / "candidates.json")).anns) == 3


def test_write_pool_keeps_numeric_ids(tmp_path: Path) -> None:
    content = json.loads(written(tmp_path, data_of(tmp_path / "1"), found_of()).read_text())
    assert [i["id"] for i in content["images"]] == [10, 11, 12]
    assert "source_id" not in content["images"][0]
    content = json.loads(written(tmp_path, data_of(tmp_path / "2", "voc"), found_of()).read_text())
    assert [(i["id"], i["source_id"]) for i in content["images"]] == [(1, "a"), (2, "b"), (3, "c")]
    assert {c["name"]: c["id"] for c in content["categories"]} == {"bird": 3, "bus": 6, "car": 7}


def as_rows(found: Candidates | Pool) -> list[Any]:
    columns = (found.image, found.label, found.score, np.round(found.xywh, 4))
    return list(zip(*(c.tolist() for c in columns), strict=True))


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_read_pool_reads_what_write_pool_wrote(tmp_path: Path, kind: str) -> None:
    data, found = data_of(tmp_path / "data", kind), found_of()
    again = read_pool(written(tmp_path, data, found), data, LABELS)
    assert as_rows(again) == as_rows(found)
    assert again.notes == ()
    nothing = read_pool(written(tmp_path, data, found.take(np.zeros(0, dtype=int))), data, LABELS)
    assert len(nothing) == 0


def test_read_pool_reads_other_tools_files(tmp_path: Path) -> None:
    """Other ids, other order, folders dropped or added, scores gone or among the attributes."""
    data = data_of(tmp_path / "data", "yolo")  # images/train/a.png, ...
    edited = {
        "images": [
            {"id": 1, "file_name": "c.png", "width": 90, "height": 50},
            {"id": 2, "file_name": "upload\\1\\0a1b2c3d-a.png"},
            {"id": 3, "file_name": "unknown, without boxes.png"},
        ],
        "categories": [{"id": n, "name": c} for n, c in enumerate(["", "bus", "bird", "car"]) if c],
        "annotations": [
            {"id": 5, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]},
            {"id": 3, "image_id": 2, "category_id": 2, "bbox": [5, 6, 7, 8],
             "attributes": {"score": "0.25", "occluded": False}},
            {"id": 9, "image_id": 2, "category_id": 3, "bbox": [5, 6, 7, 8], "score": 0.5},
            {"id": 4, "image_id": 1, "category_id": 2, "bbox": [5, 6, 0, 8], "score": 0.5},
            {"id": 6, "image_id": 1, "category_id": 2, "bbox": [900, 6, 9, 8], "score": 0.5},
            {"id": 7, "image_id": 1, "category_id": 3, "bbox": [900, 6, 9, 8], "score": 0.5},
        ],
    }  # fmt: skip
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(edited))
    found = read_pool(path, data, LABELS)
    assert as_rows(found) == [(0, 0, 0.25, [5, 6, 7, 8]), (2, 1, 1.0, [1, 2, 3, 4])]
    first, second, third = found.notes
    assert first.endswith("2 boxes of base classes left out: car")
    assert second.endswith("1 box without area left out")
    assert third.endswith("1 box outside of the picture left out")


def test_read_pool_reads_rejected_places(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data")
    path = written(tmp_path, data, found_of())
    content = json.loads(path.read_text())
    name = data.files[1]
    place = {"file_name": name, "category": "bus", "bbox": [1, 2, 3.5, 4]}
    path.write_text(json.dumps(content | {"rejected": [place]}))
    found = read_pool(path, data, LABELS).rejected
    assert (found.image.tolist(), found.label.tolist()) == ([1], [LABELS.novel.index("bus")])
    assert found.xywh.tolist() == [[1, 2, 3.5, 4]]
    for wrong in (
        3, {}, place | {"file_name": "none.png"}, place | {"category": "car"},
        place | {"bbox": [1, 2, 3]}, place | {"bbox": [1, 2, "3", 4]},
    ):  # fmt: skip
        path.write_text(json.dumps(content | {"rejected": [place, wrong]}))
        with pytest.raises(DataError, match=r"rejected\[1\]: not a rejected place"):
            read_pool(path, data, LABELS)


def test_read_pool_tells_equal_names_apart_by_folders(tmp_path: Path) -> None:
    data = replace(data_of(tmp_path / "data"), files=("x/2007/p.png", "x/2012/p.png", "x/q.png"))
    found = select_candidates(pairs_of((1, 0, 0.5, SIXTH)))
    path = written(tmp_path, data, found)
    names = {"x/2012/p.png": 1, "2012/p.png": 1, "images/2007/p.png": 0, "y/" * 9999 + "q.png": 2}
    for name, image in names.items():
        content = json.loads(path.read_text())
        content["images"][1]["file_name"] = name
        (tmp_path / "edited.json").write_text(
            json.dumps(content | {"images": content["images"][1:2]})
        )
        sizes = replace(data, sizes=np.zeros((3, 2), dtype=np.int64))
        assert read_pool(tmp_path / "edited.json", sizes, LABELS).image.tolist() == [image]


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        ({"images": {"file_name": "z.png"}}, "unknown-image", 'no picture "z.png"'),
        ({"images": {"width": 50, "height": 40}}, "size-changed", "50 x 40 in the file, 100 x 80"),
        (
            {"categories": {"name": "brid"}},
            "unknown-class",
            '"brid" is unknown. Did you mean "bird"',
        ),
        ({"annotations": {"score": 1.5}}, "score-wrong", "1.5 is not a number from 0 to 1"),
        ({"annotations": {"score": "high"}}, "score-wrong", '"high" is not a number'),
        ({"annotations": {"score": True}}, "score-wrong", "true is not a number"),
        ({"annotations": {"bbox": [1, 2, 3]}}, "box-shape", "is not four numbers"),
        ({"annotations": {"image_id": 99}}, "id-unknown", "image id 99 is unknown"),
    ],
)
def test_read_pool_refuses_unknown_images_classes_and_values(
    tmp_path: Path, change: dict[str, Any], kind: str, what: str
) -> None:
    data = data_of(tmp_path / "data")
    path = written(tmp_path, data, found_of())
    content = json.loads(path.read_text())
    for part, values in change.items():
        place = 1 if part == "categories" else 0
        content[part][place] |= values
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_pool(path, data, LABELS)
    assert [p.kind for p in caught.value.problems] == [kind]
    assert what in caught.value.what
    assert caught.value.what.startswith(str(path))


def test_read_pool_refuses_ambiguous_names(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data")
    path = written(tmp_path, replace(data, files=("p.png", "b.png", "c.png")), found_of())
    two = replace(data, files=("x/p.png", "y/p.png", "c.png"))
    with pytest.raises(DataError, match=r'"p\.png" may be any of x/p\.png, y/p\.png'):
        read_pool(path, two, LABELS)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"images": 3'])
def test_read_pool_refuses_files_that_are_no_pool(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError):
        read_pool(tmp_path / "x.json", data_of(tmp_path / "data"), LABELS)
