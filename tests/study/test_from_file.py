from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mini_fsod.config.load import resolve
from mini_fsod.errors import UserError
from mini_fsod.study.from_file import as_configured, find, from_file, refuse_axes
from mini_fsod.study.studies import STUDIES, Row, narrowed

STAGES = ("base", "transfer")


def test_names_that_are_no_study() -> None:
    with pytest.raises(UserError, match='Did you mean "tfa"'):
        find("tfaa", STAGES)


def written(folder: Path, text: str) -> Path:
    (folder / "photos.yaml").write_text("seed: 0\n")
    path = folder / "my-study.yaml"
    path.write_text(text)
    return path


def test_a_study_of_own_data(tmp_path: Path) -> None:
    text = """
    config: photos.yaml
    rows:
      TFA: []
      +long (8k): [transfer.iterations=8000, transfer.rate=0.002]
      base: {set: [base.minutes=4], to: base}
    shots: [5, 1]
    seeds: 0..2
    """
    study = find(str(written(tmp_path, text)), STAGES)
    assert (study.name, study.source) == ("my-study", str(tmp_path / "photos.yaml"))
    assert study.rows == (
        Row("TFA"),
        Row("+long (8k)", ("transfer.iterations=8000", "transfer.rate=0.002")),
        Row("base", ("base.minutes=4",), "base"),
    )
    assert [row.slug for row in study.rows] == ["tfa", "long-8k", "base"]
    assert (study.splits, study.shots, study.seeds) == ((), (1, 5), (0, 1, 2))
    assert study.figures == ("nAP50", "bAP50")
    with pytest.raises(UserError, match="has no splits"):
        narrowed(study, "1", None, None, full=False)
    with pytest.raises(UserError, match="has no full schedule"):
        narrowed(study, None, None, None, full=True)


def test_a_study_over_splits(tmp_path: Path) -> None:
    text = "{preset: 'voc-split{split}-5shot', rows: {A: , B: {}}, splits: '1..3', to: base}"
    study = from_file(written(tmp_path, text), STAGES)
    assert study.splits == (1, 2, 3)
    assert study.rows == (Row("A", last="base"), Row("B", last="base"))


def test_what_a_study_leaves_open_its_config_says(tmp_path: Path) -> None:
    own = tmp_path / "photos.yaml"
    rows = "rows: {A: []}"

    def axes(text: str) -> tuple[tuple[int, ...], ...]:
        path = written(tmp_path, text)
        own.write_text("{preset: photos, shots: {k: 4, seed: 3}}")
        study = as_configured(from_file(path, STAGES), resolve)
        return study.splits, study.shots, study.seeds

    assert axes(f"{{config: photos.yaml, {rows}}}") == ((), (4,), (3,))
    assert axes(f"{{config: photos.yaml, {rows}, seeds: 0..1}}") == ((), (4,), (0, 1))
    assert axes(f"{{preset: 'voc-split{{split}}-5shot-320', {rows}}}") == ((1,), (5,), (0,))
    asked = "'voc-split{split}-{shots}shot-320'"
    assert axes(f"{{preset: {asked}, {rows}, shots: [2, 3]}}") == ((1,), (2, 3), (0,))
    with pytest.raises(UserError, match="needs K"):
        axes(f"{{preset: {asked}, {rows}}}")


@pytest.mark.parametrize("text", ["shots.k=3", " shots.seed=7", "data.split=voc-split2"])
def test_what_cells_differ_in_is_not_set_for_all(text: str) -> None:
    """Else a cell called 1shot would have three."""
    study = STUDIES["tfa"]
    with pytest.raises(UserError, match="the cells of a study differ in this"):
        refuse_axes(replace(study, sets=(text,)))
    with pytest.raises(UserError, match="differ in this"):
        refuse_axes(replace(study, rows=(Row("A", (text,)),)))
    refuse_axes(study)
    own = replace(study, splits=(), sets=("data.novel=bolt",))
    refuse_axes(own)  # which says what it is about


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1, 2]", "no study"),
        ("{rows: {A: []}", "no valid YAML"),
        ("{preset: demo, row: {A: []}}", 'unknown key "row". Did you mean "rows"'),
        ("{rows: {A: []}}", "one preset or one config file, not none"),
        ("{preset: demo, config: photos.yaml, rows: {A: []}}", "not both"),
        ("{config: other.yaml, rows: {A: []}}", "there is no file"),
        ("{preset: 'voc-{k}shot', rows: {A: []}}", "{k} stands for nothing"),
        ("{preset: demo, rows: {A: []}, splits: [1]}", "has no {split} in it"),
        ("{preset: demo, rows: {A: []}, shots: [0]}", "0 is too small"),
        ("{preset: demo, rows: {A: []}, seeds: [a]}", "no list of numbers"),
        ("{preset: demo}", "at least one row"),
        ("{preset: demo, rows: [A]}", "at least one row"),
        ("{preset: demo, rows: {A: [base.minutes]}}", "neither a list of key=value"),
        ("{preset: demo, rows: {A: base.minutes=4}}", "neither a list of key=value"),
        ("{preset: demo, rows: {A: {sets: []}}}", "neither a list of key=value"),
        ("{preset: demo, rows: {A: {to: transfr}}}", 'no stage "transfr". Did you mean "transfer"'),
        ("{preset: demo, rows: {'+A': [], 'a ': []}}", "no folder name of its own"),
        ("{preset: demo, rows: {'++': []}}", "no folder name of its own"),
        ("{preset: demo, rows: {A: []}, figures: nAP50}", "needs a list"),
        ("{preset: demo, rows: {A: []}, figures: [nAP50, metric]}", 'no figure "metric"'),
        ("{preset: demo, rows: {A: [], A: [seed=1]}}", "duplicate key A in the table at line 1"),
        ("{preset: '', rows: {A: []}}", "needs a word"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, what: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        from_file(path, STAGES)
    assert what in error.value.what
    assert error.value.what.startswith(str(path))
    assert error.value.fix
