from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.check import box_problems, class_problems, picture_problems
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.data.repair import repair, write_repaired
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap


def fix(path: Path, out: Path, source: Path | None = None) -> None:
    data, _ = read_with_problems(path)
    good = repair(data, picture_problems(data, decode=True)[1]).data
    write_repaired(out, good, LabelMap(good.classes, ()), source)


def test_repair_fixes_all_kinds_of_problems(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"] += [
        {"id": 20, "image_id": 10, "category_id": 5, "bbox": [90, 70, 50, 50]},  # clipped
        {"id": 21, "image_id": 10, "category_id": 5, "bbox": [300, 70, 50, 50]},  # nothing left
        {"id": 22, "image_id": 10, "category_id": 5, "bbox": [1, 1, 0, 5]},
        {"id": 23, "image_id": 10, "category_id": 5, "bbox": [1, 1, -4, 5]},
        {"id": 24, "image_id": 10, "category_id": 5, "bbox": [float("nan"), 1, 4, 5]},
        {"id": 24, "image_id": 10, "category_id": 9, "bbox": [3, 4, 5, 6]},  # id twice, "Bird"
        {"id": 25, "image_id": 99, "category_id": 5, "bbox": [3, 4, 5, 6]},
    ]
    content["categories"].append({"id": 9, "name": "Bird"})
    content["images"][1]["width"] = 61
    source = tmp_path / "source"
    path = tiny.write_coco(source, content)
    (source / "c.png").write_text("no picture")
    before = {p.name: p.read_bytes() for p in source.iterdir()}

    fix(path, tmp_path / "out")

    assert {p.name: p.read_bytes() for p in source.iterdir()} == before
    data = read(tmp_path / "out")
    assert box_problems(data) + class_problems(data) + picture_problems(data, True)[0] == []
    assert tiny.boxes_of(data) == {box for box in tiny.EXPECTED if box[0] != "c"} | {
        ("a", "bird", (90.0, 70.0, 10.0, 10.0)),
        ("a", "bird", (3.0, 4.0, 5.0, 6.0)),
    }
    assert data.sizes[1].tolist() == [60, 60]


def test_write_repaired_keeps_image_sets(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path / "source")
    fix(tmp_path / "source", tmp_path / "out")
    data = read(tmp_path / "out")
    assert {n: len(part) for n, part in data.subsets.items()} == {"trainval": 2, "test": 1}
    assert len(set(data.ids)) == 3
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert read(tmp_path / "out", subset="test").boxes.difficult.tolist() == [True, False]


def test_write_repaired_refuses_bad_folders(tmp_path: Path) -> None:
    path = tiny.write_coco(tmp_path / "source")
    with pytest.raises(UserError, match="inside the data set"):
        fix(path, tmp_path / "source" / "fixed", tmp_path / "source")
    with pytest.raises(UserError, match="not empty"):
        fix(path, tmp_path / "source")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def lines(path: Path, out: Path, mini, *words: object) -> list[str]:
    """What `--fix` says that it did."""
    _, _, err = mini("check", path, "--no-sheet", "--fix", out, *words)
    said = err.split("Repaired copy")[1].splitlines()[1:]
    return [line.strip() for line in said if line.startswith("  ")]


def test_changes_lists_what_was_done_by_kind(tmp_path: Path, mini) -> None:
    content = tiny.coco() | {"licenses": [{"id": 1}], "info": {}}
    content["annotations"][0]["segmentation"] = [[1, 1, 2, 2, 3, 3]]
    content["annotations"] += [
        {"id": 5, "image_id": 10, "category_id": 5, "bbox": [90, 70, 50, 50]},
        {"id": 21, "image_id": 10, "category_id": 5, "bbox": [300, 70, 50, 50]},
        {"id": 22, "image_id": 10, "category_id": 5, "bbox": [-0.25, 1, 4, 5]},
        {"id": 23, "image_id": 10, "category_id": 5, "bbox": [1, 1, 4, 5], "iscrowd": "no"},
        {"id": 24, "image_id": 10, "category_id": 8, "bbox": [1, 1, 4, 5], "area": -1},
        {"id": 25, "image_id": 12, "category_id": 8, "bbox": [1, 1, 0, 5]},
    ]
    content["categories"][0]["supercategory"] = "animal"
    content["categories"].append({"id": 8, "name": "Bird"})
    del content["images"][0]["width"]
    path = tiny.write_coco(tmp_path / "in", content)
    (tmp_path / "in" / "c.png").write_text("no picture")
    assert lines(path, tmp_path / "out", mini) == [
        "1 x size-missing: size of the picture used, where it could be read",
        "1 x flag-wrong: left out",
        "1 x area-wrong: area of the box used",
        "1 x id-duplicate: renumbered",
        "1 x class-duplicate: merged under the name with the most boxes",
        "1 x box-no-area: left out",
        "1 x picture-unreadable: image left out, with its boxes",
        '"Bird" renamed to "bird"',
        # image 10 declares no size: no problem was reported, but its boxes were clipped
        "2 more boxes clipped to the picture's edge",
        "not copied: info",
        "not copied: licenses",
        "not copied: segmentation of annotations",
        "not copied: supercategory of categories",
    ]
    assert len(read(tmp_path / "out").boxes) == 6


def test_changes_counts_boxes_outside_by_outcome(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["images"][1]["width"] = 50  # the picture is 60 wide: its box is right
    content["annotations"] += [
        {"id": 20, "image_id": 10, "category_id": 5, "bbox": [90, 70, 50, 50]},
        {"id": 21, "image_id": 10, "category_id": 5, "bbox": [300, 70, 50, 50]},
    ]
    said = lines(tiny.write_coco(tmp_path / "in", content), tmp_path / "out", mini)
    assert said == [
        "1 x size-wrong: size of the picture used, where it could be read",
        "3 x box-outside: 1 clipped to the picture, 1 left out, "
        "1 kept: the picture is larger than declared",
    ]


def test_repair_keeps_duplicate_boxes_once(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    same = content["annotations"][0]
    content["categories"].append({"id": 8, "name": "Bird"})
    content["annotations"] += [
        same | {"id": 20},
        same | {"id": 21, "category_id": 8},  # the same once there is one bird
        same | {"id": 22, "bbox": [90, 70, 50, 50]},
        same | {"id": 23, "bbox": [90, 70, 60, 60]},  # the same once clipped
        same | {"id": 24, "bbox": [90, 70, 10, 10]},
    ]
    said = lines(tiny.write_coco(tmp_path / "in", content), tmp_path / "out", mini)
    assert said == [
        "1 x class-duplicate: merged under the name with the most boxes",
        "1 x box-duplicate: kept once",
        '"Bird" renamed to "bird"',
        "2 x box-outside: 1 clipped to the picture, 1 left out",
        "2 more boxes left out: duplicates after these changes",
    ]
    data = read(tmp_path / "out")
    assert tiny.boxes_of(data) == tiny.EXPECTED | {("a", "bird", (90.0, 70.0, 10.0, 10.0))}
    assert len(data.boxes) == 6
    assert mini("check", tmp_path / "out", "--no-sheet")[0] == 0


def test_repair_merges_ids_of_one_picture(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["images"] += [content["images"][0] | {"id": 20}]
    content["annotations"][1]["image_id"] = 20
    content["annotations"] += [content["annotations"][0] | {"id": 9, "image_id": 20}]
    said = lines(tiny.write_coco(tmp_path / "in", content), tmp_path / "out", mini)
    assert said == [
        "1 x picture-duplicate: merged under the first id, with the boxes of all that declare "
        "the same size",
        "1 more box left out: duplicates after these changes",
    ]
    data = read(tmp_path / "out")
    assert (data.ids, len(data.boxes)) == ((10, 11, 12), 5)
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert mini("check", tmp_path / "out", "--no-sheet")[0] == 0


def test_repair_leaves_out_ids_of_differently_rotated_pictures(tmp_path: Path) -> None:
    """Stored 80 x 100, shown 100 x 80: boxes of one do not fit the other."""
    content = tiny.coco()
    content["images"] += [content["images"][0] | {"id": 20, "width": 80, "height": 100}]
    path = tiny.write_coco(tmp_path / "in", content)
    picture = Image.new("RGB", (80, 100))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "in" / "a.png", exif=exif)
    fix(path, tmp_path / "out")
    assert read(tmp_path / "out").sizes.tolist() == [[100, 80], [60, 60], [90, 50]]


def test_changes_names_ambiguous_ids(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["images"][1]["id"] = 10
    content["categories"][1]["id"] = 7
    box = {"id": 40, "image_id": 12, "category_id": 5, "bbox": [1, 1, 4, 5]}
    content["annotations"].append(box)
    assert lines(tiny.write_coco(tmp_path / "in", content), tmp_path / "out", mini) == [
        "1 x id-duplicate: images of that id left out, with their boxes",
        "1 x id-duplicate: boxes of that category left out: their class is ambiguous",
        "2 x id-unknown: left out",
    ]


def test_repair_keeps_a_merged_class_novel(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["categories"].append({"id": 8, "name": "BIRD"})
    content["annotations"][0]["category_id"] = 8
    content["annotations"].append(content["annotations"][2] | {"id": 9})
    lines(tiny.write_coco(tmp_path / "in", content), tmp_path / "out", mini, "--novel", "BIRD")
    written = json.loads((tmp_path / "out" / "annotations.json").read_text())
    assert written["info"]["label_map"]["novel"] == ["bird"]
    assert written["info"]["label_map"]["base"] == ["bus", "car"]


def test_write_repaired_skips_empty_image_sets(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path / "source")
    (tmp_path / "source" / "VOC2007" / "JPEGImages" / "c.png").unlink()
    fix(tmp_path / "source", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").rglob("*.json")] == ["trainval.json"]


def test_write_repaired_keeps_train_outside_trainval(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path / "source")
    lists = tmp_path / "source" / "VOC2007" / "ImageSets" / "Main"
    (lists / "test.txt").rename(lists / "train.txt")
    fix(tmp_path / "source", tmp_path / "out")
    assert set(read(tmp_path / "out").subsets) == {"trainval", "train"}


def test_write_repaired_copies_a_plain_folder(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "in" / "x")
    noise = tmp_path / "in" / "x" / "noise.jpg"
    Image.effect_noise((200, 150), 90).convert("RGB").save(noise)
    noise.write_bytes(noise.read_bytes()[:3000])  # seen by decoding alone
    said = lines(tmp_path / "in", tmp_path / "out", mini)
    assert said == ["1 x picture-truncated: image left out, with its boxes"]
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.*")) == ["a.png", "b.png", "c.png"]


def test_write_repaired_allows_a_folder_beside_a_coco_file(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    assert mini("check", path, "--no-sheet", "--fix", tmp_path / "rep")[0] == 0
    assert tiny.boxes_of(read(tmp_path / "rep")) == tiny.EXPECTED
    for data, out in ((tmp_path, tmp_path / "rep2"), (path, tmp_path), (path, path)):
        code, _, err = mini("check", data, "--no-sheet", "--fix", out)
        assert code == 2
        assert "inside the data set" in err or "not empty" in err
    assert mini("check", path, "--no-sheet", "--fix", tmp_path / ("x" * 300))[0] == 2


def test_write_repaired_keeps_ids_of_several_files(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        tiny.write_pictures(tmp_path / "in" / part)
        (tmp_path / "in" / part / "_annotations.coco.json").write_text(json.dumps(tiny.coco()))
    fix(tmp_path / "in", tmp_path / "out")
    assert read(tmp_path / "out", subset="valid").ids == (10, 11, 12)
