from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.study.described import find, from_file
from mini_fsod.study.studies import Row, narrowed

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
        ("{preset: 3, rows: {A: []}}", "needs a word"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, what: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        from_file(path, STAGES)
    assert what in error.value.what
    assert error.value.what.startswith(str(path))
    assert error.value.fix
