"""The K shots of a run: drawn, from published lists, or from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import shapes
from helpers.run_data import run_data
from helpers.shapes import NOVEL, rewrite
from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.data.subsets import arranged, with_base_boxes
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.online.targets import TrainingSet, with_shots
from mini_fsod.runs.data import RunData


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


def stems(data: Dataset) -> list[str]:
    return [Path(file).stem for file in data.files]


def test_drawn_shots_come_from_the_training_images(data: Path) -> None:
    own = run_data(data, shots__k=2)
    assert np.bincount(own.shots.boxes.label).tolist() == [2, 2, 2]
    assert own.shots.classes == shapes.CLASSES
    assert set(own.shots.files) <= set(own.train.files)
    other = run_data(data, shots__k=2, shots__seed=1)
    assert {*map(tuple, other.shots.boxes.xywh)} != {*map(tuple, own.shots.boxes.xywh)}
    elsewhere = run_data(data, shots__subset="test")
    assert elsewhere.test is not None
    assert set(elsewhere.shots.files) <= set(elsewhere.test.files)


def test_check_refuses_too_few_boxes_for_stages_that_need_shots(data: Path) -> None:
    own = run_data(data, shots__k=50)
    with pytest.raises(UserError, match='50 shots in the image set "train": "red" has'):
        own.check(["base", "transfer"])
    with pytest.raises(UserError, match=r'"red" has \d+ \(others: \d+ in test\)'):
        own.check(["base", "transfer"])
    own.check(["base"])  # which needs none
    oracle = {"online__oracle": True, "online__teacher": False}
    own = run_data(data, shots__k=50, **oracle)
    own.check(["online"])
    with pytest.raises(UserError, match="Too few boxes for 50 shots"):
        own.check(["online", "tune"])
    with pytest.raises(UserError, match="Too few boxes for 50 shots"):
        run_data(data, shots__k=50, online__shots=True, **oracle).check(["online"])
    run_data(data, shots__k=50, tune__data="none", **oracle).check(["online", "tune"])


ANCHORS = (32, 64, 128, 256, 512)


@pytest.mark.parametrize(
    ("anchors", "smaller", "stages", "more", "told"),
    [
        (ANCHORS, True, ["base", "transfer"], {}, 1),
        (ANCHORS, False, ["base", "transfer"], {}, 0),  # so are base boxes
        ((2, 4, 8, 16, 32), True, ["base", "transfer"], {}, 0),
        (ANCHORS, True, ["base"], {}, 0),
        (ANCHORS, True, ["transfer"], {"transfer__checkpoint": "a.safetensors"}, 0),
    ],
)
def test_check_notes_tiny_shots_before_transfer(
    data: Path,
    anchors: tuple[int, ...],
    smaller: bool,
    stages: list[str],
    more: dict[str, str],
    told: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = data / "annotations" / "train.json"
    content = shapes.json_of(path)
    for box in content["annotations"]:
        if smaller and box["category_id"] == shapes.CLASSES.index(NOVEL) + 1:
            box["bbox"][2:] = [6, 6]
    path.write_text(json.dumps(content))
    run_data(data, detector__anchors=anchors, **more).check(stages)
    err = capsys.readouterr().err
    assert err.count(" pixels at the detector's scale") == told
    assert err.count(f"{NOVEL}: 1 of 1 shot ") == told


@pytest.mark.parametrize("layout", shapes.WRITE)
def test_shots_from_a_file_of_mini_sample(tmp_path: Path, mini: Any, layout: str) -> None:
    root = shapes.WRITE[layout](tmp_path / "data")
    out = tmp_path / "elsewhere" / "shots.json"
    code, _, err = mini("sample", root, "--novel", "red", "--shots", 2, "-o", out)
    assert code == 0, err
    own = run_data(root, data__novel=["red"], shots__file=out, shots__k=2)
    drawn = run_data(root, data__novel=["red"], shots__k=2)
    assert boxes(own.shots) == boxes(drawn.shots)
    assert own.shots.classes == own.labels.classes
    assert set(own.shots.files) <= set(own.whole.files)  # no second cache of them


def boxes(data: Dataset) -> list[tuple[str, str, tuple[float, ...]]]:
    rows = zip(data.boxes.image, data.boxes.label, data.boxes.xywh, strict=True)
    return sorted((data.files[i], data.classes[c], tuple(box.round(3))) for i, c, box in rows)


def test_check_refuses_a_sample_of_another_data_set(data: Path, tmp_path: Path, mini: Any) -> None:
    """Told before anything runs."""
    other = shapes.write_yolo(tmp_path / "yolo")
    out = tmp_path / "shots.json"
    assert mini("sample", other, "--novel", "red", "--shots", 2, "-o", out)[0] == 0
    with pytest.raises(UserError, match=r"shots\.json: \d pictures? not found"):
        run_data(data, data__novel=["red"], shots__file=out).check(["base", "transfer"])


def test_shots_from_file_may_have_pictures_elsewhere(data: Path, tmp_path: Path) -> None:
    content = shapes.pictures(tmp_path / "mine", 3, seed=7)
    (tmp_path / "mine" / "shots.json").write_text(json.dumps(content))
    own = run_data(data, shots__file=tmp_path / "mine" / "shots.json")
    assert all(own.shots.path(i).parent == tmp_path / "mine" for i in range(3))
    batches, sizes = own.batches(own.shots)
    plan = Schedule(sizes, 3, (64,), 96, seed=0).plan(0)
    assert next(iter(batches([plan]))).images.shape[:2] == (3, 3)


def test_shots_root_names_the_pictures_of_the_shots(data: Path, tmp_path: Path) -> None:
    """The pictures are those of the data, so each stays one picture."""
    content = shapes.json_of(data / "annotations" / "train.json")
    (tmp_path / "five.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="not found"):
        run_data(data, shots__file=tmp_path / "five.json").check(["transfer"])
    own = run_data(data, shots__file=tmp_path / "five.json", shots__root=data / "train")
    own.check(["transfer"])
    assert set(own.shots.files) <= set(own.whole.files)


def test_pictures_of_the_data_may_lie_elsewhere(data: Path, tmp_path: Path) -> None:
    moved = tmp_path / "photos"
    (data / "train").rename(moved)
    own = run_data(data / "annotations" / "train.json", data__pictures=moved)
    assert all(own.whole.path(i).is_file() for i in range(len(own.whole)))
    own.check(["base"])


def test_shots_from_file_tells_pictures_of_one_name_apart(data: Path, tmp_path: Path) -> None:
    """Base boxes of the data's own pictures are not taught on others that are called alike; those
    of a picture that is the data's own, seen from another folder, are.
    """
    other = tmp_path / "other"
    content = shapes.pictures(other / "train", 3, seed=7)
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    theirs = run_data(data).whole.path(3)
    (other / "linked.png").symlink_to(theirs)
    content["images"].append({"id": 99, "file_name": "linked.png", "width": 72, "height": 48})
    shot = content["annotations"][0] | {"id": 99, "image_id": 99, "category_id": 3}
    content["annotations"].append(shot)
    (other / "shots.json").write_text(json.dumps(content))
    own = run_data(data, shots__file=other / "shots.json")
    shots, everything = own.shots, arranged(own.whole, own.labels)
    assert {*shots.files[:3]} == {str(other / "train" / f"{n}.png") for n in range(3)}
    assert {*shots.files[:3]}.isdisjoint(everything.files)
    assert Path(shots.files[3]).name == theirs.name
    taught = with_base_boxes(shots, everything, own.labels)
    there = [box for box in boxes(everything) if box[0] == shots.files[3] and box[1] != NOVEL]
    assert boxes(taught) == sorted([*boxes(shots), *there])
    assert len(there) > 0
    base = TrainingSet(everything, NO_BOXES, np.zeros(0), NO_BOXES, own.missing(everything))
    learnt = with_shots(base, shots, own.labels)
    assert len(learnt.data) == len(everything) + 3
    assert all(Path(learnt.data.path(i)).exists() for i in range(len(learnt.data)))


def test_shots_per_class_is_that_of_the_file(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_data(data, shots__k=2).shots_per_class == 2
    shots = tmp_path / "shots.json"
    shots.write_bytes((data / "annotations" / "train.json").read_bytes())
    rewrite(
        shots,
        lambda content: [
            i.update(file_name=f"data/train/{i['file_name']}") for i in content["images"]
        ],
    )
    capsys.readouterr()
    own = run_data(data, shots__file=shots, shots__k=2)
    assert own.shots_per_class == 5
    said = " ".join(capsys.readouterr().err.split())
    assert "has 5 boxes of each class, and all are used: shots.k=2 has no effect" in said
    assert run_data(data, shots__file=shots, shots__k=None).shots_per_class == 5
    assert "no effect" not in capsys.readouterr().err
    with pytest.raises(UserError, match=r'fewer boxes than shots\.k=6: "blue, light" has 5') as few:
        run_data(data, shots__file=shots, shots__k=6).check(["transfer"])
    assert few.value.fix == "Add boxes, or set shots.k to 5, the fewest of any class."


def test_read_shot_file_leaves_pictures_without_boxes_out(data: Path, tmp_path: Path) -> None:
    """Labelling tools export all pictures that were uploaded, most of them without boxes."""
    content = shapes.pictures(tmp_path, 3, seed=7)
    content["images"].append({"id": 99, "file_name": "2.png", "width": 72, "height": 48})
    (tmp_path / "shots.json").write_text(json.dumps(content))
    assert len(run_data(data, shots__file=tmp_path / "shots.json").shots) == 3


def test_run_data_refuses_another_spelling_of_a_class(data: Path, tmp_path: Path) -> None:
    content = shapes.pictures(tmp_path, 3, seed=7)
    for number, spelling in ((0, "Red"), (2, "blue,light")):
        categories = [dict(c) for c in content["categories"]]
        categories[number]["name"] = spelling
        (tmp_path / "shots.json").write_text(json.dumps(content | {"categories": categories}))
        with pytest.raises(UserError, match=f'in two ways: "{spelling}" and '):
            run_data(data, shots__file=tmp_path / "shots.json").check(["transfer"])


def test_run_data_takes_shots_from_a_file_among_the_photos(tmp_path: Path) -> None:
    """The photos do not become the data set that the file describes."""
    content = shapes.pictures(tmp_path / "photos", 5, seed=7)
    content["images"] = content["images"][:2]
    content["annotations"] = [b for b in content["annotations"] if b["image_id"] in (1, 2)]
    (tmp_path / "photos" / "five.json").write_text(json.dumps(content))
    own = run_data(tmp_path / "photos", shots__file=tmp_path / "photos" / "five.json")
    assert (own.whole.kind, len(own.whole)) == ("folder", 5)
    assert {*own.shots.files} < {*own.whole.files}
    assert len(own.shots) == 2


def test_run_data_takes_shots_from_label_files_beside_the_photos(tmp_path: Path) -> None:
    root = shapes.write_voc(tmp_path / "data") / "VOC2007"
    photos = tmp_path / "photos"
    photos.mkdir()
    for picture in sorted((root / "JPEGImages").iterdir()):
        (photos / picture.name).write_bytes(picture.read_bytes())
    for stem in ("trainval0", "trainval1"):
        (photos / f"{stem}.xml").write_bytes((root / "Annotations" / f"{stem}.xml").read_bytes())
    own = run_data(photos, shots__file=photos)
    assert own.whole.kind == "folder"
    assert stems(own.shots) == ["trainval0", "trainval1"]
    assert len(own.whole) > 2


def test_shots_from_file_draws_missing_base_classes(data: Path, tmp_path: Path) -> None:
    """Of base classes there are boxes in the data, of new ones there are none."""
    content = shapes.pictures(tmp_path / "mine", 4, seed=7)
    drawn = content["annotations"]
    path = tmp_path / "mine" / "shots.json"

    def given(without: int) -> RunData:
        left = [box for box in drawn if box["category_id"] != without]
        path.write_text(json.dumps(content | {"annotations": left}))
        return run_data(data, shots__file=path)

    with pytest.raises(UserError, match=r"shots\.json: no shots of blue, light. Its classes"):
        given(without=3).check(["transfer"])
    content["categories"][2]["name"] = "bluish, light"
    with pytest.raises(
        UserError, match=r'Its classes: red, green, bluish, light\. Did you mean "bluish, li'
    ):
        given(without=0).check(["transfer"])
    content["categories"][2]["name"] = NOVEL
    own = given(without=2)
    own.check(["transfer"])
    k = len([box for box in drawn if box["category_id"] == 3])
    assert own.shots_per_class == k
    theirs = [box for box in boxes(own.shots) if box[1] == "green"]
    assert theirs == [box for box in boxes(run_data(data, shots__k=k).shots) if box[1] == "green"]
    assert len(theirs) == k
    assert len({*own.shots.files}) == len(own.shots)


def test_drawn_shots_follow_official_lists(tmp_path: Path) -> None:
    root = shapes.write_voc(tmp_path / "data")
    lists = tmp_path / "lists.json"
    of = {"red": ["trainval0"], "green": ["trainval1"], NOVEL: ["trainval2"]}
    lists.write_text(json.dumps({"0": {"1": of}, "1": {"1": of | {"red": ["trainval6"]}}}))
    own = run_data(root, shots__official=str(lists))
    assert stems(own.shots) == ["trainval0", "trainval1", "trainval2"]
    assert [own.labels.classes[c] for c in own.shots.boxes.label] == ["red", "green", NOVEL]
    assert "trainval6" in stems(run_data(root, shots__official=str(lists), shots__seed=1).shots)
    with pytest.raises(UserError, match="no official lists for K = 3"):
        run_data(root, shots__official=str(lists), shots__k=3).check(["transfer"])
    with pytest.raises(UserError, match="do not have the classes green, red"):
        run_data(root, shots__official="voc").check(["transfer"])
