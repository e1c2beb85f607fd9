"""The Python names: what `import mini_fsod` offers, and `mini_fsod.run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mini_fsod
from mini_fsod.config.schema import Config
from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from mini_fsod.script import run_config

SOURCE = Path(mini_fsod.__file__).parents[1]


def test_import_of_mini_fsod_imports_nothing_heavy() -> None:
    script = "import mini_fsod, sys; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert not loaded & {"torch", "numpy", "PIL", "pydantic", "typer", "rich", "yaml"}


def test_public_names_are_there_and_typed() -> None:
    assert set(mini_fsod.__all__) <= set(dir(mini_fsod))
    for name in mini_fsod.__all__:
        assert getattr(mini_fsod, name) is not None
    assert mini_fsod.run is run_config
    assert mini_fsod.UserError is UserError
    assert (Path(mini_fsod.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mini_fsod.nothing  # noqa: B018


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def run(config: Config, out: Path, *more: Any) -> dict[str, Any]:
        made.append((config, out, *more))
        return {"stages": {}}

    monkeypatch.setattr(stages, "run", run)
    return made


def test_run_takes_presets_files_folders_and_keys(calls: list[Any], tmp_path: Path) -> None:
    assert mini_fsod.run("demo", {"base.iterations": 5, "shots.k": 2}) == {"stages": {}}
    (tmp_path / "bolts.yaml").write_text("preset: demo\nbase: {iterations: 6}\n")
    mini_fsod.run(tmp_path / "bolts.yaml", {"data": {"novel": ["three"]}}, last="base")
    keys = {"preset": "demo", "base": {"iterations": 7}, "data.root": tmp_path}
    mini_fsod.run(keys, out=tmp_path / "run", first="online")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("preset: demo\nseed: 8\n")
    mini_fsod.run(tmp_path / "run")
    configs, folders, firsts, lasts, commands = zip(*calls, strict=True)
    assert [c.base.iterations for c in configs] == [5, 6, 7, 1000]
    assert configs[0].shots.k == 2
    assert configs[1].data.novel == ("three",)
    assert configs[2].data.root == tmp_path
    assert configs[3].seed == 8
    assert folders == (Path("runs/demo"), Path("runs/bolts"), tmp_path / "run", tmp_path / "run")
    assert (firsts, lasts) == ((None, None, "online", None), (None, "base", None, None))
    assert set(commands) == {"mini_fsod.run"}


def test_run_says_what_is_wrong(calls: list[Any]) -> None:
    with pytest.raises(UserError, match="needs a run folder"):
        mini_fsod.run({"preset": "demo"})
    with pytest.raises(UserError, match=r"the overrides: unknown key `shots\.kk`"):
        mini_fsod.run("demo", {"shots.kk": 3})
    with pytest.raises(UserError, match="no such file or preset"):
        mini_fsod.run("demmo")
    assert calls == []
