"""One run: what its stages share, and how a stage trains and ends."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from mini_fsod import checkpoint, console
from mini_fsod.config.load import Config
from mini_fsod.config.schema import Training
from mini_fsod.data.dataset import Ints
from mini_fsod.detector.model import Detector
from mini_fsod.files import digest, write_json
from mini_fsod.labels import LabelMap
from mini_fsod.loader.schedule import Schedule
from mini_fsod.runs import folder
from mini_fsod.runs.data import Material
from mini_fsod.train.distributed import Team, wait_for_all
from mini_fsod.train.ema import Average
from mini_fsod.train.loop import Feed, Recipe, Watch, train
from mini_fsod.train.step import Losses


class Run:
    """A configuration on a device, in its folder."""

    def __init__(self, config: Config, out: Path, device: torch.device, team: Team) -> None:
        self.config = config
        self.out = out
        self.device = device
        self.team = team
        self.material = Material(config, device)

    def bf16(self, stage: Training) -> bool:
        return self.device.type == "cuda" if stage.bf16 == "auto" else stage.bf16

    def schedule(self, sizes: Ints, own: Training, images: Ints | None = None) -> Schedule:
        """The batches of a stage that trains the whole detector, pictures of these sizes (I, 2).

        `images` are the indices of an epoch; None: each once.
        """
        views = self.config.views
        zoom = None if views.zoom is None else (views.zoom[0], views.zoom[1])
        return Schedule(
            sizes,
            own.batch,
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
        detector: Detector,
        labels: LabelMap,
        losses: Losses,
        feed: Feed,
        own: Training,
        weights: str | float | None,
        begun: float,
        average: Average[Detector] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Train a stage that began at `begun`; its checkpoint, then its figures.

        `weights` is what the backbone began as, `average` a teacher that the losses ask, `watch` as
        in `train`. What a killed stage would have gone on from is kept until the figures are there.
        """
        place, bf16 = self.out / stage, self.bf16(own)
        prepared = time.perf_counter() - begun
        recipe = recipe_of(own, bf16)
        if self.team.leads:
            console.note(f"{stage}: batches of {recipe.batch}, a rate of {recipe.rate:g}")
        learned, trained = train(
            detector, losses, feed, recipe, place, stage, self.device, self.team, average, watch
        )
        if self.team.leads:
            about: checkpoint.About = {
                "stage": stage,
                "iterations": trained.iterations,
                "seed": self.config.seed,
                "weights": weights,
            }
            checkpoint.save(place / folder.CHECKPOINT, learned, labels, about)
            begun_testing = time.perf_counter()
            figures = self.material.score(learned, labels, bf16)
            testing = time.perf_counter() - begun_testing
            figures |= {
                "iterations": trained.iterations,
                "seconds": prepared + trained.seconds + testing,
                "training_seconds": trained.seconds,
                "test_seconds": testing,
                "images_per_second": trained.images_per_second,
                "checkpoint_sha256": digest(place / folder.CHECKPOINT),
            }
            write_json(place / folder.METRICS, figures)
            (place / folder.PROGRESS).unlink(missing_ok=True)
        wait_for_all(self.team)


def recipe_of(own: Training, bf16: bool) -> Recipe:
    return Recipe(
        iterations=own.iterations,
        minutes=own.minutes,
        batch=own.batch,
        rate=own.learning_rate,
        warm_up=own.warm_up,
        decay=own.decay,
        momentum=own.momentum,
        weight_decay=own.weight_decay,
        clip=own.clip,
        ema=own.ema,
        ema_growth=own.ema_growth,
        accumulate=own.accumulate,
        bf16=bf16,
        save_seconds=own.save_seconds,
    )
