"""COCO files and their pictures in the layouts people have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helpers import tiny
from mini_fsod.data.layout import coco_files, data_folder, locate_pictures, name_of
from mini_fsod.data.read import read, read_with_problems


def test_locate_pictures_searches_the_folder_data(tmp_path: Path, mini) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(tiny.coco()))
    code, _, err = mini("check", tmp_path, "--no-sheet")
    assert code == 2
    assert "fix: name the folder of the images with --root" in err
    tiny.write_pictures(tmp_path / "data")
    assert read(tmp_path).files[0] == "data/a.png"


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "place", ["", "annotations", "images", "train2017", "images/train2017", "annotations/images"]
)
def test_locate_pictures_searches_usual_folders(tmp_path: Path, place: str) -> None:
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


def test_locate_pictures_follows_names_with_dots(tmp_path: Path) -> None:
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
    # as they do with --root, and where they go up further
    assert len(read_with_problems(file, root=tmp_path / "images")[1]) == 3
    content["images"][0]["file_name"] = "../images/../../a.png"
    assert [p.record for p in read_with_problems(write(file, content))[1]] == ["image 10"]


def test_locate_pictures_takes_the_folder_with_most(tmp_path: Path) -> None:
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
def test_coco_files_reports_paths_that_are_no_files(tmp_path: Path, kind: str) -> None:
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


def test_coco_files_checks_the_spelling_of_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_coco_files_leaves_out_samples(tmp_path: Path, mini) -> None:
    tiny.write_coco(tmp_path)
    for _ in range(2):  # a sample may be drawn anew
        assert mini("sample", tmp_path, "--shots", 1, "-o", tmp_path / "shots.json")[0] == 0
        assert list(coco_files(tmp_path)[0]) == ["annotations"]
    assert read(tmp_path).subsets == {}
    (tmp_path / "annotations.json").unlink()
    assert coco_files(tmp_path) == ({}, [])
    assert len(read(tmp_path / "shots.json").boxes) == 3


def test_coco_files_keeps_two_files_of_one_name(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    write(tmp_path / "annotations" / "annotations.json", tiny.coco())
    (tmp_path / "._annotations.json").write_bytes(b"\0macOS leaves these")
    assert set(coco_files(tmp_path)[0]) == {"annotations", f"{tmp_path.name}-annotations"}


def test_coco_files_may_have_an_empty_list(tmp_path: Path) -> None:
    tiny.write_coco(tmp_path)
    write(tmp_path / "test.json", tiny.coco() | {"annotations": []})
    data = read(tmp_path)
    assert (len(data), len(data.boxes)) == (6, 5)


def test_name_of_resolves_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos" / "annotations").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "photos")
    assert name_of(Path()) == "photos"
    assert name_of(Path("annotations/..")) == "photos"
    assert data_folder(Path()) == Path()
    monkeypatch.chdir("annotations")
    assert data_folder(Path("a.json")).name == "photos"
