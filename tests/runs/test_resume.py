"""Runs that are killed and started again end with the same bits as runs that were not."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from helpers import shapes
from helpers.tiny_run import SHORT, detections, kill_soon, mini, weights, words
from mini_fsod import checkpoint

KILL = """
import os, pathlib, signal
count, replace = 0, pathlib.Path.replace
def killing(self, target):
    global count
    name = str(target)
    hit = {stage!r} in name and name.endswith({file!r})
    count += hit
    if hit and count == {n} and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    done = replace(self, target)
    if hit and count == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
pathlib.Path.replace = killing
"""
KILL_WHILE_TESTING = """
import os, signal
from mini_fsod.detector.model import Detector
Detector.detect = lambda *args, **more: os.kill(os.getpid(), signal.SIGKILL)
"""
TEACHER = {
    **SHORT,
    "mine__threshold": 0.5,
    "online__start": "transfer",
    "online__iterations": 12,
    "online__ema": 0.8,
    "online__delta": 0.2,
}


def killed_at(stage: str, file: str, n: int, before: bool) -> str:
    """Code that kills its process when this file gets its name for the n-th time."""
    return KILL.format(stage=f".stages/{stage}-" if stage else "", file=file, n=n, before=before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("resume") / "data")


def run_words(data: Path, out: Path) -> list[str]:
    """All stages; online with a teacher, which has a state of its own."""
    changes = TEACHER | {"mine__detections": detections(data), "base__iterations": 12}
    return words(data, out, "--to", "tune", **changes)


@pytest.fixture(scope="module")
def unbroken(data: Path) -> Path:
    """In a process like those that are killed: the number of threads may change the last bit."""
    out = data.parent / "unbroken" / "run"
    done = mini(run_words(data, out))
    assert done.returncode == 0, done.stderr
    return out


def files(runs: Path) -> set[str]:
    names = {str(path.relative_to(runs)) for path in runs.rglob("*") if path.is_file()}
    return {name for name in names if "tensorboard" not in name and "locks" not in name}


def assert_ends_as_unbroken(data: Path, out: Path, unbroken: Path, *kills: str) -> None:
    """Kill a run at each of these moments in turn, then let it end."""
    for kill in kills:
        ended = mini(run_words(data, out), before=kill)
        assert ended.returncode == -9, ended.stderr
        for path in out.parent.rglob("*.safetensors"):
            checkpoint.load(path)  # whole, or not there
        for path in out.parent.rglob("*.json"):
            shapes.json_of(path)
    done = mini(run_words(data, out))
    assert done.returncode == 0, done.stderr
    for stage in ("base", "transfer", "online", "tune"):
        assert weights(out, stage) == weights(unbroken, stage)
    assert files(out.parent) == files(unbroken.parent)  # nothing torn or left over
    for run in (unbroken, out):
        log = (run / "base" / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in log] == [5, 10, 12]
    one, other = (shapes.json_of(run / "results.json") for run in (unbroken, out))
    assert one["results"] == other["results"]
    for stage in ("base", "transfer", "online", "tune"):
        assert one["stages"][stage]["per_class"] == other["stages"][stage]["per_class"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        [killed_at("", "config.yaml", 1, True), killed_at("base", "progress.pt", 1, True)],
        [killed_at("base", "progress.pt", 2, False), killed_at("transfer", "progress.pt", 1, True)],
        [
            killed_at("base", "checkpoint.safetensors", 1, True),
            killed_at("base", "metrics.json", 1, True),
        ],
        [killed_at("base", "checkpoint.safetensors", 1, False), KILL_WHILE_TESTING],
        [killed_at("base", "metrics.json", 1, False), killed_at("scan", "raw.npz", 1, True)],
        [killed_at("", "results.json", 1, True), killed_at("mine", "pool.json", 1, False)],
        [killed_at("mine", "metrics.json", 1, False), killed_at("", "run/pool.json", 1, True)],
        [killed_at("", "run/pool.json", 1, False), killed_at("online", "progress.pt", 1, False)],
        [
            killed_at("online", "progress.pt", 2, True),
            killed_at("online", "checkpoint.safetensors", 1, True),
        ],
        [killed_at("online", "metrics.json", 1, True), killed_at("tune", "progress.pt", 1, False)],
    ],
    ids=[
        *("begin", "training", "figures", "test", "scan"),
        *("mine", "pool", "teacher", "teacher-end", "tune"),
    ],
)
def test_run_killed_at_any_moment(
    data: Path, tmp_path: Path, unbroken: Path, kills: list[str]
) -> None:
    assert_ends_as_unbroken(data, tmp_path / "runs" / "run", unbroken, *kills)


@pytest.mark.slow
def test_run_killed_from_outside_at_random_moments(data: Path, tmp_path: Path) -> None:
    """With shots as targets, batches in two parts, and pictures decoded as needed."""
    changes = TEACHER | {
        "mine__detections": detections(data),
        "base__iterations": 80,
        "online__iterations": 60,
        "online__accumulate": 2,
        "online__shots": "true",
        "data__loading": "stream",
        "seed": 2,
    }
    whole, often = (tmp_path / name / "run" for name in ("whole", "often"))
    done = mini(words(data, whole, "--to", "online", **changes))
    assert done.returncode == 0, done.stderr
    moments = Random(0)
    for stage in ("base", "base", "online", "online"):
        kept = shapes.json_of(whole / "results.json")["results"][stage]
        state = often.parent / ".stages" / kept / "progress.pt"
        kill_soon(words(data, often, "--to", "online", **changes), state, moments.uniform(0, 0.2))
    assert mini(words(data, often, "--to", "online", **changes)).returncode == 0
    for stage in ("base", "online"):
        assert weights(often, stage) == weights(whole, stage)
