"""Checkpoints beyond any size of a detector: refused before they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from helpers.tiny_detector import LABELS, tiny_detector
from mini_fsod import checkpoint
from mini_fsod.errors import UserError
from mini_fsod.limits import TENSORS, WEIGHTS_BYTES


def test_load_refuses_what_no_detector_has(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, tiny_detector(), LABELS, {"weights": None})
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file({f"n{n}": torch.zeros(0) for n in range(TENSORS + 1)}, path, about)
    with pytest.raises(UserError, match=r"a\.safetensors: .*more than 20,000 tensors"):
        checkpoint.load(path)
    os.truncate(path, WEIGHTS_BYTES + 1)  # sparse
    with pytest.raises(UserError, match=r"a\.safetensors: .*larger than 8,192 MB"):
        checkpoint.load(path)
