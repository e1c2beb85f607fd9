from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from helpers import tiny
from mini_fsod.data.dataset import Boxes, Dataset
from mini_fsod.data.official_shots import choose_shots, lists_from_file, voc_lists
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


def test_rule_1_listed_boxes_that_are_not_difficult_in_list_order() -> None:
    data = birds({"a": [0, 1], "b": [0], "c": [0]})  # boxes 0, 1, 2, 3
    assert chosen(data, {2: ["b", "a"]}, 2) == ([2, 0], ())


def test_rule_2_more_than_k_are_drawn() -> None:
    data = birds({"a": [0, 1, 0], "b": [0]})
    assert chosen(data, {2: ["b", "a"]}, 2)[0] == Random("7/2/bird").sample([3, 0, 2], 2)


def test_rule_3_fewer_are_filled_with_difficult_ones() -> None:
    data = birds({"a": [1, 0, 1], "b": [0]})
    assert chosen(data, {2: ["a"]}, 2) == ([1, 0], ())


def test_rule_4_then_larger_lists_then_other_images_in_id_order() -> None:
    data = birds({"z": [0], "a": [0], "b": [1, 0], "c": [0]})  # z 0, a 1, b 2 3, c 4
    boxes, notes = chosen(data, {2: ["a", "a"], 5: ["a", "c"]}, 2)
    assert boxes == [1, 4]
    assert "1 added from c" in notes[0]
    boxes, _ = chosen(data, {3: ["a", "a", "a"]}, 3)
    assert boxes == [1, 3, 4]  # b before c before z


def test_what_the_lists_cannot_give() -> None:
    data = birds({"a": [0]})
    with pytest.raises(UserError, match='"bird" has 1'):
        chosen(data, {2: ["a"]}, 2)
    with pytest.raises(UserError, match=r"not in the data: x"):
        chosen(data, {1: ["x"]}, 1)
    with pytest.raises(UserError, match="no official lists of 4 shots"):
        chosen(data, {1: ["a"]}, 4)
    with pytest.raises(UserError, match="no seed 30"):
        voc_lists(30)


def test_lists_inside_the_package_are_the_fields() -> None:
    for seed in range(30):
        lists = voc_lists(seed)
        assert set(lists) == {1, 2, 3, 5, 10}
        assert all(set(part) == set(VOC_CLASSES) for part in lists.values())
    assert voc_lists(0)[1]["bird"] == ["003614"]


def test_both_layouts_of_files(tmp_path: Path) -> None:
    voc = tmp_path / "voc.json"
    voc.write_text(json.dumps({"0": {"1": {"bird": ["a"]}}}))
    assert lists_from_file(voc, 0) == ({1: {"bird": ["a"]}}, False)
    coco = tmp_path / "coco.json"
    coco.write_text(json.dumps({"10": {"bird": [["train", 5], ["val", 7]]}}))
    assert lists_from_file(coco, 0) == ({10: {"bird": [5, 7]}}, True)
    with pytest.raises(UserError, match="one seed"):
        lists_from_file(coco, 1)
    for wrong in ("[]", "{", '{"0": 1}', '{"0": {"1": {"bird": 3}, "2": []}}'):
        voc.write_text(wrong)
        with pytest.raises(UserError):
            choose_shots(birds({"a": [0]}), LABELS, lists_from_file(voc, 0)[0], 1, 0)
    with pytest.raises(UserError, match="cannot be read"):
        lists_from_file(tmp_path / "nowhere.json", 0)


def test_classes_of_the_split_that_the_data_lacks_are_too_few() -> None:
    labels = LabelMap(("boat", "bird"), ("cow",))
    lists = {1: {name: ["a"] for name in labels.classes}}
    with pytest.raises(UserError, match='"boat" has 0, "cow" has 0'):
        choose_shots(birds({"a": [0]}), labels, lists, 1, seed=0)


def test_cocos_lists_name_images_of_train_and_val(tmp_path: Path, mini) -> None:
    """Both parts are drawn from then, though only one is called train."""
    content = tiny.coco()
    for part, images in (("train2014", content["images"][:2]), ("val2014", content["images"][2:])):
        ids = {image["id"] for image in images}
        boxes = [a | {"iscrowd": 0} for a in content["annotations"] if a["image_id"] in ids]
        path = tmp_path / "coco" / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content | {"images": images, "annotations": boxes}))
    lists = {"1": {"bird": [["train", 11]], "bus": [["val", 12]], "car": [["val", 12]]}}
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    words = ["sample", tmp_path / "coco", "--shots", 1, "-o", tmp_path / "s.json"]
    code, _, err = mini(*words, "--official", tmp_path / "lists.json")
    assert code == 0, err
    sample = json.loads((tmp_path / "s.json").read_text())
    assert [image["id"] for image in sample["images"]] == [11, 12]
    assert sample["info"]["subset"] is None


@pytest.mark.slow
def test_all_lists_give_exactly_k_boxes_on_the_real_voc(devkit: Path) -> None:
    """30 seeds x 5 K x 20 classes; the four lists that repeat an image are told."""
    data = read(devkit, subset="trainval")
    labels = SPLITS["voc-split1"]
    assert len(data) == 16_551
    assert len(base_set(data, labels)) == 14_631
    assert hidden_boxes(data, labels)["bird"] == (1820, 218)
    told = []
    for seed in range(30):
        lists = voc_lists(seed)
        for shots in (1, 2, 3, 5, 10):
            result = choose_shots(data, labels, lists, shots, seed)
            assert all(len(set(boxes)) == shots for boxes in result.chosen.values())
            sample = balanced_set(data, result)
            assert set(Counter(sample.boxes.label.tolist()).values()) == {shots}
            told += [(seed, shots, note.split(":")[0]) for note in result.notes]
    assert told == [(3, 10, "sofa"), (13, 10, "train"), (21, 5, "train"), (24, 10, "train")]
    first = balanced_set(data, choose_shots(data, labels, voc_lists(0), 1, 0))
    assert sample_digest(first).startswith("9f982867d4a67bb2")
