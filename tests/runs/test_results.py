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
