from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.labels import SPLITS, VOC_CLASSES, label_map, refuse_other_spellings


def test_splits_have_the_published_classes() -> None:
    for name in ("voc-split1", "voc-split2", "voc-split3"):
        labels = SPLITS[name]
        assert (len(labels.base), len(labels.novel)) == (15, 5)
        assert sorted(labels.classes) == sorted(VOC_CLASSES)
        assert list(labels.base) == sorted(labels.base)
    assert (len(SPLITS["coco"].base), len(SPLITS["coco"].novel)) == (60, 20)
    assert len(set(SPLITS["coco"].classes)) == 80


def test_label_map_of_novel_names_keeps_their_order() -> None:
    labels = label_map(["a", "b", "c", "d"], None, ["d, b"])
    assert (labels.base, labels.novel) == (("a", "c"), ("d", "b"))
    assert label_map(["a", "b"], None, None).novel == ()


@pytest.mark.parametrize(
    ("classes", "split", "novel", "message"),
    [
        (["bird", "bus"], None, ["brid"], 'Did you mean "bird"'),
        (["Bird", "bus"], None, ["bird"], 'Did you mean "Bird"'),
        (["bird", "bus"], None, ["bird,bird"], "twice"),
        ([], None, ["bird"], "No such class"),
        (["bird"], None, [","], "--novel is empty"),
        (["bird"], "voc-split4", None, 'Did you mean "voc-split'),
        (["bird", "screw"], "voc-split1", None, "screw"),
        (["cat"], "voc-split1", None, "none of the novel classes"),
        (["bird"], "voc-split1", ["bird"], "cannot be combined"),
    ],
)
def test_label_map_rejects_wrong_names(
    classes: list[str], split: str | None, novel: list[str] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        label_map(classes, split, novel)


def test_label_map_takes_class_names_with_commas() -> None:
    classes = ["nut, hex", "nut", "hex", "bolt"]
    assert label_map(classes, None, ["nut, hex"]).novel == ("nut, hex",)
    assert label_map(classes, None, ["nut, hex", "bolt"]).novel == ("nut, hex", "bolt")
    assert label_map(classes, None, ["nut,hex"]).novel == ("nut", "hex")


def test_refuse_other_spellings_finds_case_spaces_and_hyphens() -> None:
    for given, known in (("Bolt", "bolt"), ("hex nut", "hex_nut"), ("T-Shirt", "tshirt")):
        with pytest.raises(UserError, match="two ways"):
            refuse_other_spellings(Path("shots.json"), [given], [known, "other"])
    refuse_other_spellings(Path("shots.json"), ["bolt", "nuts"], ["bolt", "nut"])
    refuse_other_spellings(Path("shots.json"), ["Bolt"], ["Bolt", "bolt"])
