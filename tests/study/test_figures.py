"""The paper's figures, drawn from the files of finished cells, and read from the SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from helpers import shapes
from helpers.fake_study import example_study, finish_cells
from helpers.mining_run import mining_config, scan_and_mine
from helpers.shapes import NOVEL
from mini_fsod.study.figures import FIGURES, draw_figures
from mini_fsod.study.plan import StudyPlan, plan_study
from mini_fsod.study.studies import Row, Study
from mini_fsod.study.tables import gather_results

ROWS = (Row("TFA", paper=("TFA Base",)), Row("MINI", ("seed=1",), "online", ("MINI",)))
CLASSES = ("bird", "bus")


def finished(folder: Path, shots: tuple[int, ...] = (1, 5), **changes: Any) -> tuple[Study, Any]:
    study = example_study(rows=ROWS, shots=shots, splits=(1,), **changes)
    plan = plan_study(study)
    values = {("TFA", 1): 30.5, ("MINI", 1): 41.5, ("TFA", 5): 50.5, ("MINI", 5): 62.5}
    stages = {c.name: {c.last: {"nAP50": values[c.row, c.shots]}} for c in plan.cells}
    finish_cells(folder, plan, stages)
    return study, plan


def draw(folder: Path, study: Study, plan: StudyPlan) -> dict[str, str]:
    """The texts in each SVG of the light theme, by the figure's name."""
    written = draw_figures(folder, gather_results(folder, study, plan.cells), plan.cells)
    texts = {}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 5
        elif path.stem.endswith("-light"):
            root = ElementTree.fromstring(path.read_text())
            name = path.stem.removesuffix("-light").removesuffix("-split1")
            texts[name] = "\n".join("".join(e.itertext()) for e in root.iter() if "text" in e.tag)
            assert len(list(path.parent.glob(f"{path.stem.removesuffix('-light')}-*"))) == 4
    return texts


def write_mined(folder: Path, plan: StudyPlan) -> None:
    """What the stages `mine` and `online` of the row MINI leave, but for pictures."""
    for cell in plan.cells:
        if cell.row != "MINI":
            continue
        mine, online = (folder / "cells" / cell.name / stage for stage in ("mine", "online"))
        mine.mkdir(parents=True)
        online.mkdir()
        rows = {
            name: {"candidates": 9, "delta": 0.25 * (n + 1), "kept": 4}
            for n, name in enumerate(CLASSES)
        }
        (mine / "thresholds.json").write_text(json.dumps({"min_score": 0.05, "classes": rows}))
        found = {"precision": 0.5, "recall": 0.5, "candidates": 9, "kept": 4}
        with_both = found | {"true_positives": 137, "without_co_mining": {"true_positives": 88}}
        audit = {"pool": found, "classes": dict.fromkeys(CLASSES, with_both)}
        (mine / "audit.json").write_text(json.dumps(audit))
        lines = [{"step": n, "offline": 0.5, "online": n / 100} for n in (50, 100, 150)]
        (online / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_draw_figures_of_scores_shows_rows_beside_the_paper(tmp_path: Path) -> None:
    texts = draw(tmp_path, *finished(tmp_path))
    assert {*texts} == {"scores"}
    for word in ("TFA", "TFA, the paper", "MINI", "MINI, the paper", "nAP50"):
        assert word in texts["scores"].splitlines()


def test_draw_figures_of_one_k_are_bars_with_their_values(tmp_path: Path) -> None:
    lines = draw(tmp_path, *finished(tmp_path, shots=(1,)))["scores"].splitlines()
    assert {"30.5", "41.5", "TFA", "MINI", "nAP50, K = 1", "the paper"} <= {*lines}


def test_draw_figures_leaves_out_cells_that_are_not_finished_with_these_settings(
    tmp_path: Path,
) -> None:
    study, plan = finished(tmp_path)
    write_mined(tmp_path, plan)
    cell = next(c for c in plan.cells if (c.row, c.shots) == ("MINI", 1))
    (tmp_path / "cells" / cell.name / "cell.json").write_text('{"key": "of other settings"}')
    drawn = draw(tmp_path, study, plan)["true-positives"].splitlines()
    assert "K = 5" in drawn
    assert "K = 1" not in drawn


def test_draw_figures_of_mining(tmp_path: Path) -> None:
    study, plan = finished(tmp_path)
    write_mined(tmp_path, plan)
    texts = draw(tmp_path, study, plan)
    assert {*texts} == {"scores", "thresholds", "true-positives", "kept-instances"}
    assert {*CLASSES, "1", "5", "threshold"} <= {*texts["thresholds"].splitlines()}
    of_pool = {*texts["true-positives"].splitlines()}
    assert {*CLASSES, "137", "88", "detector alone", "with co-mining", "K = 5"} <= of_pool
    kept = {*texts["kept-instances"].splitlines()}
    assert {"of the pool", "the teacher's", "iteration", "K = 1"} <= kept


def test_draw_figures_of_pictures(tmp_path: Path) -> None:
    shapes_data = shapes.write_data(tmp_path / "data")
    study, plan = finished(tmp_path, shots=(1,))
    cell = tmp_path / "cells" / plan.cells[1].name
    scan_and_mine(shapes_data, cell)
    (cell / "config.yaml").write_text(mining_config(shapes_data).to_yaml())
    texts = draw(tmp_path, study, plan)
    assert {"scores", "mined", "teaser"} <= {*texts}
    assert NOVEL in texts["mined"]
    assert "right" in texts["mined"] or "wrong" in texts["mined"]
    assert "annotated (green), mined (orange, dashed)" in texts["teaser"]
    assert "MINI" in texts["teaser"]


def test_draw_figures_are_the_same_each_time(tmp_path: Path) -> None:
    study, plan = finished(tmp_path)
    draw(tmp_path, study, plan)
    before = {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    draw(tmp_path, study, plan)
    assert before == {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}


def test_draw_figures_without_finished_cells_writes_nothing(tmp_path: Path) -> None:
    study = example_study(rows=ROWS)
    assert draw(tmp_path, study, plan_study(study)) == {}
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_described(name: str) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "paper.md"
    assert f"| `{name}` |" in page.read_text(encoding="utf-8")
