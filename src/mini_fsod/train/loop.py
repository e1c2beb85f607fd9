"""The training loop that every stage uses.

The host runs ahead of the device and fetches the losses only every few iterations; only then it
waits. Everything in iteration n depends on n and the training state alone, so an interrupted run
resumes from its last state and ends with bit-equal weights. With a limit in minutes n depends on
the clock too: such a run goes on with the time that is left.
"""

from __future__ import annotations

import time
from collections import deque
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
from mini_fsod.train.schedule import Look, TimeLimit, rate_at, seconds_each
from mini_fsod.train.state import FILE, StateWriter, read_state, restore, snapshot
from mini_fsod.train.step import Inputs, Losses, Step, make_optimiser
from mini_fsod.train.terminate import stop_request, stopped_by

clock = time.perf_counter
LEAST_SHARE = 0.25  # of a time limit that is trained, however long start and scoring take
TIMED = ("start", "looked", "share", "warm_up")  # in the state of a training with a time limit
PARTS = 10**9  # of a share, in a message between processes
LOOKS = 400  # latest log lines that speed is learnt from
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
    began: float | None = None,
    reserve: float = 0.0,
) -> tuple[Model, Trained]:
    """Train `model` as `section` says; resumes from the training state in `folder`.

    `losses` maps a batch's inputs to the losses of `model`. With an EMA decay `ema`, returns the
    averaged model instead of the trained one. Give `average` where the losses need the averaged
    model, as those with a teacher do. A limit in minutes holds from `began`, by `clock`, on (None:
    from here on), and leaves `reserve` seconds for what follows.
    """
    began = clock() if began is None else began
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
    last_log = last_save = clock()
    progress.start += last_log - began
    start = last_log - progress.seconds
    looks: deque[Look] = deque([(progress.seconds, progress.step)], LOOKS)
    limit = _time_limit(section, progress, reserve, title)
    stops = 0  # the signal that ends the training
    with ExitStack() as stack:
        signals = stack.enter_context(stop_request())
        batches = stack.enter_context(closing(feed.batches(progress.step)))
        log = writer = None
        if team.leads:
            writer = stack.enter_context(StateWriter(folder))
            log = stack.enter_context(Log(folder, title, progress.step, progress.total))
        while progress.total is None or progress.step < progress.total:
            settings = section.learning_rate, section.warm_up, section.decay
            if limit is None:
                rate = rate_at(progress.step, progress.total, *settings)
            else:
                rate = limit.rate_at(progress.step, *settings)
            optimiser.param_groups[0]["lr"].fill_(rate)
            if average is not None and ema is not None:
                average.decay.fill_(warmed_decay(progress.step, ema, ema_warm_up))
            before = clock()
            recent.append(step(next(batches)).clone())
            progress.step += 1
            took = clock() - before
            slow = took > SLOW_SECONDS and log_every == LOG_EVERY_ON_CPU
            if slow and team.world == 1 and watch is None:
                log_every = 1  # else the first line, and a budget in minutes, would come late
                console.note(f"{title}: an iteration takes {console.duration(took)} here. {FASTER}")
            ends = progress.step == progress.total
            logs = ends or progress.step % log_every == 0
            stops = signals.received
            if team.world > 1:  # on CUDA they agree where the host waits for the device anyway
                agrees = logs or device.type != "cuda"
                stops = largest_over_processes(stops, device) if agrees else 0
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
            now = clock()
            progress.seconds = now - start
            speed = len(values) / max(now - last_log, 1e-9)
            last_log = now
            looks.append((progress.seconds, progress.step))
            if limit is not None:
                if team.leads:  # its clock counts
                    limit.look(looks, section.warm_up)
                _agree(limit, team, device)
                if progress.total is None and limit.total is not None:
                    last_save = float("-inf")  # save now: the warm-up is settled
                progress.take(limit)
                ends = progress.step == progress.total
            if log is not None:
                done, total, seconds = progress.step, progress.total, progress.seconds
                left = None if total is None else (total - done) * seconds_each(looks)
                if limit is not None:
                    left = max(limit.seconds - seconds, 0.0)
                log.write(done, total, means, rate, section.batch * speed, left, seconds)
            if writer is not None and (ends or stops or now - last_save > section.save_seconds):
                writer.write(snapshot(model, optimiser, average) | asdict(progress))
                last_log = last_save = clock()
            if stops:
                break
    if stops:
        name, error = stopped_by(stops)
        if team.leads:
            console.note(
                f"{title}: {name}; the training state of iteration {progress.step:,} is saved. "
                "The same command resumes."
            )
        raise error
    speed = section.batch * progress.step / max(progress.seconds, 1e-9)
    trained = Trained(progress.step, progress.seconds, speed)
    return (model if average is None else average.model), trained


@dataclass(slots=True)
class _Progress:
    """Iterations done, their final number if known, and the seconds of training so far."""

    step: int
    total: int | None
    seconds: float
    identity: str
    start: float = 0.0  # seconds before the first iteration of each process; of `TimeLimit`:
    looked: int = 0
    share: float = 0.0
    warm_up: int | None = None

    def take(self, limit: TimeLimit) -> None:
        self.total, self.looked = limit.total, limit.step
        self.share, self.warm_up = limit.share, limit.warm_up


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
    done = {name: state[name] for name in TIMED if name in state}
    return _Progress(state["step"], total, state["seconds"], feed.identity, **done)


def _time_limit(
    section: Training, progress: _Progress, reserve: float, title: str
) -> TimeLimit | None:
    """The schedule of a training in minutes, as far as it is known; None for one in iterations."""
    limit = 60 * section.budget_minutes
    if not limit:
        return None
    seconds = limit - progress.start - reserve
    if seconds < LEAST_SHARE * limit:
        seconds = LEAST_SHARE * limit
        console.note(
            f"{title}: the start took {console.duration(progress.start)} and scoring will take "
            f"about {console.duration(reserve)} of the {console.duration(limit)} of "
            f"{title}.minutes. It trains for {console.duration(seconds)} nevertheless, so it will "
            "take longer; data.test_most scores fewer pictures"
        )
    return TimeLimit(seconds, progress.total, progress.looked, progress.share, progress.warm_up)


def _agree(limit: TimeLimit, team: Team, device: torch.device) -> None:
    """Take over the leader's fit."""
    if team.world == 1:
        return
    values = limit.total or 0, limit.step, int(PARTS * limit.share), limit.warm_up or 0
    total, step, share, warm_up = (broadcast_from_leader(v, team, device) for v in values)
    if total:  # it is known
        limit.total, limit.warm_up = total, warm_up
        limit.step, limit.share = step, share / PARTS
