"""VOC folders that differ from the devkit."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.read import read, read_with_problems


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("<annotation>", "<!DOCTYPE a [<!ENTITY e 'x'>]><annotation>", "xml-entities"),
        ("</annotation>", "", "xml-broken"),
        ("annotation>", "note>", "xml-shape"),
        ("<width>100</width>", "<width>0</width>", "size-wrong"),
        ("<width>100</width>", "", "size-wrong"),
        ("<name>bird</name>", "", "key-missing"),
        ("<xmin>11</xmin>", "<xmin>left</xmin>", "box-shape"),
        ("bndbox>", "box>", "key-missing"),
        ("a.png", "../../a.png", "path-outside"),
        ("<difficult>0", "<difficult>2", "flag-wrong"),
        ("<difficult>0", "<difficult>False", "flag-wrong"),
        ("<xmin>11", "<xmin>1_1", "box-shape"),
        ("<width>100", "<width>1_00", "size-wrong"),
        ("<width>100", "<width>100.5", "size-wrong"),
    ],
)
def test_read_voc_reports_wrong_records(tmp_path: Path, old: str, new: str, kind: str) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace(old, new))
    _, problems = read_with_problems(tmp_path)
    assert kind in [p.kind for p in problems]
    assert all(p.file == "VOC2007/Annotations/a.xml" for p in problems)


def test_read_voc_reports_listed_images_without_xml(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    (tmp_path / "VOC2007" / "Annotations" / "c.xml").unlink()
    assert [p.kind for p in read_with_problems(tmp_path)[1]] == ["annotation-missing"]


def test_read_voc_joins_years(tmp_path: Path) -> None:
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


def test_read_voc_numbers_classes_as_voc_does(tmp_path: Path) -> None:
    assert read(tiny.write_voc(tmp_path)).category_ids == (3, 6, 7)  # bird, bus, car


def test_read_voc_finds_xml_beside_pictures(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    for stem in tiny.SIZES:
        (tmp_path / f"{stem}.xml").write_text(tiny.voc_xml(stem))
    assert tiny.boxes_of(read(tmp_path)) == tiny.EXPECTED


@pytest.mark.parametrize(
    ("line", "stem"),
    [
        ("my photo", "my photo"),
        ("my photo 1", "my photo 1"),  # there is such a file
        ("c  -1", "c"),
        ("c 1", "c"),
        ("\ufeffc", "c"),
        (" my photo 0 ", "my photo"),
    ],
)
def test_read_voc_takes_a_line_of_a_list_as_an_id(tmp_path: Path, line: str, stem: str) -> None:
    home = tiny.write_voc(tmp_path / "voc") / "VOC2007"
    for folder, suffix in (("Annotations", "xml"), ("JPEGImages", "png")):
        (home / folder / f"c.{suffix}").rename(home / folder / f"{stem}.{suffix}")
    (home / "ImageSets" / "Main" / "test.txt").write_text(f"{line}\n\n")
    assert read(tmp_path / "voc", subset="test").ids == (stem,)


def test_read_voc_prefixes_ids_that_years_share(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path, "VOC2007")
    tiny.write_voc(tmp_path, "VOC2012")
    data = read(tmp_path)
    assert data.ids[0] == "VOC2007/a"
    assert data.subset("VOC2012/test").ids == ("c",)
    assert read(tmp_path, subset="VOC2012/test").ids == ("c",)
    assert read(tmp_path, subset="test").ids == ("VOC2007/c", "VOC2012/c")


def test_read_voc_names_unread_tags(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("</name>", "</name><pose>Left</pose>"))
    assert read(tmp_path).unread == ("<pose> of objects",)


def test_read_voc_shortens_long_names_in_messages(tmp_path: Path) -> None:
    tiny.write_voc(tmp_path)
    xml = tmp_path / "VOC2007" / "Annotations" / "a.xml"
    xml.write_text(f"<{'x' * 5000}/>")
    (problem,) = read_with_problems(tmp_path)[1]
    assert len(problem.what) < 100
