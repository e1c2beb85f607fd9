from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import Tensor

from helpers import shapes
from helpers.few_shot import changed_parameters, make_run, save_detector
from mini_fsod import checkpoint
from mini_fsod.data.dataset import Dataset
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.tfa import fine_tune
from mini_fsod.tfa.tune import tune
from mini_fsod.train import log

PREDICTORS = {
    *("predictor.classifier.weight", "predictor.classifier.bias"),
    *("predictor.boxes.weight", "predictor.boxes.bias"),
    *("iou_branch.predict.weight", "iou_branch.predict.bias"),
}
HEAD = PREDICTORS | {
    f"{head}.layers.{n}.{kind}"
    for head in ("box_head", "iou_branch.head")
    for n in (0, 1)
    for kind in ("weight", "bias")
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("shapes") / "data")


def tuned(
    data: Path, folder: Path, **changes: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Weights before and after, and the stage's figures."""
    run = make_run(data, folder, **changes)
    save_detector(run, "online")
    (folder / "tune").mkdir()
    figures = tune(run, folder / "tune")
    before, after = (load_file(folder / s / CHECKPOINT_FILE) for s in ("online", "tune"))
    return before, after, figures


@pytest.mark.parametrize(
    ("part", "iou_branch", "trained"),
    [
        ("predictors", True, PREDICTORS),
        ("head", True, HEAD),
        ("predictors", False, {name for name in PREDICTORS if not name.startswith("iou")}),
        ("head", False, {name for name in HEAD if not name.startswith("iou")}),
    ],
)
def test_tune_trains_exactly_its_part(
    data: Path, tmp_path: Path, part: str, iou_branch: bool, trained: set[str]
) -> None:
    before, after, figures = tuned(data, tmp_path, tune__part=part, online__iou_branch=iou_branch)
    assert changed_parameters(before, after) == trained
    assert figures["iterations"] == 12
    header = checkpoint.read_header(tmp_path / "tune" / CHECKPOINT_FILE)
    assert header.about["stage"] == "tune"
    assert header.settings.classifier == "linear"
    assert ("loss_iou" in log.read_log(tmp_path / "tune" / log.FILE)[0]) is iou_branch


@pytest.mark.parametrize("part", ["predictors", "head"])
def test_tune_notes_when_features_are_not_cached(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    tuned(data, tmp_path, tune__part=part)
    noted = "tune: features are not cached (more than the predictors is trained)"
    assert (noted in capsys.readouterr().err) is (part == "head")


def test_tune_gives_the_same_weights_without_cached_features(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cached").mkdir()
    (tmp_path / "plain").mkdir()
    _, cached, _ = tuned(data, tmp_path / "cached")
    monkeypatch.setattr(fine_tune, "why_not_cached", lambda *_: "asked for")
    _, plain, _ = tuned(data, tmp_path / "plain")
    assert cached.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_allclose(cached[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_tune_on_novel_shots_drops_base_boxes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And images without novel boxes."""
    used: list[Dataset] = []
    original = fine_tune.fine_tune

    def spy(run: Any, stage: str, folder: Path, detector: Any, shots: Dataset, *rest: Any) -> Any:
        used.append(shots)
        return original(run, stage, folder, detector, shots, *rest)

    monkeypatch.setattr("mini_fsod.tfa.tune.fine_tune", spy)
    for kind in ("balanced", "novel", "known"):
        (tmp_path / kind).mkdir()
        tuned(data, tmp_path / kind, tune__data=kind, tune__iterations=1)
    balanced, novel, known = used
    assert np.bincount(balanced.boxes.label).tolist() == [2, 2, 2]
    assert novel.boxes.label.tolist() == [2, 2]
    assert len(novel) == len(np.unique(novel.boxes.image)) < len(balanced)
    assert known.files == balanced.files
    assert len(known.boxes) > len(balanced.boxes)
