"""What keys say reaches what acts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mini_fsod import checkpoint
from mini_fsod.config import Config, resolve
from mini_fsod.labels import LabelMap
from mini_fsod.runs import stages
from mini_fsod.runs.online import _teaching
from mini_fsod.runs.run import recipe_of
from runs import small

# none of them a default
TRAINING = {
    "iterations": 7,
    "batch": 3,
    "rate": 0.5,
    "warm_up": 5,
    "decay": (0.25, 0.5),
    "momentum": 0.75,
    "weight_decay": 0.125,
    "clip": 2.5,
    "ema": 0.625,
    "accumulate": 3,
    "save_seconds": 9.0,
}


@pytest.mark.parametrize("stage", ["base", "transfer", "online", "tune"])
def test_how_a_stage_trains(stage: str) -> None:
    def text(value: Any) -> str:
        return str([*value]) if isinstance(value, tuple) else str(value)

    usual = resolve("demo")
    config = resolve("demo", [f"{stage}.{key}={text(value)}" for key, value in TRAINING.items()])
    found = asdict(recipe_of(getattr(config, stage), bf16=True))
    assert found == {"minutes": None, "bf16": True, **TRAINING}
    before = asdict(recipe_of(getattr(usual, stage), bf16=False))
    assert all(before[key] != value for key, value in TRAINING.items())


TEACHING = {
    "online.delta": ("delta", 0.9),
    "online.ignore_above": ("ignore_above", 0.25),
    "detector.nms": ("nms_iou", 0.375),
    "online.mingle.rpn": ("join_proposals", False),
    "online.mingle.rcnn": ("join_instances", False),
    "online.mingle.nms": ("by_class", False),
    "online.iou_branch": ("use_iou", False),
    "online.mined_weight": ("weight", 2.0),
    "online.mined_boxes": ("box_losses", "none"),
    "online.mingle.keep_pool": ("keep_pool", True),
    "mine.drop_on_base": ("off_base", True),
    "mine.drop_nested": ("drop_nested", True),
}


@pytest.mark.parametrize("key", TEACHING)
def test_how_a_teacher_teaches(key: str) -> None:
    def teaching(*sets: str) -> dict[str, Any]:
        material = SimpleNamespace(labels=LabelMap(("a",), ("b",)))
        run: Any = SimpleNamespace(config=resolve("voc-split1-1shot", sets), material=material)
        return asdict(_teaching(run, truth_known=True))

    name, value = TEACHING[key]
    text = "agnostic" if key.endswith("mingle.nms") else str(value).lower()
    before, after = teaching(), teaching(f"{key}={text}")
    assert before["truth_known"]
    assert {k: v for k, v in after.items() if v != before[k]} == {name: value}


def config(data: Path, boxes: str) -> Config:
    (data.parent / "small.yaml").touch()
    changes = {"transfer__boxes": boxes, "transfer__rate": 0.01, "base__iterations": 2}
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **changes))


@pytest.mark.parametrize("cached", [True, False])
def test_box_rows_of_new_classes(tmp_path: Path, cached: bool) -> None:
    data = small.write_data(tmp_path / "data")
    away = {}
    for boxes in ("new", "mean", "fixed"):
        own = config(data, boxes)
        own = own.model_copy(
            update={"transfer": own.transfer.model_copy(update={"cached": cached})}
        )
        stages.run(own, tmp_path / boxes, last="transfer")
        base, tfa = (
            checkpoint.load(tmp_path / boxes / stage / "checkpoint.safetensors", None).detector
            for stage in ("base", "transfer")
        )
        known, rows = (of.predictor.boxes.weight.detach() for of in (base, tfa))
        mean = known.view(-1, 4, known.shape[1]).mean(0)
        away[boxes] = float((rows[-4:] - mean).norm() / mean.norm())
    assert away["fixed"] < 3e-4  # weight decay alone
    assert 1e-3 < away["mean"] < 0.5
    assert away["new"] > 0.9
