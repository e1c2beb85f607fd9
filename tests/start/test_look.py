from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import exports, tiny
from helpers.photos import bolts, write_boxes, write_photos
from mini_fsod.errors import UserError
from mini_fsod.start.look import look


def test_look_takes_all_classes_of_the_boxes_where_photos_have_no_labels(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    boxes = write_boxes(tmp_path / "b.json", *bolts(), (3, "hex, nut", (1, 1, 50, 50)))
    found = look(photos, boxes, ())
    assert found.novel == ("bolt", "hex, nut")
    assert found.base == ()
    assert found.boxes_of == {"bolt": 3, "hex, nut": 1}
    assert found.to_mine == 4
    assert look(photos, boxes, ["hex, nut"]).boxes_of == {"hex, nut": 1}


def test_look_finds_the_pictures_of_boxes_among_the_photos(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos" / "monday").parent
    boxes = write_boxes(tmp_path / "b.json", *bolts(), images=8)
    found = look(photos, boxes, ())
    assert found.shots_root == photos
    assert found.shots.files == tuple(f"monday/photo{n}.jpg" for n in range(3))
    assert found.outside == []


def test_look_needs_no_root_where_the_boxes_lie_with_the_photos(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    found = look(photos, write_boxes(photos / "five.json", *bolts()), ())
    assert (found.photos.kind, len(found.photos)) == ("folder", 8)
    assert found.shots_root is None


def test_look_prefers_photos_to_the_copies_in_an_export(tmp_path: Path) -> None:
    tiny.write_pictures(tmp_path / "photos")
    write_photos(tmp_path / "photos")
    exports.write_cvat(tmp_path / "data")
    archive = exports.zipped(tmp_path / "data", tmp_path / "export.zip")
    found = look(tmp_path / "photos", archive, ["bird"])
    assert found.shots_root == tmp_path / "photos"
    assert found.to_mine == 9  # of 11, two of which show the bird
    assert found.boxes_of == {"bird": 2}


@pytest.mark.parametrize("write", [exports.write_darknet, exports.write_label_studio_yolo])
def test_look_takes_yolo_without_its_pictures(tmp_path: Path, write) -> None:
    """Boxes are shares of the pictures' sizes: without pictures, nothing can be read."""
    tiny.write_pictures(tmp_path / "photos")
    write(tmp_path / "data", pictures=False)
    archive = exports.zipped(tmp_path / "data", tmp_path / "export.zip")
    found = look(tmp_path / "photos", archive, ["bird"])
    assert found.boxes_of == {"bird": 2}
    (tmp_path / "photos" / "a.png").unlink()
    with pytest.raises(UserError, match=r"a\.txt: no picture of that name"):
        look(tmp_path / "photos", archive, ["bird"])


def test_look_takes_photos_in_a_zip(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos" / "monday")
    archive = exports.zipped(tmp_path / "photos", tmp_path / "photos.zip")
    found = look(archive, write_boxes(tmp_path / "b.json", *bolts()), ())
    assert (len(found.photos), found.shots_root, found.outside) == (8, archive, [])


def test_look_takes_pictures_that_are_not_among_the_photos(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    exports.write_label_studio(tmp_path / "labelled")
    found = look(photos, tmp_path / "labelled" / "project-1.json", ["bird"])
    assert found.shots_root is None
    assert len(found.outside) == 2


def test_look_says_which_pictures_are_missing(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", count=2)
    with pytest.raises(UserError, match=r"1 of 3 pictures with boxes not found, such as photo2"):
        look(photos, write_boxes(tmp_path / "b.json", *bolts()), ())


def test_look_takes_copies_where_names_mean_several_photos(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos" / "monday").parent
    write_photos(photos / "tuesday")
    write_photos(tmp_path / "labelled")
    found = look(photos, write_boxes(tmp_path / "labelled" / "b.json", *bolts()), ())
    assert found.shots_root is None
    with pytest.raises(UserError, match="may be meant"):
        look(photos, write_boxes(tmp_path / "b.json", *bolts()), ())


def test_look_keeps_labels_of_other_classes(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    write_boxes(photos / "annotations.json", (0, "car", (1, 1, 9, 9)), (4, "car", (1, 1, 9, 9)))
    boxes = write_boxes(tmp_path / "b.json", *bolts())
    found = look(photos, boxes, ())
    assert (found.base, found.novel) == (("car",), ("bolt",))


def test_look_asks_which_classes_are_new(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    boxes = write_boxes(photos / "annotations.json", *bolts())
    with pytest.raises(UserError, match="Which classes are new"):
        look(photos, None, ())
    assert look(photos, None, ["bolt"]).boxes_of == {"bolt": 3}
    assert boxes.is_file()


@pytest.mark.parametrize(
    ("novel", "message"),
    [
        (["Bolt"], 'the boxes say "bolt"'),
        (["bold"], 'Did you mean "bolt"'),
        (["bolt", "nut"], 'no box of "nut"'),
    ],
)
def test_look_refuses_classes_without_boxes(tmp_path: Path, novel: list[str], message: str) -> None:
    photos = write_photos(tmp_path / "photos")
    with pytest.raises(UserError) as wrong:
        look(photos, write_boxes(tmp_path / "b.json", *bolts()), novel)
    assert message in f"{wrong.value.what} {wrong.value.fix}"


def test_look_refuses_another_spelling_than_the_labels_have(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    write_boxes(photos / "annotations.json", (0, "Hex Nut", (1, 1, 9, 9)))
    boxes = write_boxes(tmp_path / "b.json", *bolts(), (0, "hex-nut", (1, 1, 9, 9)))
    with pytest.raises(UserError, match="two ways"):
        look(photos, boxes, ["bolt"])


def test_look_refuses_photos_without_boxes(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    with pytest.raises(UserError, match="8 photos without labels") as wrong:
        look(photos, None, ())
    assert "--boxes FILE" in wrong.value.fix
    (tmp_path / "b.json").write_text(
        json.dumps({"images": [], "annotations": [], "categories": []})
    )
    with pytest.raises(UserError):
        look(photos, tmp_path / "b.json", ())
    for missing in ((tmp_path / "nothing", None), (photos, tmp_path / "nothing.json")):
        with pytest.raises(UserError, match="no such file"):
            look(*missing, ())


def test_look_names_photos_that_cannot_be_opened(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    (photos / "photo7.jpg").write_bytes(b"no picture")
    found = look(photos, write_boxes(tmp_path / "b.json", *bolts()), ())
    assert len(found.sizes) == 7
    assert found.unreadable[0].startswith("photo7.jpg (")


def test_look_names_the_whole_command_where_the_labels_have_one_class(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "my photos")
    write_boxes(photos / "boxes.json", *bolts())
    with pytest.raises(UserError, match="Which classes are new") as said:
        look(photos, None, ())
    assert f"mini init '{photos}' --novel bolt" in said.value.fix
    write_boxes(photos / "boxes.json", *bolts(), (5, "nut", (1, 1, 50, 50)))
    with pytest.raises(UserError, match="Which classes are new") as said:
        look(photos, None, ())
    assert "repeated for several" in said.value.fix
