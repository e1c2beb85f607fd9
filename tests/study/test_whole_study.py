"""A study on coloured shapes, with the real stages, in two processes; one of them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from helpers import shapes
from helpers.tiny_run import SETTINGS, SHORT, start_mini
from mini_fsod.cli import FAILED

STUDY = """
name: shapes
config: shapes.yaml
rows:
  TFA: []
  mined: {set: [mine.threshold=0.0001], to: online}
  diverging: [base.rate=1.0e+30]
shots: [1, 2]
"""
CELLS = {
    f"{row}-{k}shot-seed0": row != "diverging"  # whether it is finished
    for k in (1, 2)
    for row in ("tfa", "mined", "diverging")
}


def wait_for(what: Callable[[], bool]) -> None:
    end = monotonic() + 120
    while not what():
        assert monotonic() < end
        sleep(0.01)


def study_words(folder: Path, out: Path) -> list[str]:
    keys = SETTINGS | {
        **{key.replace("__", "."): value for key, value in SHORT.items()},
        "base.iterations": 6,
        "transfer.iterations": 25,
        "mine.min_score": 0.0001,
        "data.root": folder / "data",
        "data.cache": folder / "cache",
    }
    del keys["shots.k"]  # cells differ in it
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    return ["study", str(folder / "study.yaml"), "-o", str(out), "--anyway", *sets]


def without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [without_times(part) for part in value]
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "second" not in k}
    return value


@pytest.mark.slow
def test_study_ends_with_the_same_results_after_a_worker_is_killed(
    tmp_path: Path, mini: Callable[..., tuple[int, str, str]]
) -> None:
    shapes.write_data(tmp_path / "data")
    (tmp_path / "shapes.yaml").touch()
    (tmp_path / "study.yaml").write_text(STUDY)
    out, alone, stderr = (tmp_path / name for name in ("shared/out", "alone/out", "stderr.txt"))
    words = study_words(tmp_path, out)
    with start_mini(words, stderr=subprocess.DEVNULL) as killed:
        wait_for(lambda: any(out.parent.glob(".stages/base-*/progress.pt")))
        killed.send_signal(signal.SIGSTOP)  # it still holds its locks
        with stderr.open("w") as notes, start_mini(words, stderr=notes) as other:
            wait_for(lambda: "waiting for other processes: 4 runs left" in stderr.read_text())
            killed.kill()
    assert (killed.returncode, other.returncode) == (-signal.SIGKILL, FAILED), stderr.read_text()
    assert "base: resumes after iteration" in stderr.read_text()
    names = sorted(path.name for path in (out / "failed").iterdir())
    assert (names[0][:5], names[1:]) == ("base-", ["diverging-1shot-seed0.txt"])  # tried once

    with start_mini(study_words(tmp_path, alone), stderr=subprocess.DEVNULL) as unbroken:
        pass
    assert unbroken.returncode == FAILED
    content, expected = (json.loads((o / "study.json").read_text()) for o in (out, alone))
    assert {cell["name"]: cell["finished"] for cell in content["cells"]} == CELLS
    assert without_times(content) == without_times(expected)
    assert content["cells"][1]["stages"]["mine"]["kept"] > 0

    code, _, said = mini(*words)
    assert code == FAILED
    tried = [line for line in said.splitlines() if line.startswith("[")]
    assert [line[:27] for line in tried] == ["[3/6] diverging-1shot-seed0"] * 2
