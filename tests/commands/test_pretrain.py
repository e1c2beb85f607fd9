"""`mini pretrain`: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_detector import write_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty images."""
    folder = write_photos(tmp_path / "photos")
    for path in sorted(folder.iterdir()):
        for n in range(3):
            path.with_stem(f"{path.stem}{n}").write_bytes(path.read_bytes())
    return folder


def words(photos: Path, out: Path, *more: object) -> list[object]:
    """The words of a short training on a CPU; later options win."""
    usual = ["--epochs", 2, "--batch", 8, "--size", 32, "--no-flip", "--device", "cpu"]
    return ["pretrain", photos, "-o", out, *usual, "--cache", out.parent / "cache", *more]


def test_pretrain_prints_what_it_made(photos: Path, tmp_path: Path, mini: Any) -> None:
    out = tmp_path / "moco.safetensors"
    code, _, err = mini(*words(photos, out))
    assert code == 0, err
    assert "resnet18-narrow, 5 iterations on 20 images" in err
    assert f"{out}: already finished" in mini(*words(photos, out))[2]
    code, _, err = mini(*words(photos, out, "--epochs", 4))
    assert code == 2
    assert "after 5 iterations, not 10" in err


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("moco.safetensors", ("--backbone", "resnet19"), '"resnet19"'),
        ("moco.safetensors", ("--minutes", 1), "length of the training"),
        ("moco.safetensors", ("--epochs", "inf"), "would never end"),
        ("weights.pth", (), "weights.pth"),
    ],
)
def test_pretrain_refuses_wrong_options_before_reading_images(
    photos: Path, tmp_path: Path, mini: Any, name: str, more: tuple[object, ...], message: str
) -> None:
    code, _, err = mini(*words(photos, tmp_path / name, *more))
    assert code == 2
    assert message in err
    assert "What to do:" in err
    assert not (tmp_path / "cache").exists()


def test_pretrain_refuses_too_few_images(photos: Path, tmp_path: Path, mini: Any) -> None:
    for path in sorted(photos.iterdir())[3:]:
        path.unlink()
    code, _, err = mini(*words(photos, tmp_path / "moco.safetensors"))
    assert code == 2
    assert "3 images" in err
    assert not (tmp_path / "cache").exists()
