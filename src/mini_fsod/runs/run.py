"""One run: what its stages share, and how a stage trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.schema import Config, Online, Training
from mini_fsod.data.dataset import Ints
from mini_fsod.detector.model import Detector
from mini_fsod.device import fast_bf16
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import Plan, Schedule
from mini_fsod.runs.data import Batches, InputsOf, RunData
from mini_fsod.runs.scoring import scoring_seconds
from mini_fsod.train.distributed import Team, wait_for_all
from mini_fsod.train.ema import Average
from mini_fsod.train.loop import Feed, LossMonitor, train
from mini_fsod.train.step import Inputs, Losses, draw_of, inputs_of


class Run:
    """A configuration on a device, with its data and the folders of its stages."""

    def __init__(
        self,
        config: Config,
        data: RunData,
        device: torch.device,
        team: Team,
        folder: Callable[[str], Path],
        pool: Path,
        extra_pool: Path,
    ) -> None:
        self.config = config
        self.data = data
        self.device = device
        self.team = team
        self.folder = folder  # gives the folder of a finished stage's result
        self.pool = pool  # mined boxes to re-train on: a copy in the run's folder, to be corrected
        self.extra_pool = extra_pool  # those of `mine.extra`
        self.anyway = False  # whether to go on with a teacher that has collapsed
        self.began: float | None = None  # the time by `train.loop.clock` when the stage began
        self.scored_in: float | None = None  # seconds that the last scoring took

    def bf16(self, section: Training) -> bool:
        return fast_bf16(self.device) if section.bf16 == "auto" else section.bf16

    def schedule(self, sizes: Ints, section: Training, images: Ints | None = None) -> Schedule:
        """The batches of a stage that trains the whole detector, for pictures of sizes (I, 2).

        `images` are the indices of one epoch; None: each image once.
        """
        views = self.config.views
        zoom = None if views.zoom is None else (views.zoom[0], views.zoom[1])
        return Schedule(
            sizes,
            section.batch,
            views.short,
            views.long,
            self.config.seed,
            images,
            flip=views.flip,
            zoom=zoom,
        )

    def train(
        self,
        stage: str,
        folder: Path,
        detector: Detector,
        labels: LabelMap,
        losses: Losses,
        feed: Feed,
        section: Training,
        weights: str | float | None,
        average: Average[Detector] | None = None,
        watch: LossMonitor | None = None,
    ) -> dict[str, Any]:
        """Train a detector and save its checkpoint into `folder`; returns the stage's figures.

        Resumes from the training state in `folder`. `weights` is what the backbone started from;
        `average` is a teacher that the losses use.
        """
        online = section if isinstance(section, Online) else None  # the one stage with an EMA
        if self.team.leads:
            console.note(f"{stage}: batch {section.batch}, learning rate {section.learning_rate:g}")
        bf16 = self.bf16(section)
        reserve = 0.0
        if section.budget_minutes and self.team.leads:  # rank 0's clock counts, and it scores
            reserve = self.scored_in or scoring_seconds(
                self.config, self.data, detector, labels, bf16
            )
        trained_detector, trained = train(
            detector,
            losses,
            feed,
            section,
            bf16,
            folder,
            stage,
            self.device,
            self.team,
            average,
            watch,
            ema=online.ema if online else None,
            ema_warm_up=online.ema_warm_up if online else None,
            began=self.began,
            reserve=reserve,
        )
        if self.team.leads:
            about: checkpoint.About = {
                "stage": stage,
                "iterations": trained.iterations,
                "seed": self.config.seed,
                "weights": weights,
            }
            checkpoint.save(folder / CHECKPOINT_FILE, trained_detector, labels, about)
        wait_for_all(self.team)
        return {
            "iterations": trained.iterations,
            "training_seconds": trained.seconds,
            "images_per_second": trained.images_per_second,
        }


def inputs_from(batches: Batches, device: torch.device) -> InputsOf:
    """A function from plans to the inputs of `train.step.losses_of`."""

    def inputs(plans: Iterable[Plan]) -> Iterator[Inputs]:
        for batch in batches(plans):
            yield inputs_of(batch, draw_of(batch.plan, device))

    return inputs
