"""What a configuration, a pool and its classes mean to a teacher: without a training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mini_fsod.config.load import resolve
from mini_fsod.data.dataset import Boxes
from mini_fsod.labels import LabelMap
from mini_fsod.mining.candidates import Candidates
from mini_fsod.online import retrain

# Classes


def test_what_is_normal_for_each_of_several_classes(tmp_path: Path) -> None:
    """Three images, of which the second is seen twice as often: pools, and what mining expects."""
    labels = LabelMap(("dog",), ("cow", "bus"))
    own = resolve("voc-split1-1shot", ["online.batch=4"])
    fake: Any = SimpleNamespace(config=own, out=tmp_path, material=SimpleNamespace(labels=labels))
    share = np.array([0.25, 0.5, 0.25])
    boxes = Boxes.of([0, 1, 1], [[0, 0, 9, 9]] * 3, [1, 1, 2])  # a cow; a cow and a bus
    learnt: Any = SimpleNamespace(mined=boxes)
    how: Any = SimpleNamespace(labels=labels, instances=32)
    watch = retrain._watch(fake, learnt, share, how)
    assert watch.normal.pool == {"cow": 0.75, "bus": 0.5}
    score = np.array([0.5, 0.75, 1.0])
    boxes_of = np.zeros((3, 4))
    found = Candidates(np.array([0, 1, 2]), np.array([0, 1, 1]), boxes_of, score, score, None)
    deltas = retrain._deltas(fake, share, None, found, torch.full((2,), 0.7))
    assert deltas.expected == {"cow": 0.5 * 0.25, "bus": 0.75 * 0.5 + 0.25}


# Keys

TEACHING = {
    "online.ignore_above": ("ignore_above", 0.25),
    "detector.nms": ("nms_iou", 0.375),
    "online.mingle.rpn": ("join_proposals", False),
    "online.mingle.rcnn": ("join_instances", False),
    "online.mingle.nms": ("by_class", False),
    "online.iou_branch": ("use_iou", False),
    "online.mined_weight": ("weight", 2.0),
    "online.mined_boxes": ("box_losses", "none"),
    "online.mingle.keep_pool": ("keep_pool", True),
    "mine.drop_on_base": ("off_base", True),
    "mine.drop_nested": ("drop_nested", True),
}


@pytest.mark.parametrize("key", TEACHING)
def test_how_a_teacher_teaches(key: str) -> None:
    def teaching(*sets: str) -> dict[str, Any]:
        material = SimpleNamespace(labels=LabelMap(("a",), ("b",)))
        run: Any = SimpleNamespace(config=resolve("voc-split1-1shot", sets), material=material)
        return asdict(retrain._teaching(run, truth_known=True))

    name, value = TEACHING[key]
    text = "agnostic" if key.endswith("mingle.nms") else str(value).lower()
    before, after = teaching(), teaching(f"{key}={text}")
    assert before["truth_known"]
    assert {k: v for k, v in after.items() if v != before[k]} == {name: value}
