"""Whole runs on coloured shapes: what is computed, what is found, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import shapes
from helpers.tiny_run import (
    SHORT,
    assert_same_weights,
    config,
    detections,
    weights,
    words,
)
from mini_fsod import checkpoint
from mini_fsod.config.load import resolve
from mini_fsod.errors import UserError
from mini_fsod.files import lock
from mini_fsod.runs import stages
from mini_fsod.runs.data import RunData
from mini_fsod.tfa import cached_features

TRAINED = {"iterations", "seconds", "training_seconds", "images_per_second", "checkpoint_sha256"}
SCORED = {
    *("metric", "nAP50", "bAP50", "AP50", "per_class", "images", "detections"),
    *("test_set", "test_seconds"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("stages") / "data")


@pytest.fixture(scope="module")
def runs(data: Path) -> Path:
    return data.parent / "runs"


@pytest.fixture(scope="module")
def finished(data: Path, runs: Path) -> Path:
    """A run up to transfer. Not to be changed: see `copied`."""
    stages.run(config(data), runs / "finished", last="transfer", command="mini run tiny")
    return runs / "finished"


@pytest.fixture(scope="module")
def whole(data: Path, runs: Path) -> Path:
    """A short run of all stages. Not to be changed: see `copied_whole`."""
    stages.run(short(data), runs / "whole")
    return runs / "whole"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run with its store."""
    return copy_runs(finished, tmp_path)


@pytest.fixture
def copied_whole(whole: Path, tmp_path: Path) -> Path:
    return copy_runs(whole, tmp_path)


def copy_runs(run: Path, target: Path) -> Path:
    shutil.copytree(run.parent, target / "runs", symlinks=True)
    return target / "runs" / run.name


def short(data: Path, **changes: object) -> Any:
    mined = {"mine__detections": detections(data), "mine__threshold": 0.5}
    mined["online__start"] = "transfer"  # with another tool's detections nothing else needs it
    return config(data, **SHORT | mined | changes)


def run(
    config: Any, out: Path, first: str | None = None, last: str = "transfer", **more: Any
) -> Any:
    return stages.run(config, out, first, last, **more)


def stamps(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in files}


def results_of(runs: Path) -> set[str]:
    return {path.name for path in (runs / ".stages").iterdir() if path.name != "locks"}


# What a run leaves


def test_run_leaves_a_folder_that_people_can_open(data: Path, finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    links = {"base", "transfer"}
    assert names == links | {"config.yaml", "detector.safetensors", "results.json", ".lock"}
    assert {name for name in names if (finished / name).is_symlink()} == links
    assert resolve(finished / "config.yaml") == config(data)
    for stage in links:
        inside = {path.name for path in (finished / stage).iterdir() if path.is_file()}
        score = {name for name in inside if name.startswith("score-")}
        assert len(score) == 1
        # no training state to resume from, no half-written file
        assert inside - score == {"checkpoint.safetensors", "metrics.json", "log.jsonl"}
    last = (finished / "detector.safetensors").read_bytes()
    assert last == weights(finished, "transfer")


def test_run_results_have_the_figures_of_each_stage(data: Path, finished: Path) -> None:
    results = shapes.json_of(finished / "results.json")
    assert list(results) == [
        *("stages", "results", "pool", "seed", "shots", "versions", "device", "command", "commit")
    ]
    assert list(results["stages"]) == ["base", "transfer"]
    for stage, classes in (("base", ["red", "green"]), ("transfer", list(shapes.CLASSES))):
        figures = results["stages"][stage]
        assert set(figures) == TRAINED | SCORED
        assert list(figures["per_class"]) == classes
        assert figures["images"] == 4
        assert figures["seconds"] >= figures["training_seconds"] > 0
        assert figures["images_per_second"] > 0
        assert (finished / stage).resolve().name == results["results"][stage]
    assert results["stages"]["base"]["nAP50"] is None
    assert results["stages"]["transfer"]["nAP50"] is not None
    assert results["stages"]["base"]["iterations"] == 12
    assert results["command"] == "mini run tiny"


def test_run_checkpoints_say_what_they_are(finished: Path) -> None:
    for stage, novel in (("base", ()), ("transfer", (shapes.NOVEL,))):
        header = checkpoint.read_header(finished / stage / "checkpoint.safetensors")
        assert (header.labels.base, header.labels.novel) == (("red", "green"), novel)
        assert header.about["stage"] == stage
        assert header.settings.test.min_size == 64
    log = (finished / "transfer" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [5, 10, 15, 20, 25]


def test_run_of_all_stages(whole: Path) -> None:
    results = shapes.json_of(whole / "results.json")
    assert list(results["stages"]) == ["base", "transfer", "scan", "mine", "online", "tune"]
    assert results["stages"]["mine"]["kept"] == len(
        shapes.json_of(whole / "pool.json")["annotations"]
    )
    assert results["pool"] == {"edited": False}
    assert (whole / "detector.safetensors").read_bytes() == weights(whole, "tune")


def test_run_transfer_changes_the_predictor_alone(finished: Path) -> None:
    base, few = (load_file(finished / s / "checkpoint.safetensors") for s in ("base", "transfer"))
    for name, value in base.items():
        if not name.startswith("predictor."):
            assert torch.equal(value, few[name]), name
    assert few["predictor.classifier.weight"].shape[0] == 1 + 3


@pytest.mark.slow
def test_run_twice_gives_the_same_bytes(data: Path, finished: Path, tmp_path: Path) -> None:
    run(config(data), tmp_path / "again")
    for stage in ("base", "transfer"):
        assert weights(tmp_path / "again", stage) == weights(finished, stage)
    run(config(data, seed=1), tmp_path / "other", last="base")
    assert weights(tmp_path / "other", "base") != weights(finished, "base")


# Results are found, or computed


def test_run_finds_what_is_kept(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(copied.parent / ".stages")
    first = shapes.json_of(copied / "results.json")
    again = run(config(data), copied)
    assert stamps(copied.parent / ".stages") == before
    assert again["stages"] == first["stages"]
    assert capsys.readouterr().err.count("found in") == 2


def test_run_shares_results_with_other_runs(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stages.STAGE, "base", None)  # nobody may train it again
    other = copied.parent / "other"
    run(config(data, transfer__iterations=5), other)
    assert (other / "base").resolve() == (copied / "base").resolve()
    assert (other / "transfer").resolve() != (copied / "transfer").resolve()
    assert len(results_of(copied.parent)) == len(results_of(copied.parent) | set()) >= 3


def test_run_of_changed_keys_stands_beside_the_old_result(data: Path, copied: Path) -> None:
    old = (copied / "transfer").resolve()
    results = run(config(data, transfer__iterations=5), copied)
    assert results["stages"]["transfer"]["iterations"] == 5
    new = (copied / "transfer").resolve()
    assert new != old
    assert run(config(data), copied)["stages"]["transfer"]["iterations"] == 25
    assert (copied / "transfer").resolve() == old
    assert (new / "metrics.json").exists()


def test_run_another_metric_scores_and_trains_nothing(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("base", "transfer"):
        monkeypatch.setitem(stages.STAGE, stage, None)
    figures = run(config(data, data__metric="coco"), copied)["stages"]["transfer"]
    assert figures["metric"] == "coco"
    assert "AP75" in figures
    assert run(config(data), copied)["stages"]["transfer"]["metric"] == "voc"


def test_run_results_belong_to_the_content_of_the_data(data: Path, tmp_path: Path) -> None:
    def base_of(name: str, width: int | None = None) -> str:
        copy = Path(shutil.copytree(data, tmp_path / name))
        if width is not None:
            shapes.rewrite(
                copy / "annotations" / "train.json",
                lambda content: content["annotations"][0].update(bbox=[0, 0, width, 9]),
            )
        return str(run(short(copy), tmp_path / "runs" / name, last="base")["results"]["base"])

    first = base_of("one")
    assert base_of("moved") == first
    assert base_of("changed", width=9) != first


def test_run_to_and_from(data: Path, copied_whole: Path) -> None:
    whole = shapes.json_of(copied_whole / "results.json")
    to_base = run(short(data), copied_whole, last="base")
    assert to_base["stages"] == whole["stages"]  # later results still fit
    trained = stamps(copied_whole / "online")
    repeated = run(short(data), copied_whole, first="online", last="tune")
    assert repeated["results"] == whole["results"]
    assert stamps(copied_whole / "online") != trained
    assert weights(copied_whole, "tune") == (copied_whole / "detector.safetensors").read_bytes()


def test_run_without_tuning_gives_the_online_detector(data: Path, copied_whole: Path) -> None:
    run(short(data, tune__data="none"), copied_whole, last="tune")
    assert weights(copied_whole, "online") == weights(copied_whole, "tune")
    figures = shapes.json_of(copied_whole / "results.json")["stages"]
    assert figures["online"]["nAP50"] == figures["tune"]["nAP50"]
    assert "iterations" not in figures["tune"]


def test_run_up_to_a_changed_stage_drops_links_that_no_longer_fit(
    data: Path, copied_whole: Path
) -> None:
    results = run(short(data, mine__threshold=0.75), copied_whole, last="mine")
    assert list(results["stages"]) == ["base", "transfer", "scan", "mine"]
    assert not (copied_whole / "online").is_symlink()
    assert (copied_whole / "detector.safetensors").read_bytes() == weights(copied_whole, "transfer")
    back = run(short(data), copied_whole, last="tune")
    assert back["results"] == shapes.json_of(copied_whole / "results.json")["results"]


def test_run_from_refuses_a_result_that_others_use(data: Path, copied: Path) -> None:
    run(config(data), copied.parent / "other", last="base")
    with pytest.raises(UserError, match="the result of base is used by other too"):
        run(config(data), copied, first="base")
    assert weights(copied, "base")


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        ("transfr", "transfer", r'no stage "transfr"\. Did you mean "transfer"'),
        (None, "tone", r'no stage "tone"\. Did you mean "tune"'),
        ("transfer", "base", "--from transfer: this run has no such stage before base"),
    ],
)
def test_run_rejects_stages_that_are_not_there(
    data: Path, tmp_path: Path, first: str | None, last: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(config(data), tmp_path / "run", first, last)
    assert not (tmp_path / "run").exists()


def test_run_writes_nothing_before_the_data_is_checked(data: Path, copied: Path) -> None:
    before = stamps(copied)
    for wrong in ({"data__root": data / "none"}, {"data__novel": "rde"}, {"shots__k": 50}):
        with pytest.raises(UserError):
            run(config(data, **wrong), copied)
        assert stamps(copied) == before


def test_run_needs_data_and_novel_classes(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    with pytest.raises(UserError, match=r"lacks data\.root and data\.split or data\.novel"):
        run(resolve(tmp_path / "empty.yaml"), tmp_path / "run")


# The pool


def test_run_trains_on_an_edited_pool(
    data: Path, copied_whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mined = (copied_whole / "online").resolve()
    shapes.rewrite(copied_whole / "pool.json", lambda content: content["annotations"].pop())
    results = run(short(data), copied_whole, last="tune")
    assert results["pool"]["removed"] == 1
    assert "edited pool" in capsys.readouterr().err
    assert (copied_whole / "online").resolve() != mined
    assert (mined / "metrics.json").exists()  # the result of the mined pool stays


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
    score = RunData.score

    def counted(self: RunData, *arguments: Any) -> dict[str, Any]:
        scored.append("score")
        return score(self, *arguments)

    monkeypatch.setattr(RunData, "score", counted)
    for name in ("one", "two"):
        run(config(data, base__checkpoint=alone), tmp_path / name, last="base")
    assert scored == ["score"]
    run(config(data, base__checkpoint=finished), tmp_path / "three" / "run", last="base")
    assert scored == ["score"]  # the scores beside it came along


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

    refused("classes are not the base classes", base__checkpoint=finished, data__novel="red")
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
    refused(tmp_path / "study", "holds a study")
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
    results = run(short(data), tmp_path / "run")
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
        [sys.executable, *torchrun, "-m", "mini_fsod", *words(data, tmp_path / "run")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = shapes.json_of(tmp_path / "run" / "results.json")
    assert list(results["stages"]) == ["base", "transfer"]
    assert done.stdout.count("stage ") == 1  # one table
    assert done.stderr.count("base: bAP50") == 1
    for stage in ("base", "transfer"):
        assert_same_weights(tmp_path / "run", finished, stage, rtol=1e-2, atol=1e-3)
