"""One run: what its stages share, and how a stage ends."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from mini_fsod import checkpoint
from mini_fsod.config import Config
from mini_fsod.detector.model import Detector
from mini_fsod.files import write_json
from mini_fsod.keys import Training
from mini_fsod.labels import LabelMap
from mini_fsod.runs import folder
from mini_fsod.runs.material import Material
from mini_fsod.train import state
from mini_fsod.train.distributed import Team, wait_for_all
from mini_fsod.train.loop import Recipe, Trained


class Run:
    """One run in its folder: what the stages share."""

    def __init__(self, config: Config, out: Path, device: torch.device, team: Team) -> None:
        self.config = config
        self.out = out
        self.device = device
        self.team = team
        self.material = Material(config, device)

    def bf16(self, stage: Training) -> bool:
        return self.device.type == "cuda" if stage.bf16 == "auto" else stage.bf16

    def finish(
        self,
        stage: str,
        detector: Detector,
        labels: LabelMap,
        trained: Trained,
        begun: float,
        bf16: bool,
    ) -> None:
        """A stage's checkpoint and figures; what it would have gone on from is not needed then."""
        if self.team.leads:
            place = self.out / stage
            about: dict[str, str | int | float | None] = {
                "stage": stage,
                "iterations": trained.iterations,
                "seed": self.config.seed,
                "weights": self.config.detector.weights,
            }
            checkpoint.save(place / folder.CHECKPOINT, detector, labels, about)
            trained_until = time.perf_counter()
            figures = self.material.score(detector, labels, bf16)
            now = time.perf_counter()
            figures |= {
                "iterations": trained.iterations,
                "seconds": now - begun,
                "training_seconds": trained.seconds,
                "test_seconds": now - trained_until,
                "images_per_second": trained.images_per_second,
            }
            write_json(place / folder.METRICS, figures)
            (place / state.FILE).unlink(missing_ok=True)
        wait_for_all(self.team)


def recipe_of(own: Training, bf16: bool) -> Recipe:
    return Recipe(
        iterations=own.iterations,
        minutes=own.minutes,
        batch=own.batch,
        rate=own.rate,
        warm_up=own.warm_up,
        decay=own.decay,
        momentum=own.momentum,
        weight_decay=own.weight_decay,
        clip=own.clip,
        ema=own.ema,
        accumulate=own.accumulate,
        bf16=bf16,
        save_seconds=own.save_seconds,
    )
