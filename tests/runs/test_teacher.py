"""Whole runs with a teacher: on two processes, and with what mining hands over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import shapes
from helpers.online_run import log_of
from helpers.tiny_run import SHORT, config, detections, weights, words
from mini_fsod.runs import stages

TEACHER = SHORT | {
    "online__iterations": 12,
    "online__ema": 0.8,
    "online__delta": 0.2,  # so low that the teacher finds boxes early
    "mine__threshold": 0.5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("teacher") / "data")


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """A run up to `online`. Not to be changed."""
    out = data.parent / "runs" / "finished"
    stages.run(
        config(data, mine__detections=detections(data), **TEACHER), out, last="online", anyway=True
    )
    return out


def test_run_trains_with_the_teacher_on_the_mined_pool(data: Path, finished: Path) -> None:
    results = shapes.json_of(finished / "results.json")["stages"]
    assert list(results) == [
        "scan",
        "mine",
        "online",
    ]  # detections are given, no detector is needed
    assert results["online"]["iterations"] == 12
    assert list(results["online"]["per_class"]) == list(shapes.CLASSES)
    lines = log_of(finished / "online")
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert all(line["pool"] > 0 for line in lines)
    assert not (finished / "online" / "progress.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["drop_on_base", "drop_nested"])
def test_run_accepts_keys_of_mining_that_the_teacher_follows(
    data: Path, finished: Path, key: str
) -> None:
    changes = TEACHER | {"mine__detections": detections(data), f"mine__{key}": "true"}
    out = finished.parent / key
    stages.run(config(data, **changes), out, last="online", anyway=True)
    assert weights(out, "online") != weights(finished, "online")
    assert all(line["mined"] > 0 for line in log_of(out / "online"))


@pytest.mark.slow
def test_run_on_two_processes_trains_alike_with_a_teacher(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    """But for rounding, which later decides whether a box passes the teacher's threshold."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    out = tmp_path / "runs" / "run"
    changes = TEACHER | {"mine__detections": detections(data)}
    done = subprocess.run(
        [
            *(sys.executable, *torchrun, "-m", "mini_fsod"),
            *words(data, out, "--to", "online", **changes),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = list(zip(log_of(out / "online"), log_of(finished / "online"), strict=True))
    for one, other in lines:
        for name in ("base", "pool"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)
    one, other = lines[0]
    assert one["mined"] > 0
    for name in ("loss", "mined", "mined_loss", "confidence"):
        assert one[name] == pytest.approx(other[name], rel=1e-3)
