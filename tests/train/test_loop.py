"""The loop: what it learns, what it tells, and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from helpers import training as small
from helpers.training import ITERATIONS, assert_same, run, stopped, train_small
from mini_fsod.errors import UserError
from mini_fsod.train import log, loop
from mini_fsod.train import state as states
from mini_fsod.train.ema import warmed_decay
from mini_fsod.train.schedule import rate_at
from mini_fsod.train.step import MOMENTUM, Inputs


def naive(
    ema_warm_up: float | None = 0.1, **changes: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights and their average by a plain loop over torch's ordinary parts."""
    section = small.section_of(**changes)
    model, average = small.Small(), small.Small()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(learning, momentum=MOMENTUM, weight_decay=section.weight_decay)
    batches = small.feed_of().batches(0)
    total = section.iterations
    assert total is not None
    for n in range(total):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(n, total, section.learning_rate, section.warm_up, section.decay)
        optimiser.zero_grad()
        for part in next(batches):
            sum(model.losses(part).values()).backward()
        if section.clip is not None:
            nn.utils.clip_grad_norm_(learning, section.clip)
        optimiser.step()
        decay = warmed_decay(n, 0.9, ema_warm_up)
        for own, new in zip(
            average.state_dict().values(), model.state_dict().values(), strict=True
        ):
            if own.is_floating_point():
                own.copy_(decay * own + (1 - decay) * new)
    return model.state_dict(), average.state_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": 0.1},
        {"warm_up": 0, "weight_decay": 0.1},
        {"ema_warm_up": None},
    ],
)
def test_train_equals_a_plain_loop(tmp_path: Path, changes: dict[str, Any]) -> None:
    averaged, trained = run(tmp_path / "with", **changes)
    learned, _ = run(tmp_path / "without", ema=None, **changes)
    weights, average = naive(**changes)
    assert trained.iterations == ITERATIONS
    torch.testing.assert_close(learned.state_dict(), weights)
    average["norm.num_batches_tracked"].zero_()  # counts: nothing to average
    torch.testing.assert_close(averaged.state_dict(), average)
    assert not torch.allclose(learned.last.weight, averaged.last.weight)
    assert torch.equal(learned.frozen.weight, small.Small().frozen.weight)


def test_clip_has_an_effect(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "a", clip=0.1)
    other, _ = run(tmp_path / "b")
    assert not torch.allclose(one.last.weight, other.last.weight)


def test_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    """With losses that are means over equally many: here without norms, which see their part."""

    def learned(accumulate: int) -> nn.Module:
        model = nn.Linear(3, 2, dtype=torch.float64)
        nn.init.constant_(model.weight, 0.1)
        nn.init.constant_(model.bias, 0.2)

        def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
            return {"loss": (model(inputs[0].double()) - inputs[1]).square().mean()}

        folder = tmp_path / str(accumulate)
        return train_small(losses, model, folder, accumulate=accumulate, clip=0.5)[0]

    whole = learned(1)
    torch.testing.assert_close(learned(2).state_dict(), whole.state_dict())
    torch.testing.assert_close(learned(4).state_dict(), whole.state_dict())
    one, two = (log.read_log(tmp_path / str(n) / log.FILE) for n in (1, 2))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two])


@pytest.mark.parametrize("bf16", [False, True])
def test_bf16_switches_autocast(tmp_path: Path, bf16: bool) -> None:
    kinds = set()
    model = small.Small()

    def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
        kinds.add(model.first(inputs[0]).dtype)
        return model.losses(inputs)

    train_small(losses, model, tmp_path, iterations=2, bf16=bf16)
    assert kinds == {torch.bfloat16 if bf16 else torch.float32}
    assert model.first.weight.dtype == torch.float32


def test_train_logs_mean_losses(tmp_path: Path) -> None:
    """A line for every look, and for the end; means of the losses since the last one."""
    every = []
    model = small.Small()

    def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
        found = model.losses(inputs)
        every.append(found["loss_right"].item())
        return found

    train_small(losses, model, tmp_path)
    lines = log.read_log(tmp_path / log.FILE)
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 23]
    spans = [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]
    for line, (a, b) in zip(lines, spans, strict=True):
        assert line.keys() == {
            *("step", "loss", "loss_left", "loss_right", "rate", "images_per_second", "seconds")
        }
        assert line["loss_right"] == pytest.approx(sum(every[a:b]) / (b - a))
        assert line["loss"] == pytest.approx(line["loss_left"] + line["loss_right"])
        assert line["rate"] == rate_at(b - 1, ITERATIONS, 0.05, 4, (2 / 3, 8 / 9))


def test_watch_gets_means_adds_values_and_can_stop(tmp_path: Path) -> None:
    """Gauges are logged, not trained on; values that the monitor returns are logged too."""
    seen: list[tuple[int, float]] = []
    begins: list[int] = []

    def learned(folder: Path, end: int, gauge: float) -> None:
        model = small.Small()

        def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
            told = {"height": gauge * model.first.weight.sum()}
            return model.losses(inputs) | (told if gauge else {})

        class Watch:
            def begin(self, step: int) -> None:
                begins.append(step)

            def look(self, step: int, means: Mapping[str, float]) -> dict[str, float]:
                seen.append((step, means.get("height", 0.0)))
                if step == end:
                    raise UserError("enough")
                return {"twice": 2 * means.get("height", 0.0)}

        train_small(losses, model, folder, watch=Watch())

    with pytest.raises(UserError, match="enough"):
        learned(tmp_path / "watched", 15, 1e3)
    state = states.read_state(tmp_path / "watched")
    assert state is not None
    assert state["step"] == 10  # the last that was found in order
    learned(tmp_path / "watched", 0, 1e3)
    assert [step for step, _ in seen] == [5, 10, 15, 15, 20, 23]
    assert begins == [0, 10]
    assert seen[2] == seen[3]
    for line in log.read_log(tmp_path / "watched" / log.FILE):
        assert line["twice"] == 2 * line["height"] != 0
        assert line["loss"] == pytest.approx(line["loss_left"] + line["loss_right"])
    learned(tmp_path / "plain", 0, 0)
    assert_same(tmp_path / "watched", tmp_path / "plain")


def test_train_refuses_a_nonfinite_gauge(tmp_path: Path) -> None:
    model = small.Small()

    def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
        return model.losses(inputs) | {"height": torch.tensor(torch.nan)}

    with pytest.raises(UserError, match="The metric height is not finite at iteration 0"):
        train_small(losses, model, tmp_path)


# A budget in minutes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], small.Hook]:
    """Time that passes by iterations alone: a hook that lets each of them take so many seconds."""
    told = SimpleNamespace(now=100.0)
    monkeypatch.setattr(loop, "clock", lambda: told.now)

    def ticking(seconds: float, end: int | None = None) -> small.Hook:
        def hook(n: int) -> None:
            if n == end:
                raise small.StopError
            told.now += seconds

        return hook

    return ticking


def test_train_notes_slow_iterations(
    tmp_path: Path, clock: Callable[..., small.Hook], capsys: pytest.CaptureFixture[str]
) -> None:
    """And a budget in minutes is kept."""
    budget = {"iterations": None, "minutes": 1}
    _, trained = run(tmp_path, clock(10), **budget)
    assert "an iteration takes 10 s here. For speed: smaller" in capsys.readouterr().err
    assert trained.seconds == 60
    assert trained.iterations == 6


def test_minutes_become_a_number_of_iterations(
    tmp_path: Path, clock: Callable[..., small.Hook]
) -> None:
    """Half a minute of 0.5 s each."""
    budget = {"iterations": None, "minutes": 0.5}
    _, trained = run(tmp_path, clock(0.5), **budget)
    assert (trained.iterations, trained.seconds) == (60, 30.0)
    assert trained.images_per_second == 60 * small.BATCH / 30
    rates = {line["step"]: line["rate"] for line in log.read_log(tmp_path / log.FILE)}
    assert rates[40] == pytest.approx(0.05)  # two thirds of 60: the rate falls at iteration 40
    assert rates[45] == pytest.approx(0.005)
    assert rates[50] == pytest.approx(0.005)
    assert rates[55] == pytest.approx(0.0005)  # eight ninths: at 53


@pytest.mark.parametrize(("then", "iterations"), [(0.25, 80), (1.0, 50)])
def test_minutes_are_kept_where_the_speed_changes(
    tmp_path: Path, clock: Callable[..., small.Hook], then: float, iterations: int
) -> None:
    """After 40 iterations of 0.5 s. The rate falls as time passes: at 20 s and at 26.7 s."""
    early, late = clock(0.5), clock(then)

    def hook(n: int) -> None:
        (early if n < 40 else late)(n)

    _, trained = run(tmp_path, hook, iterations=None, minutes=0.5)
    assert trained.iterations == pytest.approx(iterations, abs=5)
    assert 30 - 5 * then <= trained.seconds <= 30 + 5 * then  # it looks every five iterations
    lines = log.read_log(tmp_path / log.FILE)
    rates = [line["rate"] for line in lines]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    for line in lines:
        if line["seconds"] < 20 or 22 < line["seconds"] < 25 or line["seconds"] > 29:
            expected = 0.05 * 0.1 ** ((line["seconds"] > 20) + (line["seconds"] > 26.7))
            assert line["rate"] == pytest.approx(expected), line


def test_minutes_hold_start_and_what_follows(
    tmp_path: Path, clock: Callable[..., small.Hook]
) -> None:
    """5 s passed before the training and 10 s are for scoring: 15 s are left of 30."""
    hook = clock(0.5)
    _, trained = run(tmp_path, hook, iterations=None, minutes=0.5, began=95.0, reserve=10.0)
    assert (trained.iterations, trained.seconds) == (30, 15.0)


def test_minutes_train_for_a_quarter_at_least(
    tmp_path: Path, clock: Callable[..., small.Hook], capsys: pytest.CaptureFixture[str]
) -> None:
    budget = {"iterations": None, "minutes": 1, "began": 95.0, "reserve": 200.0}
    _, trained = run(tmp_path, clock(0.5), **budget)
    assert trained.seconds == 15.0
    said = " ".join(capsys.readouterr().err.split())
    assert "the start took 5 s and scoring will take about 3:20 min of the 1:00 min" in said
    assert "data.test_most scores fewer pictures" in said


@pytest.mark.parametrize("iteration", [7, 32, 58])
def test_killed_training_has_the_minutes_that_are_left(
    tmp_path: Path, clock: Callable[..., small.Hook], iteration: int
) -> None:
    """A state is saved every five iterations; the start of both processes counts."""
    budget = {"iterations": None, "minutes": 0.5}
    with pytest.raises(small.StopError):
        run(tmp_path, clock(0.5, iteration), **budget)
    state = states.read_state(tmp_path)
    assert state is not None
    saved = iteration // 5 * 5
    assert (state["step"], state["seconds"], state["start"]) == (saved, saved / 2, 0)
    assert state["total"] == (None if iteration < 30 else 60)
    began = 100 + 0.5 * iteration - 1.0  # it took a second to start again
    _, trained = run(tmp_path, clock(0.5), began=began, **budget)
    assert trained.seconds == pytest.approx(29, abs=1)
    rates = [line["rate"] for line in log.read_log(tmp_path / log.FILE)]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] == pytest.approx(0.0005)


def test_training_whose_minutes_are_over_ends_at_once(
    tmp_path: Path, clock: Callable[..., small.Hook]
) -> None:
    budget = {"iterations": None, "minutes": 0.5}
    with pytest.raises(small.StopError):
        run(tmp_path, clock(0.5, 58), **budget)
    _, trained = run(tmp_path, clock(20.0), **budget)
    assert trained.iterations == 56  # it looks after each slow one


def test_number_of_iterations_is_saved_at_once(
    tmp_path: Path, clock: Callable[..., small.Hook]
) -> None:
    """Not only when the next state is due."""
    budget = {"iterations": None, "minutes": 0.5, "save_seconds": 1000}
    with pytest.raises(small.StopError):
        run(tmp_path, clock(0.5, 31), **budget)
    state = states.read_state(tmp_path)
    assert state is not None
    assert (state["step"], state["total"], state["warm_up"]) == (30, 60, 4)


def test_resume_before_the_number_of_iterations_is_known(
    tmp_path: Path, clock: Callable[..., small.Hook]
) -> None:
    """The seconds already spent count: 5 iterations took 2.5 s, 10 more take 20 s; 7.5 s are left
    for one in every 2 s.
    """
    budget = {"iterations": None, "minutes": 0.5}
    with pytest.raises(small.StopError):
        run(tmp_path, clock(0.5, 7), **budget)
    _, trained = run(tmp_path, clock(2.0), **budget)
    assert (trained.iterations, trained.seconds) == (18, 28.5)


# Losses that are not finite


@pytest.mark.parametrize(
    ("bad", "kept"), [((7,), 5), ((5, 6), 5), ((9,), 5), ((10, 12), 10), ((22,), 20), ((3,), None)]
)
def test_train_refuses_a_nonfinite_loss(
    tmp_path: Path, bad: tuple[int, ...], kept: int | None
) -> None:
    with pytest.raises(UserError) as stop:
        run(tmp_path / "bad", ruined=bad)
    assert f"The loss loss_left is not finite at iteration {bad[0]} (from 0)" in stop.value.what
    assert f"pictures {', '.join(small.images_of(bad[0]))}." in stop.value.what
    assert "the last good state is saved" in stop.value.fix
    state = states.read_state(tmp_path / "bad")
    assert (None if state is None else state["step"]) == kept
    assert all(line["step"] <= (kept or 0) for line in log.read_log(tmp_path / "bad" / log.FILE))
    run(tmp_path / "bad")
    run(tmp_path / "good")
    assert_same(tmp_path / "bad", tmp_path / "good")


def test_nonfinite_loss_names_the_iteration_after_a_resume(tmp_path: Path) -> None:
    stopped(tmp_path, 12)
    with pytest.raises(UserError, match="loss_left is not finite at iteration 13 "):
        run(tmp_path, ruined=(13,))


@pytest.mark.parametrize("bad", [9, 7, 22])
def test_train_refuses_nonfinite_weights(tmp_path: Path, bad: int) -> None:
    """A finite loss without a finite gradient. No state is written with such weights."""

    def learned(folder: Path, root_at: int | None) -> None:
        model = small.Small()
        told = SimpleNamespace(n=0)

        def losses(inputs: Inputs) -> dict[str, torch.Tensor]:
            found = model.losses(inputs)
            if told.n == root_at:
                found["loss_left"] = (0 * found["loss_left"]).sqrt()
            return found

        def before(n: int) -> None:
            told.n = n

        train_small(losses, model, folder, small.feed_of(before))

    where = (
        f"update at iteration {bad} "
        if bad in (9, 22)
        else "loss_left is not finite at iteration 8 "
    )
    with pytest.raises(UserError, match=where):
        learned(tmp_path / "bad", bad)
    state = states.read_state(tmp_path / "bad")
    assert state is not None
    assert state["step"] == bad // 5 * 5
    learned(tmp_path / "bad", None)
    learned(tmp_path / "good", None)
    assert_same(tmp_path / "bad", tmp_path / "good")
