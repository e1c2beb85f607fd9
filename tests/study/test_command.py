"""`mini study` with runs that take no time: the real settings, plans and tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mini_fsod.commands import study as command
from mini_fsod.errors import UserError
from study import fake


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Runs that write a result at once; what was run, with its settings."""
    begun: list[tuple[str, Any]] = []

    def run(config: Any, out: Path, first: Any = None, last: str = "", command: str = "") -> None:
        begun.append((out.name, config))
        if config.shots.k == 3:
            raise UserError("the loss is not finite at iteration 17.", "Lower transfer.rate.")
        fake.finish(out, {last: {"nAP50": 30.0 + config.shots.k, "bAP50": 70.0, "seconds": 4.0}})

    stages = SimpleNamespace(run=run)
    room = ModuleType("mini_fsod.runs")
    room.stages = stages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mini_fsod.runs", room)
    return begun


def study(out: Path, name: str = "tfa", **options: Any) -> None:
    usual: dict[str, Any] = dict.fromkeys(("split", "shots", "seeds", "rows"))
    usual |= {"full": False, "dry_run": False}
    sets = options.pop("sets", ("data.root=voc",))
    command.run(name, sets=sets, out=out, **usual | options)


def test_a_study_goes_on_and_grows(
    tmp_path: Path, runs: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path, shots="1,5")
    names = [name for name, _ in runs]
    base = names[0]
    assert base.startswith("base-")
    assert names[1:] == ["tfa-split1-1shot-seed0", "tfa-split1-5shot-seed0"]
    configs = dict(runs)
    assert configs[base].base.checkpoint is None
    assert configs[names[1]].base.checkpoint == (
        tmp_path / "shared" / base / "base" / "checkpoint.safetensors"
    )
    assert configs[names[2]].transfer.iterations == 20_000
    said = capsys.readouterr()
    assert "| TFA                 |   31.0 |   35.0 |" in said.out
    assert f"[1/3] {base}: base" in said.err
    assert "[2/3] tfa-split1-1shot-seed0: nAP50 31.0, bAP50 70.0, 0 s" in said.err
    study(tmp_path, shots="1,5", seeds="0..1", sets=("data.root=voc", "device=cpu"))
    assert [name for name, _ in runs[3:]] == ["tfa-split1-1shot-seed1", "tfa-split1-5shot-seed1"]
    assert "| TFA                 | 31.0 ± 0.0 | 35.0 ± 0.0 |" in capsys.readouterr().out
    study(tmp_path, shots="1")  # the tables still have all that is in the folder
    assert len(runs) == 5
    assert len(json.loads((tmp_path / "study.json").read_text())["cells"]) == 4


def test_some_rows_now_and_others_later(
    tmp_path: Path, runs: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same units as of the whole table: what was done is not done again."""
    study(tmp_path, "components", shots="1", rows="1,4")
    first = [name for name, _ in runs]
    assert [name for name in first if "shot" in name] == [
        "tfa-split1-1shot-seed0",
        "ssl-co-mining-split1-1shot-seed0",
    ]
    assert sum(name.startswith("online-") for name in first) == 1
    assert "| + SSL co-mining" in capsys.readouterr().out
    study(tmp_path, "components", shots="1")
    names = [name for name, _ in runs]
    assert len({*names}) == len(names)
    assert sum("shot" in name for name in names) == 11
    with pytest.raises(UserError, match="has 11 rows, not 12") as error:
        study(tmp_path, "components", rows="1..12")
    assert "4 + SSL co-mining" in error.value.fix


def test_a_failed_cell_is_told_at_the_end(
    tmp_path: Path, runs: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="1 of 4 units could not be finished") as error:
        study(tmp_path, shots="1,3,5")
    assert str(tmp_path / "failed") in error.value.fix
    said = capsys.readouterr()
    assert "| TFA                 |   31.0 |      - |   35.0 |" in said.out
    assert "tfa-split1-3shot-seed0: the loss is not finite at iteration 17." in said.err


def test_other_settings_are_refused_in_the_same_folder(
    tmp_path: Path, runs: list[tuple[str, Any]]
) -> None:
    study(tmp_path, shots="1")
    for dry_run in (False, True):
        sets = ("data.root=voc", "base.minutes=4")
        with pytest.raises(UserError, match=r"base\.minutes was not set and is \"4\""):
            study(tmp_path, shots="5", sets=sets, dry_run=dry_run)
    assert len(runs) == 2


def test_a_dry_run_says_what_would_be_done(
    tmp_path: Path, runs: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"dry_run": True, "sets": ("device=cuda", "base.minutes=2")}
    study(out, shots="1,10", **options)
    base, one, ten, total = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert base[1:] == "base 2:00 min budget".split()
    assert one == "tfa-split1-1shot-seed0 transfer 8 s rough".split()
    assert ten[2:] == "1:20 min rough".split()
    assert total == "3 units to do 3:28 min rough".split()
    assert not out.exists()
    options["sets"] += ("data.root=voc",)
    study(out, shots="1", sets=options["sets"])
    capsys.readouterr()
    study(out, shots="1,10", **options)
    base, one, ten, total = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert one[2:] == "4 s finished".split()
    assert ten[2:] == "40 s measured".split()
    assert total == "1 unit to do, 2 finished 40 s".split()


def test_what_a_run_lacks_is_told_before_any_is_begun(
    tmp_path: Path, runs: list[tuple[str, Any]]
) -> None:
    with pytest.raises(UserError, match=r"lacks data\.root"):
        study(tmp_path / "out", sets=())
    assert (runs, (tmp_path / "out").exists()) == ([], False)


def test_own_data_and_one_sample(tmp_path: Path, runs: list[tuple[str, Any]]) -> None:
    (tmp_path / "photos.yaml").write_text("data: {root: photos, novel: [bird]}\n")
    path = tmp_path / "study.yaml"
    path.write_text("{config: photos.yaml, rows: {TFA: [], wide: [detector.width=8]}, shots: 1..2}")
    study(tmp_path / "out", str(path), sets=())
    assert [name for name, _ in runs if "-seed" in name] == [
        "tfa-1shot-seed0",
        "wide-1shot-seed0",
        "tfa-2shot-seed0",
        "wide-2shot-seed0",
    ]
    assert [name for name, _ in runs].count(runs[0][0]) == 1
    assert len({name for name, _ in runs if name.startswith("base-")}) == 2
    assert dict(runs)["wide-2shot-seed0"].shots.k == 2
    with pytest.raises(UserError, match=r"s\.json is one sample"):
        study(tmp_path / "out2", str(path), sets=("shots.file=s.json",))


def test_places_and_ways_that_cannot_be(
    tmp_path: Path, runs: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        study(tmp_path / "file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="a run lies here"):
        study(tmp_path / "run")
    with pytest.raises(UserError, match="voc-split4-1shot-320"):
        study(tmp_path / "out", split="4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="not started by torchrun"):
        study(tmp_path / "out")
    assert runs == []
