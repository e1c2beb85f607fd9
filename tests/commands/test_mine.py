"""`mini mine`: the stage alone, in a run that is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_fsod.commands.mine import run
from mini_fsod.config.load import Config, from_file, resolve
from mini_fsod.errors import UserError
from mini_fsod.mining import pool_io
from mini_fsod.runs import again, stages
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
    share = f"{4 / (boxes - 1):.3f}"  # one of the five is the shot
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
        *("base", "transfer", "mine", "online-stale", "config.yaml", "inputs.json"),
        *("results.json", ".lock"),
    }
    assert f"to go on: mini run {copied / 'config.yaml'} -o {copied}" in said.err
    assert (copied / "online-stale" / "checkpoint.safetensors").exists()
    assert list(small.json_of(copied / "results.json")["stages"]) == ["base", "transfer", "mine"]

    results = stages.run(from_file(copied / "config.yaml"), copied, last="online")
    assert "online" in results["stages"]
    before = contents(copied)
    run(copied, [])
    assert "nothing has changed" in capsys.readouterr().err
    assert contents(copied) == before
    run(copied, ["mine.threshold=0.6"])
    assert {"online-stale", "online-stale-2"} <= names(copied)
    assert "online" not in names(copied)


def contents(out: Path) -> dict[str, bytes]:
    """All files of the run but the scan, which may be another."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name != "raw.npz"
    }


def test_a_mining_that_fails_leaves_all_as_it_was(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(copied)
    (tmp_path / "wrong.json").write_text('[{"image_id": 77}]')
    with pytest.raises(UserError):
        run(copied, [f"mine.detections={tmp_path / 'wrong.json'}"])
    assert contents(copied) == before

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool_io, "write_pool", killed)
    with pytest.raises(KeyboardInterrupt):
        run(copied, ["mine.threshold=0.4"])
    assert contents(copied) == before
    assert not [name for name in names(copied) if name.startswith((".before", ".former"))]


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_kill_leaves_is_set_right_by_the_next_command(
    copied: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """No handler runs then. The new pool may be whole, and the former not cleared away yet."""
    before = contents(copied)
    with monkeypatch.context() as patch:
        patch.setattr(again, "_put_back", lambda out: None)
        patch.setattr(again, "settle", lambda out: None)
        if whole:
            run(copied, ["mine.threshold=0.4"])
        else:
            patch.setattr(pool_io, "write_pool", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(copied, ["mine.threshold=0.4"])
    assert (copied / ".before").is_dir()
    again.settle(copied)
    if whole:
        assert {"online-stale", "mine"} <= names(copied)
        assert contents(copied)["mine/pool.json"] != before["mine/pool.json"]
    else:
        assert contents(copied) == before
    assert not names(copied) & {".before", ".former"}


def test_a_kill_while_things_are_put_back(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it strikes: `mini run` finds the run as it was, and does nothing."""
    before = contents(copied)
    moved: list[Path] = []
    rename = Path.rename

    def killing(path: Path, target: Path) -> Path:
        moved.append(path)
        if path.parent.name == ".before":
            rename(path, target)
            raise SystemExit  # behind the first, and behind the second
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(pool_io, "write_pool", lambda *_: 1 / 0)
        patch.setattr(Path, "rename", killing)
        with pytest.raises(SystemExit):
            run(copied, ["mine.threshold=0.4"])
        with pytest.raises(SystemExit):
            again.settle(copied)
    assert [path.name for path in moved] == ["mine", "online", "online", "mine"]
    capsys.readouterr()
    stages.run(from_file(copied / "config.yaml"), copied, last="online")
    assert "online: finished already" in capsys.readouterr().err
    assert contents(copied) == before
    assert not names(copied) & {".before", ".former"}


def test_after_a_kill_keys_are_those_of_before(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(again, "_put_back", lambda out: None)
        patch.setattr(pool_io, "write_pool", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(copied, ["mine.threshold=0.4"])
    assert from_file(copied / "config.yaml").mine.threshold == 0.4
    run(copied, ["mine.most=7"])
    mine = from_file(copied / "config.yaml").mine
    assert (mine.threshold, mine.most) == (0.7, 7)


def test_nobody_else_works_there_meanwhile(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first look to the last file, and a stage inside does not give the lock back."""
    script = (
        "import sys; from pathlib import Path; from mini_fsod.files import lock\n"
        "with lock(Path(sys.argv[1])) as held: print(held)"
    )

    def other_gets_it() -> bool:
        command = [sys.executable, "-c", script, str(copied / ".lock")]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return answer.strip() == "True"

    seen: list[bool] = []
    put_aside, settled = again.aside, again.settle

    @contextmanager
    def aside(out: Path) -> Iterator[None]:
        seen.append(other_gets_it())
        with put_aside(out):
            yield

    def settle(out: Path) -> None:
        seen.append(other_gets_it())
        settled(out)

    monkeypatch.setattr(again, "aside", aside)
    monkeypatch.setattr(again, "settle", settle)
    run(copied, ["mine.threshold=0.4"])
    assert seen == [False, False, False]  # first look, before, after
    assert other_gets_it()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        run(copied, [])


def test_an_edited_pool_is_kept(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = copied / "mine" / "pool.json"
    edited = pool.read_bytes().replace(b'"iscrowd"', b' "iscrowd"', 1)
    pool.write_bytes(edited)
    with pytest.raises(UserError, match=r"not the one of online.*the content of .*pool\.json"):
        stages.run(from_file(copied / "config.yaml"), copied, last="online")
    run(copied, ["mine.threshold=0.4"])
    assert "the former pool had been edited: it is kept as pool-edited.json" in (
        capsys.readouterr().err
    )
    assert (copied / "pool-edited.json").read_bytes() == edited
    pool.write_bytes(edited)
    stages.run(from_file(copied / "config.yaml"), copied, first="mine", last="mine")
    assert (copied / "pool-edited-2.json").read_bytes() == edited
    assert pool.read_bytes() != edited


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
