from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.fake_study import ROWS, example_study
from mini_fsod.errors import UserError
from mini_fsod.study.known import STUDIES
from mini_fsod.study.plan import (
    StudyPlan,
    merge_plan,
    plan_study,
    read_plan,
    refuse_changed_plan,
    save_plan,
    shown_settings,
)
from mini_fsod.study.studies import Row


def saved(folder: Path, **changes: Any) -> StudyPlan:
    study = example_study(**changes)
    plan = plan_study(study)
    save_plan(folder, study, plan)
    return plan


def test_plan_study_goes_seed_by_seed_and_keeps_cells_that_share_work_together() -> None:
    plan = plan_study(example_study(rows=ROWS, splits=(1, 2), seeds=(0, 3)))
    assert [cell.name for cell in plan.cells] == [
        f"{row}-split{split}-{k}shot-seed{seed}"
        for seed in (0, 3)
        for split in (1, 2)
        for k in (1, 5)
        for row in ("tfa", "mined")
    ]
    for cell in plan.cells:
        config = plan.configs[cell.name]
        assert (config.shots.k, config.shots.seed) == (cell.shots, cell.seed)
        assert config.data.split == f"voc-split{cell.split}"
        assert config.mine.alpha == (2 if cell.row == "mined" else 1.5)
        assert str(config.data.root) == "voc"


def test_plan_study_gives_equal_keys_to_stages_that_cells_share() -> None:
    rows = (*ROWS, Row("longer", ("base.minutes=16",)))
    plan = plan_study(example_study(rows=rows, splits=(1, 2), seeds=(0, 1)))
    keys = {(c.row, c.split, c.shots, c.seed): c.keys for c in plan.cells}
    tfa = keys["TFA", 1, 1, 0]
    assert tuple(tfa) == ("base", "transfer")
    assert tfa["base"] == keys["TFA", 1, 5, 1]["base"]
    assert tfa["base"] != keys["TFA", 2, 1, 0]["base"]
    assert tfa["base"] != keys["longer", 1, 1, 0]["base"]
    assert tfa["transfer"] == keys["mined", 1, 1, 0]["transfer"]
    assert tfa["transfer"] != keys["TFA", 1, 1, 1]["transfer"]
    assert tfa["transfer"] != keys["TFA", 1, 5, 0]["transfer"]


def test_plan_study_leaves_out_stages_that_a_row_does_not_need() -> None:
    study = replace(STUDIES["components"], shots=(1,), sets=("data.root=voc",))
    by_row = {cell.row: cell for cell in plan_study(study).cells}
    assert tuple(by_row["oracle"].keys) == ("online",)
    assert by_row["+ fine-tuning"].last == "tune"
    assert by_row["+ fine-tuning"].keys["online"] == by_row["+ IoU branch"].keys["online"]


def test_plan_study_plans_chosen_rows_only() -> None:
    study = example_study(rows=ROWS)
    cells = plan_study(study, ROWS[1:]).cells
    assert [cell.row for cell in cells] == ["mined", "mined"]
    assert all(cell in plan_study(study).cells for cell in cells)


def test_plan_study_refuses_more_runs_than_anybody_wants() -> None:
    study = replace(example_study(), seeds=tuple(range(1000)), shots=(1, 2, 3, 5, 10, 30))
    with pytest.raises(UserError, match=r"runs, and a study has 5,000 at most"):
        plan_study(study)


def test_plan_study_without_splits_takes_the_configuration(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("data: {novel: [bird]}\n")
    plan = plan_study(example_study(source=str(own), splits=(), shots=(2,)))
    (cell,) = plan.cells
    assert (cell.name, cell.split) == ("tfa-2shot-seed0", None)
    assert plan.configs[cell.name].data.novel == ("bird",)


def test_cell_key_changes_with_what_changes_the_result() -> None:
    def key(*sets: str) -> str:
        return plan_study(example_study(shots=(1,), sets=sets)).cells[0].key

    same = ["device=cuda:1", "data.cache=/tmp", "data.loading=stream", "base.save_seconds=9"]
    assert key(*same) == key()
    assert shown_settings(example_study(sets=(*same, "seed=1"))) == {"seed": "1"}
    others = [key(text) for text in ("seed=1", "base.minutes=4", "data.metric=voc", "data.test=x")]
    assert len({key(), *others}) == 5


def test_save_plan_adds_the_cells_of_each_command(tmp_path: Path) -> None:
    first = saved(tmp_path)
    assert read_plan(tmp_path) == list(first.cells)
    second = saved(tmp_path, shots=(1, 10), seeds=(0, 1), rows=(Row("TFA"), Row("new")))
    names = [cell.name for cell in read_plan(tmp_path)]
    assert len(names) == len(set(names)) == 1 + 8
    assert names[:5] == [
        "tfa-split1-1shot-seed0",
        "new-split1-1shot-seed0",
        "tfa-split1-5shot-seed0",
        "tfa-split1-10shot-seed0",
        "new-split1-10shot-seed0",
    ]
    assert {cell.name for cell in second.cells} < set(names)


def test_save_plan_leaves_an_unchanged_file_alone(tmp_path: Path) -> None:
    saved(tmp_path)
    before = (tmp_path / "plan.json").stat().st_mtime_ns
    saved(tmp_path)
    assert (tmp_path / "plan.json").stat().st_mtime_ns == before


def test_merge_plan_gives_earlier_cells_the_new_settings(tmp_path: Path) -> None:
    """Means over cells with different settings would be wrong."""
    saved(tmp_path, seeds=(0, 1))
    study = example_study(sets=("data.root=voc", "base.minutes=4"), shots=(1,))
    whole = merge_plan(tmp_path, study, plan_study(study))
    assert len(whole.cells) == 4
    assert {config.base.minutes for config in whole.configs.values()} == {4}


def test_merge_plan_drops_rows_that_the_study_no_longer_has(tmp_path: Path) -> None:
    saved(tmp_path, rows=ROWS)
    study = example_study(rows=ROWS[1:], seeds=(1,))
    rows = [cell.row for cell in merge_plan(tmp_path, study, plan_study(study)).cells]
    assert rows == ["mined"] * 4


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "other"}, r"study example, not other"),
        ({"source": "paper"}, r"source voc-320, not paper"),
    ],
)
def test_merge_plan_refuses_the_folder_of_another_study(
    tmp_path: Path, changes: dict[str, str], what: str
) -> None:
    saved(tmp_path)
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(UserError, match=what) as error:
        saved(tmp_path, **changes)
    assert "--out" in error.value.fix
    assert (tmp_path / "plan.json").read_bytes() == before


def test_refuse_changed_plan_stops_a_process_with_older_settings(tmp_path: Path) -> None:
    plan = saved(tmp_path)
    saved(tmp_path, seeds=(7,))  # more cells are no change
    refuse_changed_plan(tmp_path, plan)
    saved(tmp_path, sets=("data.root=voc", "device=cuda:1"))
    refuse_changed_plan(tmp_path, plan)
    saved(tmp_path, sets=("data.root=voc", "seed=1"))
    with pytest.raises(UserError, match="other settings"):
        refuse_changed_plan(tmp_path, plan)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"study": "a"}', '{"study": "a", "cells": [{"name": 1}]}'),
        *('{"study": "a", "source": "b", "cells": {}}', "[" * 100_000),
        '{"study": "a", "source": "b", "cells": [{"row": "r", "split": 1, "shots": 1, "seed": 0, '
        '"name": "n", "metric": "voc", "keys": {}}]}',
    ],
    ids=range(8),
)
def test_read_plan_refuses_a_file_that_is_no_plan(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UserError, match=r"plan\.json: cannot be read") as error:
        read_plan(tmp_path)
    assert "Delete the file" in error.value.fix


def test_read_plan_is_empty_without_a_plan(tmp_path: Path) -> None:
    assert read_plan(tmp_path) == []


def test_save_plan_writes_what_people_can_read(tmp_path: Path) -> None:
    saved(tmp_path, rows=ROWS[1:], shots=(1,), sets=("data.root=voc", "device=cpu"))
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["study"] == "example"
    assert content["source"] == "voc-320"
    assert content["sets"] == {"data.root": "voc"}
    assert content["rows"] == {"mined": {"sets": ["mine.alpha=2"], "to": "mine"}}
    assert [cell["name"] for cell in content["cells"]] == ["mined-split1-1shot-seed0"]
