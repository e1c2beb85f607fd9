"""results.json: the versions and the commit in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.runs import results


def test_commit_is_of_this_checkout_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = results.commit()
    assert found is None or len(found.rstrip("+")) == 10
    elsewhere = tmp_path / "site" / "mini_fsod" / "runs" / "results.py"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    monkeypatch.setattr(results, "__file__", str(elsewhere))
    assert results.commit() is None


def test_versions_name_what_figures_depend_on() -> None:
    assert set(results.versions()) == {"mini", "python", "torch", "torchvision", "numpy"}


def test_say_figures_tells_of_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"nAP50": None, "bAP50": 61.25, "seconds": 4.0, "images": 500, "of_images": 4952}
    results.say_figures("base", figures)
    results.say_figures("base", figures | {"images": 4952})
    assert capsys.readouterr().err == (
        "base: bAP50 61.2 on 500 of 4,952 images in 4 s\nbase: bAP50 61.2 in 4 s\n"
    )


def test_say_figures_without_a_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    results.say_figures("transfer", {"seconds": 4.0})
    results.say_figures("base", {"seconds": 0.1, "checkpoint": "given.safetensors"})
    assert capsys.readouterr().err == (
        "transfer: done in 4 s, not scored\nbase: taken from given.safetensors, not scored\n"
    )
