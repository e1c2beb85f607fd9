"""Tiny data for the stage `online`, once for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import shapes


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("online") / "data")


@pytest.fixture(scope="session")
def without_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data without base boxes in picture 1, which has a hidden box, and 3, which has none."""
    root = shapes.write_data(tmp_path_factory.mktemp("online") / "data")

    def drop(content: dict[str, Any]) -> None:
        boxes = content["annotations"]
        content["annotations"] = [
            box for box in boxes if box["image_id"] not in (2, 4) or box["category_id"] == 3
        ]

    shapes.rewrite(root / "annotations" / "train.json", drop)
    return root
