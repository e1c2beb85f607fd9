from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from helpers import tiny
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, draw_shots, other_boxes, sample_digest, tiny_shots
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
def test_draw_shots_gives_k_boxes_of_every_class(shots: int) -> None:
    data = crowd_of(20, 200)
    sample = balanced_set(data, draw_shots(data, LABELS, shots, seed=3))
    assert np.bincount(sample.boxes.label).tolist() == [shots, shots]


def test_draw_shots_contains_smaller_k_and_spreads_over_images() -> None:
    data = crowd_of(20, 200)
    few, many = (draw_shots(data, LABELS, k, seed=1).chosen for k in (5, 10))
    assert all(few[name] == many[name][:5] for name in LABELS.classes)
    assert Counter(data.boxes.image[few["bird"]].tolist()).most_common(1)[0][1] == 1


def test_draw_shots_ignores_the_order_of_records(tmp_path: Path) -> None:
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


def test_draw_shots_is_reproducible() -> None:
    data = crowd_of(20, 200)
    digests = [
        sample_digest(balanced_set(data, draw_shots(data, LABELS, 5, seed))) for seed in (0, 1)
    ]
    assert [d[:16] for d in digests] == GOLDEN


def test_draw_shots_names_classes_with_too_few_boxes() -> None:
    data = crowd_of(3, 12)
    counts = np.bincount(data.boxes.label)
    with pytest.raises(UserError, match=f'"car" has {counts[1]}, "bird" has {counts[0]}'):
        draw_shots(data, LABELS, 12, seed=0)


def test_draw_shots_skips_flagged_and_empty_boxes(tmp_path: Path) -> None:
    content = tiny.coco()
    content["annotations"][1]["bbox"] = [5, 5, 0, 7]  # a car without area; the other car is crowd
    data = read(tiny.write_coco(tmp_path, content))
    with pytest.raises(UserError, match='"car" has 0'):
        draw_shots(data, split_by_novel(["bird"], data.classes), 1, seed=0)


def test_balanced_set_has_each_image_once(tmp_path: Path) -> None:
    data = read(tiny.write_voc(tmp_path), subset="trainval")
    sample = balanced_set(data, draw_shots(data, LabelMap(("car",), ("bird",)), 2 - 1, seed=4))
    assert len(set(sample.ids)) == len(sample)
    assert len(sample.boxes) == 2


def test_other_boxes_counts_boxes_of_other_image_sets(tmp_path: Path) -> None:
    """VOC's train and val are parts of trainval."""
    lists = tiny.write_voc(tmp_path) / "VOC2007" / "ImageSets" / "Main"
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    data = read(tmp_path)
    assert other_boxes(data, data.subset("trainval"), "bird") == {}
    assert other_boxes(data, data.subset("trainval"), "bus") == {"test": 1}
    assert other_boxes(data, data.subset("trainval"), "car") == {}  # a difficult one
    assert other_boxes(data, data.subset("train"), "bird") == {"val": 1, "trainval": 1}


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
    ("sides", "warning"),
    [
        ([], None),
        ([(32, 32)], None),  # doubled, just 64
        ([(31, 32)], "bird: 1 of 1 shot smaller than 64 pixels"),
        ([(8, 200)], None),  # thin, but as much of it
        ([(10, 10), (90, 90)], "bird: 1 of 2 shots"),
        ([(10, 10), (90, 90), (90, 90)], None),
    ],
)
def test_tiny_shots_warns_if_half_of_them_are_tiny(
    sides: list[tuple[float, float]], warning: str | None
) -> None:
    lines = tiny_shots(shots_of(sides), ("bird", "car"), short=800, long=1333, least=64)
    assert len(lines) == (warning is not None)
    assert warning is None or (
        lines[0].startswith(warning) and "(in the picture: 0.jpg " in lines[0]
    )


def test_tiny_shots_measures_at_the_test_scale() -> None:
    warnings = [
        tiny_shots(shots_of([(40, 40)], [size]), ("bird",), short=800, long=1000, least=64)
        for size in ((500, 400), (1000, 400), (0, 0))
    ]
    # doubled; as it is, for the long side may not grow; nobody knows
    assert [len(lines) for lines in warnings] == [0, 1, 0]
    assert "0.jpg 40 x 40)" in warnings[1][0]


def test_tiny_shots_ignores_invalid_boxes() -> None:
    wild = shots_of([(0, 9), (0, 9), (0, 9), (float("nan"), 9), (1e308, 1e308), (90, 90)])
    assert tiny_shots(wild, ("bird",), short=400, long=1000, least=64) == []


def test_tiny_shots_names_three_examples() -> None:
    (line,) = tiny_shots(shots_of([(9, 9)] * 5), ("bird",), short=400, long=1000, least=64)
    assert "2.jpg 9 x 9, ...);" in line
    assert "3.jpg" not in line
