from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.study.from_file import fill_from_config, find_study, read_study
from mini_fsod.study.known import STUDIES
from mini_fsod.study.studies import Row, narrow


def written(folder: Path, text: str) -> Path:
    (folder / "photos.yaml").write_text("{preset: photos, data: {novel: [bolt]}}")
    path = folder / "my-study.yaml"
    path.write_text(text)
    return path


def test_find_study_suggests_a_name() -> None:
    assert find_study("tfa") is STUDIES["tfa"]
    with pytest.raises(UserError, match='Did you mean "tfa"'):
        find_study("tfaa")


def test_find_study_reads_a_file(tmp_path: Path) -> None:
    text = """
    config: photos.yaml
    rows:
      TFA: []
      +long (8k): [transfer.iterations=8000, transfer.rate=0.002]
      base: {set: [base.minutes=4], to: base}
    shots: [5, 1]
    seeds: 0..2
    """
    study = find_study(str(written(tmp_path, text)))
    assert (study.name, study.source) == ("my-study", str(tmp_path / "photos.yaml"))
    assert study.rows == (
        Row("TFA"),
        Row("+long (8k)", ("transfer.iterations=8000", "transfer.rate=0.002")),
        Row("base", ("base.minutes=4",), "base"),
    )
    assert [row.slug for row in study.rows] == ["tfa", "long-8k", "base"]
    assert (study.splits, study.shots, study.seeds) == ((), (1, 5), (0, 1, 2))
    assert study.figures == ("nAP50", "bAP50")
    with pytest.raises(UserError, match="has no full schedule"):
        narrow(study, None, None, None, full=True)


def test_read_study_starts_from_a_preset(tmp_path: Path) -> None:
    text = "{preset: voc-320, rows: {A: , B: {}}, splits: '1..3', to: base, figures: [AP50]}"
    study = read_study(written(tmp_path, text))
    assert (study.source, study.splits, study.figures) == ("voc-320", (1, 2, 3), ("AP50",))
    assert study.rows == (Row("A", last="base"), Row("B", last="base"))
    assert narrow(study, None, None, None, full=True).source == "paper"


def test_fill_from_config_takes_shots_and_seed_that_the_study_leaves_out(tmp_path: Path) -> None:
    def axes(text: str) -> tuple[tuple[int, ...], ...]:
        path = written(tmp_path, text)
        (tmp_path / "photos.yaml").write_text("{preset: photos, shots: {k: 4, seed: 3}}")
        study = fill_from_config(read_study(path))
        return study.splits, study.shots, study.seeds

    rows = "rows: {A: []}"
    assert axes(f"{{config: photos.yaml, {rows}}}") == ((), (4,), (3,))
    assert axes(f"{{config: photos.yaml, {rows}, seeds: 0..1}}") == ((), (4,), (0, 1))
    assert axes(f"{{preset: voc-320, {rows}, splits: 2, shots: [2, 3]}}") == ((2,), (2, 3), (0,))


@pytest.mark.parametrize("text", ["shots.k=3", " shots.seed=7", "data.split=voc-split2"])
def test_fill_from_config_refuses_keys_in_which_cells_differ(text: str) -> None:
    """A cell named 1shot would otherwise have three."""
    study = STUDIES["tfa"]
    with pytest.raises(UserError, match="the runs of this study differ in"):
        fill_from_config(replace(study, sets=(text,)))
    with pytest.raises(UserError, match="the runs of this study differ in"):
        fill_from_config(replace(study, rows=(Row("A", (text,)),)))
    assert fill_from_config(study) == study


def test_fill_from_config_lets_a_study_without_splits_choose_the_classes() -> None:
    own = replace(STUDIES["tfa"], splits=(), sets=("data.novel=bolt",))
    assert fill_from_config(own) == own


def test_fill_from_config_refuses_splits_of_other_data(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, "{config: photos.yaml, rows: {A: []}}"))
    with pytest.raises(UserError, match=r"names its novel classes in data\.novel"):
        fill_from_config(narrow(study, "2", None, None, full=False))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1, 2]", "not a study"),
        ("{rows: {A: []}", "not valid YAML"),
        ("{preset: demo, row: {A: []}}", 'unknown key "row". Did you mean "rows"'),
        ("{rows: {A: []}}", "either a preset or a config file, and has neither"),
        ("{preset: demo, config: photos.yaml, rows: {A: []}}", "and has both"),
        ("{config: other.yaml, rows: {A: []}}", "there is no file"),
        ("{preset: demo, rows: {A: []}, shots: [0]}", "0 is too small"),
        ("{preset: demo, rows: {A: []}, seeds: [a]}", "not a list of numbers"),
        ("{preset: demo}", "at least one row"),
        ("{preset: demo, rows: [A]}", "at least one row"),
        ("{preset: demo, rows: {A: [base.minutes]}}", "neither a list of key=value"),
        ("{preset: demo, rows: {A: base.minutes=4}}", "neither a list of key=value"),
        ("{preset: demo, rows: {A: {sets: []}}}", "neither a list of key=value"),
        (
            "{preset: demo, rows: {A: {to: transfr}}}",
            'there is no stage "transfr". Did you mean "transfer"',
        ),
        ("{preset: demo, rows: {'+A': [], 'a ': []}}", '"+A" and "a " would share a folder'),
        ("{preset: demo, rows: {'++': []}}", "has no letter and no digit"),
        ("{preset: demo, rows: {A: []}, figures: nAP50}", "needs a list"),
        ("{preset: demo, rows: {A: []}, figures: [nAP50, metric]}", 'no figure "metric"'),
        ("{preset: demo, rows: {A: [], A: [seed=1]}}", "duplicate key A"),
        ("{preset: '', rows: {A: []}}", "must be a word"),
    ],
)
def test_read_study_explains_what_is_wrong_with_a_file(
    tmp_path: Path, text: str, what: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_study(path)
    assert what in error.value.what
    assert error.value.what.startswith(str(path))
    assert error.value.fix
