from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from mini_fsod.config import resolve
from mini_fsod.data.dataset import NO_BOXES, Boxes, Dataset
from mini_fsod.data.split import arranged, with_base_boxes
from mini_fsod.errors import UserError
from mini_fsod.feed.batches import Schedule
from mini_fsod.mining.retraining import Learnt, with_shots
from mini_fsod.runs import material as room
from mini_fsod.runs.material import Material, inputs_from
from mini_fsod.runs.material import testing_part as scored_part
from mini_fsod.train.distributed import Team
from runs import small

CPU = torch.device("cpu")
NOVEL = small.NOVEL


def material(root: Path, device: torch.device = CPU, **changes: object) -> Material:
    source = root.parent / "small.yaml"
    source.touch()
    config = resolve(str(source), small.sets(root, **changes))
    return Material(config, device)


def stems(data: Dataset) -> list[str]:
    return [Path(file).stem for file in data.files]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return small.write_data(tmp_path / "data")


def rewrite(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# Classes


def test_a_name_with_a_comma_is_one_class(data: Path) -> None:
    labels = material(data).labels
    assert labels.base == ("red", "green")
    assert labels.novel == ("blue, light",)
    two = material(data, data__novel=json.dumps(["blue, light", "red"])).labels
    assert (two.base, two.novel) == (("green",), ("blue, light", "red"))


def test_a_class_that_is_not_there(data: Path) -> None:
    with pytest.raises(UserError, match='No such class in the data: "rde"\\. Did you mean "red"'):
        material(data, data__novel="rde").check(["base"])


def test_a_split_of_other_data(data: Path) -> None:
    with pytest.raises(UserError, match='split "voc-split1" does not know: red'):
        material(data, data__novel="null", data__split="voc-split1").check(["base"])


def test_a_base_class_without_a_box_is_left_out(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labelling sites export the name of the project as a class."""
    for path in (data / "annotations").iterdir():
        rewrite(path, lambda c: c["categories"].insert(0, {"id": 99, "name": "project"}))
    own = material(data)
    assert own.labels.base == ("red", "green")
    assert "without a single box, left out: project" in capsys.readouterr().err
    assert own.shots.classes == small.CLASSES


# Image sets


def sets_of(**counts: tuple[int, int]) -> Dataset:
    """Image sets with so many images, one after another, and boxes."""
    start, subsets, boxes = 0, {}, []
    for name, (images, with_boxes) in counts.items():
        subsets[name] = np.arange(start, start + images)
        boxes += list(range(start, start + with_boxes))
        start += images
    return Dataset(
        kind="coco",
        root=Path(),
        classes=("a",),
        category_ids=(1,),
        ids=tuple(range(start)),
        files=tuple(f"{n}.png" for n in range(start)),
        sizes=np.full((start, 2), 50),
        boxes=Boxes.of(boxes, [[1, 1, 5, 5]] * len(boxes), [0] * len(boxes)) if boxes else NO_BOXES,
        sources=("",) * start,
        subsets=subsets,
    )


@pytest.mark.parametrize(
    ("counts", "part"),
    [
        ({}, None),
        ({"train": (3, 3)}, None),
        ({"train": (3, 3), "test": (2, 2)}, "test"),
        ({"train": (3, 3), "test": (2, 0), "val": (2, 2)}, "val"),  # a test without boxes
        ({"train": (3, 3), "test": (2, 2), "val": (2, 2)}, "test"),
        ({"train": (3, 3), "valid": (2, 1)}, "valid"),
        ({"train2017": (3, 3), "val2017": (2, 1)}, "val2017"),
        ({"train": (3, 3), "val2014": (2, 1), "val2017": (2, 1)}, None),  # who knows
    ],
)
def test_the_image_set_to_score_on(counts: dict[str, tuple[int, int]], part: str | None) -> None:
    assert scored_part(sets_of(**counts)) == part


def test_nothing_that_is_tested_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VOC2012 alone: its test has no boxes, and trainval holds val."""
    root = tiny.write_voc(tmp_path / "voc", "VOC2012")
    lists = root / "VOC2012" / "ImageSets" / "Main"
    (lists / "test.txt").unlink()
    (lists / "trainval.txt").write_text("a\nb\nc\n")
    (lists / "train.txt").write_text("a\nb\n")
    (lists / "val.txt").write_text("c\n")
    own = material(root, data__novel="bus")
    assert own.test is not None
    assert stems(own.test) == ["c"]
    assert stems(own.train) == ["a", "b"]
    own = material(root, data__novel="bus", data__train="trainval")
    assert stems(own.train) == ["a", "b", "c"]
    assert "trainval shares 1 image with the test set" in capsys.readouterr().err


def test_image_sets_without_a_usual_name(tmp_path: Path) -> None:
    own = material(small.write_data(tmp_path / "data", ("monday", "tuesday", "val")))
    assert len(own.train) == 16
    assert own.test is not None
    assert len(own.test) == 4


def test_the_base_set(data: Path) -> None:
    own = material(data)
    base = own.base
    assert base.classes == ("red", "green")
    assert len(base.boxes) == sum(own.train.boxes.label < 2)
    assert len(base) == len(np.unique(own.train.boxes.image[own.train.boxes.label < 2]))


def test_no_base_class(data: Path) -> None:
    own = material(data, data__novel=json.dumps(small.CLASSES))
    with pytest.raises(UserError, match="not a single box of a base class"):
        own.check(["base"])


# Shots


def test_shots_are_drawn_from_the_training_images(data: Path) -> None:
    own = material(data, shots__k=2)
    assert np.bincount(own.shots.boxes.label).tolist() == [2, 2, 2]
    assert own.shots.classes == small.CLASSES
    assert set(own.shots.files) <= set(own.train.files)
    other = material(data, shots__k=2, shots__seed=1)
    assert {*map(tuple, other.shots.boxes.xywh)} != {*map(tuple, own.shots.boxes.xywh)}
    elsewhere = material(data, shots__subset="test")
    assert elsewhere.test is not None
    assert set(elsewhere.shots.files) <= set(elsewhere.test.files)


def test_too_few_boxes_are_told_before_anything_runs(data: Path) -> None:
    own = material(data, shots__k=50)
    with pytest.raises(UserError, match='Too few boxes for 50 shots: "red" has'):
        own.check(["base", "transfer"])
    own.check(["base"])  # which needs none
    oracle = {"online__oracle": "true", "online__teacher": "false"}
    own = material(data, shots__k=50, **oracle)
    own.check(["online"])
    with pytest.raises(UserError, match="Too few boxes for 50 shots"):
        own.check(["online", "tune"])
    with pytest.raises(UserError, match="Too few boxes for 50 shots"):
        material(data, shots__k=50, online__shots="true", **oracle).check(["online"])
    material(data, shots__k=50, tune__data="none", **oracle).check(["online", "tune"])


@pytest.mark.parametrize("layout", small.WRITE)
def test_shots_that_mini_sample_wrote(tmp_path: Path, mini: Any, layout: str) -> None:
    root = small.WRITE[layout](tmp_path / "data")
    out = tmp_path / "elsewhere" / "shots.json"
    code, _, err = mini("sample", root, "--novel", "red", "--shots", 2, "-o", out)
    assert code == 0, err
    own = material(root, data__novel="red", shots__file=out, shots__k=2)
    drawn = material(root, data__novel="red", shots__k=2)
    assert boxes(own.shots) == boxes(drawn.shots)
    assert own.shots.classes == own.labels.classes
    assert set(own.shots.files) <= set(own.data.files)  # no second cache of them


def boxes(data: Dataset) -> list[tuple[str, str, tuple[float, ...]]]:
    rows = zip(data.boxes.image, data.boxes.label, data.boxes.xywh, strict=True)
    return sorted((data.files[i], data.classes[c], tuple(box.round(3))) for i, c, box in rows)


def test_a_sample_of_another_data_set(data: Path, tmp_path: Path, mini: Any) -> None:
    """Told before anything runs."""
    other = small.write_yolo(tmp_path / "yolo")
    out = tmp_path / "shots.json"
    assert mini("sample", other, "--novel", "red", "--shots", 2, "-o", out)[0] == 0
    with pytest.raises(UserError, match=r"shots\.json: of its \d pictures \d cannot be found"):
        material(data, data__novel="red", shots__file=out).check(["base", "transfer"])


def test_boxes_that_cannot_be_learnt_are_told(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][0]["bbox"] = [5, 5, 0, 0]
        content["annotations"][1]["bbox"] = [1e6, 5, 10, 10]

    rewrite(data / "annotations" / "train.json", spoil)
    _ = material(data).train
    assert "2 boxes without area or outside of the picture left out" in capsys.readouterr().err


def test_a_file_of_shots_with_pictures_of_its_own(data: Path, tmp_path: Path) -> None:
    content = small.pictures(tmp_path / "mine", 3, seed=7)
    (tmp_path / "mine" / "shots.json").write_text(json.dumps(content))
    own = material(data, shots__file=tmp_path / "mine" / "shots.json")
    assert all(own.shots.path(i).parent == tmp_path / "mine" for i in range(3))
    batches, sizes = own.batches(own.shots)
    plan = Schedule(sizes, 3, (64,), 96, seed=0).plan(0)
    assert next(iter(batches([plan]))).images.shape[:2] == (3, 3)


def test_pictures_of_the_same_name_are_not_the_same(data: Path, tmp_path: Path) -> None:
    """Base boxes of the data's own pictures are not taught on others that are called alike; those
    of a picture that is the data's own, seen from another folder, are.
    """
    other = tmp_path / "other"
    content = small.pictures(other / "train", 3, seed=7)
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    theirs = material(data).data.path(3)
    (other / "linked.png").symlink_to(theirs)
    content["images"].append({"id": 99, "file_name": "linked.png", "width": 72, "height": 48})
    (other / "shots.json").write_text(json.dumps(content))
    own = material(data, shots__file=other / "shots.json")
    shots, everything = own.shots, arranged(own.data, own.labels)
    assert {*shots.files[:3]} == {str(other / "train" / f"{n}.png") for n in range(3)}
    assert {*shots.files[:3]}.isdisjoint(everything.files)
    assert Path(shots.files[3]).name == theirs.name
    taught = with_base_boxes(shots, everything, own.labels)
    there = [box for box in boxes(everything) if box[0] == shots.files[3] and box[1] != NOVEL]
    assert boxes(taught) == sorted([*boxes(shots), *there])
    assert len(there) > 0
    learnt = with_shots(Learnt(everything, NO_BOXES, np.zeros(0), NO_BOXES), shots, own.labels)
    assert len(learnt.data) == len(everything) + 3
    assert all(Path(learnt.data.path(i)).exists() for i in range(len(learnt.data)))


def test_a_file_of_shots_says_how_many_there_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert material(data, shots__k=2).shots_of_a_class == 2
    shots = tmp_path / "shots.json"
    shots.write_bytes((data / "annotations" / "train.json").read_bytes())
    rewrite(
        shots,
        lambda content: [
            i.update(file_name=f"data/train/{i['file_name']}") for i in content["images"]
        ],
    )
    capsys.readouterr()
    own = material(data, shots__file=shots, shots__k=2)
    assert own.shots_of_a_class == 5
    assert "has 5 boxes of a class: shots.k, 2, is idle" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_lies_outside_its_picture_is_no_target(data: Path) -> None:
    path = data / "annotations" / "train.json"
    boxes = [
        [-9, 5, 9, 9],
        [5, -9, 9, 9],
        [64, 5, 9, 9],
        [5, 64, 9, 9],
        [63, 63, 9, 9],
        [-8, -8, 9, 9],
    ]

    def move(content: Any) -> None:
        own = [a for a in content["annotations"] if a["category_id"] < 3]
        for annotation, box in zip(own, boxes, strict=False):
            annotation.update(bbox=box, image_id=1)
        content["annotations"] = own[: len(boxes)]

    rewrite(path, move)
    found = material(data).train
    assert found.sizes[0].tolist() == [64, 64]
    assert room.is_target(found).tolist() == [False] * 4 + [True] * 2


def test_a_file_of_shots_that_lacks_a_class(data: Path, tmp_path: Path) -> None:
    """Of base classes there are boxes in the data, of new ones there are none."""
    content = small.pictures(tmp_path / "mine", 4, seed=7)
    drawn = content["annotations"]
    path = tmp_path / "mine" / "shots.json"

    def given(without: int) -> Material:
        left = [box for box in drawn if box["category_id"] != without]
        path.write_text(json.dumps(content | {"annotations": left}))
        return material(data, shots__file=path)

    with pytest.raises(UserError, match=r"shots\.json: there is no shot of blue, light"):
        given(without=3).check(["transfer"])
    own = given(without=2)
    own.check(["transfer"])
    k = len([box for box in drawn if box["category_id"] == 3])
    assert own.shots_of_a_class == k
    theirs = [box for box in boxes(own.shots) if box[1] == "green"]
    assert theirs == [box for box in boxes(material(data, shots__k=k).shots) if box[1] == "green"]
    assert len(theirs) == k
    assert len({*own.shots.files}) == len(own.shots)


def test_official_lists(tmp_path: Path) -> None:
    root = small.write_voc(tmp_path / "data")
    lists = tmp_path / "lists.json"
    of = {"red": ["trainval0"], "green": ["trainval1"], NOVEL: ["trainval2"]}
    lists.write_text(json.dumps({"0": {"1": of}, "1": {"1": of | {"red": ["trainval6"]}}}))
    own = material(root, shots__official=lists)
    assert stems(own.shots) == ["trainval0", "trainval1", "trainval2"]
    assert [own.labels.classes[c] for c in own.shots.boxes.label] == ["red", "green", NOVEL]
    assert "trainval6" in stems(material(root, shots__official=lists, shots__seed=1).shots)
    with pytest.raises(UserError, match="no official lists of 3 shots"):
        material(root, shots__official=lists, shots__k=3).check(["transfer"])
    with pytest.raises(UserError, match="do not know the classes green, red"):
        material(root, shots__official="voc").check(["transfer"])


# Batches


def test_one_batch_is_cut_for_processes_and_parts(data: Path) -> None:
    own = material(data)
    batches, sizes = own.batches(own.base)
    schedule = Schedule(sizes, 4, (64,), 96, seed=0)
    inputs = inputs_from(batches, CPU)
    whole = own.feed(own.base, schedule, inputs, Team(), 1)
    halves = [own.feed(own.base, schedule, inputs, Team(rank, 2), 2) for rank in (0, 1)]
    for n, ((one,), *parts) in islice(
        enumerate(zip(whole.batches(0), *(half.batches(0) for half in halves), strict=True)), 3
    ):
        pieces = [piece for part in parts for piece in part]
        assert [len(piece[0]) for piece in pieces] == [1, 1, 1, 1]
        for place in range(len(one) - 1):
            assert torch.equal(torch.cat([piece[place] for piece in pieces]), one[place])
        assert [int(piece[-1]) for piece in pieces] == [n + (first << 32) for first in range(4)]
    again = next(whole.batches(2))[0]
    assert torch.equal(again[0], next(islice(whole.batches(0), 2, None))[0][0])
    assert len(whole.images(0)) == 4
    assert set(whole.images(0)) <= set(own.base.files)


def test_other_boxes_are_other_batches(data: Path) -> None:
    def identity() -> str:
        own = material(data)
        batches, sizes = own.batches(own.base)
        schedule = Schedule(sizes, 4, (64,), 96, seed=0)
        return own.feed(own.base, schedule, inputs_from(batches, CPU), Team(), 1).identity

    before = identity()
    assert identity() == before
    room._read.cache_clear()  # as a later process would read it
    path = data / "annotations" / "train.json"
    rewrite(path, lambda content: content["annotations"][0].update(bbox=[1, 1, 9, 9]))
    assert identity() != before


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, (64, 96)),
        ({"views__test": 80}, (80, 96)),
        ({"transfer__short": "[72, 90]"}, (90, 96)),  # shots may be shown larger than the rest
        ({"views__zoom": "[0.5, 1.2]"}, (77, 116)),
        ({"views__zoom": "[0.4, 0.8]"}, (64, 96)),
        ({"views__zoom": "[0.5, 1.2]", "views__test": 79}, (79, 116)),  # tests are not zoomed
        ({"mine__short": "[64, 128]"}, (128, 192)),  # mining may look closer
        ({"mine__short": "[32]"}, (64, 96)),
        ({"mine__discriminator": "resnet18", "mine__discriminator_short_side": 100}, (100, 200)),
    ],
)
def test_pictures_are_kept_as_large_as_they_are_shown(
    data: Path, changes: dict[str, object], kept: tuple[int, int]
) -> None:
    assert material(data, **changes)._kept == kept


def test_whether_pictures_fit_is_asked_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one run of a study holds on the device is not free for the next, which shares it."""
    free = [10_000_000, 0]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free.pop(0), 0))
    gpu = torch.device("cuda")
    runs = [material(data, gpu, shots__seed=seed) for seed in (0, 1)]
    assert [run._streams for run in runs] == [False, False]
    assert free == [0]


def test_runs_in_one_process_share_what_they_read_and_hold(data: Path) -> None:
    one, other = material(data), material(data, shots__seed=1, transfer__rate=0.5)
    assert one.data is other.data
    one.batches(one.shots)
    before = room._hold.cache_info().misses
    other.batches(other.shots)
    assert other.test is not None
    other.batches(other.test)
    assert room._hold.cache_info().misses == before


def test_no_image_set_for_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = material(small.write_data(tmp_path / "data", ("train",)))
    own.check(["base"])
    assert "no image set for tests (data.test): nothing will be scored" in capsys.readouterr().err
