"""`--from` on a finished run: what is repeated is kept until there is something in its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mini_fsod.config.load import Config, resolve
from mini_fsod.errors import UserError
from mini_fsod.runs import cleared, folder, stages
from runs import small

SHORT = {"base__iterations": 2, "transfer__iterations": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


def config(data: Path, **changes: object) -> Config:
    (data.parent / "small.yaml").touch()
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **SHORT | changes))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    stages.run(config(data), data.parent / "finished", last="transfer")
    return data.parent / "finished"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def contents(out: Path) -> dict[str, bytes]:
    """All files but TensorBoard's, which have the time in their names."""
    files = (p for p in out.rglob("*") if p.is_file() and p.parent.name != "tensorboard")
    return {str(p.relative_to(out)): p.read_bytes() for p in files}


def test_a_wrong_word_costs_nothing(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(copied)
    other = {"detector__backbone": "resnet18", "detector__norm": "frozen"}
    wrong = config(data, detector__weights="nothere.pth", **other)
    with pytest.raises(UserError, match=r"nothere\.pth"):
        stages.run(wrong, copied, first="base", last="transfer")
    assert contents(copied) == before
    assert "base and transfer are as before" in capsys.readouterr().err


def test_what_has_been_repeated_is_gone(data: Path, copied: Path) -> None:
    before = contents(copied)
    stages.run(config(data, transfer__iterations=3), copied, first="transfer", last="transfer")
    now = contents(copied)
    assert {*now} == {*before}
    assert now["base/checkpoint.safetensors"] == before["base/checkpoint.safetensors"]
    assert now["transfer/checkpoint.safetensors"] != before["transfer/checkpoint.safetensors"]


def test_a_kill_before_anything_is_there_in_its_place(data: Path, copied: Path) -> None:
    before = contents(copied)
    other = config(data, transfer__iterations=3)
    cleared.put_away(copied, ["transfer"])
    folder.prepare(copied, other, "transfer")
    assert not (copied / "transfer").exists()
    stages.run(config(data), copied, last="transfer")
    assert contents(copied) == before


def test_a_repetition_that_was_begun_goes_on(data: Path, copied: Path) -> None:
    other = config(data, transfer__iterations=3)
    cleared.put_away(copied, ["transfer"])
    folder.prepare(copied, other, "transfer")
    (copied / "transfer").mkdir()
    (copied / "transfer" / folder.PROGRESS).write_bytes(b"half of it")
    cleared.settle(copied)
    assert (copied / "transfer" / folder.PROGRESS).read_bytes() == b"half of it"
    cleared.put_away(copied, ["transfer"])  # begun a second time: the finished one stays
    assert (copied / cleared.CLEARED / "transfer" / folder.METRICS).exists()
    stages.run(other, copied, first="transfer", last="transfer")
    assert not cleared.is_there(copied)
    assert small.json_of(copied / "results.json")["stages"]["transfer"]["iterations"] == 3


def test_more_is_repeated_than_was_begun(data: Path, copied: Path) -> None:
    cleared.put_away(copied, ["transfer"])
    folder.prepare(copied, config(data, transfer__iterations=3), "transfer")
    (copied / "transfer").mkdir()
    (copied / "transfer" / folder.PROGRESS).write_bytes(b"half of it")
    base = (copied / "base" / "checkpoint.safetensors").read_bytes()
    other = {"detector__backbone": "resnet18", "detector__norm": "frozen"}
    wrong = config(data, detector__weights="nothere.pth", **other)
    with pytest.raises(UserError, match=r"nothere\.pth"):
        stages.run(wrong, copied, first="base", last="transfer")
    assert (copied / "base" / "checkpoint.safetensors").read_bytes() == base


def test_a_kill_while_it_is_dropped(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both stages the first is there anew; the second, made of the former one, is not."""

    class KilledError(Exception):
        pass

    remove = shutil.rmtree

    def killed(path: Path, *rest: object) -> None:
        if path.parent == copied and path.name != "transfer":
            remove(path / "base")
            raise KilledError
        remove(path, *rest)

    other = config(data, base__iterations=3)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KilledError):
        stages.run(other, copied, first="base", last="transfer")
    monkeypatch.undo()
    assert not (copied / "transfer").exists()
    stages.run(other, copied, last="transfer")
    results = small.json_of(copied / "results.json")["stages"]
    assert results["base"]["iterations"] == 3
    again = stages.run(other, copied.parent / "anew", last="transfer")["stages"]
    checksum = "checkpoint_sha256"
    assert results["transfer"][checksum] == again["transfer"][checksum]
    assert not cleared.is_there(copied)


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_kill_while_it_is_brought_back(copied: Path, moved: int) -> None:
    before = contents(copied)
    cleared.put_away(copied, ["base", "transfer"])
    for stage in ("transfer", "base")[:moved]:
        (copied / cleared.CLEARED / stage).rename(copied / stage)
    cleared.settle(copied)
    assert contents(copied) == before
    assert not cleared.is_there(copied)
