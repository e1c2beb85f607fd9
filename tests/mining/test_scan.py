"""When the stage `mine` looks at pictures again, how boxes are seen one by one, and how it is
killed.
"""

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
from runs.mined import FILES, again, changes_of, config, load, write_discriminator

from mini_fsod.errors import UserError
from mini_fsod.mining import scan as scan_stage
from mini_fsod.mining.box_correction import STRETCHES
from mini_fsod.mining.candidates import Raw
from mini_fsod.runs import stages
from runs import small


def test_the_same_run_mines_the_same(data: Path, finished: Path, copied: Path) -> None:
    (copied / "raw.npz").unlink()
    for feed in ("resident", "stream"):
        again(data, copied, data__feed=feed)
        for name in FILES:
            assert (copied / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()


def test_a_given_detector_searches_as_configured(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    scan = scan_stage.scan

    def looking(detector: Any, *rest: Any, **more: Any) -> Raw:
        seen.append(detector.settings.rpn.after_nms_test)
        return scan(detector, *rest, **more)

    monkeypatch.setattr(scan_stage, "scan", looking)
    given = {"base__checkpoint": finished, "transfer__checkpoint": finished}
    stages.run(config(data, detector__rpn_after=7, **given), tmp_path / "run", last="mine")
    assert seen == [7]


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_shots_of_the_same_detector_are_a_new_scan(
    data: Path, finished: Path, copied: Path, tmp_path: Path, scans: list[str]
) -> None:
    """Prototypes are made of them."""
    given = {"transfer__checkpoint": finished / "transfer" / "checkpoint.safetensors"}
    for out in (copied, tmp_path / "new"):
        stages.run(
            config(data, shots__k=2, **given), out, "transfer" if out == copied else None, "mine"
        )
    assert scans == ["scan", "scan"]
    assert load(copied, "candidates.json") == load(tmp_path / "new", "candidates.json")
    assert load(copied, "candidates.json") != load(finished, "candidates.json")


def test_looking_at_several_sizes(data: Path, copied: Path, scans: list[str]) -> None:
    """What is found at each size joins, and the discriminator says the same of it."""

    def seen_at(sides: object) -> list[tuple[float, ...]]:
        again(data, copied, mine__short=sides)
        raw = Raw.load(copied / "raw.npz")
        assert raw is not None
        assert raw.dots is not None
        cosine = raw.dots.cosine(raw.proposal, raw.label, tau=1.0, centre=False)
        columns = (raw.image, raw.label, raw.score, *raw.xywh.T, cosine)
        return sorted(zip(*(column.round(3).tolist() for column in columns), strict=True))

    test = config(data).views.test
    own, larger = seen_at(test), seen_at(2 * test)
    assert own == seen_at("null")
    assert own != larger
    assert seen_at(f"[{test}, {2 * test}]") == sorted(own + larger)
    assert scans == ["scan"] * 4


def test_a_damaged_scan(data: Path, copied: Path, scans: list[str]) -> None:
    (copied / "raw.npz").write_bytes((copied / "raw.npz").read_bytes()[:200])
    with pytest.raises(UserError, match="not what a scan has left"):
        again(data, copied)
    np.savez(copied / "raw.npz", format=1)  # of an older version
    again(data, copied)
    assert scans == ["scan"]


# Boxes cut out of their pictures

CROPS = {"mine__discriminator_crop": 32}


def test_boxes_seen_one_by_one(data: Path, copied: Path, scans: list[str]) -> None:
    figures = again(data, copied, **CROPS)
    assert scans == ["scan"]
    found = load(copied, "candidates.json")
    assert len(found) == figures["candidates"] > 10
    for c in found:
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)
    raw = Raw.load(copied / "raw.npz")
    assert raw.seen is not None
    assert raw.dots is None
    assert len(raw.seen.candidates) == len(raw) == len(found)  # NMS has been
    assert set(raw.seen.base_label.tolist()) == {0, 1}
    assert len(raw.seen.shots) == 1
    assert load(copied, "audit.json")["pool"]["without_co_mining"]["candidates"] == len(found)

    ways = [
        {"mine__whiten": "true"},
        {"mine__refine": 3},
        {"mine__whiten": "true", "mine__refine": 3},
    ]
    said = [[c["cosine"] for c in found]]
    for way in ways:
        again(data, copied, **CROPS, **way)
        other = load(copied, "candidates.json")
        assert sorted(c["bbox"] for c in other) == sorted(c["bbox"] for c in found)
        said.append([c["cosine"] for c in other])
    assert len({tuple(row) for row in said}) == 4
    assert scans == ["scan"]  # none of it is another look
    again(data, copied, **CROPS, mine__drop_on_base="true", mine__refine=3)
    assert scans == ["scan"]
    again(data, copied, mine__discriminator_crop=48)
    assert scans == ["scan"] * 2


def test_a_shot_is_most_like_itself(data: Path, copied: Path) -> None:
    """Another tool's detections: the one on the shot has cosine 1."""
    content = small.json_of(data / "annotations" / "train.json")
    rows = [
        {"image_id": a["image_id"], "category_id": 3, "bbox": a["bbox"], "score": 0.9}
        for a in content["annotations"]
    ]
    given = copied / "given.json"
    given.write_text(json.dumps(rows))
    again(data, copied, **CROPS, mine__detections=given, mine__cut=0.05)
    cosines = np.array([c["cosine"] for c in load(copied, "candidates.json")])
    assert len(cosines) == len(rows)
    assert np.isclose(cosines, 1, atol=1e-4).sum() == 1
    given.write_text("[]")
    figures = again(data, copied, **CROPS, mine__detections=given, mine__refine=5)
    assert figures["candidates"] == 0


def test_boxes_of_a_class_are_stretched_alike(
    data: Path, copied: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    again(data, copied, **CROPS)
    before = load(copied, "candidates.json")
    asked = []

    def wider(features: np.ndarray, shot: np.ndarray) -> int:
        asked.append((features, shot))
        return STRETCHES.tolist().index([1.2, 1.0, 0.5])

    monkeypatch.setattr(scan_stage, "best_stretch", wider)
    again(data, copied, **CROPS, mine__stretch="true")
    assert scans == ["scan"] * 2  # boxes are looked at that no scan has seen
    ((features, shot),) = asked  # one novel class
    assert features.shape[1:] == (len(STRETCHES), len(shot))
    assert 2 < len(features) <= 100
    assert (features.std(axis=1).max(axis=-1) > 0).all()  # each stretch was looked at
    sizes = {i["id"]: i for i in small.json_of(data / "annotations" / "train.json")["images"]}
    found = load(copied, "candidates.json")
    for c, old in zip(found, before, strict=True):
        assert (c["image_id"], c["score"]) == (old["image_id"], pytest.approx(old["score"]))
        x, y, width, height = old["bbox"]
        right = min(x + 1.1 * width, sizes[c["image_id"]]["width"])
        left = max(x - 0.1 * width, 0)
        assert c["bbox"] == pytest.approx([left, y, right - left, height], abs=1e-3)
    fresh = {name: (copied / "mine" / name).read_bytes() for name in FILES}
    monkeypatch.setattr(scan_stage, "best_stretch", None)
    again(data, copied, **CROPS, mine__stretch="true")
    assert scans == ["scan"] * 2
    assert {name: (copied / "mine" / name).read_bytes() for name in FILES} == fresh
    again(data, copied, **CROPS, mine__stretch="true", mine__alpha=0.5)
    assert scans == ["scan"] * 2  # how, is kept


def test_whitening_needs_crops(data: Path, copied: Path, scans: list[str]) -> None:
    with pytest.raises(UserError, match="cut out one by one") as told:
        again(data, copied, mine__whiten="true", mine__discriminator_short_side=64)
    with pytest.raises(UserError, match="cut out one by one"):
        again(data, copied, mine__stretch="true", mine__discriminator_short_side=64)
    assert "mine.discriminator_crop" in told.value.fix
    assert scans == []


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
    assert done.stderr.count(" candidates: ") == 1
    for name in FILES:
        assert (copied / "mine" / name).read_bytes() == (finished / "mine" / name).read_bytes()
