"""What the teacher's finds become: targets, gauges, and losses of a step that waits for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mining.test_mingling import HALF_A, NEAR_A, A, B, C, Row, candidates, instances
from torch import Tensor

from mini_fsod.detector import Targets
from mini_fsod.detector.batch import Candidates
from mini_fsod.labels import LabelMap
from mini_fsod.online.mingling import Instances
from mini_fsod.online.teacher import Teaching, losses_with_teacher, with_mined

LABELS = LabelMap(("dog", "cat"), ("cow", "bus"))  # 0, 1; 2, 3
HOW = Teaching(LABELS, use_iou=False)
SIZES = torch.tensor([[64, 96]])
WEAK, STRONG = torch.full((1, 3, 64, 96), 1.0), torch.full((1, 3, 64, 96), 2.0)
DRAW = torch.tensor(7)
D = [60.0, 0.0, 70.0, 10.0]


class Stage:
    """A teacher that finds what it is told, and a student that only writes down its targets."""

    def __init__(self, seen: Candidates) -> None:
        self.seen, self.extra, self.targets = seen, None, None
        self.student_saw: Tensor | None = None

    def infer(self, images: Tensor, sizes: Tensor, extra: Any) -> Any:
        assert images is WEAK
        self.extra = extra
        return self.seen

    def losses(self, images: Tensor, sizes: Tensor, targets: Targets, draw: Tensor) -> Any:
        self.student_saw, self.targets = images, targets
        # every target costs 1 times its weights, what is no target 5
        boxes = (targets.weights * targets.box_weights * targets.valid).sum()
        return {"loss_a": (targets.weights * targets.valid).sum() + 5, "loss_b": boxes}

    def taught(
        self,
        how: Teaching,
        truth: list[Row],
        pool: list[Row],
        hidden: list[Row] = (),
        delta: tuple[float, float] = (0.7, 0.7),
        regions: list[Row] = (),
    ):
        """The targets as (box, label), and the gauges."""
        drawn, mined, true = (instances(rows, width=4) for rows in (truth, pool, list(hidden)))
        region = instances(list(regions), width=2)
        found = losses_with_teacher(self, self, how, torch.tensor(delta))(
            *(WEAK, STRONG, SIZES),
            *(drawn.boxes, drawn.labels, drawn.valid),
            *(mined.boxes, mined.labels, mined.valid, mined.scores),
            *(region.boxes, region.labels, region.valid),
            *(true.boxes, true.labels, true.valid),
            DRAW,
        )
        assert self.student_saw is STRONG
        to = self.targets
        columns = (to.boxes[0].tolist(), to.labels[0].tolist(), to.valid[0].tolist())
        targets = [(box, label) for box, label, valid in zip(*columns, strict=True) if valid]
        return targets, {name: round(value.item(), 4) for name, value in found.items()}


def sure(*pairs: tuple[list[float], int, float]) -> Candidates:
    """Proposals with a score for one class each."""
    scores = [[score if k == label else 0.0 for k in range(4)] for _, label, score in pairs]
    return candidates(scores, [box for box, _, _ in pairs])


FINDS = sure((NEAR_A, 2, 0.9), (C, 3, 0.8), (B, 0, 0.95), (D, 2, 0.6))
POOL: list[Row] = [(A, 2, 0.5), (D, 2, 0.4)]
TRUTH: list[Row] = [(B, 0, 1.0)]


# Targets


def test_targets_are_ground_truth_and_mingled_boxes() -> None:
    """Not the teacher's base object, nor what is below delta; the pool's first box is replaced."""
    stage = Stage(FINDS)
    targets, _ = stage.taught(HOW, TRUTH, POOL)
    assert targets == [(B, 0), (NEAR_A, 2), (C, 3), (D, 2)]
    assert stage.extra is not None
    assert stage.extra.boxes[0, :2].tolist() == [A, D]
    assert stage.extra.valid[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(("rpn", "rcnn"), [(True, False), (False, True), (False, False)])
def test_where_the_pool_joins(rpn: bool, rcnn: bool) -> None:
    stage = Stage(FINDS)
    how = replace(HOW, join_proposals=rpn, join_instances=rcnn)
    targets, told = stage.taught(how, TRUTH, POOL)
    assert (stage.extra is not None) == rpn
    assert targets == [(B, 0), (NEAR_A, 2), (C, 3), *([(D, 2)] if rcnn else [])]
    assert (told["pool"], told["agreed"]) == (2, 1)  # of the whole pool, wherever it joins
    nothing, _ = stage.taught(how, TRUTH, POOL, delta=(0.91, 0.91))
    assert nothing == [(B, 0), *([(A, 2), (D, 2)] if rcnn else [])]  # the paper's zeros


def test_a_better_class_replaces_by_option() -> None:
    stage = Stage(sure((NEAR_A, 3, 0.9)))
    assert stage.taught(HOW, [], POOL)[0] == [(NEAR_A, 3), (A, 2), (D, 2)]
    agnostic = replace(HOW, by_class=False)
    assert stage.taught(agnostic, [], POOL)[0] == [(NEAR_A, 3), (D, 2)]


def test_the_pools_box_stays_by_option() -> None:
    told = Stage(FINDS).taught(replace(HOW, keep_pool=True, box_losses="pool"), TRUTH, POOL)
    assert told[0] == [(B, 0), (A, 2), (D, 2), (C, 3)]  # A, not the surer NEAR_A
    assert told[1]["mined_loss"] == 3 + 2  # C has no box loss


def test_what_lies_on_a_shot_is_known() -> None:
    """Of any class; and it suppresses nothing: the pool's C stays."""
    finds = sure((NEAR_A, 3, 0.9), (HALF_A, 2, 0.8), (B, 3, 0.9), ([42.0, 0.0, 52.0, 10.0], 3, 0.8))
    shots: list[Row] = [(A, 2, 1.0), ([43.0, 0.0, 53.0, 10.0], 2, 1.0)]
    stage = Stage(finds)
    targets, told = stage.taught(HOW, shots, [(C, 3, 0.3)])
    assert targets == [*((box, label) for box, label, _ in shots), (B, 3)]
    assert told["base"] == 0  # shots are none
    far: list[Row] = [([44.0, 0.0, 54.0, 10.0], 2, 1.0)]  # an IoU of 8/12 with one, 6/14 with C
    targets, _ = stage.taught(HOW, far, [(C, 3, 0.3)])
    assert (C, 3) in targets
    assert ([42.0, 0.0, 52.0, 10.0], 3) not in targets


def test_base_boxes_are_shunned_by_option() -> None:
    stage = Stage(sure((NEAR_A, 2, 0.9), (C, 3, 0.8)))
    base: list[Row] = [(A, 0, 1.0)]
    assert stage.taught(HOW, base, [])[0] == [(A, 0), (NEAR_A, 2), (C, 3)]
    assert stage.taught(replace(HOW, off_base=True), base, [])[0] == [(A, 0), (C, 3)]


def test_parts_of_the_pools_boxes_go_by_option() -> None:
    """The teacher is surer of a part than the pool of the whole, and the pool's box stays."""
    part = [0.0, 0.0, 10.0, 4.0]
    stage = Stage(sure((part, 2, 0.9), (C, 3, 0.8)))
    how = replace(HOW, keep_pool=True)
    targets, told = stage.taught(how, [], POOL[:1])
    assert targets == [(A, 2), (part, 2), (C, 3)]
    assert (told["mined"], told["online"]) == (3, 2)
    targets, told = stage.taught(replace(how, drop_nested=True), [], POOL[:1])
    assert targets == [(A, 2), (C, 3)]
    assert (told["mined"], told["online"], told["offline"]) == (2, 1, 1)


def test_middling_finds_are_ignored_by_option() -> None:
    def regions(how: Teaching) -> tuple[Any, list[list[float]]]:
        stage = Stage(FINDS)
        told = stage.taught(how, TRUTH, POOL[:1])
        of = stage.targets
        assert of.ignore is not None
        assert not (of.ignore & of.valid).any()
        return told, of.boxes[0][of.ignore[0]].tolist()

    plain, nowhere = regions(HOW)
    told, there = regions(replace(HOW, ignore_above=0.6))  # what is exactly as good is meant too
    assert (nowhere, there) == ([], [D])
    assert told == plain  # targets and gauges know nothing of it
    assert regions(replace(HOW, ignore_above=0.61))[1] == []


def test_middling_finds_do_not_crowd_out_sure_ones() -> None:
    """There is room for one find, and the cow, surer than the bus, is below its class's delta."""
    finds, room = sure((A, 2, 0.9), (C, 3, 0.8)), replace(HOW, instances=1)
    for how in (room, replace(room, ignore_above=0.3)):
        stage = Stage(finds)
        assert stage.taught(how, [], [], delta=(0.95, 0.7))[0] == [(C, 3)]
    of = stage.targets
    assert of.boxes[0][of.ignore[0]].tolist() == [A]


def test_parts_of_what_is_taught_are_background_by_option() -> None:
    """Of the pool's box, of the teacher's, and of a shot; a part of another class is unsure."""
    how = HOW

    def ignored(truth: list[Row], *regions: Row) -> list[list[float]]:
        stage = Stage(FINDS)
        stage.taught(how, truth, POOL, regions=regions)
        return stage.targets.boxes[0][stage.targets.ignore[0]].tolist()

    def part(of: list[float]) -> list[float]:
        return [of[0], of[1], of[2], of[1] + 4]

    assert ignored([], (part(D), 2, 1.0), (part(C), 3, 1.0)) == [part(D), part(C)]
    how = replace(HOW, drop_nested=True)
    assert ignored([], (part(D), 2, 1.0), (part(C), 3, 1.0)) == []
    assert ignored([], (part(D), 3, 1.0), (part(B), 2, 1.0)) == [part(D), part(B)]
    assert ignored([(B, 2, 1.0)], (part(B), 2, 1.0)) == []


def test_the_columns_of_the_targets() -> None:
    truth = Targets(*instances([(A, 1, 1.0)], width=2)[:2], torch.tensor([[True, False]]))
    mined = instances([(B, 2, 0.4), (C, 3, 0.3)])
    there = torch.tensor([[True, False]])
    region = Targets(torch.tensor([[D, D]]), torch.tensor([[3, 0]]), there)
    both = torch.tensor([[True, True]])
    to = with_mined(truth, mined, region, torch.tensor(2.0), both, drop_nested=True)
    assert to.boxes[0].tolist() == [A, [0.0] * 4, B, C, D, D]
    assert to.labels.tolist() == [[1, 0, 2, 3, 3, 0]]
    assert to.valid.tolist() == [[True, False, True, True, False, False]]
    assert to.ignore.tolist() == [[False] * 4 + [True, False]]
    assert to.weights.tolist() == [[1, 1, 2, 2, 1, 1]]
    assert to.box_weights.tolist() == [[1] * 6]
    to = with_mined(
        truth, mined, region, torch.tensor(1.0), torch.tensor([[False, True]]), drop_nested=False
    )
    assert to.box_weights.tolist() == [[1, 1, 0, 1, 1, 1]]
    region = region._replace(boxes=torch.tensor([[C, C]]))
    for drop_nested in (True, False):  # it lies in a mined box
        to = with_mined(truth, mined, region, torch.tensor(1.0), both, drop_nested)
        assert to.ignore.any().item() != drop_nested
    empty = Instances(*(t[:, :0] for t in mined))
    nowhere = Targets(*(t[:, :0] for t in region[:3]))
    to = with_mined(truth, empty, nowhere, torch.ones(()), both[:, :0], drop_nested=True)
    assert to.boxes[0].tolist() == [A, [0.0] * 4]


# Gauges


def test_gauges() -> None:
    """Taught: NEAR_A and C of the teacher's, D of the pool's. A and C are true, and D is not."""
    stage = Stage(FINDS)
    hidden: list[Row] = [(A, 2, 1.0), (C, 3, 1.0), (D, 3, 1.0)]
    _, told = stage.taught(replace(HOW, truth_known=True), TRUTH, POOL, hidden)
    assert told == {
        "loss_a": 4 + 5,
        "loss_b": 4,
        "mined": 3,
        "online": 2,
        "offline": 1,
        "base": 1,
        "pool": 2,
        "agreed": 1,
        "overlap": 0.6667,
        "found": 2,
        "found_cow": 1,
        "found_bus": 1,
        "right": 2,
        "confidence": 0.95,
        "mined_loss": 3 + 3,
    }


def test_gauges_of_each_class() -> None:
    _, told = Stage(sure((A, 2, 0.9), (B, 3, 0.8), (D, 2, 0.75))).taught(HOW, [], [])
    assert (told["found"], told["found_cow"], told["found_bus"]) == (3, 2, 1)


def test_gauges_of_nothing() -> None:
    finds = candidates([[0.9, 0.0, 0.9, 0.0]], [A], valid=[False])
    _, told = Stage(finds).taught(HOW, [], [])
    assert {name: value for name, value in told.items() if value} == {"loss_a": 5}
    assert "right" not in told  # nobody knows


def test_the_same_box_in_both_is_the_teachers() -> None:
    stage = Stage(sure((A, 2, 0.8)))
    _, told = stage.taught(HOW, [], [(A, 2, 0.8)])
    assert (told["mined"], told["online"], told["offline"], told["agreed"]) == (1, 1, 0, 1)


def test_the_loss_that_mined_boxes_carry() -> None:
    stage = Stage(FINDS)
    for weight, boxes, wanted in (
        (1.0, "all", 6),
        (4.0, "all", 24),
        (4.0, "none", 12),
        (4.0, "pool", 16),  # two of the three are the teacher's
        (0.0, "all", 0),
    ):
        how = replace(HOW, weight=weight, box_losses=boxes)
        assert stage.taught(how, TRUTH, POOL)[1]["mined_loss"] == wanted
