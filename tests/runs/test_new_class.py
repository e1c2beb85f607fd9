"""A new class that only the file of shots has, with pictures of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import shapes
from helpers.tiny_run import config
from mini_fsod.config.schema import STAGES
from mini_fsod.runs import stages

SHORT = {
    "transfer__data": "known",
    "mine__alpha": 0.0,
    "online__iterations": 2,
    "online__shots": "true",
    "tune__iterations": 2,
    "tune__data": "known",
}


def without(content: dict[str, Any], labels: tuple[int, ...]) -> dict[str, Any]:
    return content | {
        "annotations": [a for a in content["annotations"] if a["category_id"] not in labels],
        "categories": [c for c in content["categories"] if c["id"] not in labels],
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    data = shapes.write_data(tmp_path / "photos")
    for part in ("train", "test"):
        path = data / "annotations" / f"{part}.json"
        path.write_text(json.dumps(without(shapes.json_of(path), (3,))))
    return data


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Pictures of the same names as the data's."""
    content = shapes.pictures(tmp_path / "parts", 4, seed=7)
    (tmp_path / "parts" / "parts.json").write_text(json.dumps(without(content, (1, 2))))
    return tmp_path / "parts" / "parts.json"


def test_run_learns_and_mines_a_class_that_only_the_shots_have(
    photos: Path, parts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    results = stages.run(config(photos, shots__file=parts, **SHORT), out, anyway=True)
    assert list(results["stages"]) == [*STAGES]
    for stage in ("transfer", "online", "tune"):
        figures = results["stages"][stage]
        assert [*figures["per_class"]] == ["red", "green", shapes.NOVEL]
        assert figures["nAP50"] is None  # nobody has drawn one in the test pictures
        assert figures["bAP50"] is not None
    pool = shapes.json_of(out / "mine" / "pool.json")
    assert [c["name"] for c in pool["categories"]] == ["red", "green", shapes.NOVEL]
    mined = {a["category_id"] for a in pool["annotations"]}
    assert mined == {pool["categories"][2]["id"]}
    assert not (out / "mine" / "audit.json").exists()
    assert results["shots"]["k"] == len(shapes.json_of(parts)["annotations"])
