"""`mini review`: what it refuses, and what it says."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers import shapes
from helpers.tiny_run import start_mini
from mini_fsod.data.read import read


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    shapes.pictures(tmp_path / "photos", 2, seed=0)
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "not the folder of a run"),
        (("--novel", "bolt"), "Name it: -o five.json"),
        (("--novel", " , ", "-o", "x.json"), "--novel is empty"),
        (("--novel", "bolt,bolt", "-o", "x.json"), "Named twice"),
        (("--novel", "bolt", "-o", "x.json", "--host", "no such host"), "cannot listen there"),
    ],
)
def test_review_refuses_wrong_use(
    photos: Path, mini: Any, words: tuple[str, ...], message: str
) -> None:
    code, out, err = mini("review", photos, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_review_prints_its_address_and_ends_in_order(photos: Path, end: int) -> None:
    out = photos.parent / "five.json"
    words = ["review", str(photos), "--novel", "bolt", "-o", str(out), "--port", "0"]
    with start_mini(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(end)
        _, err = process.communicate(timeout=60)
    assert address.startswith("http://127.0.0.1:")
    assert len(address.partition("?token=")[2].strip()) >= 32
    assert process.returncode == 0
    assert "0 boxes (bolt 0)" in err
    assert "anyone in this network" not in err
    assert not out.exists()  # nothing was drawn


def test_review_says_that_the_network_can_see_it(photos: Path) -> None:
    words = ["review", str(photos), "--novel", "bolt", "-o", str(photos.parent / "five.json")]
    words += ["--port", "0", "--host", "0.0.0.0"]
    with start_mini(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "anyone in this network" in err


def test_review_reads_a_data_set_too(tmp_path: Path) -> None:
    """The pictures of a data set without the class, its own boxes included."""
    data = shapes.write_data(tmp_path / "data")
    assert "bolt" not in read(data).classes
    words = ["review", str(data), "--novel", "bolt", "-o", str(tmp_path / "x.json"), "--port", "0"]
    with start_mini(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
