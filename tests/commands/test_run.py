"""`mini run`: what it asks the stages for, what it prints, and how it refuses wrong input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import shapes, tiny_run
from mini_fsod.config.load import resolve

SHORT = {"base__iterations": 2, "transfer__iterations": 2}


def write_config(folder: Path, *sets: str) -> Path:
    """The folder of a run of the preset voc-320, as far as `mini run` looks at it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(resolve("voc-320", sets).to_yaml())
    return folder


# What the stages are asked for


def test_run_passes_the_preset_and_its_changes_on(mini, stages) -> None:
    words = ["--set", "data.root=VOC devkit", "--from", "transfer", "--to", "mine"]
    code, _, err = mini("run", "voc-320", *words)
    assert code == 0, err
    (call,) = stages.calls
    assert call.config == resolve("voc-320", ["data.root=VOC devkit"])
    assert (call.out, call.first, call.last) == (Path("runs/voc-320"), "transfer", "mine")
    assert call.command.startswith("mini run voc-320 --set 'data.root=VOC devkit' --from")


def test_run_short_forms_set_keys(mini, stages) -> None:
    code, _, err = mini("run", "voc-320", "--split", "voc-split2", "--shots", 5, "--seed", 1)
    assert code == 0, err
    keys = ["data.split=voc-split2", "shots.k=5", "shots.seed=1"]
    assert stages.calls[0].config == resolve("voc-320", keys)


def test_run_asks_for_the_novel_classes_alone(mini, stages) -> None:
    code, _, err = mini("run", "voc-320", "--only-novel")
    assert code == 0, err
    assert mini("run", "voc-320", "--set", "only_novel=true")[0] == 0
    assert mini("run", "voc-320")[0] == 0
    assert [call.config.only_novel for call in stages.calls] == [True, True, False]


def test_run_names_the_folder_after_the_file(mini, stages, tmp_path: Path) -> None:
    (tmp_path / "birds.yaml").write_text("preset: photos")
    assert mini("run", tmp_path / "birds.yaml")[0] == 0
    assert mini("run", tmp_path / "birds.yaml", "-o", tmp_path / "first")[0] == 0
    assert [call.out for call in stages.calls] == [Path("runs/birds"), tmp_path / "first"]


def test_run_takes_the_folder_of_a_run(mini, stages, tmp_path: Path) -> None:
    folder = write_config(tmp_path / "first", "shots.k=3")
    code, _, err = mini("run", folder, "--seed", 4)
    assert code == 0, err
    assert mini("run", folder, "-o", tmp_path / "second")[0] == 0
    assert [call.out for call in stages.calls] == [folder, tmp_path / "second"]
    shots = stages.calls[0].config.shots
    assert (shots.k, shots.seed) == (3, 4)


def test_run_prefers_a_preset_to_a_folder_of_its_name(
    mini, stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "demo")
    for source in ("demo", "./demo"):
        assert mini("run", source)[0] == 0
    preset, folder = stages.calls
    assert (preset.config, preset.out) == (resolve("demo"), Path("runs/demo"))
    assert (folder.config, folder.out) == (resolve("voc-320"), Path("demo"))


def test_run_anyway(mini, stages) -> None:
    assert mini("run", "demo")[0] == mini("run", "demo", "--anyway")[0] == 0
    assert [call.anyway for call in stages.calls] == [False, True]


# What it prints


def test_run_prints_a_row_per_stage(mini, stages) -> None:
    stages.results = {
        "stages": {
            "base": {
                "nAP50": None,
                "bAP50": 61.25,
                "AP50": 61.25,
                "seconds": 1234.5,
                "images_per_second": 123.4,
            },
            "tune": {
                "nAP50": 50.0,
                "bAP50": 60.0,
                "AP50": 57.5,
                "seconds": 4.0,
                "images_per_second": 2.34,
            },
        }
    }
    code, out, err = mini("run", "demo", "-o", "my run")
    assert code == 0, err
    assert [line.split() for line in out.splitlines()] == [
        ["stage", "nAP50", "bAP50", "AP50", "seconds", "img/s"],
        ["base", "-", "61.2", "61.2", "1,234.5", "123"],
        ["tune", "50.0", "60.0", "57.5", "4.0", "2.3"],
    ]
    assert "results: my run/results.json" in err
    assert "mini predict 'my run' IMAGES" in err


def test_run_dry_run_says_what_is_kept_and_what_the_rest_costs(mini, tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data")
    words = tiny_run.words(data, tmp_path / "run", "--to", "online", **SHORT, shots__k=2)
    words = [word for word in words if word != "--anyway"]
    assert mini(*words, "--to", "base")[0] == 0
    before = tiny_run.stamps(tmp_path / "run")
    code, out, err = mini(*words, "--dry-run")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["stage", "iterations", "img/s", "scoring", "time", "memory"]
    assert [row[0] for row in rows[1:]] == ["base", "transfer", "scan", "mine", "online", "all"]
    assert rows[1][:3] == ["base", "kept", "in"]
    assert rows[2][:4] == ["transfer", "to", "do", "2"]
    assert rows[-1][-1] in ("MiB", "GiB")  # of the whole process
    assert "measuring the speed" in err
    code, out, err = mini(*words, "--to", "base", "--dry-run")
    assert "base kept in" in " ".join(out.split())
    assert "measuring" not in err
    assert tiny_run.stamps(tmp_path / "run") == before


def test_run_dry_run_warns_of_a_training_that_teaches_little(mini, tmp_path: Path) -> None:
    data = shapes.write_data(tmp_path / "data")
    words = tiny_run.words(data, tmp_path / "run", "--to", "base", "--dry-run", **SHORT)
    code, _, err = mini(*words)
    assert code == 0, err
    assert "base: 2 iterations show each picture" in err
    assert "Raise base.minutes or base.iterations" in err
    assert not (tmp_path / "run").exists()


def test_run_that_leaves_nothing_to_build_on_has_an_exit_code_of_its_own(
    mini, tmp_path: Path
) -> None:
    data = shapes.write_data(tmp_path / "data")
    words = tiny_run.words(data, tmp_path / "run", **SHORT)
    words.remove("--anyway")
    code, _, err = mini(*words)
    assert code == 3
    assert "The base detector has learnt next to nothing: bAP50" in err
    assert "What to do: Train longer: raise base.iterations (it was 2)" in " ".join(err.split())


def test_run_ends_well_where_the_report_cannot_be_written(mini, stages, tmp_path: Path) -> None:
    """The stages are not real: there is no folder to report on."""
    code, out, err = mini("run", "voc-320", "-o", tmp_path / "none")
    assert code == 0
    assert "base" in out
    assert "no report:" in err


def test_run_prints_nothing_in_other_processes_of_torchrun(mini, stages) -> None:
    stages.results = {}
    assert mini("run", "demo") == (0, "", "")


# Whole runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shapes.write_data(tmp_path_factory.mktemp("shapes") / "data")


def refused(said: tuple[int, str, str], *parts: str) -> None:
    """Exit code 2 and one message with a fix; no traceback."""
    code, out, err = said
    assert code == 2, err
    assert out == ""
    assert [line.split()[0] for line in err.splitlines() if line].count("Error") == 1
    assert "Traceback" not in err
    for part in (*parts, "What to do:"):
        assert part in err


@pytest.mark.parametrize("layout", shapes.WRITE)
def test_run_trains_on_data_in_every_layout(tmp_path: Path, mini: Any, layout: str) -> None:
    root = shapes.WRITE[layout](tmp_path / "data")
    code, out, err = mini(*tiny_run.words(root, tmp_path / "run", **SHORT))
    assert code == 0, err
    header, base, transfer = (line.split() for line in out.splitlines())
    assert header == ["stage", "nAP50", "bAP50", "AP50", "seconds", "img/s"]
    assert base[:2] == ["base", "-"]
    assert transfer[0] == "transfer"
    results = shapes.json_of(tmp_path / "run" / "results.json")
    assert results["command"].startswith("mini run ")
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert (tmp_path / "run" / "detections.png").stat().st_size > 1000
    assert sorted(results["stages"]["transfer"]["per_class"]) == sorted(shapes.CLASSES)


def test_run_of_a_written_config_gives_the_same_checkpoint(
    tmp_path: Path, mini: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Any] = {}
    for text in tiny_run.sets(data, **SHORT):
        key, _, value = text.partition("=")
        section, _, leaf = key.rpartition(".")
        (keys.setdefault(section, {}) if section else keys)[leaf] = (
            json.loads(value) if value.startswith("[") else value
        )
    source = tmp_path / "shapes.yaml"
    source.write_text(json.dumps(keys))
    monkeypatch.chdir(tmp_path)
    code, _, err = mini("run", source, "--to", "base", "--set", "seed=4")
    assert code == 0, err
    out = Path("runs") / "shapes"
    assert not (out / "transfer").exists()
    assert resolve(out / "config.yaml") == resolve(str(source), ["seed=4"])
    # in another parent folder, so that nothing is shared
    code, _, err = mini("run", out, "-o", "others/second", "--to", "base")
    assert code == 0, err
    file = Path("base") / "checkpoint.safetensors"
    assert (out / file).read_bytes() == (Path("others/second") / file).read_bytes()


@pytest.mark.slow
def test_run_draws_the_shots_that_mini_sample_writes(tmp_path: Path, mini: Any, data: Path) -> None:
    shots = tmp_path / "shots.json"
    code, _, err = mini("sample", data, "--novel", "red", "--shots", 2, "-o", shots)
    assert code == 0, err
    from_sample = {**SHORT, "shots__file": shots, "shots__k": 2, "data__novel": "red"}
    code, _, err = mini(*tiny_run.words(data, tmp_path / "run", **from_sample))
    assert code == 0, err
    drawn = {**SHORT, "shots__k": 2, "data__novel": "red"}
    code, _, err = mini(*tiny_run.words(data, tmp_path / "drawn", **drawn))
    assert code == 0, err
    file = Path("transfer") / "checkpoint.safetensors"
    assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "drawn" / file).read_bytes()


@pytest.mark.parametrize(
    ("changes", "words", "parts"),
    [
        ({"data__root": "null"}, (), ["lacks data.root", "--set data.root=FOLDER"]),
        ({"data__root": "nowhere"}, (), ["nowhere: "]),
        ({"data__novel": "null"}, (), ["lacks data.split or data.novel"]),
        ({}, ("--split", "voc-split4"), ["--split voc-split4: must be voc-split1, voc-s"]),
        (
            {"data__novel": "null"},
            ("--split", "voc-split2"),
            ['not in split "voc-split2": "red", "green"'],
        ),
        ({"data__novel": "gren"}, (), ["gren", "green"]),
        ({"data__train": "trian"}, (), ["trian", "train"]),
        ({"data__test": "tset"}, (), ["tset", "test"]),
        ({}, ("--shots", "40"), ["Too few boxes for 40 shots"]),
        ({}, ("--shots", "0"), ["--shots 0: must be"]),
        ({"shots__file": "nowhere.json"}, (), ["nowhere.json: "]),
        ({"shots__official": "nowhere.json"}, (), ["nowhere.json: cannot be read"]),
        ({"device": "cuda:77"}, (), ["no device cuda:77"]),
        ({"device": "tpu"}, (), ["device=tpu: must be auto, cpu, cuda or cuda:1"]),
        ({"detector__weights": "none.pth", "detector__norm": "frozen"}, (), ["none.pth: "]),
        ({"base__checkpoint": "nowhere"}, (), ["nowhere: "]),
        ({"base__iteratoins": 3}, (), ["did you mean `base.iterations`?"]),
        ({}, ("--from", "bse"), ["bse", "base"]),
        ({}, ("--to", "mne"), ["mne", "mine"]),
    ],
)
def test_run_refuses_wrong_input_before_training(
    tmp_path: Path,
    mini: Any,
    data: Path,
    changes: dict[str, object],
    words: tuple[str, ...],
    parts: list[str],
) -> None:
    out = tmp_path / "run"
    refused(mini(*tiny_run.words(data, out, *words, **changes)), *parts)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_run_reuses_the_stages_before_a_changed_key(tmp_path: Path, mini: Any, data: Path) -> None:
    out = tmp_path / "run"
    files = [out / stage / "checkpoint.safetensors" for stage in ("base", "transfer")]
    contents = []
    for iterations in (2, 3, 2):
        changes = SHORT | {"transfer__iterations": iterations}
        code, _, err = mini(*tiny_run.words(data, out, **changes))
        assert code == 0, err
        contents.append([(file.read_bytes(), file.stat().st_mtime_ns) for file in files])
    (first_base, first), (other_base, other), (last_base, last) = contents
    assert first_base == other_base == last_base
    assert first[0] != other[0]
    assert first == last  # found again, not computed again


def test_run_refuses_folders_that_cannot_be_written(tmp_path: Path, mini: Any, data: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    refused(mini(*tiny_run.words(data, blocked, **SHORT)), "file")
    refused(mini(*tiny_run.words(data, blocked / "run", **SHORT)), "cannot be written")
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if not os.access(locked, os.W_OK):  # root may write everywhere
        refused(mini(*tiny_run.words(data, locked / "run", **SHORT)), "cannot be written")


def test_run_finds_finished_stages_on_another_device(tmp_path: Path, mini: Any, data: Path) -> None:
    out = tmp_path / "run"
    code, _, err = mini(*tiny_run.words(data, out, **SHORT))
    assert code == 0, err
    file = out / "base" / "checkpoint.safetensors"
    written = file.stat().st_mtime_ns
    code, _, err = mini(*tiny_run.words(data, out, **SHORT | {"device": "auto"}))
    assert code == 0, err
    assert file.stat().st_mtime_ns == written
    if not torch.cuda.is_available():
        refused(mini(*tiny_run.words(data, out, device="cuda")), "no device cuda")
