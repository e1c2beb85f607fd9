"""The one training loop of every stage.

The host runs ahead of the device and looks at the losses now and then; only then it waits. All that
happens in iteration n is a function of n and of the state, so that a run which was killed goes on
from its last state and ends with the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mini_fsod.errors import UserError
from mini_fsod.train import state as states
from mini_fsod.train.distributed import Team, averaging, mean_of_all, told_by_leader
from mini_fsod.train.ema import Average, warmed_decay
from mini_fsod.train.log import Log
from mini_fsod.train.schedule import fitting_iterations, may_settle, rate_at
from mini_fsod.train.step import Inputs, Losses, Step, make_optimiser

LOOK = {"cuda": 50}  # iterations between looks; elsewhere the host waits anyway
LOOK_ELSEWHERE = 5

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a stage trains. Exactly one of `iterations` and `minutes` is given."""

    iterations: int | None = None
    minutes: float | None = None
    batch: int = 16
    rate: float = 0.02
    warm_up: int = 100
    decay: tuple[float, ...] = (2 / 3, 8 / 9)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    clip: float | None = None
    ema: float | None = None
    accumulate: int = 1
    bf16: bool = False
    save_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Feed:
    """Where batches come from: those of iteration `start` and all later ones, this process's parts.

    `images` names the pictures of an iteration; `identity` changes with all that decides them.
    """

    batches: Callable[[int], Generator[Sequence[Inputs]]]
    images: Callable[[int], Sequence[str]]
    identity: str


@dataclass(frozen=True, slots=True)
class Trained:
    iterations: int
    seconds: float
    images_per_second: float


def train(
    model: Model,
    losses: Losses,
    feed: Feed,
    recipe: Recipe,
    folder: Path,
    title: str,
    device: torch.device,
    team: Team | None = None,
) -> tuple[Model, Trained]:
    """Train `model`, whose losses on a batch's inputs are `losses(*inputs)`; goes on where a state
    lies in `folder`. Returns the averaged model if `recipe.ema` is given, else the model itself.
    """
    team = team or Team()
    optimiser = make_optimiser(model, device, recipe.momentum, recipe.weight_decay)
    average = None if recipe.ema is None else Average(model, device)
    step = Step(
        losses, optimiser, device, recipe.bf16, recipe.clip, average, reduce=averaging(team)
    )
    run = _begin(feed, recipe, folder, model, optimiser, average)
    model.train()
    look = LOOK.get(device.type, LOOK_ELSEWHERE)
    rate = optimiser.param_groups[0]["lr"]
    window = torch.zeros(look, 0, device=device)  # the losses since the last look
    begun = time.perf_counter() - run.seconds
    looked, saved = time.perf_counter(), time.perf_counter()
    last = run.step
    looks = [(run.seconds, run.step)]
    batches = feed.batches(run.step)  # closed at the end, which ends worker processes
    with closing(batches), _Told(folder, title, run, team) as told:
        while run.total is None or run.step < run.total:
            lr = rate_at(run.step, run.total, recipe.rate, recipe.warm_up, recipe.decay)
            rate.fill_(lr)
            if average is not None:
                average.decay.fill_(warmed_decay(run.step, recipe.ema or 0.0))
            values = step(next(batches))
            if window.shape[1] == 0:
                window = torch.full((look, len(values)), torch.nan, device=device)
            window[run.step % look].copy_(values)
            run.step += 1
            ends = run.step == run.total
            if run.step % look and not ends:
                continue

            seen = _seen(window, last, run.step, team)  # waits for the device
            _refuse_nonfinite(seen, step.names, last, feed)
            now = time.perf_counter()
            run.seconds = now - begun
            speed = (run.step - last) / (now - looked)
            looks.append((run.seconds, run.step))
            if run.total is None and may_settle(recipe.minutes or 0.0, run.seconds):
                fits = fitting_iterations(recipe.minutes or 0.0, looks)
                run.total = told_by_leader(fits, team, device)
                saved = float("-inf")  # the number must survive a kill
            told.look(run, seen.mean(0).tolist(), step.names, lr, speed, recipe.batch)
            looked, last = now, run.step
            if team.leads and (ends or now - saved > recipe.save_seconds):
                told.save(states.gather(model, optimiser, average) | run.to_json())
                looked = saved = time.perf_counter()
    trained = Trained(run.step, run.seconds, recipe.batch * run.step / max(run.seconds, 1e-9))
    return (model if average is None else average.model), trained


@dataclass(slots=True)
class _Run:
    """Where a run is: iterations done, how many there will be, and the seconds it took so far."""

    step: int
    total: int | None
    seconds: float
    identity: str

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "total": self.total,
            "seconds": self.seconds,
            "identity": self.identity,
        }


def _begin(
    feed: Feed,
    recipe: Recipe,
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> _Run:
    folder.mkdir(parents=True, exist_ok=True)
    state = states.read(folder)
    if state is None:
        return _Run(0, recipe.iterations, 0.0, feed.identity)
    if state["identity"] != feed.identity:
        raise UserError(
            f"{folder}: the run cannot go on where it stopped: its data, seed, batch size or image "
            "scales are not the same any more.",
            "Restore them, or start in another folder.",
        )
    states.restore(state, model, optimiser, average)
    total = recipe.iterations or state["total"]
    return _Run(state["step"], total, state["seconds"], feed.identity)


class _Told:
    """Log and states, of the leading process only."""

    def __init__(self, folder: Path, title: str, run: _Run, team: Team) -> None:
        self._log = Log(folder, title, run.step, run.total) if team.leads else None
        self._writer = states.Writer(folder)

    def __enter__(self) -> _Told:
        if self._log is not None:
            self._log.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._log is not None:
            self._log.__exit__(*error)
        self._writer.close()

    def save(self, state: states.State) -> None:
        self._writer.write(state)

    def look(
        self,
        run: _Run,
        losses: Sequence[float],
        names: Sequence[str],
        rate: float,
        speed: float,
        batch: int,
    ) -> None:
        if self._log is None:
            return
        left = None if run.total is None else (run.total - run.step) / max(speed, 1e-9)
        named = dict(zip(names, losses, strict=True))
        self._log.look(run.step, run.total, named, rate, batch * speed, left, run.seconds)


def _seen(window: Tensor, last: int, step: int, team: Team) -> Tensor:
    """(n, L) the losses of iterations `last` to `step` on the host, means over the processes."""
    rows = [n % len(window) for n in range(last, step)]
    seen = window[rows]
    if team.world > 1:
        mean_of_all([seen])
    return seen.cpu()


def _refuse_nonfinite(seen: Tensor, names: Sequence[str], last: int, feed: Feed) -> None:
    wrong = (~seen.isfinite()).nonzero()
    if len(wrong) == 0:
        return
    row, column = wrong[0].tolist()
    pictures = ", ".join(feed.images(last + row))
    raise UserError(
        f"The loss is not a number any more: {names[column]} at iteration {last + row} "
        f"(from 0), with the pictures {pictures}.",
        "Look at these pictures and their boxes, lower the rate, or set a clip; the last good "
        "state is kept, and the same command goes on from it.",
    )
