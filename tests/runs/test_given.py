"""Runs whose base detector is given, on pictures without labels."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import shapes
from helpers.given import Photos, write_detector, write_photos
from helpers.tiny_run import SHORT, config, mini, weights
from mini_fsod import checkpoint
from mini_fsod.config.schema import STAGES, Config
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap
from mini_fsod.mining.pairs import Pairs
from mini_fsod.runs import stages
from mini_fsod.runs.data import RunData
from runs.test_resume import killed_at

KNOWN = ("red", "green")
UNUSED = "purple"  # a class of the given detector that no picture shows


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    return write_photos(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def given(photos: Photos) -> Path:
    """An untrained detector of three classes, whose scores differ from region to region."""
    return write_detector(photos.root.parent / "given.safetensors", (*KNOWN, UNUSED))


def short(photos: Photos, given: Path, **changes: Any) -> Config:
    """All stages of a run without labels, in seconds."""
    keys = {
        "base__checkpoint": given,
        "base__sure": 0.35,  # of scores of an untrained detector
        "shots__file": photos.shots,
        "shots__root": photos.root,
        "transfer__data": "known",
        "mine__alpha": -5.0,
        "mine__drop_on_base": "true",
        "online__start": "transfer",
        "online__shots": "true",
        "online__delta": 0.2,
    }
    return config(photos.root, **SHORT | keys | changes)


@pytest.fixture(scope="module")
def finished(photos: Photos, given: Path) -> Path:
    """Not to be changed."""
    out = photos.root.parent / "runs" / "finished"
    stages.run(short(photos, given), out)
    return out


def test_run_without_labels_ends(photos: Photos, finished: Path) -> None:
    results = shapes.json_of(finished / "results.json")
    assert [*results["stages"]] == [*STAGES]
    assert results["shots"]["k"] == 5
    for stage in ("base", "transfer", "online", "tune"):
        figures = results["stages"][stage]
        assert (figures["nAP50"], figures["bAP50"], figures["images"]) == (None, None, 0)
    saved = checkpoint.load(finished / "detector.safetensors")
    assert saved.labels == LabelMap((*KNOWN, UNUSED), (shapes.NOVEL,))
    pool = shapes.json_of(finished / "pool.json")
    assert len(pool["images"]) == 24  # all photos were mined
    assert len(pool["annotations"]) > 0
    base = shapes.json_of(finished / "mine" / "base.json")
    assert {row["category"] for row in base} <= {*KNOWN, UNUSED}
    assert max(row["score"] for row in base) >= 0.35 > min(row["score"] for row in base)


def test_run_says_that_nothing_is_scored(
    photos: Photos, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages.run(short(photos, given), tmp_path / "run", last="base")
    assert capsys.readouterr().err.count("nothing will be scored") == 1


def test_run_draws_base_shots_from_what_the_detector_is_sure_of(
    photos: Photos, given: Path, finished: Path
) -> None:
    (file,) = (finished / "base").resolve().glob("found-*.npz")
    found = Pairs.load(file)
    assert len(found.files) == 24
    assert len(found) > 20
    data = run_data(photos, given, finished)
    shots = data.shots
    counts = np.bincount(shots.boxes.label, minlength=4)
    assert counts[3] == 5
    assert 0 < counts[:3].max() <= 5
    sure = {
        tuple(np.round(x, 3)) for x, s in zip(found.xywh, found.score, strict=True) if s >= 0.35
    }
    drawn = shots.boxes.xywh[shots.boxes.label < 3]
    assert {tuple(np.round(x, 3)) for x in drawn.astype(np.float32)} <= sure


def run_data(photos: Photos, given: Path, run: Path) -> Any:
    """The data of such a run after its stage base."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(stages.STAGE, "transfer", lambda run, folder: seen.append(run.data))
        with pytest.raises(FileNotFoundError):  # nothing was trained
            stages.run(short(photos, given, seed=1), run.parent / "seen", last="transfer")
    return seen[0]


def test_run_finds_its_stages_again_wherever_the_photos_lie(
    photos: Photos, given: Path, finished: Path, tmp_path: Path
) -> None:
    before = shapes.json_of(finished / "results.json")["results"]
    moved = Path(shutil.copytree(photos.root, tmp_path / "moved"))
    there = Photos(moved, Path(shutil.copy(photos.shots, moved.parent)), photos.truth)
    again = finished.parent / "again"
    result = stages.run(short(there, given, data__cache=tmp_path / "cache"), again)
    assert result["results"] == before
    other = write_detector(tmp_path / "other.safetensors", (*KNOWN, UNUSED, "other"))
    changed = stages.run(short(photos, other), finished.parent / "other", last="base")
    assert changed["results"]["base"] != before["base"]


@pytest.mark.parametrize(("stage", "file", "n"), [("base", ".npz", 1), ("online", ".pt", 2)])
def test_run_without_labels_that_is_killed_resumes(
    stage: str, file: str, n: int, photos: Photos, given: Path, tmp_path: Path
) -> None:
    """With the bits of a run that was not killed."""
    settings = short(photos, given, online__iterations=12)
    whole, out = photos.root.parent / "runs" / "whole", tmp_path / "run"
    stages.run(settings, whole, last="online")
    (tmp_path / "config.yaml").write_text(settings.to_yaml())
    arguments = ["run", str(tmp_path / "config.yaml"), "-o", str(out), "--to", "online"]
    assert mini(arguments, killed_at(stage, file, n, before=False)).returncode == -signal.SIGKILL
    done = mini(arguments)
    assert done.returncode == 0, done.stderr
    for name in ("transfer", "online"):
        assert weights(out, name) == weights(whole, name)


# Classes


def refused(settings: Config, out: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        stages.run(settings, out)
    return caught.value


def test_run_asks_about_a_class_that_is_new_and_the_detectors(
    photos: Photos, tmp_path: Path
) -> None:
    known = write_detector(tmp_path / "known.safetensors", (*KNOWN, shapes.NOVEL.upper()))
    error = refused(short(photos, known), tmp_path / "run")
    assert 'knows "BLUE, LIGHT" already' in error.what
    assert 'base.drop to ["BLUE, LIGHT"]' in error.fix
    assert "rename the new class" in error.fix


def test_run_drops_a_class_of_the_given_detector(photos: Photos, tmp_path: Path) -> None:
    known = write_detector(tmp_path / "known.safetensors", ("red", shapes.NOVEL, "green"))
    keys = {"base__drop": json.dumps([shapes.NOVEL])}
    out = tmp_path / "run"
    stages.run(short(photos, known, **keys), out, last="transfer")
    before, base, transfer = (
        checkpoint.load(path)
        for path in (known, checkpoint.find(out, "base"), checkpoint.find(out, "transfer"))
    )
    assert base.labels == LabelMap(KNOWN, ())
    assert base.detector.settings.negatives == 1
    row = before.detector.predictor.classifier.weight
    assert torch.equal(base.detector.predictor.classifier.weight, row[[0, 2, 1, 3]])
    assert transfer.labels == LabelMap(KNOWN, (shapes.NOVEL,))
    assert transfer.detector.settings.negatives == 0
    assert len(transfer.detector.predictor.classifier.weight) == 4


def test_run_refuses_another_architecture_before_anything_is_computed(
    photos: Photos, given: Path, tmp_path: Path
) -> None:
    error = refused(short(photos, given, detector__fpn_channels=8), tmp_path / "run")
    assert "detector.fpn_channels is 16 in the checkpoint" in error.what
    assert "detector: {fpn_channels: 16}" in error.fix
    assert not list(tmp_path.glob("**/checkpoint.safetensors"))


def test_run_refuses_to_drop_a_class_that_is_not_there(
    photos: Photos, given: Path, tmp_path: Path
) -> None:
    error = refused(short(photos, given, base__drop="purpel"), tmp_path / "run")
    assert 'no class "purpel"' in error.what
    assert "purple" in error.what
    error = refused(short(photos, given, base__drop="red,green,purple"), tmp_path / "run")
    assert "leaves no base class" in error.what


def test_run_takes_all_classes_of_a_finished_detector(photos: Photos, tmp_path: Path) -> None:
    """For a second new class: what the first run learnt is known."""
    path = write_detector(tmp_path / "first.safetensors", KNOWN, ("bolt",))
    stages.run(short(photos, path), tmp_path / "run", last="base")
    assert checkpoint.read_header(checkpoint.find(tmp_path / "run")).labels == LabelMap(
        (*KNOWN, "bolt"), ()
    )


def test_run_makes_a_detector_of_the_new_classes_alone(
    photos: Photos, given: Path, finished: Path
) -> None:
    out = finished.parent / "alone"
    stages.run(short(photos, given, only_novel="true"), out)
    path = checkpoint.find(out)
    assert path == out / "detector.safetensors"
    alone, whole = checkpoint.load(path), checkpoint.load(finished / "detector.safetensors")
    assert alone.labels == LabelMap((), (shapes.NOVEL,))
    torch.manual_seed(0)
    images, sizes = torch.rand(1, 3, 64, 64), torch.tensor([[64, 64]])
    with torch.no_grad():
        scores = [saved.detector.eval().infer(images, sizes).scores for saved in (alone, whole)]
    torch.testing.assert_close(scores[0], scores[1][..., 3:])


# Labels of some photos


def write_labels(photos: Photos, path: Path, some: range, labels: tuple[int, ...]) -> Path:
    """COCO records of all photos, with the boxes of some photos and classes."""
    content = dict(photos.truth)
    content["annotations"] = [
        box
        for box in content["annotations"]
        if box["image_id"] in some and box["category_id"] in labels
    ]
    path.write_text(json.dumps(content))
    return path


def test_run_with_labels_of_some_photos(photos: Photos, given: Path, tmp_path: Path) -> None:
    """Photos 1 to 8 have labels, of red alone."""
    root = write_labels(photos, tmp_path / "some.json", range(1, 9), (1,))
    keys = {"data__root": root, "data__pictures": photos.root}
    settings = short(photos, given, **keys)
    data = RunData(settings, torch.device("cpu"))
    missing = data.missing(data.mined)
    assert len(data.mined) == 24  # all are mined
    labelled = [len(row) > 0 for row in boxes_of(data.mined)]
    assert missing[:, 0].tolist() == [not known for known in labelled]
    assert missing[:, 1:].all()  # nobody has labelled green and purple
    stages.run(settings, tmp_path / "run")
    base = shapes.json_of(tmp_path / "run" / "mine" / "base.json")
    assert len({row["file_name"] for row in base}) > 8


def boxes_of(data: Any) -> list[list[int]]:
    return [data.boxes.label[data.boxes.image == i].tolist() for i in range(len(data))]


def test_missing_labels_are_none_where_the_base_detector_is_trained(
    photos: Photos, tmp_path: Path
) -> None:
    root = write_labels(photos, tmp_path / "some.json", range(1, 9), (1, 2, 3))
    keys = {"data__pictures": photos.root}
    data = RunData(config(root, **keys), torch.device("cpu"))
    assert not data.missing(data.mined).any()
    assert not data.is_open


def test_labels_name_the_spelling_of_the_file_of_shots(photos: Photos, given: Path) -> None:
    other = short(photos, given, data__novel='["Blue, Light"]')
    with pytest.raises(UserError, match=r'five\.json: they spell it "blue, light"') as said:
        _ = RunData(other, torch.device("cpu")).labels
    assert 'data.novel: ["blue, light"]' in said.value.fix


def test_unlisted_photos_are_mined_as_photos_without_labels(
    photos: Photos, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five photos of a folder are annotated, the others are in no file."""
    root = shutil.copytree(photos.root, tmp_path / "some")
    shutil.copy(photos.shots, root / "some.json")
    keys = {"shots__file": "null", "shots__root": "null", "data__root": root}
    some = short(photos, given, **keys)
    device = torch.device("cpu")
    assert len(RunData(some, device).mined) == 5
    assert "19 of 24 pictures" in capsys.readouterr().err
    all_photos = short(photos, given, data__unlisted="true", **keys)
    data = RunData(all_photos, device)
    assert len(data.mined) == 24
    assert data.missing(data.mined).all()
    out = tmp_path / "runs" / "some"
    stages.run(all_photos, out)
    assert len(shapes.json_of(out / "pool.json")["images"]) == 24
    trained = config(root, data__unlisted="true")
    with pytest.raises(UserError, match=r"needs base\.checkpoint"):
        _ = RunData(trained, device).whole
