"""How the rows of new classes come out of TFA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod import checkpoint
from mini_fsod.config.load import Config, resolve
from mini_fsod.runs import stages
from runs import small


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
