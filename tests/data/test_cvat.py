from __future__ import annotations

from pathlib import Path

from helpers import exports, tiny
from mini_fsod.data.cvat import is_cvat
from mini_fsod.data.read import read, read_with_problems

IMAGE = '<image id="9" name="d.png" width="100" height="80">{}</image>'
BOX = '<box label="bird" xtl="1" ytl="2" xbr="11" ybr="22" {}/>'


def written(folder: Path, shapes: str) -> Path:
    tiny.write_pictures(folder)
    path = folder / "annotations.xml"
    path.write_text(exports.cvat_xml(IMAGE.format(shapes)))
    return path


def test_read_cvat_takes_classes_in_the_order_of_the_project(tmp_path: Path) -> None:
    data = read(exports.write_cvat(tmp_path))
    assert data.classes == tiny.CLASSES
    assert data.sizes.tolist() == [list(size) for size in tiny.SIZES.values()]


def test_read_cvat_takes_the_boxes_of_polygons_and_masks(tmp_path: Path) -> None:
    polygon = '<polygon label="bird" points="10,20;30.5,20;20,40"/>'
    mask = '<mask label="car" rle="1,2" left="3" top="4" width="5" height="6"/>'
    data, problems = read_with_problems(written(tmp_path, polygon + mask + '<tag label="bird"/>'))
    assert problems == []
    boxes = {box for box in tiny.boxes_of(data) if box[0] == "d"}
    assert boxes == {("d", "bird", (10, 20, 20.5, 20)), ("d", "car", (3, 4, 5, 6))}
    assert "<tag> of images" in data.unread


def test_read_cvat_refuses_rotated_boxes(tmp_path: Path) -> None:
    turned = BOX.format('rotation="30"') + BOX.format('rotation="359.999"') + BOX.format("")
    data, problems = read_with_problems(written(tmp_path, turned))
    assert [(p.kind, p.what) for p in problems] == [
        ("box-rotated", "the box is rotated by 30 degrees")
    ]
    assert len([box for box in data.boxes.image if data.files[box].endswith("d.png")]) == 2


def test_read_cvat_says_that_tracks_are_of_videos(tmp_path: Path) -> None:
    path = tmp_path / "annotations.xml"
    path.write_text(
        '<annotations><track id="0" label="bird"><box frame="0"/></track></annotations>'
    )
    (problem,) = read_with_problems(path)[1]
    assert "CVAT for images" in problem.fix


def test_read_cvat_takes_image_sets_of_a_project(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_text(
        path.read_text()
        .replace('name="a.png"', 'name="a.png" subset="Train"')
        .replace('name="b.png"', 'name="b.png" subset="default"')
        .replace('name="c.png"', 'name="c.png" subset="Second batch"')
    )
    data, _ = read_with_problems(path)
    assert {name: part.tolist() for name, part in data.subsets.items()} == {
        "train": [0],
        "Second batch": [2],
    }


def test_read_cvat_refuses_an_image_of_millions_of_elements(tmp_path: Path) -> None:
    path = written(tmp_path, "<a/>" * 250_000)
    assert "xml-broken" in [p.kind for p in read_with_problems(path)[1]]


def test_is_cvat_looks_at_the_root(tmp_path: Path) -> None:
    for text, expected in (
        (exports.cvat_xml(), True),
        ("<annotation/>", False),
        ("\ufeff<!-- made by hand -->\n<annotations>", True),
        ("<annotations2/>", False),
        ("", False),
    ):
        (tmp_path / "x.xml").write_text(text)
        assert is_cvat(tmp_path / "x.xml") is expected
    assert not is_cvat(tmp_path / "nothing.xml")
