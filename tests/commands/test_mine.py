"""`mini mine`: the stage alone, in a run that is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mini_fsod.commands.mine import run
from mini_fsod.config import Config, from_file, resolve
from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from runs import small

SHORT = {
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 2,
    "online__batch": 2,
    "online__teacher": "false",
    "online__iou_branch": "false",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def config(data: Path) -> Config:
    """Mining from detections: every object of the training images is said to be light blue."""
    truth = small.json_of(data / "annotations" / "train.json")["annotations"]
    rows = [
        {"image_id": a["image_id"], "category_id": 3, "bbox": a["bbox"]}
        | {"score": 0.9 if a["category_id"] == 3 else 0.5}
        for a in truth
    ]
    given = data.parent / "given.json"
    given.write_text(json.dumps(rows))
    (data.parent / "small.yaml").touch()
    own = {"mine__detections": given, "mine__threshold": 0.7, **SHORT}
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **own))


@pytest.fixture(scope="module")
def finished(data: Path, config: Config) -> Path:
    out = data.parent / "finished"
    stages.run(config, out, last="online")
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def names(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


def test_mined_with_another_threshold(
    copied: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    run(copied, ["mine.threshold=0.4"])
    said = capsys.readouterr()
    header, row = (line.split() for line in said.out.splitlines())
    assert header == ["class", "candidates", "delta", "kept", "precision", "recall", "sheet"]
    boxes = small.json_of(copied / "mine" / "audit.json")["classes"][small.NOVEL]["candidates"]
    share = f"{5 / boxes:.3f}"
    assert row == ["blue,", "light", f"{boxes}", "0.400", f"{boxes}", share, "1.000", row[-1]]
    assert (copied / "mine" / row[-1]).exists()
    assert len(small.json_of(copied / "mine" / "pool.json")["annotations"]) == boxes

    mine = config.mine.model_copy(update={"threshold": 0.4})
    assert from_file(copied / "config.yaml") == config.model_copy(update={"mine": mine})
    # what was made of the former pool is neither lost nor taken for finished
    assert (
        "online was made of the former pool: it is stale, and now called online-stale" in said.err
    )
    assert names(copied) == {
        *("base", "transfer", "mine", "online-stale", "config.yaml", "results.json"),
    }
    assert (copied / "online-stale" / "checkpoint.safetensors").exists()
    assert list(small.json_of(copied / "results.json")["stages"]) == ["base", "transfer", "mine"]

    results = stages.run(from_file(copied / "config.yaml"), copied, last="online")
    assert "online" in results["stages"]
    run(copied, [])
    assert {"online-stale", "online-stale-2"} <= names(copied)
    assert "online" not in names(copied)


def test_no_ground_truth_no_precision(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mini_fsod.commands.mine import class_table

    (copied / "mine" / "audit.json").unlink()
    table = class_table(copied / "mine")
    assert [c.header for c in table.columns] == ["class", "candidates", "delta", "kept", "sheet"]


def test_an_empty_class(copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    capsys.readouterr()
    sets = [f"mine.detections={tmp_path / 'none.json'}", "mine.threshold=adaptive"]
    run(copied, sets)
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[2:7] == ["0", "-", "0", "-", "0.000"]


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        (["online.batch=4"], "only keys of mining can be changed here"),
        (["seed=4"], "only keys of mining can be changed here"),
        (["mine.alhpa=1"], "mine.alhpa"),
        (["mine.alpha=much"], "must be a number"),
        (["mine.detections=nowhere.json"], "nowhere.json: there is no such file"),
        (["mine.discriminator=nowhere.pth"], "nowhere.pth: there is no such file of weights"),
    ],
)
def test_what_cannot_be(copied: Path, sets: list[str], what: str) -> None:
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*")}
    with pytest.raises(UserError) as told:
        run(copied, sets)
    assert what in f"{told.value.what} {told.value.fix}"
    assert {p: p.stat().st_mtime_ns for p in copied.rglob("*")} == before


def test_what_is_no_run(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        run(tmp_path / "nowhere", [])
    shutil.rmtree(copied / "transfer")
    with pytest.raises(UserError, match="mine cannot be repeated, since transfer is not finished"):
        run(copied, [])
    assert "online" in names(copied)
