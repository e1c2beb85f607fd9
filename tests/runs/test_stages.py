"""Whole runs on coloured shapes: what is computed, what is found, and what is left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import shapes
from helpers.tiny_run import (
    config,
    run,
    short_config,
    stamps,
    weights,
)
from mini_fsod import checkpoint
from mini_fsod.config.load import resolve
from mini_fsod.errors import UserError
from mini_fsod.files import part_of
from mini_fsod.runs import stages

TRAINED = {"iterations", "seconds", "training_seconds", "images_per_second", "checkpoint_sha256"}
SCORED = {
    *("metric", "nAP50", "bAP50", "AP50", "per_class", "images", "of_images", "detections"),
    *("test_set", "test_seconds", "score"),
}


# What a run leaves


def test_run_leaves_a_folder_that_people_can_open(data: Path, finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    links = {"base", "transfer"}
    files = {"config.yaml", "data.json", "detector.safetensors", "results.json", ".lock"}
    assert names == links | files
    assert {name for name in names if (finished / name).is_symlink()} == links
    assert resolve(finished / "config.yaml") == config(data)
    for stage in links:
        inside = {path.name for path in (finished / stage).iterdir() if path.is_file()}
        score = {name for name in inside if name.startswith("score-")}
        assert len(score) == 1
        score |= {name.replace("score-", "detections-").replace(".json", ".npz") for name in score}
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


def test_run_clears_what_a_kill_left_in_a_finished_result(data: Path, copied: Path) -> None:
    """As one that came while the detector was scored."""
    left = [part_of(copied / "base" / "score-1.json"), part_of(copied / "results.json")]
    for path in left:
        path.touch()
    run(config(data), copied)
    assert not any(path.exists() for path in left)


def test_run_refuses_a_kept_detector_that_was_changed(data: Path, copied: Path) -> None:
    path = (copied / "transfer").resolve() / "checkpoint.safetensors"
    path.write_bytes((copied / "base" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(UserError, match="damaged, or not the detector") as caught:
        run(config(data), copied)
    assert f"Delete {path.parent}" in caught.value.fix


def test_run_computes_a_kept_detector_again_that_is_gone(data: Path, copied: Path) -> None:
    before = weights(copied, "transfer")
    (copied / "transfer" / "checkpoint.safetensors").unlink()
    run(config(data), copied)
    assert weights(copied, "transfer") == before


def test_run_shares_results_with_other_runs(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stages.STAGE, "base", None)  # nobody may train it again
    other = copied.parent / "other"
    run(config(data, transfer__iterations=5), other)
    assert (other / "base").resolve() == (copied / "base").resolve()
    assert (other / "transfer").resolve() != (copied / "transfer").resolve()


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
        return str(
            run(short_config(copy), tmp_path / "runs" / name, last="base")["results"]["base"]
        )

    first = base_of("one")
    assert base_of("moved") == first
    assert base_of("changed", width=9) != first


def test_run_to_and_from(data: Path, copied_whole: Path) -> None:
    whole = shapes.json_of(copied_whole / "results.json")
    to_base = run(short_config(data), copied_whole, last="base")
    assert to_base["stages"] == whole["stages"]  # later results still fit
    trained = stamps(copied_whole / "online")
    repeated = run(short_config(data), copied_whole, first="online", last="tune")
    assert repeated["results"] == whole["results"]
    assert stamps(copied_whole / "online") != trained
    assert weights(copied_whole, "tune") == (copied_whole / "detector.safetensors").read_bytes()


def test_run_without_tuning_gives_the_online_detector(data: Path, copied_whole: Path) -> None:
    run(short_config(data, tune__data="none"), copied_whole, last="tune")
    assert weights(copied_whole, "online") == weights(copied_whole, "tune")
    figures = shapes.json_of(copied_whole / "results.json")["stages"]
    assert figures["online"]["nAP50"] == figures["tune"]["nAP50"]
    assert "iterations" not in figures["tune"]


def test_run_up_to_a_changed_stage_drops_links_that_no_longer_fit(
    data: Path, copied_whole: Path
) -> None:
    results = run(short_config(data, mine__threshold=0.75), copied_whole, last="mine")
    assert list(results["stages"]) == ["base", "transfer", "scan", "mine"]
    assert not (copied_whole / "online").is_symlink()
    assert (copied_whole / "detector.safetensors").read_bytes() == weights(copied_whole, "transfer")
    back = run(short_config(data), copied_whole, last="tune")
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
    results = run(short_config(data), copied_whole, last="tune")
    assert results["pool"]["removed"] == 1
    assert "1 removed, 0 added, 0 relabelled" in capsys.readouterr().err
    assert (copied_whole / "online").resolve() != mined
    assert (mined / "metrics.json").exists()  # the result of the mined pool stays
