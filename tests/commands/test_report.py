"""`mini report` and `mini doctor` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.made_run import score, write_run


def test_report_writes_a_page_into_the_run(mini: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    code, out, err = mini("report", run)
    assert (code, out) == (0, "")
    assert f"report: {run / 'report.html'}" in err
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_report_compares_and_writes_elsewhere(mini: Any, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "two", "three")]
    page = tmp_path / "out" / "page.html"
    words = ["--compare", runs[1], "--compare", runs[2], "-o", page]
    code, _, err = mini("report", runs[0], *words)
    assert code == 0, err
    assert "The configurations are identical." in page.read_text()
    assert not (runs[0] / "report.html").exists()


def test_report_refuses_what_is_no_run(mini: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for words in (
        ["report", tmp_path],
        ["report", run, "--compare", tmp_path],
        ["doctor", tmp_path],
    ):
        code, _, err = mini(*words)
        assert code == 2
        assert "not the folder of a run" in err
    assert not (run / "report.html").exists()


def test_doctor_says_that_nothing_stands_out(mini: Any, tmp_path: Path) -> None:
    assert mini("doctor", write_run(tmp_path / "run"))[:2] == (0, "Nothing stands out.\n")


def test_doctor_ranks_causes_with_evidence_and_changes(mini: Any, tmp_path: Path) -> None:
    weak = {"base": {"score": score(None, 6.0)}, "online": {"score": score(bap=60.0)}}
    run = write_run(tmp_path / "run", stages=weak, keys={"online": {"rate": 0.9}})
    code, out, _ = mini("doctor", run)
    assert code == 0
    first, second = out.split("\n\n")
    assert first.startswith("1. The base detector is weak, and mining depends on it")
    assert "bAP50 is 6.0 after base training" in first
    assert "try: a longer base training" in first
    assert second.startswith("2. The learning rate of online does not fit its batch size")
    rows = json.loads(mini("doctor", run, "--json")[1])
    assert [row["rank"] for row in rows] == ["blocks everything", "possible"]
    assert rows[1]["changes"][0].startswith("online.rate=")


def test_doctor_names_files_that_it_cannot_read(mini: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "mine" / "thresholds.json").write_text("{")
    code, out, err = mini("doctor", run)
    assert (code, out) == (0, "Nothing stands out.\n")
    assert "thresholds.json: cannot be read" in err


def test_doctor_shows_markup_in_class_names_as_it_is(mini: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = run / "data.json"
    path.write_text(
        path.read_text().replace("bolt", "[/red]bolt").replace('"test": 150', '"test": 0')
    )
    assert "[/red]bolt cannot be scored" in mini("doctor", run)[1]
