"""`mini runs` and `mini runs prune`, with a stand-in for the store of results."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import mini_fsod.runs


@dataclass(frozen=True)
class FakeKept:
    stage: str
    name: str
    folder: Path
    bytes: int
    finished: bool = True
    busy: bool = False
    used_by: tuple[str, ...] = ()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four results: shared by two runs, unfinished, unused, and being computed."""
    folder = tmp_path / "runs"
    kept: list[FakeKept] = []
    for stage, size, state in (
        ("base", 3 << 30, {"used_by": ("first", "second")}),
        ("online", 2 << 20, {"used_by": ("first",), "finished": False}),
        ("mine", 1 << 20, {}),
        ("tune", 5 << 20, {"busy": True, "finished": False}),
    ):
        name = f"{stage}-0123"
        (folder / name).mkdir(parents=True)
        kept.append(FakeKept(stage, name, folder / name, size, **state))  # type: ignore[arg-type]
    old = time.time() - 3 * 24 * 3600 - 60
    os.utime(folder / "mine-0123", (old, old))

    def prune(of: Path, unused: Sequence[FakeKept]) -> None:
        assert of == folder
        for result in unused:
            result.folder.rmdir()
            kept.remove(result)

    store = SimpleNamespace(kept=lambda of: list(kept), prune=prune)
    monkeypatch.setattr(mini_fsod.runs, "store", store, raising=False)
    return folder


def rows(text: str) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in text.splitlines() if line.strip()]


def test_runs_lists_results_and_their_users(runs: Path, mini) -> None:
    code, out, err = mini("runs", runs)
    assert code == 0, err
    header, base, online, mine, tune, *of_runs = rows(out)
    assert header == ["result", "size", "changed", "used by"]
    assert [base[0], base[1], base[3]] == ["base-0123", "3.0 GiB", "first, second"]
    assert online[3] == "first (unfinished)"
    assert mine[1:] == ["1.0 MiB", "3 days ago", "-"]
    assert tune[3] == "- (running)"
    assert of_runs == [
        ["run", "size", "shared", "stages"],
        ["first", "3.0 GiB", "3.0 GiB", "base, online"],
        ["second", "3.0 GiB", "3.0 GiB", "base"],
    ]
    assert f"1 result, 1.0 MiB not used by any run: mini runs prune {runs}" in err


def test_runs_prints_json(runs: Path, mini) -> None:
    code, out, _ = mini("runs", runs, "--json")
    assert code == 0
    assert json.loads(out)[1] == {
        "stage": "online",
        "name": "online-0123",
        "folder": str(runs / "online-0123"),
        "bytes": 2 << 20,
        "finished": False,
        "busy": False,
        "used_by": ["first"],
    }


def test_runs_lists_the_folder_runs_by_default(
    runs: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs.parent)
    assert "base-0123" in mini("runs")[1]


@pytest.mark.parametrize("words", [["runs", "nowhere"], ["runs", "prune", "nowhere", "--yes"]])
def test_runs_refuses_a_missing_folder(mini, words: list[str]) -> None:
    code, out, err = mini(*words)
    assert (code, out) == (2, "")
    assert "nowhere: no such folder" in err
    assert "What to do:" in err


def test_prune_only_lists_without_a_terminal(
    runs: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = mini("runs", "prune", runs)
    assert code == 0
    assert [row[0] for row in rows(out)] == ["result", "mine-0123"]
    assert "1 result, 1.0 MiB would be deleted; add --yes to delete" in err
    assert (runs / "mine-0123").exists()


def test_prune_with_yes_deletes_unused_results_only(runs: Path, mini) -> None:
    code, out, err = mini("runs", "prune", runs, "--yes")
    assert code == 0
    assert [row[0] for row in rows(out)] == ["result", "mine-0123"]
    assert "deleted: 1 result, 1.0 MiB" in err
    assert sorted(p.name for p in runs.iterdir()) == ["base-0123", "online-0123", "tune-0123"]
    assert "every result is used by a run" in mini("runs", "prune", runs, "--yes")[2]


@pytest.mark.parametrize(("answer", "is_deleted"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_prune_asks_on_a_terminal(
    runs: Path, mini, monkeypatch: pytest.MonkeyPatch, answer: str, is_deleted: bool
) -> None:
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", stdin)
    code, _, err = mini("runs", "prune", runs)
    assert code == 0
    assert "Delete 1 result, 1.0 MiB?" in err
    assert (runs / "mine-0123").exists() != is_deleted
    assert ("nothing was deleted" in err) != is_deleted
