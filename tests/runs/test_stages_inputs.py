"""Whole runs: detectors given as files, folders that cannot be used, ways to read pictures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import shapes
from helpers.tiny_run import (
    assert_same_weights,
    config,
    discriminator,
    run,
    short_config,
    weights,
    words,
)
from mini_fsod import checkpoint
from mini_fsod.errors import UserError
from mini_fsod.files import lock
from mini_fsod.runs import stages
from mini_fsod.tfa import cached_features

# Detectors given as files


def test_run_with_a_given_base_detector(data: Path, finished: Path, tmp_path: Path) -> None:
    file = finished / "base" / "checkpoint.safetensors"
    for name, given in {"file": file, "run": finished, "stage": finished / "base"}.items():
        results = run(config(data, base__checkpoint=given), tmp_path / name)
        assert weights(tmp_path / name, "transfer") == weights(finished, "transfer")
        figures = results["stages"]["base"]
        theirs = shapes.json_of(finished / "results.json")["stages"]["base"]
        assert figures["per_class"] == theirs["per_class"]
        assert Path(figures["checkpoint"]).resolve() == file.resolve()


def test_run_with_a_given_few_shot_detector_trains_no_base(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    results = run(config(data, transfer__checkpoint=finished), tmp_path / "run")
    assert list(results["stages"]) == ["transfer"]
    assert weights(tmp_path / "run", "transfer") == weights(finished, "transfer")


def test_run_scores_a_given_detector_once(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copy(finished / "base" / "checkpoint.safetensors", alone)
    scored: list[str] = []
    score = stages.score_test_set

    def counted(*arguments: Any) -> dict[str, Any]:
        scored.append("score")
        return score(*arguments)

    monkeypatch.setattr(stages, "score_test_set", counted)
    for name in ("one", "two"):
        run(config(data, base__checkpoint=alone), tmp_path / name, last="base")
    assert scored == ["score"]
    run(config(data, base__checkpoint=finished), tmp_path / "three" / "run", last="base")
    assert scored == ["score"] * 2  # those beside a detector of other runs may be anybody's


def test_run_with_a_slim_base_detector(data: Path, finished: Path, tmp_path: Path) -> None:
    slim = tmp_path / "slim.safetensors"
    checkpoint.slim(finished / "base" / "checkpoint.safetensors", slim)
    run(config(data, base__checkpoint=slim), tmp_path / "run")
    assert_same_weights(tmp_path / "run", finished, "transfer", rtol=0.01, atol=0.01)


def test_run_tests_a_given_detector_as_configured(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    settings = {"views__test": 48, "detector__score_threshold": 0.2}
    run(config(data, base__checkpoint=finished, **settings), tmp_path / "run")
    header = checkpoint.read_header(tmp_path / "run" / "transfer" / "checkpoint.safetensors")
    assert (header.settings.test.min_size, header.settings.test.score_cut) == (48, 0.2)


def test_run_refuses_a_base_detector_that_does_not_fit(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    def refused(message: str, **changes: object) -> None:
        with pytest.raises(UserError, match=message):
            run(config(data, **changes), tmp_path / "run")

    refused('knows "red" already', base__checkpoint=finished, data__novel="red")
    refused("fpn_channels", base__checkpoint=finished, detector__fpn_channels=32)
    refused("nowhere: does not exist", base__checkpoint=tmp_path / "nowhere")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(weights(finished, "base")[:1000])
    refused("torn", base__checkpoint=torn)


# Folders


def test_run_refuses_folders_of_others(data: Path, finished: Path, tmp_path: Path) -> None:
    def refused(out: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            run(config(data), out)

    (tmp_path / "file").touch()
    refused(tmp_path / "file", "is a file")
    refused(data, "is the folder of the data")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "plan.json").touch()
    refused(tmp_path / "study", "contains a study")
    (tmp_path / "old" / "base").mkdir(parents=True)
    refused(tmp_path / "old", "made by an older version of mini")
    shutil.copytree(finished, tmp_path / "alone" / "run", symlinks=True)
    refused(tmp_path / "alone" / "run", "its results are not here")


def test_run_refuses_a_folder_that_another_process_works_in(data: Path, copied: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom mini_fsod.files import lock\n"
        f"with lock(Path({str(copied / '.lock')!r})):\n    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(UserError, match="another process works in this folder"):
            run(config(data), copied)
        other.kill()
    with lock(copied / ".lock") as free:
        assert free


def test_run_moved_with_its_store_finds_everything(data: Path, copied: Path) -> None:
    moved = copied.parent.rename(copied.parent.parent / "elsewhere") / copied.name
    before = shapes.json_of(moved / "results.json")["stages"]
    assert run(config(data), moved)["stages"] == before


# Ways to read pictures, and to train


@pytest.mark.slow
def test_run_streamed_pictures_give_the_same_weights(data: Path, tmp_path: Path) -> None:
    changes = {"base__accumulate": 2, "base__iterations": 4, "views__zoom": "[0.8,1]"}
    for loading in ("resident", "stream"):
        how = config(data, data__loading=loading, **changes)
        run(how, tmp_path / loading / "run", last="base")
    assert weights(tmp_path / "stream" / "run", "base") == weights(
        tmp_path / "resident" / "run", "base"
    )


@pytest.mark.slow
def test_run_without_memory_for_features_fine_tunes_the_plain_way(
    data: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cached_features, "free_memory", lambda device: 1000)
    run(config(data, base__checkpoint=finished), tmp_path / "run")
    assert "transfer: features are not cached" in capsys.readouterr().err
    assert_same_weights(tmp_path / "run", finished, "transfer", rtol=1e-4, atol=1e-6)


def test_run_without_a_test_set_is_not_scored(tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data", ("train",))
    results = run(short_config(data), tmp_path / "run")
    for figures in results["stages"].values():
        assert [figures[name] for name in ("nAP50", "bAP50", "AP50")] == [None] * 3
        assert figures["per_class"] == {}
        assert figures["images_per_second"] > 0


@pytest.mark.slow
def test_run_on_two_processes_gives_the_same_detectors(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [
            *(sys.executable, *torchrun, "-m", "mini_fsod"),
            *words(data, tmp_path / "run", "--to", "mine", **discriminator(data)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = shapes.json_of(tmp_path / "run" / "results.json")
    assert list(results["stages"]) == ["base", "transfer", "scan", "mine"]
    assert results["stages"]["scan"]["pairs"] > 0  # of all processes: each scans a part
    assert done.stdout.count("stage ") == 1  # one table
    assert done.stderr.count("base: bAP50") == 1
    for stage in ("base", "transfer"):
        assert_same_weights(tmp_path / "run", finished, stage, rtol=1e-2, atol=1e-3)
