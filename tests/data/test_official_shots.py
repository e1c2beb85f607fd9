from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.official_shots import (
    choose_shots,
    coco_test_images,
    lists_from_file,
    official_lists,
    voc_lists,
)
from mini_fsod.data.read import read
from mini_fsod.data.shots import balanced_set, sample_digest
from mini_fsod.data.subsets import base_set, hidden_boxes
from mini_fsod.errors import UserError
from mini_fsod.labels import SPLITS, VOC_CLASSES, LabelMap

LABELS = LabelMap((), ("bird",))


def birds(of_image: dict[str, list[int]]) -> Dataset:
    """Images with birds; 1 stands for a difficult one."""
    rows = [(i, d) for i, flags in enumerate(of_image.values()) for d in flags]
    return Dataset(
        kind="voc",
        root=Path(),
        classes=("bird",),
        category_ids=(3,),
        ids=tuple(of_image),
        files=tuple(of_image),
        sizes=np.full((len(of_image), 2), 99),
        boxes=Boxes.of(
            [i for i, _ in rows],
            [(n, n, 5, 5) for n in range(len(rows))],
            [0] * len(rows),
            difficult=[d for _, d in rows],
        ),
        sources=tuple(of_image),
    )


def chosen(
    data: Dataset, lists: dict[int, list[str]], shots: int
) -> tuple[list[int], tuple[str, ...]]:
    result = choose_shots(data, LABELS, {k: {"bird": v} for k, v in lists.items()}, shots, seed=7)
    return result.chosen["bird"], result.notes


def test_choose_shots_rule_1_takes_listed_boxes_in_order() -> None:
    data = birds({"a": [0, 1], "b": [0], "c": [0]})  # boxes 0, 1, 2, 3
    assert chosen(data, {2: ["b", "a"]}, 2) == ([2, 0], ())


def test_choose_shots_rule_2_draws_from_more_than_k() -> None:
    data = birds({"a": [0, 1, 0], "b": [0]})
    assert chosen(data, {2: ["b", "a"]}, 2)[0] == Random("7/2/bird").sample([3, 0, 2], 2)


def test_choose_shots_rule_3_adds_difficult_boxes() -> None:
    data = birds({"a": [1, 0, 1], "b": [0]})
    assert chosen(data, {2: ["a"]}, 2) == ([1, 0], ())


def test_choose_shots_rule_4_adds_from_larger_lists_then_by_id() -> None:
    data = birds({"z": [0], "a": [0], "b": [1, 0], "c": [0]})  # z 0, a 1, b 2 3, c 4
    boxes, notes = chosen(data, {2: ["a", "a"], 5: ["a", "c"]}, 2)
    assert boxes == [1, 4]
    assert "1 added from c" in notes[0]
    boxes, _ = chosen(data, {3: ["a", "a", "a"]}, 3)
    assert boxes == [1, 3, 4]  # b before c before z


def test_choose_shots_refuses_what_the_lists_lack() -> None:
    data = birds({"a": [0]})
    with pytest.raises(UserError, match='"bird" has 1'):
        chosen(data, {2: ["a"]}, 2)
    with pytest.raises(UserError, match=r"not in the data: x"):
        chosen(data, {1: ["x"]}, 1)
    with pytest.raises(UserError, match="no official lists for K = 4"):
        chosen(data, {1: ["a"]}, 4)
    with pytest.raises(UserError, match="no seed 30"):
        voc_lists(30)


def test_voc_lists_has_all_published_seeds() -> None:
    for seed in range(30):
        lists = voc_lists(seed)
        assert set(lists) == {1, 2, 3, 5, 10}
        assert all(set(part) == set(VOC_CLASSES) for part in lists.values())
    assert voc_lists(0)[1]["bird"] == ["003614"]


def test_lists_from_file_reads_both_layouts(tmp_path: Path) -> None:
    voc = tmp_path / "voc.json"
    voc.write_text(json.dumps({"0": {"1": {"bird": ["a"]}}}))
    assert lists_from_file(voc, 0) == ({1: {"bird": ["a"]}}, False)
    coco = tmp_path / "coco.json"
    coco.write_text(json.dumps({"10": {"bird": [["train", 5], ["val", 7]]}}))
    assert lists_from_file(coco, 0) == ({10: {"bird": [5, 7]}}, True)
    with pytest.raises(UserError, match="seed 0 only"):
        lists_from_file(coco, 1)
    for wrong in ("[]", "{", '{"0": 1}', '{"0": {"1": {"bird": 3}, "2": []}}'):
        voc.write_text(wrong)
        with pytest.raises(UserError):
            choose_shots(birds({"a": [0]}), LABELS, lists_from_file(voc, 0)[0], 1, 0)
    with pytest.raises(UserError, match="cannot be read"):
        lists_from_file(tmp_path / "nowhere.json", 0)


def test_choose_shots_reports_classes_that_the_data_lacks() -> None:
    labels = LabelMap(("boat", "bird"), ("cow",))
    lists = {1: {name: ["a"] for name in labels.classes}}
    with pytest.raises(UserError, match='"boat" has 0, "cow" has 0'):
        choose_shots(birds({"a": [0]}), labels, lists, 1, seed=0)


@pytest.mark.slow
def test_choose_shots_gives_k_boxes_on_the_real_voc(devkit: Path) -> None:
    """30 seeds x 5 K x 20 classes; four lists repeat an image, with a note."""
    data = read(devkit, subset="trainval")
    labels = SPLITS["voc-split1"]
    assert len(data) == 16_551
    assert len(base_set(data, labels)) == 14_631
    assert hidden_boxes(data, labels)["bird"] == (1820, 218)
    noted = []
    for seed in range(30):
        lists = voc_lists(seed)
        for shots in (1, 2, 3, 5, 10):
            result = choose_shots(data, labels, lists, shots, seed)
            assert all(len(set(boxes)) == shots for boxes in result.chosen.values())
            sample = balanced_set(data, result)
            assert set(Counter(sample.boxes.label.tolist()).values()) == {shots}
            noted += [(seed, shots, note.split(":")[0]) for note in result.notes]
    assert noted == [(3, 10, "sofa"), (13, 10, "train"), (21, 5, "train"), (24, 10, "train")]
    first = balanced_set(data, choose_shots(data, labels, voc_lists(0), 1, 0))
    assert sample_digest(first).startswith("9f982867d4a67bb2")


def test_official_lists_of_coco_name_images_of_both_sets() -> None:
    lists, of_all_images = official_lists("coco", 0)
    assert of_all_images
    assert {k: len(classes) for k, classes in lists.items()} == {10: 80, 30: 80}
    assert {*lists[10]} == {*SPLITS["coco"].classes}
    assert lists[10]["airplane"][:2] == [200155, 557660]
    with pytest.raises(UserError, match="official COCO lists has lists for seed 0 only, not 1"):
        official_lists("coco", 1)


def test_coco_test_images_are_5000_and_no_shots() -> None:
    images = coco_test_images()
    shots = {i for k in (10, 30) for ids in official_lists("coco", 0)[0][k].values() for i in ids}
    assert len(images) == 5_000
    assert not images & shots
