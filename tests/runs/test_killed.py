"""Whole runs that are killed and started again end as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from mini_fsod import checkpoint
from runs import small

KILL = """
import os, pathlib, signal
count, replace = 0, pathlib.Path.replace
def killing(self, target):
    global count
    count += str(target).endswith({file!r})
    if count == {n} and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    done = replace(self, target)
    if count == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
pathlib.Path.replace = killing
"""
KILL_TESTING = """
import os, signal
from mini_fsod.detector.model import Detector
Detector.detect = lambda *words, **more: os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_at(file: str, n: int, before: bool) -> str:
    """Code that kills its process when this file is renamed to its name the n-th time."""
    return KILL.format(file=file, n=n, before=before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def unbroken(data: Path) -> Path:
    """Of a process like those that are killed: the number of threads may change the last bit."""
    out = data.parent / "unbroken"
    done = small.process(small.words(data, out))
    assert done.returncode == 0, done.stderr
    return out


def files(out: Path) -> set[str]:
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    return {name for name in names if "tensorboard" not in name}


def weights(out: Path, stage: str) -> bytes:
    return (out / stage / "checkpoint.safetensors").read_bytes()


def started_again(data: Path, out: Path, unbroken: Path, *kills: str) -> None:
    """Kill a run at each of these moments in turn, then let it end: it ends as if unbroken."""
    for kill in kills:
        ended = small.process(small.words(data, out), before=kill)
        assert ended.returncode == -9, ended.stderr
        for path in out.rglob("*.safetensors"):
            checkpoint.load(path)  # whole, or not there
        for path in out.rglob("*.json"):
            small.json_of(path)
    done = small.process(small.words(data, out))
    assert done.returncode == 0, done.stderr
    for stage in ("base", "transfer"):
        assert weights(out, stage) == weights(unbroken, stage)
    assert files(out) == files(unbroken)  # nothing torn or left over
    for run in (unbroken, out):
        log = (run / "base" / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in log] == [5, 10, 12]
    one, other = (small.json_of(run / "results.json")["stages"] for run in (unbroken, out))
    for stage in one:
        assert one[stage]["per_class"] == other[stage]["per_class"]


@pytest.mark.slow
def test_killed_in_both_stages(data: Path, tmp_path: Path, unbroken: Path) -> None:
    started_again(
        data,
        tmp_path / "run",
        unbroken,
        killed_at("base/progress.pt", 2, before=False),
        killed_at("transfer/progress.pt", 2, before=True),  # while a state is being written
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        [killed_at("config.yaml", 1, True), killed_at("base/progress.pt", 1, True)],
        [
            killed_at("base/checkpoint.safetensors", 1, True),
            killed_at("base/metrics.json", 1, True),
        ],
        [killed_at("base/checkpoint.safetensors", 1, False), KILL_TESTING],
        [killed_at("base/metrics.json", 1, False), killed_at("transfer/progress.pt", 3, False)],
        [killed_at("results.json", 1, True), killed_at("transfer/metrics.json", 1, True)],
        [killed_at("transfer/checkpoint.safetensors", 1, False), KILL_TESTING],
    ],
    ids=["begin", "figures", "base-test", "between", "results", "transfer-test"],
)
def test_killed_at_any_moment(data: Path, tmp_path: Path, unbroken: Path, kills: list[str]) -> None:
    started_again(data, tmp_path / "run", unbroken, *kills)


@pytest.mark.slow
def test_killed_from_outside_again_and_again(data: Path, tmp_path: Path) -> None:
    """At moments that nobody chose, in both stages."""
    longer = {"base__iterations": 80, "transfer__iterations": 400, "seed": 2}
    whole, words = (small.words(data, tmp_path / name, **longer) for name in ("whole", "run"))
    assert small.process(whole).returncode == 0
    moments, out = Random(0), tmp_path / "run"
    for stage in ("base", "base", "transfer"):
        small.kill_soon(words, out / stage / "progress.pt", moments.uniform(0, 0.2))
    assert small.process(words).returncode == 0
    for stage in ("base", "transfer"):
        assert weights(out, stage) == weights(tmp_path / "whole", stage)
