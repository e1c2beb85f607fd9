"""`mini check` of a configuration, and of boxes in a file of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.photos import bolts, write_boxes, write_photos


@pytest.fixture
def gears(tmp_path: Path) -> Path:
    """Photos with labels of gears, and boxes of bolts in a file of their own."""
    write_photos(tmp_path / "photos")
    gears = [(n, "gear", (9.0, 9.0, 90.0, 90.0)) for n in range(8)]
    write_boxes(tmp_path / "photos" / "gears.json", *gears)
    write_boxes(tmp_path / "five.json", *bolts())
    return tmp_path


def test_check_takes_boxes_of_a_file_of_their_own(gears: Path, mini) -> None:
    words = ("check", gears / "photos", "--no-sheet", "--novel")
    code, _, err = mini(*words, "bolt")
    assert code == 2
    assert "--boxes" in err
    code, out, err = mini(*words, "bolt", "--boxes", gears / "five.json")
    assert code == 0, err
    assert "bolt (novel)" in out
    assert '3 of "bolt"' in err
    code, _, err = mini(*words, "Bolt", "--boxes", gears / "five.json")
    assert code == 2
    assert 'they spell it "bolt"' in err
    assert 'data.novel: ["bolt"]' in err


def test_check_takes_a_configuration(gears: Path, mini, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gears)
    words = ("init", "photos", "--boxes", "five.json", "--no-estimate", "-o", "all/photos.yaml")
    assert mini(*words)[0] == 0
    code, out, err = mini("check", "all/photos.yaml", "--no-sheet", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["label_map"] == {
        "classes": ["gear", "bolt"],
        "base": ["gear"],
        "novel": ["bolt"],
    }
    assert any('3 of "bolt"' in note for note in figures["notes"])
    code, _, err = mini("check", "all/photos.yaml", "--novel", "bolt")
    assert (code, "Leave out" in err) == (2, True)
    (gears / "photos" / "photo1.jpg").write_bytes(b"")
    code, out, _ = mini("check", "all/photos.yaml", "--no-sheet", "--json")
    assert code == 2
    assert "photo1.jpg" in str(json.loads(out)["problems"])
