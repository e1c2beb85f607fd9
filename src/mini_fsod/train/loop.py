"""The one training loop of every stage.

The host runs ahead of the device and looks at the losses now and then; only then it waits. All that
happens in iteration n is a function of n and of the state, so that a run which was killed goes on
from its last state and ends with the same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from mini_fsod import console
from mini_fsod.errors import UserError
from mini_fsod.train import state as states
from mini_fsod.train.distributed import (
    Team,
    mean_of_all,
    refuse_different_starts,
    refuse_unequal_parts,
    told_by_leader,
)
from mini_fsod.train.ema import Average, warmed_decay
from mini_fsod.train.log import Log
from mini_fsod.train.nonfinite import refuse_nonfinite
from mini_fsod.train.schedule import fitting_iterations, may_settle, rate_at
from mini_fsod.train.step import Inputs, Losses, Step, make_optimiser

LOOK = {"cuda": 50}  # iterations between looks; elsewhere the host waits anyway
LOOK_ELSEWHERE = 5
SLOW = 5  # seconds an iteration
SMALLER = "Smaller is faster: views.short and long, batch, detector.backbone=resnet18; or a GPU."

Model = TypeVar("Model", bound=nn.Module)


class Watch(Protocol):
    """Looks on, in all processes alike."""

    def begin(self, step: int) -> None:
        """Called first: so many iterations are done, by a run that was killed."""

    def look(self, step: int, means: Mapping[str, float]) -> Mapping[str, float]:
        """So many iterations are done; the mean of each loss and gauge since the look before. What
        it returns is logged too, and it may raise.
        """


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
    ema_growth: float | None = 0.1
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
    average: Average[Model] | None = None,
    watch: Watch | None = None,
) -> tuple[Model, Trained]:
    """Train `model`, whose losses on a batch's inputs are `losses(inputs)`; goes on where a state
    lies in `folder`. Returns the averaged model if `recipe.ema` is given, else the model itself.
    `average` is given where the losses need the averaged model, a teacher.
    """
    team = team or Team()
    refuse_unequal_parts(recipe.batch, recipe.accumulate, team)
    optimiser = make_optimiser(model, device, recipe.momentum, recipe.weight_decay)
    if recipe.ema is not None and average is None:
        average = Average(model, device)
    reduce = mean_of_all if team.world > 1 else None
    step = Step(losses, optimiser, device, recipe.bf16, recipe.clip, average, reduce)
    run = _begin(feed, recipe, folder, model, optimiser, average)
    refuse_different_starts(run.step, folder, team, device)
    if watch is not None:
        watch.begin(run.step)
    model.train()
    every = LOOK.get(device.type, LOOK_ELSEWHERE)
    recent: list[Tensor] = []  # the losses since the last look
    looked = saved = time.perf_counter()
    begun = looked - run.seconds
    looks = [(run.seconds, run.step)]
    with ExitStack() as until_the_end:
        batches = until_the_end.enter_context(closing(feed.batches(run.step)))
        log = writer = None
        if team.leads:
            writer = until_the_end.enter_context(states.Writer(folder))
            log = until_the_end.enter_context(Log(folder, title, run.step, run.total))
        while run.total is None or run.step < run.total:
            rate = rate_at(run.step, run.total, recipe.rate, recipe.warm_up, recipe.decay)
            optimiser.param_groups[0]["lr"].fill_(rate)
            if average is not None and recipe.ema is not None:
                average.decay.fill_(warmed_decay(run.step, recipe.ema, recipe.ema_growth))
            started = time.perf_counter()
            recent.append(step(next(batches)).clone())
            run.step += 1
            took = time.perf_counter() - started
            if took > SLOW and every == LOOK_ELSEWHERE and team.world == 1 and watch is None:
                every = 1  # people, and a budget of minutes, would wait long for the first look
                console.note(
                    f"{title}: an iteration takes {console.duration(took)} here. {SMALLER}"
                )
            ends = run.step == run.total
            if run.step % every and not ends:
                continue

            seen = torch.stack(recent)  # (n, L)
            recent.clear()
            if reduce is not None:
                reduce([seen])
            seen = seen.cpu()  # waits for the device
            refuse_nonfinite(seen, step.names, model, run.step, feed.images)
            named = dict(zip(step.names, seen.mean(0).tolist(), strict=True))
            if watch is not None:
                named |= watch.look(run.step, named)
            now = time.perf_counter()
            run.seconds = now - begun
            speed = len(seen) / max(now - looked, 1e-9)
            looked = now
            if run.total is None:
                looks.append((run.seconds, run.step))
                run.total = _settled(recipe, looks, team, device)
                if run.total is not None:
                    saved = float("-inf")  # the number must survive a kill
            if log is not None:
                left = None if run.total is None else (run.total - run.step) / speed
                images = recipe.batch * speed
                log.look(run.step, run.total, named, rate, images, left, run.seconds)
            if writer is not None and (ends or now - saved > recipe.save_seconds):
                writer.write(states.gather(model, optimiser, average) | asdict(run))
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


def _begin(
    feed: Feed,
    recipe: Recipe,
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> _Run:
    state = states.read(folder)
    if state is None:
        return _Run(0, recipe.iterations, 0.0, feed.identity)
    try:
        if state["identity"] != feed.identity:
            raise ValueError("its data, seed, batch size or image scales are not the same any more")
        states.restore(state, model, optimiser, average)
    except ValueError as error:
        raise UserError(
            f"{folder}: the run cannot go on where it stopped: {error}.",
            "Restore them, or start in another folder.",
        ) from error
    total = recipe.iterations or state["total"]
    return _Run(state["step"], total, state["seconds"], feed.identity)


def _settled(
    recipe: Recipe, looks: Sequence[tuple[float, int]], team: Team, device: torch.device
) -> int | None:
    """How many iterations fit into the minutes, once it can be told; by the leader's clock."""
    minutes = recipe.minutes or 0.0
    fits = fitting_iterations(minutes, looks) if may_settle(minutes, looks[-1][0]) else 0
    return told_by_leader(fits, team, device) or None
