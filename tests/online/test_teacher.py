"""The teacher's boxes as targets of the student, and the gauges; hand-made detections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.novel_boxes import HALF_A, NEAR_A, A, B, C, D, Row, candidates, instances, targets
from mini_fsod.config.schema import Mine, Mingle, Online
from mini_fsod.detector.batch import ScoredProposals, Targets
from mini_fsod.labels import LabelMap
from mini_fsod.online.mingling import ACCEPTED
from mini_fsod.online.teacher import TeacherInputs, losses_with_teacher

LABELS = LabelMap(("dog", "cat"), ("cow", "bus"))  # 0, 1; 2, 3
SIZES = torch.tensor([[64, 96]])
WEAK, STRONG = torch.full((1, 3, 64, 96), 1.0), torch.full((1, 3, 64, 96), 2.0)
DRAW = torch.tensor(7)


class FakeDetector:
    """As a teacher it finds what it is given; as a student it records its targets."""

    def __init__(self, found: ScoredProposals) -> None:
        self.found, self.extra, self.targets = found, None, None
        self.student_view: Tensor | None = None

    def infer(self, images: Tensor, sizes: Tensor, extra: Any) -> Any:
        assert images is WEAK
        self.extra = extra
        return self.found

    def losses(self, images: Tensor, sizes: Tensor, targets: Targets, draw: Tensor) -> Any:
        self.student_view, self.targets = images, targets
        # every target costs 1 times its weights; 5 is the background's loss
        boxes = (targets.weights * targets.box_weights * targets.valid).sum()
        return {"loss_a": (targets.weights * targets.valid).sum() + 5, "loss_b": boxes}

    def teach(
        self,
        truth: list[Row],
        pool: list[Row],
        hidden: list[Row] = (),
        regions: list[Row] = (),
        mine: Mine = Mine(),  # noqa: B008
        truth_known: bool = False,
        rejected: list[Row] = (),
        missing: list[bool] | None = None,
        **keys: Any,
    ):
        """The targets as (box, label), and the losses and gauges, with these keys of `online`."""
        online = Online(**{"iou_branch": False, **keys})
        losses = losses_with_teacher(self, self, LABELS, online, mine, 0.5, truth_known, 0.7)
        inputs = TeacherInputs(
            WEAK,
            STRONG,
            SIZES,
            targets(truth, width=4),
            instances(pool, width=4),
            targets([*regions], width=2),
            targets([*hidden], width=4),
            targets([*rejected], width=2),
            DRAW,
            None if missing is None else torch.tensor([missing]),
        )
        found = losses(inputs)
        assert self.student_view is STRONG
        given = self.targets
        columns = (given.boxes[0].tolist(), given.labels[0].tolist(), given.valid[0].tolist())
        rows = [(box, label) for box, label, valid in zip(*columns, strict=True) if valid]
        return rows, {name: round(value.item(), 4) for name, value in found.items()}

    @property
    def ignored(self) -> list[list[float]]:
        return self.targets.boxes[0][self.targets.ignore[0]].tolist()


def detections(*pairs: tuple[list[float], int, float]) -> ScoredProposals:
    """Proposals with a score for one class each."""
    scores = [[score if k == label else 0.0 for k in range(4)] for _, label, score in pairs]
    return candidates(scores, [box for box, _, _ in pairs])


FOUND = detections((NEAR_A, 2, 0.9), (C, 3, 0.8), (B, 0, 0.95), (D, 2, 0.6))
POOL: list[Row] = [(A, 2, 0.5), (D, 2, 0.4)]
TRUTH: list[Row] = [(B, 0, 1.0)]


# Targets


def test_losses_with_teacher_train_on_truth_and_mingled_boxes() -> None:
    """Not on the teacher's base box, nor on boxes below delta; NEAR_A replaces the pool's A."""
    detector = FakeDetector(FOUND)
    rows, _ = detector.teach(TRUTH, POOL)
    assert rows == [(B, 0), (NEAR_A, 2), (C, 3), (D, 2)]
    assert detector.extra is not None
    assert detector.extra.boxes[0, :2].tolist() == [A, D]
    assert detector.extra.valid[0].tolist() == [True, True, False, False]


def test_losses_with_teacher_do_not_take_rejected_places_from_the_teacher() -> None:
    rows, _ = FakeDetector(FOUND).teach(TRUTH, [], rejected=[(C, 3, 1.0), (A, 3, 1.0)])
    assert rows == [(B, 0), (NEAR_A, 2)]


def test_losses_with_teacher_keep_accepted_boxes() -> None:
    """Even where the teacher is surer, and on a base box with drop_on_base."""
    accepted: list[Row] = [(A, 2, ACCEPTED), (B, 3, ACCEPTED)]
    mine = Mine(drop_on_base=True, drop_nested=True)
    rows, _ = FakeDetector(FOUND).teach(TRUTH, accepted, mine=mine)
    assert sorted(rows) == sorted([(B, 0), (A, 2), (B, 3), (C, 3)])


@pytest.mark.parametrize(("rpn", "rcnn"), [(True, False), (False, True), (False, False)])
def test_losses_with_teacher_join_the_pool_as_asked(rpn: bool, rcnn: bool) -> None:
    detector, keys = FakeDetector(FOUND), Mingle(rpn=rpn, rcnn=rcnn)
    rows, values = detector.teach(TRUTH, POOL, mingle=keys)
    assert (detector.extra is not None) == rpn
    assert rows == [(B, 0), (NEAR_A, 2), (C, 3), *([(D, 2)] if rcnn else [])]
    assert (values["pool"], values["agreed"]) == (2, 1)  # of the whole pool in any case
    rows, _ = detector.teach(TRUTH, POOL, mingle=keys, delta=0.91)
    assert rows == [(B, 0), *([(A, 2), (D, 2)] if rcnn else [])]


def test_losses_with_teacher_add_base_objects_where_labels_are_missing() -> None:
    """The teacher is sure of a base object in B, and, as of a novel one, in A."""
    found = detections((B, 0, 0.95), (D, 1, 0.6), (NEAR_A, 2, 0.9), (A, 1, 0.8), (C, 1, 0.75))
    detector = FakeDetector(found)
    assert detector.teach([], [], missing=[True, True])[0] == [(B, 0), (C, 1), (NEAR_A, 2)]
    assert detector.teach([], [], missing=[False, True])[0] == [(C, 1), (NEAR_A, 2)]
    assert detector.teach([], [])[0] == [(NEAR_A, 2)]
    rows, values = detector.teach(TRUTH, [], missing=[True, True])  # B is there already
    assert rows == [(B, 0), (C, 1), (NEAR_A, 2)]
    assert values["base"] == 2


def test_losses_with_teacher_use_delta_as_least_score() -> None:
    assert FakeDetector(FOUND).teach([], [], delta=0.6)[0] == [(NEAR_A, 2), (C, 3), (D, 2)]
    assert FakeDetector(FOUND).teach([], [], delta=0.85)[0] == [(NEAR_A, 2)]


def test_losses_with_teacher_score_boxes_by_iou_with_an_iou_branch() -> None:
    """sqrt(0.9 * 0.4) = 0.6 and sqrt(0.64 * 1) = 0.8."""
    scores = [[0.0, 0.0, 0.9, 0.0], [0.0, 0.0, 0.64, 0.0]]
    detector = FakeDetector(candidates(scores, [A, B], iou=[0.4, 1.0]))
    assert detector.teach([], [])[0] == [(A, 2)]
    assert detector.teach([], [], iou_branch=True)[0] == [(B, 2)]


def test_losses_with_teacher_suppress_other_classes_if_agnostic() -> None:
    detector = FakeDetector(detections((NEAR_A, 3, 0.9)))
    assert detector.teach([], POOL)[0] == [(NEAR_A, 3), (A, 2), (D, 2)]
    assert detector.teach([], POOL, mingle=Mingle(nms="agnostic"))[0] == [(NEAR_A, 3), (D, 2)]


def test_losses_with_teacher_keep_the_pool_with_keep_pool() -> None:
    rows, values = FakeDetector(FOUND).teach(
        TRUTH, POOL, mingle=Mingle(keep_pool=True), mined_boxes="pool"
    )
    assert rows == [(B, 0), (A, 2), (D, 2), (C, 3)]  # A, although NEAR_A has a higher score
    assert values["mined_loss"] == 3 + 2  # no box loss on C


def test_losses_with_teacher_drop_mined_boxes_on_shots() -> None:
    """Whatever their class; and dropped boxes suppress nothing: the pool's C stays."""
    near_c = [42.0, 0.0, 52.0, 10.0]
    found = detections((NEAR_A, 3, 0.9), (HALF_A, 2, 0.8), (B, 3, 0.9), (near_c, 3, 0.8))
    shots: list[Row] = [(A, 2, 1.0), ([43.0, 0.0, 53.0, 10.0], 2, 1.0)]
    detector = FakeDetector(found)
    rows, values = detector.teach(shots, [(C, 3, 0.3)])
    assert rows == [*((box, label) for box, label, _ in shots), (B, 3)]
    assert values["base"] == 0  # shots are no base boxes
    far: list[Row] = [([44.0, 0.0, 54.0, 10.0], 2, 1.0)]  # IoU 8/12 with near_c, 6/14 with C
    rows, _ = detector.teach(far, [(C, 3, 0.3)])
    assert (C, 3) in rows
    assert (near_c, 3) not in rows


def test_losses_with_teacher_drop_mined_boxes_on_base_boxes_with_drop_on_base() -> None:
    detector = FakeDetector(detections((NEAR_A, 2, 0.9), (C, 3, 0.8)))
    base: list[Row] = [(A, 0, 1.0)]
    assert detector.teach(base, [])[0] == [(A, 0), (NEAR_A, 2), (C, 3)]
    assert detector.teach(base, [], mine=Mine(drop_on_base=True))[0] == [(A, 0), (C, 3)]


def test_losses_with_teacher_drop_parts_of_mined_boxes_with_drop_nested() -> None:
    """The teacher is surer of a part than the pool is of the whole; the pool's box stays."""
    part = [0.0, 0.0, 10.0, 4.0]
    detector = FakeDetector(detections((part, 2, 0.9), (C, 3, 0.8)))
    keep_pool = Mingle(keep_pool=True)
    rows, values = detector.teach([], POOL[:1], mingle=keep_pool)
    assert rows == [(A, 2), (part, 2), (C, 3)]
    assert (values["mined"], values["online"]) == (3, 2)
    rows, values = detector.teach([], POOL[:1], mingle=keep_pool, mine=Mine(drop_nested=True))
    assert rows == [(A, 2), (C, 3)]
    assert (values["mined"], values["online"], values["offline"]) == (2, 1, 1)


def test_losses_with_teacher_do_not_ignore_parts_of_targets_with_drop_nested() -> None:
    """Parts of the pool's box, of the teacher's and of a shot; another class's part stays."""

    def part(box: list[float]) -> list[float]:
        return [box[0], box[1], box[2], box[1] + 4]

    def ignored(mine: Mine, truth: list[Row], *regions: Row) -> list[list[float]]:
        detector = FakeDetector(FOUND)
        detector.teach(truth, POOL, regions=[*regions], mine=mine)
        return detector.ignored

    parts = (part(D), 2, 1.0), (part(C), 3, 1.0)
    assert ignored(Mine(), [], *parts) == [part(D), part(C)]
    nested = Mine(drop_nested=True)
    assert ignored(nested, [], *parts) == []
    assert ignored(nested, [], (part(D), 3, 1.0), (part(B), 2, 1.0)) == [part(D), part(B)]
    assert ignored(nested, [(B, 2, 1.0)], (part(B), 2, 1.0)) == []


def test_losses_with_teacher_count_its_boxes_as_targets_with_no_background() -> None:
    """An image that neither people nor the pool have boxes in has a target if the teacher finds
    one.
    """
    detector = FakeDetector(FOUND)
    detector.teach([], [], images="no_background")
    assert detector.targets.no_negatives.tolist() == [False]
    detector.teach([], [], images="no_background", delta=0.91)
    assert detector.targets.no_negatives.tolist() == [True]
    detector.teach([], POOL, images="no_background", delta=0.91)
    assert detector.targets.no_negatives.tolist() == [False]
    detector.teach([], [], delta=0.91)
    assert detector.targets.no_negatives is None


# Gauges


def test_losses_with_teacher_report_gauges() -> None:
    """Mined are NEAR_A and C of the teacher and D of the pool. A and C are right, D is not."""
    hidden: list[Row] = [(A, 2, 1.0), (C, 3, 1.0), (D, 3, 1.0)]
    _, values = FakeDetector(FOUND).teach(TRUTH, POOL, hidden, truth_known=True)
    assert values == {
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


def test_gauges_count_found_boxes_per_class() -> None:
    found = detections((A, 2, 0.9), (B, 3, 0.8), (D, 2, 0.75))
    _, values = FakeDetector(found).teach([], [])
    assert (values["found"], values["found_cow"], values["found_bus"]) == (3, 2, 1)


def test_gauges_are_zero_without_boxes() -> None:
    found = candidates([[0.9, 0.0, 0.9, 0.0]], [A], valid=[False])
    _, values = FakeDetector(found).teach([], [])
    assert {name: value for name, value in values.items() if value} == {"loss_a": 5}
    assert "right" not in values  # unless the truth is known


def test_gauges_count_equal_boxes_as_the_teachers() -> None:
    detector = FakeDetector(detections((A, 2, 0.8)))
    _, values = detector.teach([], [(A, 2, 0.8)])
    counts = [values[name] for name in ("mined", "online", "offline", "agreed")]
    assert counts == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("weight", "boxes", "wanted"),
    [
        (1.0, "all", 6),
        (4.0, "all", 24),
        (4.0, "none", 12),
        (4.0, "pool", 16),  # two of the three are the teacher's
        (0.0, "all", 0),
    ],
)
def test_losses_with_teacher_report_the_loss_on_mined_boxes(
    weight: float, boxes: str, wanted: float
) -> None:
    _, values = FakeDetector(FOUND).teach(TRUTH, POOL, mined_weight=weight, mined_boxes=boxes)
    assert values["mined_loss"] == wanted
