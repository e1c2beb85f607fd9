"""`mini checkpoint show` and `mini checkpoint slim`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod import checkpoint
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import BackboneSettings, DetectorSettings
from mini_fsod.files import CHECKPOINT_FILE


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    path = tmp_path / "resnet18.safetensors"
    save_file(resnet18().state_dict(), path)
    return path


@pytest.fixture
def folder(tmp_path: Path, weights: Path) -> Path:
    """A folder with the checkpoint of a detector whose stem and first stage are frozen."""
    backbone = BackboneSettings("resnet18", frozen_stages=2)
    detector = Detector(DetectorSettings(num_classes=3, backbone=backbone, channels=16), weights)
    folder = tmp_path / "stage"
    about: checkpoint.About = {"stage": "base", "weights": str(weights), "seed": None}
    checkpoint.save(folder / CHECKPOINT_FILE, detector, LABELS, about)
    return folder


def test_slim_and_show_say_what_is_left_out(
    tmp_path: Path, folder: Path, weights: Path, mini: Any
) -> None:
    out = tmp_path / "small.safetensors"
    code, _, err = mini("checkpoint", "slim", folder, "-o", out)
    assert code == 0, err
    before = (folder / CHECKPOINT_FILE).stat().st_size / 2**20
    assert f"{out.stat().st_size / 2**20:.1f} MiB instead of {before:.1f} MiB" in err
    assert f"5 frozen tensors left out; loading this file needs {weights}" in err
    code, shown, err = mini("checkpoint", "show", out)
    assert code == 0, err
    rows = {line[:12].strip(): line[12:].strip() for line in shown.splitlines()}
    assert rows["backbone"].startswith("resnet18, ")
    assert rows["novel (1)"] == "bird"
    assert rows["stage"] == "base"
    assert rows["seed"] == "-"
    assert rows["left out"] == f"5 frozen tensors, loaded from {weights}"


def test_slim_keeps_frozen_layers_whose_weights_are_missing(
    tmp_path: Path, folder: Path, weights: Path, mini: Any
) -> None:
    weights.unlink()
    out = tmp_path / "small.safetensors"
    code, _, err = mini("checkpoint", "slim", folder, "-o", out)
    assert code == 0
    assert "the frozen layers stay in the file" in err
    assert weights.name in err
    assert checkpoint.load(out).labels == LABELS


def test_slim_refuses_other_file_names(tmp_path: Path, mini: Any) -> None:
    path, config = tmp_path / "a.safetensors", tmp_path / "photos.yaml"
    checkpoint.save(path, tiny_detector(), LABELS, {"weights": None})
    config.write_text("preset: photos")
    code, _, err = mini("checkpoint", "slim", path, "-o", config)
    assert code == 2
    assert "must end with .safetensors" in err
    assert config.read_text() == "preset: photos"
