"""The stage `mine` on tiny data: what it leaves, when it scans again, and how it is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mini_fsod.config import Config, resolve
from mini_fsod.detector.backbone import NARROW, make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.errors import UserError
from mini_fsod.runs import mine, stages
from runs import small

FILES = ("candidates.json", "thresholds.json", "pool.json", "audit.json")


def write_discriminator(path: Path, seed: int = 0) -> Path:
    """A narrow ResNet of random weights, as torchvision writes it."""
    torch.manual_seed(seed)
    state = make_backbone(BackboneSettings(NARROW, "group")).state_dict()
    for name in [name for name in state if name.endswith("bias")]:  # a norm's
        state[name.replace("bias", "running_mean")] = torch.zeros_like(state[name])
        state[name.replace("bias", "running_var")] = torch.ones_like(state[name])
    save_file(state, path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_discriminator(folder / "narrow.safetensors")
    return small.write_data(folder / "data")


def changes_of(data: Path, **changes: object) -> dict[str, object]:
    return {
        "mine__discriminator": data.parent / "narrow.safetensors",
        "mine__discriminator_short_side": 96,
        "mine__cut": 0.01,  # a detector of a few iterations is sure of nothing
        **changes,
    }


def config(data: Path, **changes: object) -> Config:
    (data.parent / "small.yaml").touch()
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **changes_of(data, **changes)))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    """A run up to `mine`. Not to be changed: see `copied`."""
    out = data.parent / "finished"
    stages.run(config(data), out, last="mine", command="mini run small")
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def again(data: Path, out: Path, **changes: object) -> dict[str, Any]:
    return stages.run(config(data, **changes), out, first="mine", last="mine")["stages"]["mine"]


def load(out: Path, name: str) -> Any:
    return json.loads((out / "mine" / name).read_bytes())


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look at pictures from here on."""
    looks: list[str] = []
    for name in ("scan", "judged"):
        real = getattr(mine, name)

        def counted(*words: Any, name: str = name, real: Any = real) -> Any:
            looks.append(name)
            return real(*words)

        monkeypatch.setattr(mine, name, counted)
    return looks


def test_the_files_agree_with_each_other(finished: Path) -> None:
    found, thresholds, pool, audit = (load(finished, name) for name in FILES)
    figures = load(finished, "metrics.json")
    assert figures == small.json_of(finished / "results.json")["stages"]["mine"]
    assert {*figures} == {
        *("candidates", "kept", "precision", "recall", "seconds", "scan_seconds"),
    }
    assert len(found) == figures["candidates"] > 10
    assert list(thresholds["classes"]) == [small.NOVEL]
    row = thresholds["classes"][small.NOVEL]
    assert (thresholds["cut"], row["alpha"], row["N"]) == (0.01, 1.5, 300)
    assert (row["candidates"], row["kept"]) == (figures["candidates"], figures["kept"])

    score = np.array([c["score"] for c in found])
    assert row["mean"] == pytest.approx(score.mean())
    assert row["deviation"] == pytest.approx(score.std())
    assert row["delta"] == pytest.approx(score.mean() + 1.5 * score.std())
    for c in found:
        assert c["category"] == small.NOVEL
        assert c["score_detector"] > 0.01
        assert 0 <= c["cosine"] <= 1
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)

    chosen = [c for c in found if c["score"] >= row["delta"]]
    assert 0 < len(chosen) < len(found)
    name_of = {image["id"]: image["file_name"] for image in pool["images"]}
    assert len(name_of) == 8
    assert [
        (a["image_id"], name_of[a["image_id"]], a["category_id"], a["bbox"], a["score"])
        for a in pool["annotations"]
    ] == [(c["image_id"], c["file_name"], c["category_id"], c["bbox"], c["score"]) for c in chosen]
    assert len(chosen) == figures["kept"]

    assert audit["pool"]["kept"] == figures["kept"]
    assert audit["pool"]["candidates"] == figures["candidates"]
    assert audit["pool"]["hidden"] == 5
    assert audit["pool"]["without_co_mining"]["candidates"] > 0
    assert (audit["pool"]["precision"], audit["pool"]["recall"]) == (
        figures["precision"],
        figures["recall"],
    )
    names = {path.name for path in (finished / "mine").iterdir()}
    assert names == {*FILES, "metrics.json", "1-blue--light.png"}


def test_the_same_run_mines_the_same(data: Path, finished: Path, copied: Path) -> None:
    (copied / "raw.npz").unlink()
    for feed in ("resident", "stream"):
        again(data, copied, data__feed=feed)
        for name in FILES:
            assert (copied / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()


def test_mined_again_without_a_look(
    data: Path, copied: Path, scans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = load(copied, "thresholds.json")["classes"][small.NOVEL]
    other = again(data, copied, mine__alpha=0.5)
    row = load(copied, "thresholds.json")["classes"][small.NOVEL]
    assert row["kept"] == other["kept"] > before["kept"]
    assert {k: row[k] for k in ("mean", "deviation")} == {
        k: before[k] for k in ("mean", "deviation")
    }
    assert row["delta"] == pytest.approx(row["mean"] + 0.5 * row["deviation"])
    assert f"{copied / 'raw.npz'}: scanned already" in capsys.readouterr().err

    assert again(data, copied, mine__alpha=0.5, mine__most=2)["kept"] == 2
    fixed = again(data, copied, mine__threshold=0.0)
    assert fixed["kept"] == fixed["candidates"]
    row = load(copied, "thresholds.json")["classes"][small.NOVEL]
    assert (row["delta"], row["alpha"], row["N"]) == (0.0, None, None)
    halved = again(data, copied, mine__tau=0.25)
    assert halved["kept"] == before["kept"]  # tau only rescales
    assert load(copied, "thresholds.json")["classes"][small.NOVEL]["mean"] == pytest.approx(
        before["mean"] / 2
    )
    again(data, copied, mine__centre="true")
    row = load(copied, "thresholds.json")["classes"][small.NOVEL]
    assert row["mean"] != pytest.approx(before["mean"])
    cut = again(data, copied, mine__cut=0.1)
    assert cut["candidates"] < before["candidates"]
    assert scans == []
    again(data, copied, mine__cut=0.001)
    assert scans == ["scan"]


def test_another_detector_or_discriminator_is_a_new_scan(
    data: Path, copied: Path, tmp_path: Path, scans: list[str]
) -> None:
    own = tmp_path / "own.safetensors"
    shutil.copy(data.parent / "narrow.safetensors", own)
    expected = []

    def looks(often: int, **changes: object) -> None:
        again(data, copied, **changes)
        expected.extend(["scan"] * often)
        assert scans == expected

    looks(1, mine__discriminator=own)
    looks(0, mine__discriminator=own)
    write_discriminator(own, seed=1)  # under the same name
    looks(1, mine__discriminator=own)
    looks(1, mine__discriminator=own, mine__discriminator_short_side=64)
    looks(1, mine__discriminator="none")
    assert {c["cosine"] for c in load(copied, "candidates.json")} == {None}
    assert load(copied, "audit.json")["pool"]["without_co_mining"] is None
    looks(0, mine__discriminator="none", mine__images="base")  # which are all of them here
    settings = config(data, transfer__iterations=3, mine__discriminator="none", mine__images="base")
    stages.run(settings, copied, first="transfer", last="mine")
    assert scans == [*expected, "scan"]


def test_a_damaged_scan(data: Path, copied: Path) -> None:
    (copied / "raw.npz").write_bytes((copied / "raw.npz").read_bytes()[:200])
    with pytest.raises(UserError, match="not what a scan has left"):
        again(data, copied)
    (copied / "raw.npz").unlink()
    again(data, copied)


# Which images, which boxes


def without(data: Path, *names: str, but: int = 0, where: str = "train") -> None:
    """Take the boxes of these classes out of a part, all but the first ones."""
    path = data / "annotations" / f"{where}.json"
    content = small.json_of(path)
    numbers = [small.CLASSES.index(name) + 1 for name in names]
    own = [a for a in content["annotations"] if a["category_id"] in numbers]
    gone = [a["id"] for a in own[but:]]
    content["annotations"] = [a for a in content["annotations"] if a["id"] not in gone]
    path.write_text(json.dumps(content))


SHORT = {"base__iterations": 2, "transfer__iterations": 2, "mine__discriminator": "none"}


@pytest.mark.parametrize("but", [1, 3])
def test_own_data_where_nothing_is_hidden(tmp_path: Path, but: int) -> None:
    """Nobody knows what is right where all that is annotated of a novel class are the shots."""
    root = small.write_data(tmp_path / "data")
    without(root, small.NOVEL, but=but)
    figures = stages.run(config(root, shots__k=but, **SHORT), tmp_path / "run", last="mine")
    assert not (tmp_path / "run" / "mine" / "audit.json").exists()
    assert {*figures["stages"]["mine"]} == {"candidates", "kept", "seconds", "scan_seconds"}
    assert (tmp_path / "run" / "mine" / "1-blue--light.png").exists()
    again(root, tmp_path / "run", shots__k=but, **SHORT)


def test_images_without_a_base_box(tmp_path: Path) -> None:
    root = small.write_data(tmp_path / "data")
    path = root / "annotations" / "train.json"
    content = small.json_of(path)
    novel = small.CLASSES.index(small.NOVEL) + 1
    content["annotations"] = [
        a for a in content["annotations"] if a["image_id"] > 2 or a["category_id"] == novel
    ]
    path.write_text(json.dumps(content))
    for images, count in (("all", 8), ("base", 6)):
        out = tmp_path / images
        stages.run(config(root, mine__images=images, mine__cut=0, **SHORT), out, last="mine")
        assert len(load(out, "pool.json")["images"]) == count
        seen = {c["file_name"] for c in load(out, "candidates.json")}
        assert ({"train/0.png", "train/1.png"} <= seen) == (images == "all")


def test_candidates_on_base_boxes(data: Path, copied: Path) -> None:
    """Detections of the novel class on all objects, moved by a pixel."""
    truth = small.json_of(data / "annotations" / "train.json")["annotations"]
    rows = []
    for a in truth:
        x, y, w, h = a["bbox"]
        rows.append({"image_id": a["image_id"], "category_id": 3, "bbox": [x + 1, y, w, h]})
        rows[-1]["score"] = 0.5 + a["id"] / 100
    given = copied / "given.json"
    given.write_text(json.dumps(rows))
    own = {"mine__detections": given, "mine__discriminator": "none"}
    everything = again(data, copied, **own)["candidates"]
    again(data, copied, **own, mine__drop_on_base="true")
    base = [r["score"] for r, a in zip(rows, truth, strict=True) if a["category_id"] < 3]
    novel = [r["score"] for r, a in zip(rows, truth, strict=True) if a["category_id"] == 3]
    assert everything == len(base) + len(novel)
    found = [round(c["score"], 6) for c in load(copied, "candidates.json")]
    assert sorted(found) == pytest.approx(sorted(novel))


# Another tool's detections


def write_detections(data: Path, path: Path, score: float = 0.9) -> list[dict[str, Any]]:
    """All hidden boxes of the training images, a wrong one in each image, and base objects."""
    content = small.json_of(data / "annotations" / "train.json")
    rows = [
        {"image_id": a["image_id"], "category_id": a["category_id"], "bbox": a["bbox"]}
        | {"score": score}
        for a in content["annotations"]
    ]
    rows += [
        {"image_id": i["id"], "category_id": 3, "bbox": [0, 0, 5, 5], "score": 0.2}
        for i in content["images"]
    ]
    path.write_text(json.dumps(rows))
    return rows


def test_detections_of_another_tool(data: Path, copied: Path, scans: list[str]) -> None:
    given = copied / "given.json"
    rows = [r for r in write_detections(data, given) if r["category_id"] == 3]
    own = {"mine__detections": given, "mine__cut": 0.05, "mine__discriminator": "none"}
    figures = again(data, copied, **own, mine__threshold=0.5)
    assert scans == []
    found = load(copied, "candidates.json")
    assert sorted((c["image_id"], *c["bbox"], c["score"]) for c in found) == sorted(
        (r["image_id"], *r["bbox"], pytest.approx(r["score"])) for r in rows
    )
    assert {k: figures[k] for k in ("candidates", "kept", "precision", "recall")} == {
        "candidates": 13,
        "kept": 5,
        "precision": 1.0,
        "recall": 1.0,
    }
    figures = again(data, copied, **own, mine__threshold=0.1)
    assert figures["precision"] == pytest.approx(5 / 13, abs=1e-6)


def test_the_discriminator_looks_at_them_too(data: Path, copied: Path, scans: list[str]) -> None:
    given = copied / "given.json"
    write_detections(data, given)
    own = {"mine__detections": given, "mine__cut": 0.05}
    again(data, copied, **own)
    found = load(copied, "candidates.json")
    assert len(found) == 13
    for c in found:
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)
    assert len({c["cosine"] for c in found}) > 5
    again(data, copied, **own, mine__alpha=0.1)
    assert scans == ["judged"]
    write_detections(data, given, score=0.7)
    again(data, copied, **own)
    assert scans == ["judged"] * 2
    assert {round(c["score_detector"], 6) for c in load(copied, "candidates.json")} == {0.7, 0.2}
    given.write_text("[]")
    assert again(data, copied, **own)["candidates"] == 0


# What is wrong


def test_what_mining_needs(data: Path, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file of weights"):
        again(data, copied, mine__discriminator=tmp_path / "none.safetensors")
    with pytest.raises(UserError, match=r"nowhere\.json"):
        again(data, copied, mine__detections=tmp_path / "nowhere.json")
    (copied / "transfer" / "checkpoint.safetensors").unlink()
    with pytest.raises(UserError, match="the few-shot detector is not there") as told:
        again(data, copied)
    assert "--from transfer" in told.value.fix


# Killed, and started again

KILL = """
import os, pathlib, signal
replace = pathlib.Path.replace
def killing(self, target):
    ours = str(target).endswith({file!r})
    if ours and {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    done = replace(self, target)
    if ours:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
pathlib.Path.replace = killing
"""


def killed(data: Path, finished: Path, out: Path, file: str, before: bool) -> str:
    """Kill the stage when a file gets its name, and start again: it ends as if unbroken.

    Returns what the second start says.
    """
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("mine", "raw.npz"))
    words = small.words(data, out, "--to", "mine", **changes_of(data))
    ended = small.process(words, before=KILL.format(file=file, before=before))
    assert ended.returncode == -9, ended.stderr
    for path in out.rglob("*.json"):
        json.loads(path.read_bytes())  # whole, or not there
    done = small.process(words)
    assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (out / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()
    theirs, ours = (
        {p.relative_to(run).as_posix() for p in run.rglob("*")} for run in (finished, out)
    )
    assert ours == theirs  # nothing torn or left over
    return done.stderr


@pytest.mark.slow
def test_killed_while_it_writes(data: Path, finished: Path, tmp_path: Path) -> None:
    """What was scanned need not be scanned again."""
    said = killed(data, finished, tmp_path / "run", "mine/pool.json", before=True)
    assert "scanned already" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("raw.npz", True),
        ("raw.npz", False),
        ("mine/candidates.json", True),
        ("mine/thresholds.json", False),
        ("mine/audit.json", True),
        ("1-blue--light.png", True),
        ("mine/metrics.json", True),
        ("mine/metrics.json", False),
    ],
)
def test_killed_at_any_moment(
    data: Path, finished: Path, tmp_path: Path, file: str, before: bool
) -> None:
    killed(data, finished, tmp_path / "run", file, before)


@pytest.mark.slow
def test_one_of_two_processes_mines(data: Path, copied: Path, finished: Path) -> None:
    (copied / "raw.npz").unlink()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = small.words(data, copied, "--from", "mine", "--to", "mine", **changes_of(data))
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "mini_fsod", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mined ") == 1
    for name in FILES:
        assert (copied / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()
