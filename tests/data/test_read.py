from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.layout import coco_files
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import DataError, UserError

FOREIGN = {"version": "5.0", "shapes": [], "imagePath": "a.png", "images": 3}


def write_xml(folder: Path, suffix: str = ".xml", stems: str = "abc") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        (folder / f"{stem}{suffix}").write_text(tiny.voc_xml(stem))


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_read_gives_the_same_data_for_every_format(tmp_path: Path, kind: str) -> None:
    path = {"coco": tiny.write_coco, "voc": tiny.write_voc, "yolo": tiny.write_yolo}[kind](tmp_path)
    data = read(path)
    assert data.kind == kind
    assert tiny.boxes_of(data) == tiny.EXPECTED
    assert data.classes == tiny.CLASSES
    by_stem = {Path(f).stem: i for i, f in enumerate(data.files)}
    assert {s: tuple(data.sizes[i]) for s, i in by_stem.items()} == tiny.SIZES
    assert all(data.path(i).is_file() for i in range(len(data)))


def test_read_takes_ids_from_the_files(tmp_path: Path) -> None:
    assert read(tiny.write_coco(tmp_path / "1")).ids == (10, 11, 12)
    assert read(tiny.write_voc(tmp_path / "2")).ids == ("a", "b", "c")
    assert read(tiny.write_yolo(tmp_path / "3")).ids == ("a", "b", "c")


def test_read_keeps_flags(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0]["ignore"] = 1
    data = read(tiny.write_coco(tmp_path / "1", content))
    assert data.boxes.crowd.tolist() == [False, False, False, True, False]
    assert data.boxes.ignore.tolist() == [True, False, False, False, False]
    data = read(tiny.write_voc(tmp_path / "2"))
    assert data.boxes.difficult.tolist() == [False, False, False, True, False]


def test_read_selects_an_image_set(tmp_path: Path) -> None:
    data = read(tiny.write_voc(tmp_path / "1"), subset="test")
    assert data.ids == ("c",)
    assert len(data.boxes) == 2
    data = read(tiny.write_yolo(tmp_path / "2"), subset="train")
    assert data.ids == ("a", "b")
    with pytest.raises(UserError, match='Did you mean "test"'):
        read(tmp_path / "1", subset="tset")


def test_read_coco_folders_of_other_tools(tmp_path: Path) -> None:
    """COCO's layout, and one file per folder with ids that start from 10 in each."""
    folder = tmp_path / "coco"
    tiny.write_pictures(folder / "train2017")
    (folder / "annotations").mkdir()
    (folder / "annotations" / "instances_train2017.json").write_text(json.dumps(tiny.coco()))
    (folder / "annotations" / "captions_train2017.json").write_text("{}")
    data = read(folder)
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


def test_read_refuses_what_is_not_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no annotations or pictures"):
        read(tmp_path)
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(UserError, match="not a data set"):
        read(tmp_path / "x.csv")


def test_read_raises_all_problems_at_once(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][0]["category_id"] = 99
    content["annotations"][1]["image_id"] = 99
    with pytest.raises(DataError) as error:
        read(tiny.write_coco(tmp_path, content))
    assert [p.record for p in error.value.problems] == ["annotation 2", "annotation 1"]


@pytest.mark.parametrize("annotations", ["", "annotations", "Annotations", "ANNOTATIONS"])
@pytest.mark.parametrize("pictures", ["", "images", "Images"])
@pytest.mark.parametrize("suffix", [".xml", ".XML"])
def test_read_finds_xml_in_any_usual_folder(
    tmp_path: Path, annotations: str, pictures: str, suffix: str
) -> None:
    write_xml(tmp_path / annotations, suffix)
    tiny.write_pictures(tmp_path / pictures)
    for path in {tmp_path, tmp_path / annotations}:
        data = read(path)
        assert data.kind == "voc"
        assert tiny.boxes_of(data) == tiny.EXPECTED
        assert all(data.path(i).is_file() for i in range(3))


@pytest.mark.parametrize(("annotations", "pictures"), [("", ""), ("annotations", "images")])
def test_read_takes_folders_with_xml_as_image_sets(
    tmp_path: Path, annotations: str, pictures: str
) -> None:
    for part, stems in (("train", "ab"), ("test", "c")):
        write_xml(tmp_path / part / annotations, stems=stems)
        tiny.write_pictures(tmp_path / part / pictures)
    data = read(tmp_path)
    assert (data.kind, tiny.boxes_of(data)) == ("voc", tiny.EXPECTED)
    assert {n: len(p) for n, p in data.subsets.items()} == {"train": 2, "test": 1}
    assert read(tmp_path, subset="test").ids == ("c",)
    assert all(data.path(i).is_file() for i in range(3))


def test_read_ignores_samples_beside_xml(tmp_path: Path, mini) -> None:
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
def test_read_finds_data_yaml_under_another_name(tmp_path: Path, name: str) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "data.yaml").rename(tmp_path / name)
    (tmp_path / "hyp.yaml").write_text("lr: 0.1\n")
    (tmp_path / "broken.yaml").write_text("a: [")
    data, problems = read_with_problems(tmp_path)
    assert (data.kind, problems) == ("yolo", [])
    assert tiny.boxes_of(data) == tiny.EXPECTED


def test_read_does_not_guess_between_two_configs(tmp_path: Path) -> None:
    tiny.write_yolo(tmp_path)
    (tmp_path / "one.yaml").write_text((tmp_path / "data.yaml").read_text())
    (tmp_path / "data.yaml").rename(tmp_path / "two.yaml")
    data = read(tmp_path)
    assert data.kind == "folder"
    assert "2 x .yaml" in data.notes[0]


def test_read_ignores_the_case_of_the_json_suffix(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path).rename(tmp_path / "A.JSON")
    assert tiny.boxes_of(read(tmp_path)) == tiny.EXPECTED


def test_read_leaves_out_other_json_beside_coco(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps(FOREIGN))
    data, problems = read_with_problems(tmp_path)
    assert (tiny.boxes_of(data), problems) == (tiny.EXPECTED, [])
    assert data.notes == ("not COCO, left out: meta.json",)
    code, _, err = mini("check", path.parent, "--no-sheet")
    assert (code, "NOTE not COCO, left out: meta.json" in err) == (0, True)


def test_read_reports_other_json_once(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(FOREIGN))
    for path in (tmp_path, tmp_path / "a.json"):
        (problem,) = read_with_problems(path)[1]
        assert (problem.kind, problem.file) == ("not-coco", "a.json")
        assert "supported layouts" in problem.fix
        with pytest.raises(DataError, match="not COCO"):
            read(path)
    write_xml(tmp_path)
    assert read(tmp_path).kind == "voc"


@pytest.mark.parametrize("kind", ["coco", "voc", "plain"])
def test_read_ignores_output_of_mini(tmp_path: Path, mini, kind: str) -> None:
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


def test_read_reports_a_broken_coco_file(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path, json.dumps(tiny.coco())[:200])
    assert [p.kind for p in read_with_problems(tmp_path)[1]] == ["json-broken"]


def test_read_reads_yolo_without_data_yaml(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "images")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("1 0.5 0.5 0.2 0.2\n")
    (tmp_path / "classes.txt").write_text("bird\nred car\n")
    data = read(tmp_path)
    assert data.classes == ("bird", "red car")
    assert tiny.boxes_of(data) == {("a", "red car", (40.0, 32.0, 20.0, 16.0))}


def test_read_takes_pictures_from_another_folder(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "photos")
    for name, write in (
        ("coco", tiny.write_coco), ("voc", tiny.write_voc), ("yolo", tiny.write_yolo)
    ):  # fmt: skip
        path = write(tmp_path / name)
        for picture in (tmp_path / name).rglob("*.png"):
            picture.unlink()
        data = read(path, root=tmp_path / "photos")
        assert sorted(data.files) == ["a.png", "b.png", "c.png"]
        assert tiny.boxes_of(data) == tiny.EXPECTED


def test_read_refuses_another_folder_of_pictures_where_it_means_nothing(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "photos")
    path = tiny.write_coco(tmp_path / "coco")
    for wrong, root, words in (
        (tmp_path / "photos", tmp_path, "cannot be combined with another image folder"),
        (tiny.write_yolo(tmp_path / "yolo"), tmp_path / "nowhere", "no such folder"),
        (path, tmp_path / "nowhere", "no such folder"),
    ):
        with pytest.raises(UserError, match=words):
            read(wrong, root=root)


def test_read_with_problems_refuses_bad_paths(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / ("a" * 300), tmp_path / "a\0b"):
        with pytest.raises(UserError, match="no such file"):
            read_with_problems(path)
