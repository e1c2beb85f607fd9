from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.study.plan import HANDED, Cell, Unit, differences, join, known, plan
from mini_fsod.study.studies import Row
from study import fake

ROWS = (
    Row("TFA"),
    Row("+mining", ("mine.threshold=0.7",), "mine"),
    Row("+tuned", ("mine.threshold=0.7", "tune.data=balanced"), "tune"),
)


def test_cells_share_a_base_and_take_it_over(tmp_path: Path) -> None:
    found = fake.planned(tmp_path, fake.study(splits=(1, 2), seeds=(0, 3)))
    bases = [unit for unit in found.units if unit.cell is None]
    cells = [unit for unit in found.units if unit.cell]
    assert [unit.stages for unit in bases] == [("base",)] * 2
    assert [unit.name for unit in cells] == [
        f"tfa-split{split}-{k}shot-seed{seed}"
        for seed in (0, 3)
        for split in (1, 2)
        for k in (1, 5)
    ]
    for unit in cells:
        assert unit.stages == ("transfer",)
        base = bases[unit.cell.split - 1]
        assert unit.needs == (base.name,)
        assert unit.folder == f"cells/{unit.name}"
        config = found.configs[unit.name]
        assert config.shots.k == str(unit.cell.shots)
        assert config.shots.seed == str(unit.cell.seed)
        handed = json.loads(config.base.checkpoint)
        assert handed == str(tmp_path / "shared" / base.name / "base/checkpoint.safetensors")
        assert unit.parts["base"]["checkpoint"] is None  # how it was made counts, not where it lies
    assert [found.configs[base.name].base.checkpoint for base in bases] == [None, None]


def test_the_order_is_one_in_which_work_can_be_done(tmp_path: Path) -> None:
    units = fake.planned(tmp_path, fake.study(splits=(1, 2), rows=ROWS, seeds=(0, 1))).units
    for n, unit in enumerate(units):
        assert set(unit.needs) <= {other.name for other in units[:n]}


def test_rows_that_train_otherwise_have_another_base(tmp_path: Path) -> None:
    rows = (Row("TFA"), Row("long", ("base.iterations=200",)), Row("K", ("transfer.iterations=9",)))
    units = fake.planned(tmp_path, fake.study(rows=rows, shots=(1,))).units
    of = {unit.cell.row: unit.needs for unit in units if unit.cell}
    assert of["TFA"] == of["K"] != of["long"]
    assert len([unit for unit in units if unit.cell is None]) == 2


def test_a_given_base_is_nobodys_unit(tmp_path: Path) -> None:
    study = fake.study(sets=("base.checkpoint=x.safetensors",))
    found = fake.planned(tmp_path, study)
    assert [unit.needs for unit in found.units] == [(), ()]
    assert {config.base.checkpoint for config in found.configs.values()} == {"x.safetensors"}


def test_a_chain_of_stages_is_shared_as_far_as_it_can_be_handed_over(tmp_path: Path) -> None:
    found = fake.planned(tmp_path, fake.study(rows=ROWS, shots=(1,)))
    base, transfer, tfa, mine, mining, tuned = found.units
    assert (base.last, transfer.last, mine.last) == ("base", "transfer", "mine")
    chain = (base.name, transfer.name, mine.name)  # all of it is handed to a cell
    assert (transfer.needs, mine.needs) == (chain[:1], chain[:2])
    assert (tfa.needs, mining.needs, tuned.needs) == (chain[:2], chain, chain)
    assert (mine.stages, mining.stages, tuned.stages) == (("mine",), (), ("tune",))
    config = found.configs[tuned.name]
    assert json.loads(config.mine.given).endswith(f"shared/{mine.name}/mine/pool.json")
    assert found.configs[mine.name].mine.given is None
    assert found.configs[mine.name].base.checkpoint is not None
    # what lies behind a stage that cannot be handed over is each cell's own
    short = {stage: way for stage, way in HANDED.items() if stage != "transfer"}
    args = (tmp_path, fake.resolve, fake.parts, fake.STAGES, fake.stages_of, short)
    units = plan(fake.study(rows=ROWS, shots=(1,)), *args).units
    assert [unit.last for unit in units if unit.cell is None] == ["base"]
    assert units[-1].stages == ("transfer", "mine", "tune")


def test_a_run_that_needs_no_earlier_stage_waits_for_none(tmp_path: Path) -> None:
    rows = (ROWS[1], Row("oracle", ("mine.threshold=truth",), "mine"), ROWS[2])
    found = fake.planned(tmp_path, fake.study(rows=rows, shots=(1,)))
    cell = next(unit for unit in found.units if unit.cell and unit.cell.row == "oracle")
    (name,) = cell.needs
    shared = next(unit for unit in found.units if unit.name == name)
    assert (shared.needs, shared.stages, cell.stages) == ((), ("mine",), ())
    assert found.configs[name].base.checkpoint is None


def test_a_preset_may_name_the_shots_itself(tmp_path: Path) -> None:
    study = replace(fake.study(), source="split{split}-{shots}shot")
    base, *_, unit = fake.planned(tmp_path, study).units
    assert unit.parts["shots"] == {"k": 5, "seed": 0}
    assert unit.needs == (base.name,)


def test_own_data_has_no_splits(tmp_path: Path) -> None:
    unit = fake.planned(tmp_path, fake.study(splits=(), source="a{split}.yaml")).units[-1]
    assert (unit.name, unit.cell) == ("tfa-5shot-seed0", Cell("TFA", None, 5, 0))
    assert unit.parts[""]["split"] == "a{split}.yaml"  # a file may be called so


def test_the_plan_of_a_folder_grows(tmp_path: Path) -> None:
    first = fake.planned(tmp_path)
    join(tmp_path, fake.study(), first.units)
    assert known(tmp_path) == list(first.units)
    more = fake.study(shots=(1, 10), seeds=(0, 1), rows=(*ROWS[:1], Row("new")))
    join(tmp_path, more, fake.planned(tmp_path, more).units)
    names = [unit.name for unit in known(tmp_path)]
    assert names[:3] == [unit.name for unit in first.units]
    assert len(names) == len(set(names)) == 3 + 7
    before = (tmp_path / "plan.json").stat().st_mtime_ns
    join(tmp_path, fake.study(), first.units)  # nothing new
    assert (tmp_path / "plan.json").stat().st_mtime_ns == before


def refusal(folder: Path, **changes: object) -> str:
    study = fake.study(**changes)
    with pytest.raises(UserError) as error:
        join(folder, study, fake.planned(folder, study).units)
    return error.value.what


def begin(folder: Path) -> None:
    (folder / known(folder)[0].folder).mkdir(parents=True)


def test_a_plan_that_nothing_came_of_gives_way(tmp_path: Path) -> None:
    join(tmp_path, fake.study(), fake.planned(tmp_path).units)
    other = fake.study(sets=("base.iterations=7",), shots=(3,))
    units = fake.planned(tmp_path, other).units
    join(tmp_path, other, units)
    assert known(tmp_path) == list(units)
    begin(tmp_path)
    assert "sets.base.iterations" in refusal(tmp_path)


def test_a_plan_that_somebody_works_on_stays(tmp_path: Path) -> None:
    """Its first unit reads data, and has no folder yet."""
    join(tmp_path, fake.study(), fake.planned(tmp_path).units)
    first = tmp_path / "locks" / f"{known(tmp_path)[0].name}.lock"
    script = (
        "import sys; from pathlib import Path; from mini_fsod.files import lock\n"
        "with lock(Path(sys.argv[1])): print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(first)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert "sets.base.iterations" in refusal(tmp_path, sets=("base.iterations=7",))
        other.communicate("\n")
    changed = fake.study(sets=("base.iterations=7",))
    join(tmp_path, changed, fake.planned(tmp_path, changed).units)


def test_another_plan_is_refused(tmp_path: Path) -> None:
    join(tmp_path, fake.study(), fake.planned(tmp_path).units)
    begin(tmp_path)
    before = (tmp_path / "plan.json").read_bytes()
    assert 'study was "fake" and is "other"' in refusal(tmp_path, name="other")
    # even where no cell is the same
    new = {"shots": (7,)}
    assert "sets.base.iterations was not set" in refusal(
        tmp_path, sets=("base.iterations=7",), **new
    )
    assert 'source was "split{split}"' in refusal(tmp_path, source="x{split}", **new)
    assert "rows.TFA.sets" in refusal(tmp_path, rows=(Row("TFA", ("seed=1",)),), **new)
    assert (tmp_path / "plan.json").read_bytes() == before


def test_workers_may_differ_in_where_they_work(tmp_path: Path) -> None:
    join(tmp_path, fake.study(), fake.planned(tmp_path).units)
    begin(tmp_path)
    study = fake.study(sets=("device=cuda:1", "data.cache=/tmp", "base.save_seconds=9"))
    join(tmp_path, study, fake.planned(tmp_path, study).units)


def test_a_preset_that_has_changed_is_refused(tmp_path: Path) -> None:
    units = fake.planned(tmp_path).units
    join(tmp_path, fake.study(), units)
    begin(tmp_path)
    parts = units[-1].parts | {"transfer": {"iterations": 41, "minutes": None}}
    changed = [*units[:-1], replace(units[-1], parts=parts)]
    with pytest.raises(UserError, match=r"seed0: transfer\.iterations was 40 and is 41\)"):
        join(tmp_path, fake.study(), changed)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"units": [{"name": 1}]}'])
def test_a_plan_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UserError, match=r"plan\.json"):
        known(tmp_path)


def test_units_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    units = [
        Unit("base-x", "shared/base-x", ("base",), "base", (), {"a": [1, None]}),
        Unit("c", "cells/c", (), "base", ("base-x",), {}, Cell("TFA", None, 1, 0)),
    ]
    join(tmp_path, fake.study(), units)
    assert known(tmp_path) == units


def test_differences() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    assert differences(old, {"a": {"b": 1, "c": [1, 2]}, "d": None}) == []
    assert differences(old, {"a": {"b": 2, "c": [1]}, "d": None, "e": "x"}) == [
        "a.b was 1 and is 2",
        "a.c was [1, 2] and is [1]",
        'e was not set and is "x"',
    ]
