from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from helpers import tiny
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, draw_shots, elsewhere, sample_digest, tiny_shots
from mini_fsod.data.subsets import arranged, base_set, hidden_boxes, training_part
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap, split_by_novel

LABELS = LabelMap(("car",), ("bird",))


def crowd_of(images: int, boxes: int, seed: int = 0) -> Dataset:
    """Images with several boxes of two classes; image 0 holds most of them."""
    rng = np.random.RandomState(seed)
    image = np.sort(np.where(rng.rand(boxes) < 0.5, 0, rng.randint(0, images, boxes)))
    return Dataset(
        kind="coco",
        root=Path(),
        classes=("bird", "car"),
        category_ids=(1, 2),
        ids=tuple(range(100, 100 + images)),
        files=tuple(f"{i}.jpg" for i in range(images)),
        sizes=np.full((images, 2), 500),
        boxes=Boxes.of(image, rng.randint(1, 90, (boxes, 4)), rng.randint(0, 2, boxes)),
        sources=("x.json",) * images,
    )


@pytest.mark.parametrize("shots", [1, 2, 5, 10, 30])
def test_exactly_k_of_every_class(shots: int) -> None:
    data = crowd_of(20, 200)
    sample = balanced_set(data, draw_shots(data, LABELS, shots, seed=3))
    assert np.bincount(sample.boxes.label).tolist() == [shots, shots]


def test_more_shots_hold_the_fewer_and_come_from_many_images() -> None:
    data = crowd_of(20, 200)
    few, many = (draw_shots(data, LABELS, k, seed=1).chosen for k in (5, 10))
    assert all(few[name] == many[name][:5] for name in LABELS.classes)
    assert Counter(data.boxes.image[few["bird"]].tolist()).most_common(1)[0][1] == 1


def test_the_order_of_records_does_not_matter(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"] += [
        a | {"id": 100 + n, "bbox": [n, n, 9, 9]} for n, a in enumerate(content["annotations"])
    ]
    turned = content | {"images": content["images"][::-1]}
    samples = []
    for n, part in enumerate((content, turned)):
        data = read(tiny.write_coco(tmp_path / str(n), part))
        labels = split_by_novel(["bird"], data.classes)
        samples.append(sample_digest(balanced_set(data, draw_shots(data, labels, 1, seed=0))))
    assert samples[0] == samples[1]


def test_the_sample_of_a_seed_never_changes() -> None:
    data = crowd_of(20, 200)
    digests = [
        sample_digest(balanced_set(data, draw_shots(data, LABELS, 5, seed))) for seed in (0, 1)
    ]
    assert [d[:16] for d in digests] == GOLDEN


def test_too_few_boxes_name_class_and_count() -> None:
    data = crowd_of(3, 12)
    counts = np.bincount(data.boxes.label)
    with pytest.raises(UserError, match=f'"car" has {counts[1]}, "bird" has {counts[0]}'):
        draw_shots(data, LABELS, 12, seed=0)


def test_flagged_and_empty_boxes_are_never_drawn(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][1]["bbox"] = [5, 5, 0, 7]  # a car without area; the other car is crowd
    data = read(tiny.write_coco(tmp_path, content))
    with pytest.raises(UserError, match='"car" has 0'):
        draw_shots(data, split_by_novel(["bird"], data.classes), 1, seed=0)


def test_an_image_chosen_twice_is_one_record(tmp_path: Path) -> None:
    data = read(tiny.write_voc(tmp_path), subset="trainval")
    sample = balanced_set(data, draw_shots(data, LabelMap(("car",), ("bird",)), 2 - 1, seed=4))
    assert len(set(sample.ids)) == len(sample)
    assert len(sample.boxes) == 2


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        (["train", "val", "trainval", "test"], "trainval"),
        (["train", "val"], "train"),
        (["train2017", "val2017"], "train2017"),
        (["train2014", "train2017"], None),
        ([], None),
    ],
)
def test_shots_come_from_training_images(sets: list[str], part: str | None) -> None:
    data = crowd_of(3, 9)
    named = {name: np.array([0]) for name in sets}
    assert (
        training_part(Dataset(**{s: getattr(data, s) for s in data.__slots__} | {"subsets": named}))
        == part
    )


def test_base_set_drops_novel_boxes_and_images_without_base_ones(tmp_path: Path) -> None:
    data = read(tiny.write_coco(tmp_path))
    labels = split_by_novel(["bird"], data.classes)
    base = base_set(data, labels)
    assert tiny.boxes_of(base) == {box for box in tiny.EXPECTED if box[1] != "bird"}
    assert base.ids == (10, 12)
    assert hidden_boxes(data, labels) == {"bird": (2, 1)}


def test_sample_command_writes_the_sample(tmp_path: Path, mini) -> None:
    path, out = tiny.write_coco(tmp_path / "data"), tmp_path / "shots.json"
    code, _, said = mini("sample", path, "--novel", "bird", "--shots", 1, "-o", out)
    assert code == 0
    assert "other novel boxes, hidden from training and used to audit mining: bird 1" in said
    content = json.loads(out.read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    drawn = Counter(names[a["category_id"]] for a in content["annotations"])
    assert drawn == {"bird": 1, "bus": 1, "car": 1}
    assert content["info"]["label_map"]["novel"] == ["bird"]
    assert len(content["info"]["sha256"]) == 64
    first = out.read_bytes()
    mini("sample", path, "--novel", "bird", "--shots", 1, "-o", out)
    assert out.read_bytes() == first


def test_sample_command_says_what_is_missing(tmp_path: Path, mini) -> None:
    """The only bus is in the test set, which shots are not drawn from."""
    tiny.write_voc(tmp_path / "voc")
    out = tmp_path / "shots.json"
    code, _, said = mini("sample", tmp_path / "voc", "--novel", "bird", "--shots", 1, "-o", out)
    assert (code, '"bus" has 0' in said) == (2, True)
    assert not out.exists()


def test_too_few_boxes_name_the_image_set_and_others(tmp_path: Path, mini) -> None:
    home = tiny.write_yolo(tmp_path / "photos")
    words = ["sample", home, "--novel", "bus", "-o", tmp_path / "shots.json", "--shots"]
    _, _, said = mini(*words, 1)
    assert '"bus" has 0 (1 in val). They are drawn from train.' in said
    assert "--subset" in said
    assert "Boxes of a new class may lie in a data set of their own: shots.file" in said
    _, _, said = mini(*words, 3, "--subset", "val")
    assert '"car" has 1, "bus" has 1. They are drawn from val.' in said
    _, _, said = mini("sample", home, "--novel", "bird", *words[4:], 1)
    assert '"bus" has 0 (1 in val). They are drawn from train.' in said
    assert "shots.file" not in said  # a base class it is
    data = tiny.write_coco(tmp_path / "one")
    _, _, said = mini("sample", data, "--novel", "bus", *words[4:], 2)
    assert '"car" has 1, "bus" has 1.\n' in said  # there is one set of images


def test_boxes_elsewhere_are_not_those_at_hand(tmp_path: Path) -> None:
    """VOC's train and val are parts of trainval."""
    lists = tiny.write_voc(tmp_path) / "VOC2007" / "ImageSets" / "Main"
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    data = read(tmp_path)
    assert elsewhere(data, data.subset("trainval"), "bird") == {}
    assert elsewhere(data, data.subset("trainval"), "bus") == {"test": 1}
    assert elsewhere(data, data.subset("trainval"), "car") == {}  # a difficult one
    assert elsewhere(data, data.subset("train"), "bird") == {"val": 1, "trainval": 1}


def test_arranged_puts_classes_in_the_order_of_the_label_map(tmp_path: Path) -> None:
    data = read(tiny.write_coco(tmp_path))
    wanted = LabelMap(("car", "boat"), ("bird",))
    part = arranged(data, wanted)
    assert part.classes == ("car", "boat", "bird")
    assert part.category_ids[0] == 7
    assert len(set(part.category_ids)) == 3
    assert tiny.boxes_of(part) == {box for box in tiny.EXPECTED if box[1] != "bus"}


def test_a_base_class_without_any_box_is_left_out(tmp_path: Path, mini) -> None:
    """Labelling sites export the project's name as category 0."""
    content = tiny.coco()
    content["annotations"][3]["iscrowd"] = 0
    content["categories"].insert(0, {"id": 0, "name": "traffic"})
    for part in ("train", "valid"):
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(content))
    out = tmp_path / "shots.json"
    for words in ([], ["--subset", "valid"]):
        code, _, err = mini("sample", tmp_path, "--novel", "bird", *words, "--shots", 1, "-o", out)
        assert code == 0, err
        assert "traffic: left out" in err
        sample = json.loads(out.read_text())
        assert [c["name"] for c in sample["categories"]] == ["bird", "bus", "car"]
        assert sample["info"]["label_map"]["base"] == ["bus", "car"]
        assert len(sample["info"]["notes"]) == 1
        assert sample["info"]["description"] == "1 box of each of 3 classes"
    code, _, err = mini("sample", tmp_path, "--novel", "traffic", "--shots", 1, "-o", out)
    assert (code, 'Too few boxes for 1 shot: "traffic" has 0' in err) == (2, True)


def test_a_base_class_of_another_image_set_is_missing(tmp_path: Path, mini) -> None:
    for part in ("train", "valid"):
        content = tiny.coco()
        if part == "train":
            content["annotations"] = content["annotations"][:4]  # the bus is the last
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(content))
    for words in ([], ["--subset", "train"]):
        code, _, err = mini("sample", tmp_path, *words, "--shots", 1, "-o", tmp_path / "s.json")
        assert (code, '"bus" has 0' in err) == (2, True)


GOLDEN = ["115be1365f8abcf5", "ba7463b272f9f528"]


def shots_of(
    sides: list[tuple[float, float]], sizes: list[tuple[int, int]] | None = None
) -> Dataset:
    """A picture of 500 x 400 for each box, all of birds."""
    n = len(sides)
    return Dataset(
        kind="coco",
        root=Path(),
        classes=("bird", "car"),
        category_ids=(1, 2),
        ids=tuple(range(n)),
        files=tuple(f"{i}.jpg" for i in range(n)),
        sizes=np.array(sizes or [(500, 400)] * n).reshape(n, 2),
        boxes=Boxes.of(range(n), [(0, 0, *side) for side in sides], [0] * n),
        sources=("x.json",) * n,
    )


@pytest.mark.parametrize(
    ("sides", "told"),
    [
        ([], None),
        ([(32, 32)], None),  # doubled, just 64
        ([(31, 32)], "bird: 1 of 1 shot smaller than 64 pixels"),
        ([(8, 200)], None),  # thin, but as much of it
        ([(10, 10), (90, 90)], "bird: 1 of 2 shots"),
        ([(10, 10), (90, 90), (90, 90)], None),
    ],
)
def test_tiny_shots_are_told_of(sides: list[tuple[float, float]], told: str | None) -> None:
    lines = tiny_shots(shots_of(sides), ("bird", "car"), short=800, long=1333, least=64)
    assert len(lines) == (told is not None)
    assert told is None or (lines[0].startswith(told) and "(in the picture: 0.jpg " in lines[0])


def test_how_large_a_shot_is_where_the_detector_looks() -> None:
    told = [
        tiny_shots(shots_of([(40, 40)], [size]), ("bird",), short=800, long=1000, least=64)
        for size in ((500, 400), (1000, 400), (0, 0))
    ]
    # doubled; as it is, for the long side may not grow; nobody knows
    assert [len(lines) for lines in told] == [0, 1, 0]
    assert "0.jpg 40 x 40)" in told[1][0]


def test_shots_that_are_none_are_not_judged() -> None:
    wild = shots_of([(0, 9), (0, 9), (0, 9), (float("nan"), 9), (1e308, 1e308), (90, 90)])
    assert tiny_shots(wild, ("bird",), short=400, long=1000, least=64) == []


def test_the_first_of_many_tiny_shots_are_named() -> None:
    (line,) = tiny_shots(shots_of([(9, 9)] * 5), ("bird",), short=400, long=1000, least=64)
    assert "2.jpg 9 x 9, ...)." in line
    assert "3.jpg" not in line
