"""The training loop that every stage uses.

The host runs ahead of the device and fetches the losses only every few iterations; only then it
waits. Everything in iteration n depends on n and the training state alone, so an interrupted run
resumes from its last state and ends with bit-equal weights.
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
from mini_fsod.config.schema import Training
from mini_fsod.errors import UserError
from mini_fsod.train.distributed import (
    Team,
    average_over_processes,
    broadcast_from_leader,
    largest_over_processes,
    refuse_different_starts,
    refuse_unequal_parts,
)
from mini_fsod.train.ema import Average, warmed_decay
from mini_fsod.train.log import Log
from mini_fsod.train.nonfinite import refuse_nonfinite
from mini_fsod.train.schedule import can_estimate, iterations_in_budget, rate_at
from mini_fsod.train.state import FILE, StateWriter, read_state, restore, snapshot
from mini_fsod.train.step import Inputs, Losses, Step, make_optimiser
from mini_fsod.train.terminate import Terminated, sigterm_request

LOG_EVERY, LOG_EVERY_ON_CPU = 50, 5  # iterations between log lines; off CUDA the host waits anyway
SLOW_SECONDS = 5  # per iteration
FASTER = "For speed: smaller views.short and long, batch, detector.backbone=resnet18; or a GPU."

Model = TypeVar("Model", bound=nn.Module)


class LossMonitor(Protocol):
    """Watches the losses of a training; called in all processes alike."""

    def begin(self, step: int) -> None:
        """Called once before training, with the number of iterations that are done already."""

    def look(self, step: int, means: Mapping[str, float]) -> Mapping[str, float]:
        """Called for every log line: `step` iterations are done, and `means` are the mean losses
        and gauges since the last line. Returns values to log too; raises to stop the training.
        """


@dataclass(frozen=True, slots=True)
class Feed:
    """Training batches: `batches(n)` yields the parts of iterations n, n + 1, ... of this process.

    `images(n)` names the pictures of iteration n. `identity` changes with everything that decides
    the batches: a run resumes only with the same one.
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
    section: Training,
    bf16: bool,
    folder: Path,
    title: str,
    device: torch.device,
    team: Team | None = None,
    average: Average[Model] | None = None,
    watch: LossMonitor | None = None,
    *,
    ema: float | None = None,
    ema_warm_up: float | None = None,
) -> tuple[Model, Trained]:
    """Train `model` as `section` says; resumes from the training state in `folder`.

    `losses` maps a batch's inputs to the losses of `model`. With an EMA decay `ema`, returns the
    averaged model instead of the trained one. Give `average` where the losses need the averaged
    model, as those with a teacher do.
    """
    team = team or Team()
    refuse_unequal_parts(section.batch, section.accumulate, team)
    optimiser = make_optimiser(model, device, section.weight_decay)
    if ema is not None and average is None:
        average = Average(model, device)
    reduce = average_over_processes if team.world > 1 else None
    step = Step(losses, optimiser, device, bf16, section.clip, average, reduce)
    progress = _resume(feed, section, folder, model, optimiser, average)
    refuse_different_starts(progress.step, folder, team, device)
    if watch is not None:
        watch.begin(progress.step)
    model.train()
    log_every = LOG_EVERY if device.type == "cuda" else LOG_EVERY_ON_CPU
    recent: list[Tensor] = []  # losses since the last log line
    last_log = last_save = time.perf_counter()
    start = last_log - progress.seconds
    pace = [(progress.seconds, progress.step)]
    stops = False
    with ExitStack() as stack:
        sigterm = stack.enter_context(sigterm_request())
        batches = stack.enter_context(closing(feed.batches(progress.step)))
        log = writer = None
        if team.leads:
            writer = stack.enter_context(StateWriter(folder))
            log = stack.enter_context(Log(folder, title, progress.step, progress.total))
        while progress.total is None or progress.step < progress.total:
            rate = rate_at(
                progress.step, progress.total, section.learning_rate, section.warm_up, section.decay
            )
            optimiser.param_groups[0]["lr"].fill_(rate)
            if average is not None and ema is not None:
                average.decay.fill_(warmed_decay(progress.step, ema, ema_warm_up))
            before = time.perf_counter()
            recent.append(step(next(batches)).clone())
            progress.step += 1
            took = time.perf_counter() - before
            slow = took > SLOW_SECONDS and log_every == LOG_EVERY_ON_CPU
            if slow and team.world == 1 and watch is None:
                log_every = 1  # else the first line, and a budget in minutes, would come late
                console.note(f"{title}: an iteration takes {console.duration(took)} here. {FASTER}")
            ends = progress.step == progress.total
            logs = ends or progress.step % log_every == 0
            stops = sigterm.received
            if team.world > 1:  # on CUDA they agree where the host waits for the device anyway
                agrees = logs or device.type != "cuda"
                stops = agrees and largest_over_processes(int(stops), device) > 0
            if not logs and not stops:
                continue

            values = torch.stack(recent)  # (n, L)
            recent.clear()
            if reduce is not None:
                reduce([values])
            values = values.cpu()  # waits for the device
            refuse_nonfinite(values, step.names, model, progress.step, feed.images)
            means = dict(zip(step.names, values.mean(0).tolist(), strict=True))
            if watch is not None:
                means |= watch.look(progress.step, means)
            now = time.perf_counter()
            progress.seconds = now - start
            speed = len(values) / max(now - last_log, 1e-9)
            last_log = now
            if progress.total is None:
                pace.append((progress.seconds, progress.step))
                progress.total = _total_for_budget(section, pace, team, device)
                if progress.total is not None:
                    last_save = float("-inf")  # save now: a resumed run must use the same total
            if log is not None:
                done, total, seconds = progress.step, progress.total, progress.seconds
                left = None if total is None else (total - done) / speed
                log.write(done, total, means, rate, section.batch * speed, left, seconds)
            if writer is not None and (ends or stops or now - last_save > section.save_seconds):
                writer.write(snapshot(model, optimiser, average) | asdict(progress))
                last_log = last_save = time.perf_counter()
            if stops:
                break
    if stops:
        if team.leads:
            console.note(
                f"{title}: SIGTERM; the training state of iteration {progress.step:,} is saved. "
                "The same command resumes."
            )
        raise Terminated
    speed = section.batch * progress.step / max(progress.seconds, 1e-9)
    trained = Trained(progress.step, progress.seconds, speed)
    return (model if average is None else average.model), trained


@dataclass(slots=True)
class _Progress:
    """Iterations done, their final number if known, and the seconds spent so far."""

    step: int
    total: int | None
    seconds: float
    identity: str


def _resume(
    feed: Feed,
    section: Training,
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average[Any] | None,
) -> _Progress:
    """Restores the training state in `folder`, if there is one."""
    state = read_state(folder)
    if state is None:
        return _Progress(0, section.iterations, 0.0, feed.identity)
    try:
        if state["identity"] != feed.identity:
            raise ValueError("its data, seed, batch size or image scales have changed")
        restore(state, model, optimiser, average)
    except ValueError as error:
        raise UserError(
            f"{folder}: the training cannot resume: {error}.",
            f"Delete {folder / FILE} to start it again, or change them back.",
        ) from error
    total = section.iterations or state["total"]
    return _Progress(state["step"], total, state["seconds"], feed.identity)


def _total_for_budget(
    section: Training, pace: Sequence[tuple[float, int]], team: Team, device: torch.device
) -> int | None:
    """How many iterations fit into `minutes`, once that can be estimated; by the leader's clock."""
    minutes = section.budget_minutes
    total = iterations_in_budget(minutes, pace) if can_estimate(minutes, pace[-1][0]) else 0
    return broadcast_from_leader(total, team, device) or None
