"""`data.json`: counts and sizes of boxes by class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import shapes
from helpers.tiny_run import config
from mini_fsod.device import torch_device
from mini_fsod.errors import UserError
from mini_fsod.runs.data import RunData
from mini_fsod.runs.facts import read_data_facts, write_data_facts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


def written(data: Path, with_shots: bool, **changes: object) -> dict[str, object]:
    settings = config(data, **changes)
    write_data_facts(data, RunData(settings, torch_device("cpu")), settings, with_shots)
    facts = read_data_facts(data)
    assert facts is not None
    return facts


def test_data_facts_count_boxes_of_each_class(data: Path) -> None:
    facts = written(data, True, shots__k=2)
    assert (facts["train_images"], facts["test_images"], facts["short"]) == (8, 4, 64)
    blue = facts["classes"][shapes.NOVEL]
    content = json.loads((data / "annotations" / "test.json").read_text())
    assert blue["novel"]
    assert blue["shots"] == 2
    assert blue["test"] == sum(box["category_id"] == 3 for box in content["annotations"])
    assert 10 < blue["shot_side"] < 60
    assert not facts["classes"]["red"]["novel"]


def test_data_facts_without_shots_and_without_a_test_set(data: Path) -> None:
    (data / "annotations" / "test.json").unlink()
    facts = written(data, False)
    assert facts["test_images"] is None
    blue = facts["classes"][shapes.NOVEL]
    assert (blue["test"], blue["test_side"], blue["shots"]) == (None, None, None)
    assert blue["train"] > 0


def test_read_data_facts_without_a_file_and_of_a_damaged_one(tmp_path: Path) -> None:
    assert read_data_facts(tmp_path) is None
    (tmp_path / "data.json").write_text('{"classes": []}')
    with pytest.raises(UserError, match="cannot be read"):
        read_data_facts(tmp_path)
