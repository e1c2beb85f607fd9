"""Two processes that share a batch train like one process."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import training as small
from helpers.run_data import run_data
from helpers.training import CPU, train_small
from mini_fsod.config.schema import TimedTraining
from mini_fsod.data.subsets import arranged
from mini_fsod.detector.model import build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.run import inputs_from
from mini_fsod.train import distributed, log, loop
from mini_fsod.train import state as states
from mini_fsod.train.distributed import (
    Team,
    average_over_processes,
    broadcast_from_leader,
    team,
    wait_for_all,
)
from mini_fsod.train.loop import train
from mini_fsod.train.step import losses_of

SECTION = TimedTraining(iterations=3, batch=4, rate=0.02, warm_up=2, clip=5.0, save_seconds=1000)


def changed(**changes: object) -> TimedTraining:
    return SECTION.model_copy(update=changes)


BOXES = (
    (),
    ((2, 2, 20, 28), (40, 40, 20, 20)),
    ((0, 0, 40, 60), (8, 8, 56, 56)),
    ((4, 4, 60, 60),),
)


def write_data(folder: Path) -> Path:
    """Four pictures of noise, with no box to two large ones."""
    noise = np.random.default_rng(0)
    folder.mkdir()
    for n in range(4):
        Image.fromarray(noise.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / f"{n}.png")
    boxes = [(image, box) for image, own in enumerate(BOXES) for box in own]
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 64, "height": 64} for n in range(4)],
        "annotations": [
            {"id": n, "image_id": i, "category_id": n % 2, "bbox": box, "area": 1, "iscrowd": 0}
            for n, (i, box) in enumerate(boxes)
        ],
        "categories": [{"id": 0, "name": "car"}, {"id": 1, "name": "bird"}],
    }
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def learn(
    team: Team,
    home: Path,
    name: str,
    section: TimedTraining = SECTION,
    even: bool = False,
    whole: bool = False,
) -> None:
    """Train a detector by a run's own feed, with a look at every iteration.

    `even`: all images have the same number of samples. Otherwise what overlaps a box a little is
    no sample: images with large boxes have few, the one without boxes many. `whole`: the backbone
    learns too.
    """
    loop.LOG_EVERY_ON_CPU = 1
    material = run_data(
        home / "data", data__novel=["bird"], views__short=[64], views__test=64, views__long=64
    )
    data = arranged(material.whole, material.labels)
    batches, sizes = material.batches(data)
    schedule = Schedule(sizes, section.batch, (64,), 64, seed=0)
    inputs = inputs_from(batches, CPU)
    feed = material.feed(data, schedule, inputs, team, section.accumulate)
    torch.manual_seed(0)
    rpn = RPNSettings(
        anchor_sizes=((16,), (32,), (64,), (128,), (256,)),
        before_nms_train=60,
        after_nms_train=40,
        samples=64 if even else 512,
        negative_iou=0.3 if even else 0.02,
    )
    roi = RoISettings(
        samples=8 if even else 32, negative_iou=0.5 if even else 0.02, width=32, size=3
    )
    model = build(2, "resnet18", norm="group", channels=32, rpn=rpn, roi=roi)
    model.backbone.requires_grad_(whole)
    folder = home / f"{name}-{team.rank}"
    train(
        model,
        losses_of(model),
        feed,
        section,
        False,
        folder,
        "base",
        CPU,
        team,
        ema=0.9,
        ema_warm_up=0.1,
    )


def curve(folder: Path) -> list[dict[str, float]]:
    quantities = ("step", "loss", "rate")
    return [
        {k: v for k, v in line.items() if k.startswith("loss") or k in quantities}
        for line in log.read_log(folder / log.FILE)
    ]


def assert_alike(one: Path, other: Path) -> None:
    for a, b in zip(curve(one), curve(other), strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    first, second = states.read_state(one), states.read_state(other)
    assert first is not None
    assert second is not None
    assert first["step"] == second["step"] == SECTION.iterations
    for key in ("weights", "momentum", "averaged"):
        torch.testing.assert_close(first[key], second[key], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and with a detector that one process trained on whole batches."""
    folder = tmp_path_factory.mktemp("team")
    write_data(folder / "data")
    learn_alone(folder, "whole")
    return folder


def learn_alone(home: Path, name: str, section: TimedTraining = SECTION, **how: Any) -> None:
    before = loop.LOG_EVERY_ON_CPU
    try:
        learn(Team(), home, name, section, **how)
    finally:
        loop.LOG_EVERY_ON_CPU = before


def test_train_in_two_processes_equals_one(home: Path) -> None:
    """What each divides its losses by is the number of samples in the whole batch."""
    assert small.in_team(2, learn, home, "two") == [0, 0]
    assert len(curve(home / "whole-0")) == 3
    assert_alike(home / "two-0", home / "whole-0")
    assert not (home / "two-1").exists()  # only the first one writes


@pytest.mark.slow
def test_accumulation_equals_the_whole_batch_with_equal_samples(home: Path) -> None:
    learn_alone(home, "even", even=True)
    learn_alone(home, "even parts", changed(accumulate=2), even=True)
    assert_alike(home / "even parts-0", home / "even-0")
    # and is not, where each part has its own number: so the test above can fail
    learn_alone(home, "parts", changed(accumulate=2))
    ours, theirs = (curve(home / f"{name}-0")[0] for name in ("parts", "whole"))
    for name in ("loss_rpn_box_reg", "loss_classifier", "loss_box_reg"):
        assert ours[name] != pytest.approx(theirs[name], rel=0.01)


@pytest.mark.slow
def test_train_in_two_processes_with_accumulation(home: Path) -> None:
    learn_alone(home, "fourths", changed(accumulate=4), even=True)
    assert small.in_team(2, learn, home, "four", changed(accumulate=2), True) == [0, 0]
    assert_alike(home / "four-0", home / "fourths-0")


@pytest.mark.slow
def test_train_resumes_a_detector_bit_equal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backbone, sampling and NMS too."""
    section = changed(iterations=4, save_seconds=0)
    learn_alone(home, "unbroken", section, whole=True)
    states_seen: list[states.State] = []

    def stop_at_the_second(*of: Any) -> states.State:
        if states_seen:
            raise small.StopError
        states_seen.append(snapshot(*of))
        return states_seen[0]

    snapshot = states.snapshot
    with monkeypatch.context() as patch:
        patch.setattr(loop, "snapshot", stop_at_the_second)
        with pytest.raises(small.StopError):
            learn_alone(home, "broken", section, whole=True)
    state = states.read_state(home / "broken-0")
    assert state is not None
    assert state["step"] == 1
    learn_alone(home, "broken", section, whole=True)
    small.assert_same(home / "broken-0", home / "unbroken-0")


# Collectives


def check_collectives(own: Team, folder: Path) -> None:
    values = [torch.tensor([1.0, 2.0]) * (1 + own.rank), torch.full((2, 2), float(own.rank))]
    average_over_processes(values)
    torch.testing.assert_close(values, [torch.tensor([1.5, 3.0]), torch.full((2, 2), 0.5)])
    assert broadcast_from_leader(7 + own.rank, own, CPU) == 7
    assert not distributed.may_record(own)  # this is gloo
    assert distributed.may_record(Team())
    wait_for_all(own)


def test_collectives(tmp_path: Path) -> None:
    assert small.in_team(2, check_collectives, tmp_path) == [0, 0]


def slow_clocks(own: Team, folder: Path) -> None:
    """The clock of the second process runs three times as fast: the first one's counts."""
    told = SimpleNamespace(now=0.0)
    loop.clock = lambda: told.now

    def before(n: int) -> None:
        told.now += 0.5 + own.rank

    model, feed = small.Small(), small.feed_of(before)
    _, trained = train_small(model.losses, model, folder, feed, own, iterations=None, minutes=0.5)
    assert trained.iterations == 60


def test_train_uses_the_leaders_clock_for_minutes(tmp_path: Path) -> None:
    assert small.in_team(2, slow_clocks, tmp_path) == [0, 0]
    state = states.read_state(tmp_path)
    assert state is not None
    assert state["total"] == 60


def no_number_in_one_part(own: Team, folder: Path) -> None:
    model, feed = small.Small(), small.feed_of(ruined=(7,) if own.rank == 1 else ())
    with pytest.raises(UserError, match="loss_left is not finite at iteration 7 "):
        train_small(model.losses, model, folder, feed, own)


def test_train_stops_all_processes_at_a_nonfinite_loss(tmp_path: Path) -> None:
    assert small.in_team(2, no_number_in_one_part, tmp_path) == [0, 0]
    state = states.read_state(tmp_path)
    assert state is not None
    assert state["step"] == 5


def other_folders(own: Team, folder: Path) -> None:
    model, place = small.Small(), folder / str(own.rank)
    if own.rank == 0:
        train_small(model.losses, model, place, team=own)
    with pytest.raises(UserError, match="process 1 does not find the training state"):
        train_small(model.losses, model, place, team=own)


def test_train_refuses_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    small.stopped(tmp_path / "0", 7)
    codes = small.in_team(2, other_folders, tmp_path)
    assert codes[1] == 0
    assert codes[0] != 0  # its partner is gone


# Alone


def test_train_refuses_a_batch_that_cannot_be_split(tmp_path: Path) -> None:
    model = small.Small()
    with pytest.raises(UserError, match=r"batch of 4 images cannot be split into 3 .*3 processes"):
        train_small(model.losses, model, tmp_path, team=Team(0, 3))
    assert not list(tmp_path.iterdir())


def test_team_is_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with team(CPU) as own:
        assert own == Team(0, 1)
        assert own.leads
        assert broadcast_from_leader(3, own, CPU) == 3
        wait_for_all(own)


def test_team_refuses_missing_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in distributed.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"), team(CPU):
        pass


@pytest.mark.parametrize(
    ("device", "gpus", "own", "backend"),
    [
        ("cuda", 2, "cuda:1", "nccl"),
        ("cuda", 8, "cuda:1", "nccl"),
        ("cuda", 1, "cuda:0", "gloo"),  # NCCL refuses two processes on one GPU
        ("cuda:0", 8, "cuda:0", "gloo"),
        ("cpu", 0, "cpu", "gloo"),
    ],
)
def test_second_of_two_processes_takes_a_gpu_of_its_own_or_shares_it_over_gloo(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, own: str, backend: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    given = torch.device(device)
    assert distributed.device_of_process(given) == torch.device(own)
    assert distributed.backend_for(given) == backend


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_backend_for_one_process_on_each_machine_is_nccl(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for local in ("1", None):
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if local:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert distributed.backend_for(torch.device(device)) == "nccl"
