"""`mini run` as a person types it: what it says, and its exit code."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_fsod.config.load import from_file, resolve
from runs import small

SHORT = {"base__iterations": 2, "transfer__iterations": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    out = data.parent / "finished"
    from mini_fsod.runs import stages

    (data.parent / "small.yaml").touch()
    config = resolve(str(data.parent / "small.yaml"), small.sets(data, **SHORT))
    stages.run(config, out, last="transfer")
    return out


def refused(said: tuple[int, str, str], *parts: str) -> None:
    """Exit code 2 and one message with a remedy; no traceback."""
    code, out, err = said
    assert code == 2, err
    assert out == ""
    assert [line.split()[0] for line in err.splitlines() if line].count("Error") == 1
    assert "Traceback" not in err
    for part in (*parts, "What to do:"):
        assert part in err


@pytest.mark.parametrize("layout", small.WRITE)
def test_own_data_in_every_layout(tmp_path: Path, mini: Any, layout: str) -> None:
    root = small.WRITE[layout](tmp_path / "data")
    code, out, err = mini(*small.words(root, tmp_path / "run", **SHORT))
    assert code == 0, err
    header, base, transfer = (line.split() for line in out.splitlines())
    assert header == ["stage", "nAP50", "bAP50", "AP50", "seconds", "img/s"]
    assert base[:2] == ["base", "-"]
    assert transfer[0] == "transfer"
    results = small.json_of(tmp_path / "run" / "results.json")
    assert results["command"].startswith("mini run ")
    assert sorted(results["stages"]["transfer"]["per_class"]) == sorted(small.CLASSES)
    assert f"{tmp_path / 'run'}: base, transfer, results.json" in err


def test_a_file_of_keys_and_its_name(tmp_path: Path, mini: Any, data: Path) -> None:
    """Without --out the run is called like its file; config.yaml gives the run once more."""
    keys: dict[str, Any] = {}
    for text in small.sets(data, **SHORT):
        key, _, value = text.partition("=")
        section, _, leaf = key.rpartition(".")
        (keys.setdefault(section, {}) if section else keys)[leaf] = (
            json.loads(value) if value.startswith("[") else value
        )
    source = tmp_path / "mine.yaml"
    source.write_text(json.dumps(keys))
    os.chdir(tmp_path)
    code, _, err = mini("run", source, "--to", "base", "--set", "seed=4")
    assert code == 0, err
    out = Path("runs") / "mine"
    assert not (out / "transfer").exists()
    assert from_file(out / "config.yaml") == resolve(str(source), ["seed=4"])
    code, _, err = mini("run", out / "config.yaml", "-o", "again", "--to", "base")
    assert code == 0, err
    file = Path("base") / "checkpoint.safetensors"
    assert (out / file).read_bytes() == (Path("again") / file).read_bytes()


@pytest.mark.slow
def test_a_sample_of_mini_sample(tmp_path: Path, mini: Any, data: Path) -> None:
    shots = tmp_path / "shots.json"
    code, _, err = mini("sample", data, "--novel", "red", "--shots", 2, "-o", shots)
    assert code == 0, err
    how = {**SHORT, "shots__file": shots, "shots__k": 2, "data__novel": "red"}
    code, _, err = mini(*small.words(data, tmp_path / "run", **how))
    assert code == 0, err
    drawn = {**SHORT, "shots__k": 2, "data__novel": "red", "base__checkpoint": tmp_path / "run"}
    code, _, err = mini(*small.words(data, tmp_path / "drawn", **drawn))
    assert code == 0, err
    file = Path("transfer") / "checkpoint.safetensors"
    assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "drawn" / file).read_bytes()


@pytest.mark.parametrize(
    ("changes", "words", "parts"),
    [
        ({"data__root": "null"}, (), ["lacks data.root", "--set data.root=FOLDER"]),
        ({"data__root": "nowhere"}, (), ["nowhere: there is no such file or folder"]),
        ({"data__novel": "null"}, (), ["lacks data.split or data.novel"]),
        ({"data__split": "voc-split4"}, (), ["data.split=voc-split4: must be voc-split1, voc-s"]),
        ({"data__split": "voc-split2", "data__novel": "null"}, (), ["does not know: red, green"]),
        ({"data__novel": "gren"}, (), ['No such class in the data: "gren". Did you mean "green"?']),
        ({"data__train": "trian"}, (), ['no image set "trian". Did you mean "train"?']),
        ({"data__test": "tset"}, (), ['no image set "tset". Did you mean "test"?']),
        ({"shots__k": 40}, (), ["Too few boxes for 40 shots"]),
        ({"shots__file": "nowhere.json"}, (), ["nowhere.json: there is no such file"]),
        ({"shots__official": "nowhere.json"}, (), ["nowhere.json: cannot be read"]),
        ({"device": "cuda:77"}, (), ["There is no device cuda:77"]),
        ({"device": "tpu"}, (), ["device=tpu: must be auto, cpu, cuda or cuda:1"]),
        ({"detector__weights": "none.pth", "detector__norm": "frozen"}, (), ["none.pth: there is"]),
        ({"base__checkpoint": "nowhere"}, (), ["nowhere: there is no base detector"]),
        ({"base__iteratoins": 3}, (), ['no such key. Did you mean "base.iterations"?']),
        ({}, ("--from", "bse"), ['no stage "bse". Did you mean "base"?']),
        ({}, ("--to", "mne"), ['no stage "mne". Did you mean "mine"?']),
    ],
)
def test_what_is_wrong_is_said_at_once(
    tmp_path: Path,
    mini: Any,
    data: Path,
    changes: dict[str, object],
    words: tuple[str, ...],
    parts: list[str],
) -> None:
    out = tmp_path / "run"
    refused(mini(*small.words(data, out, *words, **changes)), *parts)
    assert not list(out.rglob("*.safetensors"))


def test_a_changed_configuration(mini: Any, data: Path, finished: Path) -> None:
    words = small.words(data, finished, **SHORT | {"transfer__iterations": 3})
    refused(
        mini(*words), "the one of transfer, which was run here: transfer.iterations changed",
        "Repeat with --from transfer, choose another folder with --out",
    )  # fmt: skip


def test_files_that_are_broken(tmp_path: Path, mini: Any, data: Path, finished: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    words = small.words(data, out, **SHORT)
    (out / "transfer" / "metrics.json").write_text('{"nAP50": ')
    refused(mini(*words), "transfer/metrics.json: cannot be read", "--from transfer")
    (out / "transfer" / "metrics.json").unlink()
    (out / "transfer" / "progress.pt").write_bytes(b"PK\x03\x04 no state")
    refused(mini(*words), "transfer/progress.pt")
    (out / "config.yaml").write_text("seed: [")
    refused(mini(*words), "config.yaml")
    code, _, err = mini(*words, "--from", "base")
    assert code == 0, err


def test_a_place_that_cannot_be_written(tmp_path: Path, mini: Any, data: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    refused(mini(*small.words(data, blocked, **SHORT)), "file: is no folder")
    refused(mini(*small.words(data, blocked / "run", **SHORT)), "cannot be written")
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if not os.access(locked, os.W_OK):  # root may write everywhere
        refused(mini(*small.words(data, locked / "run", **SHORT)), "cannot be written")


def test_all_devices_there_are(tmp_path: Path, mini: Any, data: Path, finished: Path) -> None:
    """auto is a GPU where there is one; what is finished does not care."""
    code, _, err = mini(*small.words(data, finished, **SHORT | {"device": "auto"}))
    assert code == 0, err
    assert "base: finished already" in err
    if not torch.cuda.is_available():
        refused(
            mini(*small.words(data, tmp_path / "run", device="cuda")),
            "There is no device cuda; 0 GPUs found",
        )
