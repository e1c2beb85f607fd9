"""Whatever is wrong with a data set: what `mini check --fix` writes passes `mini check`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers import exports, tiny
from mini_fsod.data.problems import KINDS, UNREPAIRED

Damage = Callable[[Path], object]


def edit(name: str, *pairs: tuple[str, str]) -> Damage:
    """Replaces texts, each once, in a file of the data set."""

    def damage(folder: Path) -> None:
        path = next(iter(sorted(folder.rglob(name))), None)
        if path is not None and path.is_file():
            text = path.read_text(errors="surrogateescape")
            for old, new in pairs:
                text = text.replace(old, new, 1)
            path.write_text(text, errors="surrogateescape")

    return damage


def coco(change: Callable[[dict[str, list[dict[str, Any]]]], object]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "annotations.json"
        with suppress(ValueError, KeyError, IndexError):  # damaged already
            content = json.loads(path.read_text())
            change(content)
            path.write_text(json.dumps(content))

    return damage


def annotation(**values: Any) -> Damage:
    record = {"id": 90, "image_id": 10, "category_id": 5, "bbox": [1, 1, 9, 9]} | values
    return coco(lambda c: c["annotations"].append(record))


def image(**values: Any) -> Damage:
    return coco(lambda c: c["images"].append(c["images"][0] | values))


def category(**values: Any) -> Damage:
    return coco(lambda c: c["categories"].append(c["categories"][0] | values))


def picture(name: str, change: Callable[[Path], object]) -> Damage:
    def damage(folder: Path) -> None:
        for path in sorted(folder.rglob(name))[:1]:
            change(path)

    return damage


def rotated(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", tiny.SIZES["a"][::-1]).save(path, exif=exif)


ANY = {
    "picture-missing": picture("a.png", Path.unlink),
    "picture-unreadable": picture("b.png", lambda p: p.write_text("no picture")),
    "picture-unreadable, PostScript": picture("a.png", lambda p: p.write_text("%!PS-Adobe-3.0")),
    "picture-truncated": picture("c.png", lambda p: p.write_bytes(p.read_bytes()[:-40])),
    "picture-too-large": picture("c.png", lambda p: Image.new("1", (20000, 6000)).save(p)),
    "size-wrong": picture("b.png", lambda p: Image.new("RGB", (70, 61)).save(p)),
    "picture rotated": picture("a.png", rotated),
    "pictures equal": picture("b.png", lambda p: shutil.copy(p, p.with_name("c.png"))),
}
COCO = {
    "area-wrong": annotation(area=-1),
    "box-duplicate": annotation(bbox=[10, 20, 30, 40]),
    "box-nan": annotation(bbox=[float("nan"), 1, 2, 3]),
    "box-negative": annotation(bbox=[1, 1, -2, 3]),
    "box-no-area": annotation(bbox=[1, 1, 0, 3]),
    "box-outside": annotation(bbox=[90, 70, 50, 50]),
    "box outside entirely": annotation(bbox=[900, 70, 50, 50]),
    "box a little outside": annotation(bbox=[99.8, 70, 0.6, 50]),
    "box huge": annotation(bbox=[-1e308, -1e308, 1.7e308, 1.7e308]),
    "box thin": annotation(bbox=[10, 10, 1e-12, 5]),
    "box-shape": annotation(bbox=[1, 2, 3]),
    "class-duplicate": category(id=9, name="BIRD"),
    "class-duplicate, same name": category(id=9),
    "flag-wrong": annotation(iscrowd="no"),
    "id-duplicate": annotation(id=1),
    "id-duplicate, image": image(file_name="b.png"),
    "id-duplicate, category": category(name="tree"),
    "id-unknown": annotation(image_id=99),
    "id-wrong": annotation(id="x"),
    "json-broken": edit("annotations.json", ('"annotations": [', '"annotations": [{"id": 4}, ]')),
    "json-broken, cut": coco(lambda c: c.update(x=1)),
    "json-shape": coco(lambda c: c["images"].append(4)),  # type: ignore[arg-type]
    "json-shape, a list is missing": coco(lambda c: c.pop("categories")),
    "key-duplicate": edit("annotations.json", ('"bbox": [', '"bbox": [1, 2, 3, 4], "bbox": [')),
    "key-duplicate, image": edit("annotations.json", ('"file_name"', '"id": 7, "file_name"')),
    "key-missing": coco(lambda c: c["annotations"][0].pop("bbox")),
    "name-wrong": image(id=30, file_name="\ud800.png"),
    "number-wrong": annotation(id=2**70),
    "path-outside": image(id=31, file_name="../../x.png"),
    "picture-duplicate": image(id=32),
    "picture-duplicate, other size": image(id=33, width=80, height=100),
    "picture-duplicate, other spelling": image(id=34, file_name="x/../a.png"),
    "picture-format": image(id=35, file_name="z.heic"),
    "record-duplicate": image(),
    "size-missing": coco(lambda c: c["images"][0].pop("width")),
    "ids of 64 bits": image(id=2**63 - 1, file_name="d.png"),
    "odd class names": category(id=40, name='["made_by": "mini sample"'),
    "only images": coco(lambda c: c["annotations"].clear()),
}
VOC = {
    "annotation-missing": edit("trainval.txt", ("a\n", "a\nz\n")),
    "box-outside": edit("a.xml", ("<xmax>40", "<xmax>4000")),
    "box-shape": edit("a.xml", ("<xmin>", "<xmin>x")),
    "flag-wrong": edit("c.xml", ("<difficult>1", "<difficult>2")),
    "filename-duplicate": edit("b.xml", ("b.png", "a.png")),
    "filename-duplicate, two": edit("c.xml", ("c.png", "a.png")),
    "key-missing": edit("b.xml", ("<name>bird</name>", "")),
    "list-unreadable": picture("test.txt", lambda p: p.write_bytes(b"\xff\xfe")),
    "path-outside": edit("a.xml", ("a.png", "../../a.png")),
    "size-wrong": edit("a.xml", ("<width>100", "<width>-1")),
    "xml-broken": edit("b.xml", ("</annotation>", "")),
    "xml-entities": edit("b.xml", ("<annotation>", "<!DOCTYPE x []><annotation>")),
    "xml-shape": edit("b.xml", ("<annotation>", "<a>"), ("</annotation>", "</a>")),
    "class-duplicate": edit("b.xml", ("bird", "Bird")),
    "set-leak": edit("test.txt", ("c", "c\na")),
    "year named stuff_": picture("VOC2007", lambda p: p.rename(p.with_name("stuff_1"))),
    "lists missing": picture("ImageSets", shutil.rmtree),
    "backslash": picture("a.png", lambda p: p.rename(p.with_name("C:a\\b.png"))),
    "backslash named": edit("a.xml", ("a.png", "C:a\\b.png")),
}
YOLO = {
    "label-broken": edit("a.txt", ("0 ", "x ")),
    "label-broken, numbers": edit("a.txt", ("\n", " 1\n")),
    "id-unknown": edit("a.txt", ("0 ", "17 ")),
    "box-nan": edit("b.txt", ("0 ", "0 nan 0.5 0.1 0.1\n0 ")),
    "box-outside": edit("b.txt", ("0 ", "0 0.9 0.9 0.8 0.8\n0 ")),
    "box-duplicate": picture("a.txt", lambda p: p.write_text(2 * p.read_text())),
    "folder-unreadable": picture("val", lambda p: (p / "x.png").mkdir()),
    "list-broken": edit("data.yaml", ("images/val", "list.txt")),
    "name-wrong": picture("a.png", lambda p: p.rename(f"{p.parent}/\udcff.png")),
    "set-missing": edit("data.yaml", ("images/val", "images/nowhere")),
    "yaml-shape": edit("data.yaml", ("names:", "nc: 7\nnames:")),
    "class-duplicate": edit("data.yaml", ("bus", "bird")),
    "class-duplicate, spelling": edit("data.yaml", ("bus", "BIRD")),
    "backslash": picture("a.png", lambda p: p.rename(p.with_name("C:a\\b.png"))),
    "space": picture("a.png", lambda p: p.rename(p.with_name(" .png"))),
}
CVAT = {
    "box-rotated": edit("annotations.xml", ('z_order="0"', 'z_order="0" rotation="30"')),
    "box-outside": edit("annotations.xml", ('xbr="40.00"', 'xbr="400.00"')),
    "box-shape": edit("annotations.xml", ('xtl="10.00"', 'xtl="ten"')),
    "class-duplicate": edit("annotations.xml", ('label="bird"', 'label="Bird"')),
    "key-missing": edit("annotations.xml", ('name="b.png"', 'name=""')),
    "name-wrong": edit("annotations.xml", ('label="car"', 'label=" "')),
    "size-wrong": edit("annotations.xml", ('width="60"', 'width="0"')),
    "xml-broken": edit("annotations.xml", ("</annotations>", "")),
    "picture twice": edit("annotations.xml", ('name="b.png"', 'name="a.png"')),
}
LAYOUTS = {
    "coco": (lambda home: tiny.write_coco(home), COCO | ANY),
    "voc": (lambda home: tiny.write_voc(home), VOC | ANY),
    "yolo": (lambda home: tiny.write_yolo(home), YOLO | ANY),
    "cvat": (lambda home: exports.write_cvat(home), CVAT | ANY),
}
HARD_TO_MAKE = {"data-too-large", "folder-unreadable", "list-unreadable", "yaml-broken"}
WITH_ROOT = {"picture-ambiguous"}  # only where --root names another folder of pictures


def test_every_kind_of_problem_has_a_damage() -> None:
    made = {name.partition(",")[0] for name in ANY | COCO | VOC | YOLO | CVAT}
    assert set(KINDS) - set(UNREPAIRED) - HARD_TO_MAKE - WITH_ROOT - made == set()


def check_copy(mini, home: Path, layout: str, damages: list[str]) -> bool:
    """Whether there is a repaired copy; if so, it passes."""
    shutil.rmtree(home, ignore_errors=True)
    write, known = LAYOUTS[layout]
    write(home / "in")
    (home / "in" / "list.txt").write_text("images/val/c.png\nreadme.md\n../x.png\nimages/val/c.gif")
    for name in damages:
        known[name](home / "in")
    path = home / "in" / "annotations.json" if layout == "coco" else home / "in"
    code, _, said = mini("check", path, "--no-sheet", "--fix", home / "out")
    assert code in (0, 2)
    assert "Traceback" not in said
    if not (home / "out").exists():
        return False
    code, _, said = mini("check", home / "out", "--no-sheet")
    assert (code, "No problems" in said) == (0, True), said
    return True


@pytest.mark.parametrize(
    ("layout", "damage"),
    [(layout, name) for layout, (_, known) in LAYOUTS.items() for name in known],
)
def test_repaired_copy_passes_check_after_one_damage(
    layout: str, damage: str, tmp_path: Path, mini
) -> None:
    done = check_copy(mini, tmp_path, layout, [damage])
    unusable = ("only images", "json-broken", "json-shape, a list is missing")
    assert done or damage in unusable


def test_repaired_copy_passes_check_after_names_of_several_pictures(tmp_path: Path, mini) -> None:
    tiny.write_coco(tmp_path / "in")
    photos = tmp_path / "photos"
    tiny.write_pictures(photos / "one")
    (photos / "two").mkdir()
    shutil.copy(photos / "one" / "a.png", photos / "two" / "a.png")
    words = ("--root", photos, "--no-sheet", "--fix", tmp_path / "out")
    _, _, said = mini("check", tmp_path / "in" / "annotations.json", *words)
    assert "picture-ambiguous 1" in said
    code, _, said = mini("check", tmp_path / "out", "--no-sheet")
    assert (code, "No problems" in said) == (0, True), said


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_repaired_copy_passes_check_after_several_damages(tmp_path: Path, mini, data) -> None:
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    names = st.lists(
        st.sampled_from(sorted(LAYOUTS[layout][1])), min_size=2, max_size=6, unique=True
    )
    check_copy(mini, tmp_path, layout, data.draw(names))
