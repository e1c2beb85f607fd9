"""The stage `online` with a teacher, on tiny data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from helpers import shapes
from helpers.online_run import LABELS, TEACHER, log_of, mixed_pool, run_of, trained, write_pool
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.errors import UserError
from mini_fsod.loader.augment import draw_strong, strong_view
from mini_fsod.mining.extra import no_labels
from mini_fsod.mining.mined_images import MinedImages
from mini_fsod.mining.pool_io import read_pool
from mini_fsod.online import health, retrain
from mini_fsod.online.targets import TrainingSet
from mini_fsod.online.teacher import TeacherInputs, losses_with_teacher
from mini_fsod.train.ema import Average, warmed_decay

GAUGES = {
    *("mined", "online", "offline", "base", "pool", "agreed", "overlap", "found"),
    f"found_{shapes.NOVEL}",
    *("right", "confidence", "mined_loss", "precision", "agreement", "placement", "mined_share"),
}


@pytest.fixture(scope="module")
def with_teacher(data: Path) -> Path:
    """The folder of a finished stage with a teacher. Not to be changed."""
    folder = data.parent / "with-teacher"
    trained(run_of(data, folder, mixed_pool(data), **TEACHER), folder / "online")
    return folder / "online"


def test_online_logs_the_gauges(with_teacher: Path) -> None:
    lines = log_of(with_teacher)
    assert [line["step"] for line in lines] == [5, 10, 12]
    for line in lines:
        assert line.keys() >= GAUGES
        losses = [line[name] for name in line if name.startswith("loss_")]
        assert len(losses) == 5
        assert line["loss"] == pytest.approx(sum(losses))  # without the gauges
        assert line["mined"] == pytest.approx(line["online"] + line["offline"])
        assert line["precision"] == pytest.approx(line["right"] / line["mined"])
        assert line["agreement"] == pytest.approx(line["agreed"] / line["pool"])
        assert 0 < line["mined_share"] < 1
    events = [*(with_teacher / "tensorboard").iterdir()]
    assert b"online/agreement" in events[0].read_bytes()


class Recorded:
    """Student and teacher of a run, the inputs of the losses, and the weights at each update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.student: Any = None
        self.teacher: Any = None
        self.inputs: list[TeacherInputs] = []
        self.weights: list[tuple[Tensor, Tensor]] = []
        update = Average.update

        def recording_losses(student: Any, teacher: Any, *others: Any) -> Any:
            self.student, self.teacher = student, teacher
            losses = losses_with_teacher(student, teacher, *others)

            def recording(inputs: TeacherInputs) -> dict[str, Tensor]:
                self.inputs.append(inputs)
                return losses(inputs)

            return recording

        def recording_update(average: Any) -> None:
            update(average)
            student, teacher = (
                detector.predictor.boxes.bias.detach().clone()
                for detector in (self.student, self.teacher)
            )
            self.weights.append((student, teacher))

        monkeypatch.setattr(retrain, "losses_with_teacher", recording_losses)
        monkeypatch.setattr(Average, "update", recording_update)


def test_online_saves_the_teacher_which_averages_the_student(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    trained(run_of(data, tmp_path, mixed_pool(data), **TEACHER), tmp_path / "online")
    saved = load_file(tmp_path / "online" / "checkpoint.safetensors")
    difference = 0.0
    for name, value in recorded.teacher.state_dict().items():
        assert torch.equal(saved[name], value), name
        other = recorded.student.state_dict()[name]
        difference = max(difference, (value - other).abs().max().item())
    assert difference > 1e-4
    average = torch.zeros_like(recorded.weights[0][0])  # the first decay is 0
    for n, (student, teacher) in enumerate(recorded.weights):
        decay = warmed_decay(n, 0.8, 1.0)
        average = decay * average + (1 - decay) * student
        torch.testing.assert_close(teacher, average)
    assert not any(parameter.requires_grad for parameter in recorded.teacher.parameters())


@pytest.mark.parametrize("strong", [True, False])
def test_online_shows_the_teacher_the_weak_view(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strong: bool
) -> None:
    """Both views have the same geometry."""
    recorded, draws = Recorded(monkeypatch), []

    def drawing(seed: int, plan: Any) -> Any:
        draws.append(draw_strong(seed, plan))
        return draws[-1]

    monkeypatch.setattr(retrain, "draw_strong", drawing)
    keys = TEACHER | {"online__strong": str(strong).lower(), "online__iterations": 3}
    trained(run_of(data, tmp_path, mixed_pool(data), **keys), tmp_path / "online")
    assert len(recorded.inputs) == 3
    assert len(draws) == (3 if strong else 0)
    for n, inputs in enumerate(recorded.inputs):
        if strong:
            assert torch.equal(inputs.strong, strong_view(inputs.weak, inputs.sizes, draws[n]))
            assert not torch.equal(inputs.strong, inputs.weak)
        else:
            assert torch.equal(inputs.strong, inputs.weak)


def test_online_shows_only_images_with_a_target_if_taught(
    without_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Picture 1 has a box of the pool, picture 3 has no target."""
    keys = TEACHER | {"online__iterations": 8}
    pool = mixed_pool(without_base)[:1]
    assert pool[0]["image_id"] == 2

    def shown(images: str) -> tuple[bool, bool]:
        with monkeypatch.context() as patch:
            recorded = Recorded(patch)
            run = run_of(without_base, tmp_path, pool, **keys, online__images=images)
            trained(run, tmp_path / images)
        truth = torch.cat([inputs.truth.valid.any(1) for inputs in recorded.inputs])
        mined = torch.cat([inputs.pool.valid.any(1) for inputs in recorded.inputs])
        return bool((mined & ~truth).any()), bool((~mined & ~truth).any())

    assert shown("all") == (True, True)
    assert shown("no_background") == (True, True)
    assert shown("taught") == (True, False)


def test_online_uses_hidden_boxes_only_for_a_gauge(
    data: Path, tmp_path: Path, with_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_hidden(data: Any, labels: Any) -> TrainingSet:
        return TrainingSet(data, NO_BOXES, NO_BOXES.area, NO_BOXES, run.data.missing(data))

    monkeypatch.setattr(retrain, "oracle", nothing_hidden)
    monkeypatch.setattr(retrain, "seem_complete", lambda objects, mined: False)
    run = run_of(data, tmp_path, mixed_pool(data), **TEACHER)
    wanted = (with_teacher / "checkpoint.safetensors").read_bytes()
    assert trained(run, tmp_path / "online") == wanted
    lines = log_of(tmp_path / "online")
    assert all("right" not in line and "precision" not in line for line in lines)


def test_online_has_no_precision_where_only_shots_are_annotated(data: Path, tmp_path: Path) -> None:
    """All five novel boxes are shots: whether a mined box is right is unknown."""
    keys = TEACHER | {"shots__k": 5, "online__iterations": 6}
    trained(run_of(data, tmp_path, mixed_pool(data), **keys), tmp_path / "online")
    lines = log_of(tmp_path / "online")
    assert all("right" not in line and line["mined"] > 0 for line in lines)


def test_online_has_no_precision_with_extra_images(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has annotated extra images."""
    run = run_of(data, tmp_path, mixed_pool(data), **(TEACHER | {"online__iterations": 2}))
    known: list[bool] = []

    def recording_losses(*arguments: Any) -> Any:
        known.append(arguments[-2])
        return losses_with_teacher(*arguments)

    monkeypatch.setattr(retrain, "losses_with_teacher", recording_losses)
    trained(run, tmp_path / "1")
    none = read_pool(write_pool(tmp_path / "none.json", data, []), run.data.mined, LABELS)
    bare = run.data.mined.with_boxes(NO_BOXES)
    extra = MinedImages(bare, none, no_labels(bare, LABELS))
    monkeypatch.setattr(retrain, "read_extra", lambda run: extra)
    trained(run, tmp_path / "2")
    assert known == [True, False]


@pytest.mark.slow
def test_online_every_key_of_the_teacher_changes_the_training(
    without_base: Path, tmp_path: Path
) -> None:
    data, found = without_base, {}
    for n, keys in enumerate(
        (
            {},
            {"online__delta": 0.9},
            {"online__mingle__rpn": "false"},
            {"online__mingle__rcnn": "false"},
            {"online__iou_branch": "false"},
            {"online__shots": "true"},
            {"online__images": "taught"},
        )
    ):
        run = run_of(
            data, tmp_path, mixed_pool(data), **(TEACHER | {"online__iterations": 5} | keys)
        )
        found[str(keys)] = trained(run, tmp_path / str(n))
    assert len({*found.values()}) == len(found)


def test_online_trains_on_base_classes_with_an_empty_pool(data: Path, tmp_path: Path) -> None:
    keys = TEACHER | {"online__delta": 0.9999, "online__iterations": 6}
    trained(run_of(data, tmp_path, [], **keys), tmp_path / "online")
    for line in log_of(tmp_path / "online"):
        assert line["mined"] == line["pool"] == line["mined_loss"] == 0
        assert "agreement" not in line
        assert "precision" not in line


def test_online_stops_a_collapsed_teacher_and_keeps_the_state(
    data: Path, tmp_path: Path, with_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = run_of(data, tmp_path, mixed_pool(data), **TEACHER), tmp_path / "online"
    with monkeypatch.context() as patch:
        for name, value in (
            *(("MIN_READINGS", 1), ("SHORT_WINDOW", 1)),
            *(("UNTRAINED", 10), ("BLIND", 1.1)),
        ):
            patch.setattr(health, name, value)
        with pytest.raises(UserError, match="collapsed: at iteration 10, it takes everything"):
            trained(run, folder)
    assert (folder / "progress.pt").exists()  # of iteration 5
    assert [line["step"] for line in log_of(folder)] == [5]
    assert not (folder / "checkpoint.safetensors").exists()
    assert trained(run, folder) == (with_teacher / "checkpoint.safetensors").read_bytes()
