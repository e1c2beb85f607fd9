"""Folders as labelling tools and download sites lay them out, and what else lies in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.layout import coco_files
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import DataError

FOREIGN = {"version": "5.0", "shapes": [], "imagePath": "a.png", "images": 3}


def write_xml(folder: Path, suffix: str = ".xml", stems: str = "abc") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        (folder / f"{stem}{suffix}").write_text(tiny.voc_xml(stem))


@pytest.mark.parametrize("annotations", ["", "annotations", "Annotations", "ANNOTATIONS"])
@pytest.mark.parametrize("pictures", ["", "images", "Images"])
@pytest.mark.parametrize("suffix", [".xml", ".XML"])
def test_xml_in_a_folder(tmp_path: Path, annotations: str, pictures: str, suffix: str) -> None:
    write_xml(tmp_path / annotations, suffix)
    tiny.write_pictures(tmp_path / pictures)
    for path in {tmp_path, tmp_path / annotations}:
        data = read(path)
        assert data.kind == "voc"
        assert tiny.boxes_of(data) == tiny.EXPECTED
        assert all(data.path(i).is_file() for i in range(3))


@pytest.mark.parametrize(("annotations", "pictures"), [("", ""), ("annotations", "images")])
def test_folders_with_xml_are_image_sets(tmp_path: Path, annotations: str, pictures: str) -> None:
    for part, stems in (("train", "ab"), ("test", "c")):
        write_xml(tmp_path / part / annotations, stems=stems)
        tiny.write_pictures(tmp_path / part / pictures)
    data = read(tmp_path)
    assert (data.kind, tiny.boxes_of(data)) == ("voc", tiny.EXPECTED)
    assert {n: len(p) for n, p in data.subsets.items()} == {"train": 2, "test": 1}
    assert read(tmp_path, subset="test").ids == ("c",)
    assert all(data.path(i).is_file() for i in range(3))


def test_a_sample_does_not_replace_the_xml(tmp_path: Path, mini) -> None:
    write_xml(tmp_path)
    tiny.write_pictures(tmp_path)
    xml = tmp_path / "c.xml"
    xml.write_text(xml.read_text().replace("<difficult>1", "<difficult>0"))
    for seed in (0, 1):
        words = ["sample", tmp_path, "--shots", 1, "--seed", seed]
        assert mini(*words, "-o", tmp_path / f"s{seed}.json")[0] == 0
        assert (read(tmp_path).kind, len(read(tmp_path).boxes)) == ("voc", 5)
    assert len(read(tmp_path / "s0.json").boxes) == 3


@pytest.mark.parametrize("name", ["coco8.yaml", "my.yml", "DATA.YAML", "x.YML"])
def test_data_yaml_under_another_name(tmp_path: Path, name: str) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "data.yaml").rename(tmp_path / name)
    (tmp_path / "hyp.yaml").write_text("lr: 0.1\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    data, problems = read_with_problems(tmp_path)
    assert (data.kind, problems) == ("yolo", [])
    assert tiny.boxes_of(data) == tiny.EXPECTED


def test_two_that_could_be_data_yaml(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "one.yaml").write_text((tmp_path / "data.yaml").read_text())
    (tmp_path / "data.yaml").rename(tmp_path / "two.yaml")
    data = read(tmp_path)
    assert data.kind == "folder"
    assert "2 x .yaml" in data.notes[0]


def test_json_in_capitals(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path).rename(tmp_path / "A.JSON")
    assert tiny.boxes_of(read(tmp_path)) == tiny.EXPECTED


def test_what_a_plain_folder_does_not_read_is_noted(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "img")
    assert read(tmp_path).notes == ()
    (tmp_path / "readme.txt").write_text("x")
    assert read(tmp_path).notes == ()
    for name in ("ann/a.png.json", "ann/x.xml", "img/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    code, _, err = mini("check", tmp_path, "--no-sheet")
    assert code == 0
    assert "NOTE not read as annotations: 1 x .json, 1 x .txt, 1 x .xml; known layouts" in err
    code, out, _ = mini("check", tmp_path, "--no-sheet", "--json")
    assert (code, len(json.loads(out)["notes"])) == (0, 1)


def test_foreign_json_beside_coco_is_left_out(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps(FOREIGN))
    data, problems = read_with_problems(tmp_path)
    assert (tiny.boxes_of(data), problems) == (tiny.EXPECTED, [])
    assert data.notes == ("not COCO, left out: meta.json",)
    code, _, err = mini("check", path.parent, "--no-sheet")
    assert (code, "NOTE not COCO, left out: meta.json" in err) == (0, True)


def test_foreign_json_alone_is_one_problem(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(FOREIGN))
    for path in (tmp_path, tmp_path / "a.json"):
        (problem,) = read_with_problems(path)[1]
        assert (problem.kind, problem.file) == ("not-coco", "a.json")
        assert "known layouts" in problem.fix
        with pytest.raises(DataError, match="not COCO"):
            read(path)
    write_xml(tmp_path)
    assert read(tmp_path).kind == "voc"


@pytest.mark.parametrize("kind", ["coco", "voc", "plain"])
def test_our_own_results_in_the_folder(tmp_path: Path, mini, kind: str) -> None:
    tiny.write_coco(tmp_path / "other")
    found = tmp_path / "other" / "d.json"
    found.write_text("[]")
    home = tmp_path / "data"
    tiny.write_pictures(home)
    if kind == "coco":
        tiny.write_coco(home)
    if kind == "voc":
        write_xml(home)
    for words in (["check", "--no-sheet"], ["eval", "--detections", found]):
        out = mini(words[0], tmp_path / "other", *words[1:], "--json")[1]
        (home / f"{words[0]}.json").write_text(out)
    assert coco_files(home)[1] == []
    data, problems = read_with_problems(home)
    assert (len(data), problems) == (3, [])
    assert bool(data.notes) == (kind == "plain")


def test_a_damaged_file_is_told_though_few_of_its_keys_are_seen(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path, json.dumps(tiny.coco())[:200])
    assert [p.kind for p in read_with_problems(tmp_path)[1]] == ["json-broken"]


def test_yolo_without_data_yaml(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "images")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "classes.txt").write_text("bird\nred car\n")
    (tmp_path / "notes.json").write_text('{"categories": [], "info": {}}')
    (problem,) = read_with_problems(tmp_path)[1]
    assert (problem.kind, problem.file) == ("yaml-missing", "data.yaml")
    assert '`names: ["bird", "red car"]`' in problem.fix
    assert mini("check", tmp_path, "--no-sheet")[0] == 2
    (tmp_path / "data.yaml").write_text('train: images\nnames: ["bird", "red car"]\n')
    assert len(read(tmp_path).boxes) == 1


def test_a_configuration_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    for text in ("names: [a", "- a list"):
        (tmp_path / "data.yaml").write_text(text)
        assert len(read_with_problems(tmp_path)[1]) == 1


def test_pictures_in_data(tmp_path: Path, mini) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(tiny.coco()))
    code, _, err = mini("check", tmp_path, "--no-sheet")
    assert code == 2
    assert "fix: give the .json file, and name the folder of the images with --root" in err
    tiny.write_pictures(tmp_path / "data")
    assert read(tmp_path).files[0] == "data/a.png"
