"""A class that the data has never heard of: its boxes lie in a file of their own, with pictures of
their own, and nothing else is known of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.config.load import resolve
from mini_fsod.runs import stages
from runs import small

SHORT = {
    "transfer__data": "known",
    "mine__cut": 0.01,
    "mine__alpha": 0.0,
    "online__iterations": 2,
    "online__batch": 4,
    "online__shots": "true",
    "tune__iterations": 2,
    "tune__batch": 4,
    "tune__data": "known",
}


def without(content: dict[str, Any], labels: tuple[int, ...]) -> dict[str, Any]:
    return content | {
        "annotations": [a for a in content["annotations"] if a["category_id"] not in labels],
        "categories": [c for c in content["categories"] if c["id"] not in labels],
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    data = small.write_data(tmp_path / "photos")
    for part in ("train", "test"):
        path = data / "annotations" / f"{part}.json"
        path.write_text(json.dumps(without(small.json_of(path), (3,))))
    return data


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Pictures of the same names as the data's."""
    content = small.pictures(tmp_path / "parts", 4, seed=7)
    (tmp_path / "parts" / "parts.json").write_text(json.dumps(without(content, (1, 2))))
    return tmp_path / "parts" / "parts.json"


def test_it_is_learnt_and_mined(photos: Path, parts: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").touch()
    settings = resolve(str(tmp_path / "small.yaml"), small.sets(photos, shots__file=parts, **SHORT))
    out = tmp_path / "run"
    results = stages.run(settings, out)
    assert list(results["stages"]) == ["base", "transfer", "mine", "online", "tune"]
    for stage in ("transfer", "online", "tune"):
        figures = results["stages"][stage]
        assert [*figures["per_class"]] == ["red", "green", small.NOVEL]
        assert figures["nAP50"] is None  # nobody has drawn one in the test pictures
        assert figures["bAP50"] is not None
    pool = small.json_of(out / "mine" / "pool.json")
    assert [c["name"] for c in pool["categories"]] == ["red", "green", small.NOVEL]
    mined = {a["category_id"] for a in pool["annotations"]}
    assert mined == {pool["categories"][2]["id"]}
    assert not (out / "mine" / "audit.json").exists()
    assert results["shots"]["k"] == len(small.json_of(parts)["annotations"])
