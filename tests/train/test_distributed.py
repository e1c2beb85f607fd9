"""Two processes that share a batch do what one does with all of it. Takes about 12 seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mini_fsod.config.load import resolve
from mini_fsod.data.subsets import arranged
from mini_fsod.detector import build
from mini_fsod.detector.settings import RoISettings, RPNSettings
from mini_fsod.errors import UserError
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs.data import Material, inputs_from
from mini_fsod.train import distributed, log, loop
from mini_fsod.train import state as states
from mini_fsod.train.distributed import Team, mean_of_all, team, told_by_leader, wait_for_all
from mini_fsod.train.loop import Recipe, train
from mini_fsod.train.step import losses_of
from train import small
from train.small import CPU

RECIPE = Recipe(iterations=3, batch=4, rate=0.02, warm_up=2, ema=0.9, clip=5.0, save_seconds=1000)
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
    recipe: Recipe = RECIPE,
    even: bool = False,
    whole: bool = False,
) -> None:
    """Train a detector by a run's own feed, with a look at every iteration.

    `even`: all images have the same number of samples. Otherwise what overlaps a box a little is
    no sample: images with large boxes have few, the one without boxes many. `whole`: the backbone
    learns too.
    """
    loop.LOOK_ELSEWHERE = 1
    sets = [f"data.root={home / 'data'}", "data.novel=bird", f"data.cache={home / 'cache'}"]
    sets += ["views.short=[64]", "views.test=64", "views.long=64"]
    material = Material(resolve("demo", sets), CPU)
    data = arranged(material.data, material.labels)
    batches, sizes = material.batches(data)
    schedule = Schedule(sizes, recipe.batch, (64,), 64, seed=0)
    inputs = inputs_from(batches, CPU)
    feed = material.feed(data, schedule, inputs, team, recipe.accumulate)
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
    train(model, losses_of(model), feed, recipe, folder, "base", CPU, team)


def curve(folder: Path) -> list[dict[str, float]]:
    quantities = ("step", "loss", "rate")
    return [
        {k: v for k, v in line.items() if k.startswith("loss") or k in quantities}
        for line in log.read(folder / log.FILE)
    ]


def assert_alike(one: Path, other: Path) -> None:
    for a, b in zip(curve(one), curve(other), strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    first, second = states.read(one), states.read(other)
    assert first is not None
    assert second is not None
    assert first["step"] == second["step"] == RECIPE.iterations
    for key in ("weights", "momentum", "averaged"):
        torch.testing.assert_close(first[key], second[key], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and with a detector that one process trained on whole batches."""
    folder = tmp_path_factory.mktemp("team")
    write_data(folder / "data")
    learn_alone(folder, "whole")
    return folder


def learn_alone(home: Path, name: str, recipe: Recipe = RECIPE, **how: Any) -> None:
    before = loop.LOOK_ELSEWHERE
    try:
        learn(Team(), home, name, recipe, **how)
    finally:
        loop.LOOK_ELSEWHERE = before


def test_two_processes_do_what_one_does(home: Path) -> None:
    """What each divides its losses by is the number of samples in the whole batch."""
    assert small.in_team(2, learn, home, "two") == [0, 0]
    assert len(curve(home / "whole-0")) == 3
    assert_alike(home / "two-0", home / "whole-0")
    assert not (home / "two-1").exists()  # only the first one writes


@pytest.mark.slow
def test_accumulation_is_the_whole_batch_where_parts_have_as_many_samples(home: Path) -> None:
    learn_alone(home, "even", even=True)
    learn_alone(home, "even parts", replace(RECIPE, accumulate=2), even=True)
    assert_alike(home / "even parts-0", home / "even-0")
    # and is not, where each part has its own number: so the test above can fail
    learn_alone(home, "parts", replace(RECIPE, accumulate=2))
    ours, theirs = (curve(home / f"{name}-0")[0] for name in ("parts", "whole"))
    for name in ("loss_rpn_box_reg", "loss_classifier", "loss_box_reg"):
        assert ours[name] != pytest.approx(theirs[name], rel=0.01)


@pytest.mark.slow
def test_two_processes_that_accumulate(home: Path) -> None:
    learn_alone(home, "fourths", replace(RECIPE, accumulate=4), even=True)
    assert small.in_team(2, learn, home, "four", replace(RECIPE, accumulate=2), True) == [0, 0]
    assert_alike(home / "four-0", home / "fourths-0")


@pytest.mark.slow
def test_a_detector_goes_on_bitwise(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backbone, sampling and NMS too."""
    recipe = replace(RECIPE, iterations=4, save_seconds=0)
    learn_alone(home, "unbroken", recipe, whole=True)
    states_seen: list[states.State] = []

    def stop_at_the_second(*of: Any) -> states.State:
        if states_seen:
            raise small.StopError
        states_seen.append(gather(*of))
        return states_seen[0]

    gather = states.gather
    with monkeypatch.context() as patch:
        patch.setattr(states, "gather", stop_at_the_second)
        with pytest.raises(small.StopError):
            learn_alone(home, "broken", recipe, whole=True)
    state = states.read(home / "broken-0")
    assert state is not None
    assert state["step"] == 1
    learn_alone(home, "broken", recipe, whole=True)
    small.assert_same(home / "broken-0", home / "unbroken-0")


# The processes' talk


def talk(own: Team, folder: Path) -> None:
    values = [torch.tensor([1.0, 2.0]) * (1 + own.rank), torch.full((2, 2), float(own.rank))]
    mean_of_all(values)
    torch.testing.assert_close(values, [torch.tensor([1.5, 3.0]), torch.full((2, 2), 0.5)])
    assert told_by_leader(7 + own.rank, own, CPU) == 7
    wait_for_all(own)


def test_what_processes_tell_each_other(tmp_path: Path) -> None:
    assert small.in_team(2, talk, tmp_path) == [0, 0]


def slow_clocks(own: Team, folder: Path) -> None:
    """The clock of the second process runs three times as fast: the first one's counts."""
    told = SimpleNamespace(now=0.0)
    loop.time = SimpleNamespace(perf_counter=lambda: told.now)

    def before(n: int) -> None:
        told.now += 0.5 + own.rank

    model, feed = small.Small(), small.feed_of(before)
    recipe = small.recipe_of(iterations=None, minutes=0.5)
    _, trained = train(model, model.losses, feed, recipe, folder, "t", CPU, own)
    assert trained.iterations == 60


def test_one_clock_decides_about_minutes(tmp_path: Path) -> None:
    assert small.in_team(2, slow_clocks, tmp_path) == [0, 0]
    state = states.read(tmp_path)
    assert state is not None
    assert state["total"] == 60


def no_number_in_one_part(own: Team, folder: Path) -> None:
    model, feed = small.Small(), small.feed_of(ruined=(7,) if own.rank == 1 else ())
    with pytest.raises(UserError, match="loss_left at iteration 7 "):
        train(model, model.losses, feed, small.recipe_of(), folder, "t", CPU, own)


def test_no_number_in_one_process_stops_all(tmp_path: Path) -> None:
    assert small.in_team(2, no_number_in_one_part, tmp_path) == [0, 0]
    state = states.read(tmp_path)
    assert state is not None
    assert state["step"] == 5


def other_folders(own: Team, folder: Path) -> None:
    model, place = small.Small(), folder / str(own.rank)
    if own.rank == 0:
        train(model, model.losses, small.feed_of(), small.recipe_of(), place, "t", CPU, own)
    with pytest.raises(UserError, match="process 1 does not find the state"):
        train(model, model.losses, small.feed_of(), small.recipe_of(), place, "t", CPU, own)


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    small.stopped(tmp_path / "0", 7)
    codes = small.in_team(2, other_folders, tmp_path)
    assert codes[1] == 0
    assert codes[0] != 0  # its partner is gone


# Alone


def test_a_batch_that_cannot_be_shared(tmp_path: Path) -> None:
    model = small.Small()
    with pytest.raises(UserError, match=r"batch of 4 images cannot be cut into 3 .*3 processes"):
        train(
            model, model.losses, small.feed_of(), small.recipe_of(), tmp_path, "t", CPU, Team(0, 3)
        )
    assert not list(tmp_path.iterdir())


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with team(CPU) as own:
        assert own == Team(0, 1)
        assert own.leads
        assert told_by_leader(3, own, CPU) == 3
        wait_for_all(own)


def test_a_world_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in distributed.TOLD:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"), team(CPU):
        pass


@pytest.mark.parametrize(
    ("device", "own"), [("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")]
)
def test_a_gpu_for_each_process(monkeypatch: pytest.MonkeyPatch, device: str, own: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.own_device(torch.device(device)) == torch.device(own)
