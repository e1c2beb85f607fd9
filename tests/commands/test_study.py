"""`mini study` with runs that take no time: real settings, plans and tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.errors import UserError
from mini_fsod.files import write_json
from mini_fsod.runs import stages
from mini_fsod.study.known import STUDIES

Mini = Callable[..., tuple[int, str, str]]
Runs = list[tuple[str, Any, dict[str, Any]]]
DATA = ("--set", "data.root=voc")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs that write a result at once: (name of the folder, configuration, other arguments)."""
    done: Runs = []

    def run(config: Any, out: Path, last: str, **more: Any) -> None:
        done.append((out.name, config, more))
        if config.shots.k == 3:
            raise UserError("the loss is not finite at iteration 17.", "Lower transfer.rate.")
        figures = {"nAP50": 30.0 + config.shots.k, "bAP50": 70.0, "seconds": 4.0}
        write_json(out / "results.json", {"stages": {"base": {"seconds": 60.0}, last: figures}})

    monkeypatch.setattr(stages, "run", run)
    return done


def test_study_resumes_and_grows(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    out = tmp_path / "tfa"
    code, text, notes = mini("study", "tfa", "--shots", "1,5", *DATA, "-o", out)
    assert code == 0, notes
    assert [name for name, _, _ in runs] == ["tfa-split1-1shot-seed0", "tfa-split1-5shot-seed0"]
    assert runs[1][1].transfer.iterations == 20_000
    assert (
        runs[0][2]["results_store"] == tmp_path.resolve() / ".stages"
    )  # shared with runs beside it
    assert runs[0][2]["wait"] is False
    assert "| TFA                 |   31.0 |   35.0 |" in text
    assert "[1/2] tfa-split1-1shot-seed0: base, transfer" in notes
    assert "[1/2] tfa-split1-1shot-seed0: nAP50 31.0, bAP50 70.0, 0 s" in notes
    device = ("--set", "device=cpu")
    code, text, _ = mini("study", "tfa", "--shots=1,5", "--seeds=0..1", *DATA, *device, "-o", out)
    assert [name for name, _, _ in runs[2:]] == ["tfa-split1-1shot-seed1", "tfa-split1-5shot-seed1"]
    assert "| TFA                 | 31.0 ± 0.0 | 35.0 ± 0.0 |" in text
    mini("study", "tfa", "--shots", "1", *DATA, "-o", out)
    assert len(runs) == 4
    assert len(json.loads((out / "study.json").read_text())["cells"]) == 4


def test_study_runs_some_rows_now_and_others_later(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    words = ("study", "components", "--shots", "1", *DATA, "-o", tmp_path / "out")
    _, text, _ = mini(*words, "--rows", "1,4")
    assert [name for name, _, _ in runs] == [
        "tfa-split1-1shot-seed0",
        "ssl-co-mining-split1-1shot-seed0",
    ]
    assert "| + SSL co-mining" in text
    mini(*words)
    names = [name for name, _, _ in runs]
    assert len(names) == len(set(names)) == 11
    code, _, said = mini(*words, "--rows", "1..12")
    assert (code, "there is no 12" in said) == (2, True)


def test_study_reports_failed_runs_at_the_end(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    code, text, said = mini("study", "tfa", "--shots", "1,3,5", *DATA, "-o", tmp_path)
    assert (code, "1 of 3 runs failed" in said) == (2, True)
    assert str(tmp_path / "failed") in said
    assert "| TFA                 |   31.0 |      - |   35.0 |" in text
    assert "tfa-split1-3shot-seed0: the loss is not finite at iteration 17." in said


def test_study_computes_new_results_for_other_settings(
    tmp_path: Path, runs: Runs, mini: Mini
) -> None:
    words = ("study", "tfa", "--shots", "1", *DATA, "-o", tmp_path)
    mini(*words)
    code, text, _ = mini(*words, "--set", "base.minutes=4")
    assert (code, len(runs)) == (0, 2)
    assert "voc-320, base.minutes=4" in text
    mini(*words)
    assert len(runs) == 3  # a run that finds all its stages in the store


def test_study_refuses_the_folder_of_another_study(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    mini("study", "tfa", "--shots", "1", *DATA, "-o", tmp_path)
    for words in (("mingling",), ("tfa", "--full"), ("tfa", "--full", "--dry-run")):
        code, _, said = mini("study", *words, *DATA, "-o", tmp_path)
        assert (code, "another study is in this folder" in said) == (2, True)
    assert len(runs) == 1


def test_study_full_takes_the_schedule_of_the_paper(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    code, text, _ = mini("study", "tfa", "--full", "--shots", "1", *DATA, "-o", tmp_path)
    assert (code, "\npaper." in text) == (0, True)
    assert runs[0][1].detector.backbone == "resnet101"


def test_study_dry_run_prints_estimates_only(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    out = tmp_path / "out"
    sets = ("--set", "device=cuda", "--set", "base.minutes=2")
    words = ("study", "tfa", *sets, "-o", out)
    _, text, said = mini(*words, "--shots", "1,10", "--dry-run")
    assert "set data.root for estimates" in said
    one, ten, total = [line.split() for line in text.splitlines()[1:]]
    assert one == "tfa-split1-1shot-seed0 base, transfer 2:08 min rough".split()
    assert ten == "tfa-split1-10shot-seed0 transfer 1:20 min rough".split()
    assert total == "2 runs to do 3:28 min rough".split()
    assert not out.exists()
    mini(*words, *DATA, "--shots", "1")
    _, text, _ = mini(*words, *DATA, "--shots", "1,10", "--dry-run")
    one, ten, total = [line.split() for line in text.splitlines()[1:]]
    assert one[1:] == "base, transfer 1:04 min finished".split()
    assert ten[1:] == "transfer 40 s measured".split()
    assert total == "1 run to do, 1 finished 40 s".split()


def test_study_lists_the_studies_with_runs_and_time(mini: Mini) -> None:
    code, text, said = mini("study", "--list")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[1:]] == list(STUDIES)
    tfa = next(line for line in lines if line[0] == "tfa")
    assert tfa[1] == "5"
    assert "The few-shot baseline" in " ".join(tfa)
    assert "times are rough" in said


def test_study_lists_the_time_on_all_gpus(mini: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    _, text, _ = mini("study", "--list")
    header, *lines = text.splitlines()
    assert header.split()[2:6] == ["one", "GPU", "4", "GPUs"]
    miners = next(line for line in lines if line.startswith("miners")).split()
    assert miners[1] == "5"
    assert miners[3] == miners[5]
    assert float(miners[2].replace(":", ".")) > float(miners[4].replace(":", "."))


def test_study_lists_the_rows_of_one_study(mini: Mini) -> None:
    code, text, _ = mini("study", "mingling", "--list")
    assert code == 0
    assert "voc-320; split 1; K 1; seed 0" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "2 RPN online.mingle.rpn=true online" in lines
    assert "online.mingle.rcnn=false" in lines


def test_study_needs_a_name_and_a_folder(runs: Runs, mini: Mini) -> None:
    for words in ((), ("tfa",)):
        code, _, said = mini("study", *words)
        assert (code, "needs a name or a file, and a folder" in said) == (2, True)


def test_study_says_what_the_configuration_lacks_before_any_run(
    tmp_path: Path, runs: Runs, mini: Mini
) -> None:
    code, _, said = mini("study", "tfa", "-o", tmp_path / "out")
    assert (code, "data.root" in said) == (2, True)
    assert (runs, (tmp_path / "out").exists()) == ([], False)


def test_study_of_own_data_from_a_file(tmp_path: Path, runs: Runs, mini: Mini) -> None:
    (tmp_path / "photos.yaml").write_text("data: {root: photos, novel: [bird]}\n")
    path = tmp_path / "study.yaml"
    path.write_text(
        "{config: photos.yaml, rows: {TFA: [], wide: [detector.head_width=8]}, shots: 1..2}"
    )
    code, _, said = mini("study", path, "-o", tmp_path / "out")
    assert code == 0, said
    assert [name for name, _, _ in runs] == [
        "tfa-1shot-seed0",
        "wide-1shot-seed0",
        "tfa-2shot-seed0",
        "wide-2shot-seed0",
    ]
    assert runs[3][1].shots.k == 2
    code, _, said = mini("study", path, "--set", "shots.file=s.json", "-o", tmp_path / "out2")
    assert (code, "s.json is one sample" in said) == (2, True)


def test_study_refuses_folders_and_ways_that_cannot_work(
    tmp_path: Path, runs: Runs, mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: object) -> str:
        code, _, said = mini("study", "tfa", *DATA, *words)
        assert code == 2
        return said

    (tmp_path / "file").write_text("")
    assert "not a folder" in refused("-o", tmp_path / "file")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    assert "contains a run" in refused("-o", tmp_path / "run")
    assert "voc-split4" in refused("-o", tmp_path / "out", "--split", "4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "cannot be started by torchrun" in refused("-o", tmp_path / "out")
    assert runs == []
