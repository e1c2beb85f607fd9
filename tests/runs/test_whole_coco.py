"""A whole run of the preset `coco`, from COCO's official folders to the last fine-tuning."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers import made_coco
from helpers.tiny_run import SETTINGS

TINY = {
    **{key: value for key, value in SETTINGS.items() if not key.startswith("data.")},
    "data.loading": "stream",
    "detector.weights": "null",
    "discriminator.weights": "none",
    "shots.official": "null",  # these name pictures of the real COCO
    "base.iterations": "4",
    "transfer.iterations": "4",
    "online.iterations": "2",
    "tune.iterations": "2",
}


@pytest.mark.slow
def test_run_coco_from_the_official_folders(tmp_path: Path, mini: Any) -> None:
    home, data, out = (tmp_path / name for name in ("coco2014", "coco", "run"))
    made_coco.write_official(home)
    code, _, err = mini("data", "coco", home, "-o", data)
    assert code == 0, err
    sets = [w for k, v in TINY.items() for w in ("--set", f"{k}={v}")]
    words = ("--shots", "2", "--set", f"data.root={data}", *sets, "--anyway", "-o", out)
    code, _, err = mini("run", "coco", *words)
    assert code == 0, err
    stages = json.loads((out / "results.json").read_text())["stages"]
    assert list(stages) == ["base", "transfer", "scan", "mine", "online", "tune"]
    for name in ("transfer", "online", "tune"):
        figures = stages[name]
        assert figures["metric"] == "coco"
        assert len(figures["per_class"]) == 80
        assert figures["of_images"] == made_coco.TESTED
        assert all(math.isfinite(figures[key]) for key in ("nAP", "nAP50", "nAP75", "bAP"))
