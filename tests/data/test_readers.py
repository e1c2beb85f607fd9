"""The same three pictures and five boxes, read from every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.data.write import write_coco
from mini_fsod.errors import DataError, UserError
from mini_fsod.labels import split_by_novel


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_every_format_gives_the_same_set(tmp_path: Path, kind: str) -> None:
    path = {"coco": tiny.write_coco, "voc": tiny.write_voc, "yolo": tiny.write_yolo}[kind](tmp_path)
    data = read(path)
    assert data.kind == kind
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert data.classes == tiny.CLASSES
    by_stem = {Path(f).stem: i for i, f in enumerate(data.files)}
    assert {s: tuple(data.sizes[i]) for s, i in by_stem.items()} == tiny.SIZES
    assert all(data.path(i).is_file() for i in range(len(data)))


def test_ids_are_the_files_own(tmp_path: Path) -> None:
    assert read(tiny.write_coco(tmp_path / "1")).ids == (10, 11, 12)
    assert read(tiny.write_voc(tmp_path / "2")).ids == ("a", "b", "c")
    assert read(tiny.write_yolo(tmp_path / "3")).ids == ("a", "b", "c")


def test_flags_are_kept(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0]["ignore"] = 1
    data = read(tiny.write_coco(tmp_path / "1", content))
    assert data.boxes.crowd.tolist() == [False, False, False, True, False]
    assert data.boxes.ignore.tolist() == [True, False, False, False, False]
    data = read(tiny.write_voc(tmp_path / "2"))
    assert data.boxes.difficult.tolist() == [False, False, False, True, False]


def test_image_sets(tmp_path: Path) -> None:
    data = read(tiny.write_voc(tmp_path / "1"), subset="test")
    assert data.ids == ("c",)
    assert len(data.boxes) == 2
    data = read(tiny.write_yolo(tmp_path / "2"), subset="train")
    assert data.ids == ("a", "b")
    with pytest.raises(UserError, match='Did you mean "test"'):
        read(tmp_path / "1", subset="tset")


def test_voc_years_are_united(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path, "VOC2007")
    home = tmp_path / "VOC2012"
    (home / "Annotations").mkdir(parents=True)
    (home / "Annotations" / "d.xml").write_text(
        "<annotation><size><width>40</width><height>30</height></size><object><name>car</name>"
        "<bndbox><xmin>1.5</xmin><ymin>2.25</ymin><xmax>10.75</xmax><ymax>20</ymax></bndbox>"
        "<part><name>wheel</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax>"
        "</bndbox></part></object></annotation>"
    )
    (home / "JPEGImages").mkdir()
    Image.new("RGB", (40, 30)).save(home / "JPEGImages" / "d.avif")
    (home / "ImageSets" / "Main").mkdir(parents=True)
    (home / "ImageSets" / "Main" / "trainval.txt").write_text("d\n")
    data = read(tmp_path)
    assert data.subset("trainval").ids == ("a", "b", "d")
    assert data.subset("VOC2012/trainval").ids == ("d",)
    assert data.files[-1] == "VOC2012/JPEGImages/d.avif"
    assert data.boxes.xywh[-1].tolist() == [0.5, 1.25, 10.25, 18.75]


def test_voc_numbers_are_those_of_all_twenty_classes(tmp_path: Path) -> None:
    assert read(tiny.write_voc(tmp_path)).category_ids == (3, 6, 7)  # bird, bus, car


def test_loose_xml_beside_pictures(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    for stem in tiny.SIZES:
        (tmp_path / f"{stem}.xml").write_text(tiny.voc_xml(stem))
    assert tiny.boxes_of(read(tmp_path)) == tiny.EXPECTED


def test_coco_folders_of_other_tools(tmp_path: Path) -> None:
    """COCO's own layout, and one file a folder with ids that start anew in each."""
    own = tmp_path / "own"
    tiny.write_pictures(own / "train2017")
    (own / "annotations").mkdir()
    (own / "annotations" / "instances_train2017.json").write_text(json.dumps(tiny.coco()))
    (own / "annotations" / "captions_train2017.json").write_text("{}")
    data = read(own)
    assert data.files[0] == "train2017/a.png"
    assert tiny.boxes_of(data) == tiny.EXPECTED

    exported = tmp_path / "exported"
    for part in ("train", "valid"):
        tiny.write_pictures(exported / part)
        (exported / part / "_annotations.coco.json").write_text(json.dumps(tiny.coco()))
    both = read(exported)
    assert both.ids[0] == "train/10"
    assert len(both) == 6
    assert both.files[3] == "valid/a.png"
    assert set(both.subsets) == {"train", "valid"}
    assert tiny.boxes_of(both.subset("valid")) == tiny.EXPECTED
    assert read(exported, subset="valid").ids == (10, 11, 12)


def test_yolo_paths_of_exports_and_polygons(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    text = (tmp_path / "data.yaml").read_text()
    (tmp_path / "data.yaml").write_text(
        text.replace("images/train", "../images/train").replace(
            "val: images", "path: /elsewhere\nval: images"
        )
    )
    (tmp_path / "labels" / "val" / "c.txt").write_text("1 0.1 0.2 0.5 0.2 0.3 0.8\n")
    data = read(tmp_path)
    assert len(data) == 3
    last = data.boxes.xywh[-1]
    assert np.allclose(last, [9, 10, 36, 30])


def test_a_plain_folder(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "x", ".jpg")
    tiny.write_pictures(tmp_path / "y" / "z")
    data = read(tmp_path)
    assert data.kind == "folder"
    assert len(data) == 6
    assert data.ids[0] == "x/a"
    assert len(data.boxes) == 0


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="neither annotations nor pictures"):
        read(tmp_path)
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(UserError, match="not a data set"):
        read(tmp_path / "x.csv")


def test_written_coco_reads_back_the_same(tmp_path: Path) -> None:
    source = read(tiny.write_voc(tmp_path / "voc"))
    labels = split_by_novel(["bird"], source.classes)
    write_coco(tmp_path / "out.json", source, labels, {"description": "x"})
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["info"]["label_map"] == labels.to_json()
    assert [i["source_id"] for i in content["images"]] == ["a", "b", "c"]
    assert all(isinstance(i["id"], int) for i in content["images"])
    back, problems = read_with_problems(tmp_path / "out.json", root=tmp_path / "voc")
    assert problems == []
    assert tiny.boxes_of(back) == tiny.EXPECTED
    assert back.boxes.difficult.tolist() == source.boxes.difficult.tolist()
    assert back.category_ids == source.category_ids
    assert all(back.path(i).is_file() for i in range(3))


def test_select_keeps_boxes_with_their_images(tmp_path: Path) -> None:
    data: Dataset = read(tiny.write_voc(tmp_path))
    turned = data.select([2, 0])
    assert turned.ids == ("c", "a")
    assert turned.boxes.image.tolist() == [0, 0, 1, 1]
    assert turned.subsets["trainval"].tolist() == [1]
    assert data.select([]).offsets.tolist() == [0]


def test_a_data_error_carries_all_problems(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0]["category_id"] = 99
    content["annotations"][1]["image_id"] = 99
    with pytest.raises(DataError) as error:
        read(tiny.write_coco(tmp_path, content))
    assert [p.record for p in error.value.problems] == ["annotation 2", "annotation 1"]
