"""COCO files and their pictures in the layouts people have."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from helpers import tiny
from mini_fsod.data.check import picture_problems
from mini_fsod.data.layout import coco_files, data_folder, locate_pictures, name_of
from mini_fsod.data.read import read, read_with_problems
from mini_fsod.errors import UserError


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "place", ["", "annotations", "images", "train2017", "images/train2017", "annotations/images"]
)
def test_pictures_are_found(tmp_path: Path, place: str) -> None:
    content = tiny.coco()
    if place == "annotations/images":
        for image in content["images"]:
            image["file_name"] = f"images/{image['file_name']}"
    file = write(tmp_path / "annotations" / "instances_train2017.json", content)
    tiny.write_pictures(tmp_path / place)
    for path in (tmp_path, tmp_path / "annotations", file):
        data = read(path)
        assert all(data.path(i).is_file() for i in range(3)), path
        assert tiny.boxes_of(data) == tiny.EXPECTED
        assert data.root.resolve() == tmp_path.resolve()
        assert data.files[0] == f"{place}/a.png".lstrip("/")


def test_names_that_go_up_to_the_data_folder(tmp_path: Path) -> None:
    content = tiny.coco()
    for image in content["images"]:
        image["file_name"] = f"../images/{image['file_name']}"
    tiny.write_pictures(tmp_path / "images")
    file = write(tmp_path / "annotations" / "a.json", content)
    for path in (tmp_path, file):
        assert read(path).files == ("images/a.png", "images/b.png", "images/c.png")
    # from a file that lies in the data folder itself they leave it
    _, problems = read_with_problems(write(tmp_path / "b.json", content))
    assert [p.kind for p in problems] == ["path-outside"] * 3
    # as they do with a folder of their own, and where they go up further
    assert len(read_with_problems(file, root=tmp_path / "images")[1]) == 3
    content["images"][0]["file_name"] = "../images/../../a.png"
    assert [p.record for p in read_with_problems(write(file, content))[1]] == ["image 10"]


def test_the_place_with_most_pictures_wins(tmp_path: Path) -> None:
    """Twenty names spread over the list are looked for, not the first ones."""
    names = tuple(f"{n}.png" for n in range(1000))
    (tmp_path / "images").mkdir()
    for n in range(400, 1000):
        (tmp_path / "images" / f"{n}.png").touch()
    (tmp_path / "0.png").touch()
    assert locate_pictures(tmp_path / "a.json", names)[1][7] == "images/7.png"
    assert locate_pictures(tmp_path / "a.json", ())[1] == ()
    assert locate_pictures(tmp_path / "a.json", ("x" * 300, "a\ud800"))[1][0] == "x" * 300


@pytest.mark.parametrize("kind", ["folder", "dangling", "pipe", "loop"])
def test_what_is_no_file_is_told_by_name(tmp_path: Path, kind: str) -> None:
    tiny.write_coco(tmp_path)
    odd = tmp_path / "b.json"
    if kind == "folder":
        odd.mkdir()
    elif kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("nowhere" if kind == "dangling" else "b.json")
    data, problems = read_with_problems(tmp_path)
    assert len(data) == 3
    assert [(p.kind, p.file) for p in problems] == [("json-broken", "b.json")]
    assert "cannot be read" in problems[0].what


@pytest.fixture
def stranger() -> Iterator[Path]:
    """A folder of somebody who may not read everything in it; root may, so another user looks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        if os.getuid() == 0:
            os.seteuid(0)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


def give_up_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_unreadable_json_and_folders_are_told(stranger: Path) -> None:
    tiny.write_coco(stranger)
    (stranger / "b.json").write_text("{}")
    (stranger / "b.json").chmod(0)
    give_up_rights()
    assert [(p.file, p.what) for p in read_with_problems(stranger)[1]] == [
        ("b.json", "cannot be read (Permission denied)")
    ]


def test_unreadable_folders_are_told(stranger: Path) -> None:
    for name in ("voc", "plain"):
        (stranger / name).mkdir()
    tiny.write_voc(stranger / "voc")
    (stranger / "voc" / "VOC2007" / "JPEGImages").chmod(0)
    tiny.write_pictures(stranger / "plain" / "x")
    tiny.write_pictures(stranger / "plain" / "y")
    (stranger / "plain" / "x").chmod(0)
    (stranger / "closed").mkdir(mode=0)
    give_up_rights()
    assert [p.kind for p in read_with_problems(stranger / "voc")[1]] == ["folder-unreadable"]
    data, problems = read_with_problems(stranger / "plain")
    assert len(data) == 3
    assert [(p.kind, p.file) for p in problems] == [("folder-unreadable", "x")]
    with pytest.raises(UserError, match="cannot be read"):
        read_with_problems(stranger / "closed")
    with pytest.raises(UserError, match="no such file"):
        read_with_problems(stranger / "closed" / "below")


def test_unreadable_annotations_are_told(stranger: Path) -> None:
    tiny.write_voc(stranger / "voc")
    (stranger / "voc" / "VOC2007" / "Annotations" / "a.xml").chmod(0)
    (stranger / "voc" / "VOC2007" / "ImageSets" / "Main" / "test.txt").chmod(0)
    tiny.write_yolo(stranger / "yolo")
    (stranger / "yolo" / "labels" / "train" / "a.txt").chmod(0)
    (stranger / "yolo" / "images" / "val" / "c.png").chmod(0)
    give_up_rights()
    assert [p.kind for p in read_with_problems(stranger / "voc")[1]] == [
        "list-unreadable",
        "xml-broken",
    ]
    data, problems = read_with_problems(stranger / "yolo")
    assert [p.kind for p in problems] == ["label-broken"]
    assert [p.kind for p in picture_problems(data, False)[0]] == ["picture-unreadable"]


def test_macos_takes_annotations_for_vocs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There Annotations is the same folder; what is really written decides, and what is in it."""
    write(tmp_path / "annotations" / "train.json", tiny.coco())
    tiny.write_pictures(tmp_path / "train")
    stat = Path.stat

    def blind(self: Path, **options: bool) -> os.stat_result:
        return stat(Path(str(self).replace("Annotations", "annotations")), **options)

    monkeypatch.setattr(Path, "stat", blind)
    assert read(tmp_path).kind == "coco"
    monkeypatch.undo()
    (tmp_path / "Annotations").symlink_to("annotations")
    assert read(tmp_path).kind == "coco"


def test_samples_are_no_image_sets(tmp_path: Path, mini) -> None:
    tiny.write_coco(tmp_path)
    for _ in range(2):  # a sample may be drawn anew
        assert mini("sample", tmp_path, "--shots", 1, "-o", tmp_path / "shots.json")[0] == 0
        assert list(coco_files(tmp_path)[0]) == ["annotations"]
    assert read(tmp_path).subsets == {}
    (tmp_path / "annotations.json").unlink()
    assert coco_files(tmp_path) == ({}, [])
    assert len(read(tmp_path / "shots.json").boxes) == 3


def test_files_of_one_name_are_both_read(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    write(tmp_path / "annotations" / "annotations.json", tiny.coco())
    (tmp_path / "._annotations.json").write_bytes(b"\0macOS leaves these")
    assert set(coco_files(tmp_path)[0]) == {"annotations", f"{tmp_path.name}-annotations"}


def test_an_empty_list_in_one_of_several_files(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    write(tmp_path / "test.json", tiny.coco() | {"annotations": []})
    data = read(tmp_path)
    assert (len(data), len(data.boxes)) == (6, 5)


def test_root_is_for_files(tmp_path: Path) -> None:
    path = tiny.write_coco(tmp_path)
    assert read(path, root=tmp_path).files[0] == "a.png"
    for wrong, root in ((tmp_path, tmp_path), (path, tmp_path / "nowhere")):
        with pytest.raises(UserError, match=r"--root|no such folder"):
            read(wrong, root=root)


def test_names_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos" / "annotations").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos")
    assert name_of(Path()) == "photos"
    assert name_of(Path("annotations/..")) == "photos"
    assert data_folder(Path()) == Path()
    monkeypatch.chdir("annotations")
    assert data_folder(Path("a.json")).name == "photos"


def test_ids_are_short_within_an_image_set(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        tiny.write_pictures(tmp_path / part)
        write(tmp_path / part / "_annotations.coco.json", tiny.coco())
    data = read(tmp_path)
    assert data.ids[0] == "train/10"
    assert data.subset("valid").ids == (10, 11, 12) == read(tmp_path, subset="valid").ids


def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path)
    try:
        Image.new("RGB", (5, 5)).save(os.fsencode(tmp_path) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system takes text alone")
    data, problems = read_with_problems(tmp_path)
    assert len(data) == 3
    assert [(p.kind, p.file) for p in problems] == [("name-wrong", '"\\udcff.png"')]
