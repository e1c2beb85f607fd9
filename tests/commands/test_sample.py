from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from helpers import tiny


def test_sample_writes_k_boxes_of_every_class(tmp_path: Path, mini) -> None:
    path, out = tiny.write_coco(tmp_path / "data"), tmp_path / "shots.json"
    code, _, said = mini("sample", path, "--novel", "bird", "--shots", 1, "-o", out)
    assert code == 0
    assert "other novel boxes, hidden from training and used to audit mining: bird 1" in said
    content = json.loads(out.read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    drawn = Counter(names[a["category_id"]] for a in content["annotations"])
    assert drawn == {"bird": 1, "bus": 1, "car": 1}
    assert content["info"]["label_map"]["novel"] == ["bird"]
    assert len(content["info"]["sha256"]) == 64
    first = out.read_bytes()
    mini("sample", path, "--novel", "bird", "--shots", 1, "-o", out)
    assert out.read_bytes() == first


def test_sample_names_the_class_with_too_few_boxes(tmp_path: Path, mini) -> None:
    """The only bus is in the test set, which shots are not drawn from."""
    tiny.write_voc(tmp_path / "voc")
    out = tmp_path / "shots.json"
    code, _, said = mini("sample", tmp_path / "voc", "--novel", "bird", "--shots", 1, "-o", out)
    assert (code, '"bus" has 0' in said) == (2, True)
    assert not out.exists()


def test_sample_says_where_more_boxes_are(tmp_path: Path, mini) -> None:
    home = tiny.write_yolo(tmp_path / "photos")
    words = ["sample", home, "--novel", "bus", "-o", tmp_path / "shots.json", "--shots"]
    _, _, said = mini(*words, 1)
    assert 'in the image set "train": "bus" has 0 (others: 1 in val).' in said
    assert "--subset" in said
    assert "Boxes of a new class may be in a file or data set of their own: shots.file" in said
    _, _, said = mini(*words, 3, "--subset", "val")
    assert '3 shots in the image set "val": "bird" has 0, "car" has 1, "bus" has 1.' in said
    _, _, said = mini("sample", home, "--novel", "bird", *words[4:], 1)
    assert 'in the image set "train": "bus" has 0 (others: 1 in val).' in said
    assert "shots.file" not in said  # a base class it is
    data = tiny.write_coco(tmp_path / "one")
    _, _, said = mini("sample", data, "--novel", "bus", *words[4:], 2)
    assert '"car" has 1, "bus" has 1.\n' in said  # there is one set of images


def test_sample_leaves_out_base_classes_without_boxes(tmp_path: Path, mini) -> None:
    """Labelling sites export the project's name as category 0."""
    content = tiny.coco()
    content["annotations"][3]["iscrowd"] = 0
    content["categories"].insert(0, {"id": 0, "name": "traffic"})
    for part in ("train", "valid"):
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(content))
    out = tmp_path / "shots.json"
    for words in ([], ["--subset", "valid"]):
        code, _, err = mini("sample", tmp_path, "--novel", "bird", *words, "--shots", 1, "-o", out)
        assert code == 0, err
        assert "traffic: left out" in err
        sample = json.loads(out.read_text())
        assert [c["name"] for c in sample["categories"]] == ["bird", "bus", "car"]
        assert sample["info"]["label_map"]["base"] == ["bus", "car"]
        assert len(sample["info"]["notes"]) == 1
        assert sample["info"]["description"] == "1 box of each of 3 classes"
    code, _, err = mini("sample", tmp_path, "--novel", "traffic", "--shots", 1, "-o", out)
    assert (code, 'in the image set "train": "traffic" has 0' in err) == (2, True)


def test_sample_refuses_a_base_class_of_another_image_set(tmp_path: Path, mini) -> None:
    for part in ("train", "valid"):
        content = tiny.coco()
        if part == "train":
            content["annotations"] = content["annotations"][:4]  # the bus is the last
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(content))
    for words in ([], ["--subset", "train"]):
        code, _, err = mini("sample", tmp_path, *words, "--shots", 1, "-o", tmp_path / "s.json")
        assert (code, '"bus" has 0' in err) == (2, True)


def test_sample_draws_coco_lists_from_train_and_val(tmp_path: Path, mini) -> None:
    """Both parts are drawn from then, though only one is called train."""
    content = tiny.coco()
    for part, images in (("train2014", content["images"][:2]), ("val2014", content["images"][2:])):
        ids = {image["id"] for image in images}
        boxes = [a | {"iscrowd": 0} for a in content["annotations"] if a["image_id"] in ids]
        path = tmp_path / "coco" / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content | {"images": images, "annotations": boxes}))
    lists = {"1": {"bird": [["train", 11]], "bus": [["val", 12]], "car": [["val", 12]]}}
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    words = ["sample", tmp_path / "coco", "--shots", 1, "-o", tmp_path / "s.json"]
    code, _, err = mini(*words, "--official", tmp_path / "lists.json")
    assert code == 0, err
    sample = json.loads((tmp_path / "s.json").read_text())
    assert [image["id"] for image in sample["images"]] == [11, 12]
    assert sample["info"]["subset"] is None
