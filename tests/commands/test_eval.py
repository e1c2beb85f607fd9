"""`mini eval` on files of detections."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers import tiny


def detections(path: Path, data: dict, score: float = 0.9) -> Path:
    """The annotations as their own detections."""
    results = [
        {k: a[k] for k in ("image_id", "category_id", "bbox")} | {"score": score}
        for a in data["annotations"]
    ]
    path.write_text(json.dumps(results))
    return path


@pytest.mark.parametrize("metric", ["voc07", "voc", "coco"])
def test_eval_scores_perfect_detections_with_100(tmp_path: Path, mini, metric: str) -> None:
    path = tiny.write_coco(tmp_path)
    found = detections(tmp_path / "dets.json", tiny.coco())
    words = ["eval", path, "--detections", found, "--novel", "bird", "--metric", metric]
    code, out, _ = mini(*words, "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["nAP50"], result["bAP50"], result["AP50"]) == pytest.approx((100, 100, 100))
    assert (result["metric"], result["images"], result["detections"]) == (metric, 3, 5)
    assert set(result["per_class"]) == {"bird", "bus", "car"}
    code, out, _ = mini(*words)
    assert code == 0
    assert re.search(r"novel +100\.0", out)


def test_eval_of_several_files_gives_mean_and_interval(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    content = tiny.coco()
    first = detections(tmp_path / "1.json", content)
    content["annotations"] = content["annotations"][:2]
    second = detections(tmp_path / "2.json", content)
    words = ["eval", path, "--detections", first, "--detections", second, "--metric", "voc"]
    result = json.loads(mini(*words, "--json")[1])
    assert result["per_class"]["bus"]["AP50"] == pytest.approx(50)
    assert result["interval95"]["AP50"] > 0
    assert [r["detections"] for r in result["runs"]] == [5, 2]
    assert "±" in mini(*words)[1]


def test_eval_scores_classes_that_the_image_set_lacks(tmp_path: Path, mini) -> None:
    """Detections may be of a class that this image set has no box of."""
    tiny.write_voc(tmp_path)
    found = tmp_path / "dets.json"
    box = {"image_id": "c", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box | {"category": "bus"}, box | {"category_id": 20}]))
    words = ["eval", tmp_path, "--subset", "test", "--split", "voc-split1", "--detections", found]
    result = json.loads(mini(*words, "--metric", "voc07", "--json")[1])
    assert result["nAP50"] == pytest.approx(100)
    assert result["per_class"]["tvmonitor"]["AP50"] is None
    assert result["images"] == 1


def test_eval_keeps_voc_ids_under_a_coco_split(tmp_path: Path, mini) -> None:
    """Classes that VOC lacks get new ids; those that it has keep theirs."""
    tiny.write_voc(tmp_path)
    found = tmp_path / "dets.json"
    box = {"image_id": "c", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box | {"category_id": 6}, box | {"category": "zebra"}]))
    code, out, err = mini("eval", tmp_path, "--split", "coco", "--detections", found, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["per_class"]["bus"]["AP50"] == pytest.approx(100)
    assert result["per_class"]["zebra"]["AP50"] is None


def test_eval_reports_problems_of_all_files(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    for n in (1, 2):
        (tmp_path / f"{n}.json").write_text("[7]")
    words = [w for n in (1, 2, 3) for w in ("--detections", tmp_path / f"{n}.json")]
    code, _, err = mini("eval", path, *words)
    assert code == 2
    assert all(f"{n}.json" in err.split("\n", 1)[1] for n in (1, 2, 3))


def test_eval_matches_names_within_the_subset(tmp_path: Path, mini) -> None:
    home = tiny.write_yolo(tmp_path)
    for kind, suffix in (("images", "png"), ("labels", "txt")):
        (home / kind / "val" / f"c.{suffix}").rename(home / kind / "val" / f"a.{suffix}")
    found = tmp_path / "dets.json"
    box = {"image_id": "a", "category": "bus", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box]))
    words = ["eval", home, "--subset", "val", "--detections", found, "--json"]
    assert json.loads(mini(*words)[1])["per_class"]["bus"]["AP50"] == pytest.approx(100)


def test_eval_refuses_ids_of_several_image_sets(tmp_path: Path, mini) -> None:
    for part in ("train", "valid", "test"):
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(tiny.coco()))
    found = detections(tmp_path / "dets.json", tiny.coco())
    code, _, err = mini("eval", tmp_path, "--detections", found)
    assert code == 2
    assert "the id 10 is in test, train and valid" in err
    assert "no image with the id" not in err
    assert mini("eval", tmp_path, "--subset", "valid", "--detections", found)[0] == 0
