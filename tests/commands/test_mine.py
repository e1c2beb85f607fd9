"""`mini mine`: which settings it changes, the table of mined boxes, and mining again for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import shapes, tiny_run
from mini_fsod import console
from mini_fsod.commands.mine import mined_table
from mini_fsod.config.load import Config, resolve


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run as `mini mine` reads it, with two mined classes."""
    folder = tmp_path / "a run"
    mine = folder / "mine"
    mine.mkdir(parents=True)
    (folder / "config.yaml").write_text(resolve("photos", ["data.novel=bird,[b]us"]).to_yaml())
    classes = {
        "bird": {"candidates": 1200, "delta": 0.75, "kept": 300},
        "[b]us": {"candidates": 0, "delta": None, "kept": 0},
    }
    (mine / "thresholds.json").write_text(json.dumps({"classes": classes}))
    (mine / "1-bird.png").touch()
    return folder


def write_audit(folder: Path) -> None:
    pool = {"candidates": 1200, "kept": 300, "precision": 0.8, "recall": 0.5}
    empty = {"candidates": 0, "kept": 0, "precision": None, "recall": 0.0}
    audit = {"pool": pool, "classes": {"bird": pool, "[b]us": empty}}
    (folder / "audit.json").write_text(json.dumps(audit))


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# Settings


def test_mine_changes_the_config_of_the_run_and_stops_after_mining(
    run: Path, mini: Any, stages: Any
) -> None:
    sets = ["mine.alpha=2", "discriminator.whiten=true"]
    code, _, err = mini("mine", run, *(word for text in sets for word in ("--set", text)))
    assert code == 0, err
    (call,) = stages.calls
    assert call.config == resolve(str(run / "config.yaml"), sets)
    assert (call.out, call.first, call.last) == (run, None, "mine")
    assert call.command.startswith("mini mine ")
    assert f"mini run '{run}'" in err


def test_mine_extra_sets_the_folder_of_more_images(run: Path, mini: Any, stages: Any) -> None:
    assert mini("mine", run, "--extra", "more: [photos]")[0] == 0
    assert stages.calls[0].config.mine.extra == Path("more: [photos]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("online.batch=4", "mini mine only changes keys of mine and discriminator"),
        ("seed=4", "mini mine only changes keys of mine and discriminator"),
        ("mine", "mini mine only changes keys of mine and discriminator"),
        ("mine.alhpa=1", "mine.alhpa"),
        ("mine.alpha=much", "must be a number"),
    ],
)
def test_mine_refuses_other_keys_and_wrong_values(
    run: Path, mini: Any, stages: Any, text: str, message: str
) -> None:
    code, out, err = mini("mine", run, "--set", text)
    assert (code, out, stages.calls) == (2, "", [])
    assert message in err
    assert "What to do:" in err


def test_mine_refuses_a_folder_without_a_run(tmp_path: Path, mini: Any, stages: Any) -> None:
    code, _, err = mini("mine", tmp_path / "nowhere")
    assert (code, stages.calls) == (2, [])
    assert "nowhere: not the folder of a run" in err


# The table


def test_mine_prints_a_row_per_class(run: Path, mini: Any, stages: Any) -> None:
    code, out, _ = mini("mine", run)
    assert code == 0
    assert rows(out) == [
        ["class", "candidates", "delta", "kept", "sheet"],
        ["bird", "1,200", "0.750", "300", "1-bird.png"],
        ["[b]us", "0", "-", "0", "-"],
    ]


def test_mine_prints_precision_and_recall_where_known(run: Path, mini: Any, stages: Any) -> None:
    write_audit(run / "mine")
    assert rows(mini("mine", run)[1]) == [
        ["class", "candidates", "delta", "kept", "precision", "recall", "sheet"],
        ["bird", "1,200", "0.750", "300", "0.800", "0.500", "1-bird.png"],
        ["[b]us", "0", "-", "0", "-", "0.000", "-"],
        ["all", "1,200", "-", "300", "0.800", "0.500"],
    ]


def test_mine_prints_a_second_table_for_extra_images(run: Path, mini: Any, stages: Any) -> None:
    (run / "mine" / "extra").mkdir()
    content = {"classes": {"bird": {"candidates": 9, "delta": 0.5, "kept": 7}}}
    (run / "mine" / "extra" / "thresholds.json").write_text(json.dumps(content))
    _, out, err = mini("mine", run)
    assert ["bird", "9", "0.500", "7", "-"] in rows(out)
    assert f"candidates and thresholds: {run / 'mine' / 'extra'}" in err


def test_mine_prints_nothing_in_other_processes_of_torchrun(
    run: Path, mini: Any, stages: Any
) -> None:
    stages.results = {}
    assert mini("mine", run) == (0, "", "")


# Whole runs

SHORT = {
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 2,
    "online__teacher": "false",
    "online__iou_branch": "false",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Mining from detections: every training object is detected as light blue."""
    data = shapes.write_data(tmp_path_factory.mktemp("shapes") / "data")
    annotations = shapes.json_of(data / "annotations" / "train.json")["annotations"]
    detections = [
        {"image_id": a["image_id"], "category_id": 3, "bbox": a["bbox"]}
        | {"score": 0.9 if a["category_id"] == 3 else 0.5}
        for a in annotations
    ]
    file = data.parent / "detections.json"
    file.write_text(json.dumps(detections))
    changes = {"mine__detections": file, "mine__threshold": 0.7, **SHORT}
    return tiny_run.config(data, **changes)


def test_mine_again_makes_another_pool_and_keeps_the_earlier_results(
    tmp_path: Path, config: Config, mini: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from mini_fsod.runs import stages

    out = tmp_path / "run"
    stages.run(config, out, last="online", anyway=True)
    pool, trained = out / "pool.json", out / "online" / "checkpoint.safetensors"
    first_pool, first_trained = pool.read_bytes(), trained.read_bytes()
    written = trained.stat().st_mtime_ns

    code, _, err = mini("mine", out, "--set", "mine.threshold=0.4")
    assert code == 0, err
    console.table(mined_table(out / "mine"))
    row = capsys.readouterr().out.splitlines()[1].split()
    count = shapes.json_of(out / "mine" / "audit.json")["classes"][shapes.NOVEL]["candidates"]
    share = f"{4 / (count - 1):.3f}"  # one of the five is the shot
    assert row[:-1] == ["blue,", "light", f"{count}", "0.400", f"{count}", share, "1.000"]
    assert (out / "mine" / row[-1]).exists()
    assert len(shapes.json_of(pool)["annotations"]) == count
    changed = config.mine.model_copy(update={"threshold": 0.4})
    assert resolve(out / "config.yaml") == config.model_copy(update={"mine": changed})

    stages.run(resolve(out / "config.yaml"), out, last="online", anyway=True)
    assert trained.read_bytes() != first_trained
    code, _, err = mini("mine", out, "--set", "mine.threshold=0.7")
    assert code == 0, err
    assert pool.read_bytes() == first_pool
    stages.run(resolve(out / "config.yaml"), out, last="online", anyway=True)
    assert trained.read_bytes() == first_trained
    assert trained.stat().st_mtime_ns == written  # found again, not trained again


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.detections=nowhere.json", "nowhere.json"),
        ("discriminator.weights=nowhere.pth", "nowhere.pth"),
    ],
)
def test_mine_refuses_missing_files_before_anything_changes(
    tmp_path: Path, config: Config, mini: Any, text: str, message: str
) -> None:
    from mini_fsod.runs import stages

    out = tmp_path / "run"
    stages.run(config, out, last="mine", anyway=True)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, _, err = mini("mine", out, "--set", text)
    assert code == 2
    assert message in err
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
