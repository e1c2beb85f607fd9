"""Mining pictures from elsewhere, of which nothing is known, and re-training on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs.mined import again, config, load

from mini_fsod.errors import UserError
from mini_fsod.files import digest
from mini_fsod.mining import choose
from mini_fsod.mining.candidates import Raw
from mini_fsod.online import retrain
from mini_fsod.runs import stages
from runs import small

SHORT = {
    "online__iterations": 2,
    "online__batch": 4,
    "online__teacher": "false",
    "online__iou_branch": "false",
}


@pytest.fixture(scope="module")
def photos(data: Path) -> Path:
    """Six other pictures, and what their annotations would be, which nobody may read."""
    folder = data.parent / "photos"
    content = small.pictures(folder / "deep", 6, seed=9, name="other")
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def widely(data: Path, finished: Path, photos: Path) -> Path:
    """A run that has mined them too. Not to be changed."""
    out = Path(shutil.copytree(finished, data.parent / "widely"))
    again(data, out, mine__extra=photos, mine__extra_most=1, mine__alpha=0.5)
    return out


def trained(data: Path, out: Path, first: str = "online", **changes: object) -> bytes:
    stages.run(config(data, **SHORT, **changes), out, first=first, last="online")
    return (out / "online" / "checkpoint.safetensors").read_bytes()


def of_extra(out: Path, name: str) -> Any:
    return load(out, f"extra/{name}")


def test_their_files_are_their_own(photos: Path, widely: Path) -> None:
    files = ("candidates.json", "thresholds.json", "pool.json", "base.json")
    names = {path.name for path in (widely / "mine" / "extra").iterdir()}
    assert names == {*files, "1-blue--light.png"}  # and no audit
    found, thresholds, pool, base = (of_extra(widely, name) for name in files)
    assert load(widely, "metrics.json")["extra"] == {
        "folder": str(photos),
        "images": 6,
        "candidates": len(found),
        "kept": 1,
        "pool_sha256": digest(widely / "mine" / "extra" / "pool.json"),
    }
    row = thresholds["classes"][small.NOVEL]
    assert (row["N"], row["candidates"], row["kept"]) == (1, len(found), 1)
    assert [a["score"] for a in pool["annotations"]] == [max(c["score"] for c in found)]
    assert [i["file_name"] for i in pool["images"]] == [f"deep/other{n}.png" for n in range(6)]
    assert pool["categories"] == load(widely, "pool.json")["categories"]
    assert {c["category"] for c in found} == {small.NOVEL}
    assert {c["category"] for c in base} <= {"red", "green"}
    assert len(base) > 0
    assert all(c["score"] > 0.01 for c in base)


def test_the_training_images_are_mined_as_ever(
    data: Path, photos: Path, widely: Path, copied: Path, scans: list[str]
) -> None:
    own = {"mine__alpha": 0.5, "mine__extra": photos}
    assert "extra" not in again(data, copied, mine__alpha=0.5)
    for name in ("pool.json", "candidates.json", "audit.json"):
        assert load(copied, name) == load(widely, name)
    assert not (copied / "mine" / "extra").exists()
    assert scans == []
    again(data, copied, **own, mine__extra_most=1)
    assert scans == ["scan"]  # of the others
    for name in ("pool.json", "candidates.json", "base.json"):
        assert of_extra(copied, name) == of_extra(widely, name)
    again(data, copied, **own, mine__extra_most=2)
    assert len(of_extra(copied, "pool.json")["annotations"]) == 2
    assert scans == ["scan"]


@pytest.mark.slow
def test_what_is_found_belongs_to_its_folder(
    data: Path, photos: Path, copied: Path, scans: list[str], tmp_path: Path
) -> None:
    """Another folder with the same names in it is another scan."""
    other = tmp_path / "photos"
    small.pictures(other / "deep", 6, seed=10, name="other")
    for n, folder in enumerate((photos, other, other), start=1):
        again(data, copied, mine__extra=folder)
        assert scans == ["scan"] * min(n, 2)


def test_nothing_is_mined_in_the_training_images(
    data: Path, photos: Path, copied: Path, widely: Path, scans: list[str]
) -> None:
    own = {"mine__extra": photos, "mine__extra_most": 1, "mine__alpha": 0.5}
    figures = again(data, copied, **own, mine__extra_only="true")
    assert (figures["candidates"], figures["kept"], figures["extra"]["kept"]) == (0, 0, 1)
    pool = load(copied, "pool.json")
    assert (len(pool["images"]), pool["annotations"]) == (8, [])
    assert of_extra(copied, "pool.json") == of_extra(widely, "pool.json")
    assert scans == ["scan"]


def test_boxes_seen_one_by_one(data: Path, photos: Path, copied: Path) -> None:
    """They are compared with the base boxes and the shots of the data itself."""
    own = {"mine__discriminator_crop": 32, "mine__whiten": "true", "mine__refine": 2}
    again(data, copied, **own, mine__extra=photos)
    found = of_extra(copied, "candidates.json")
    assert len(found) > 5
    for c in found:
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)
    ours, theirs = (Raw.load(copied / name).seen for name in ("raw.npz", "raw-extra.npz"))
    assert ours is not None
    assert theirs is not None
    assert theirs.base_label.tolist() == ours.base_label.tolist()
    assert theirs.shots == pytest.approx(ours.shots, abs=1e-4)
    assert len(theirs.candidates) == len(found)


# Which pictures


def test_the_datas_own_pictures_are_not_mined_twice(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Least of all those of the test set."""
    folder = tmp_path / "mixed"
    shutil.copytree(data / "train", folder / "copies")
    (folder / "linked.png").symlink_to(data / "test" / "0.png")
    capsys.readouterr()
    assert again(data, copied, mine__extra=folder)["extra"]["images"] == 8
    assert "1 picture of the data itself left out" in capsys.readouterr().err
    with pytest.raises(UserError, match="nothing to mine, all of its pictures are in the data set"):
        again(data, copied, mine__extra=data / "train")


def test_torn_pictures_are_left_out(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of thousands some are always broken; they are told of, and the others mined."""
    folder = tmp_path / "mixed"
    shutil.copytree(data / "train", folder)
    whole = (folder / "0.png").read_bytes()
    (folder / "0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "1.png").write_text("no picture")
    capsys.readouterr()
    assert again(data, copied, mine__extra=folder)["extra"]["images"] == 6
    said = " ".join(capsys.readouterr().err.split())
    assert "2 pictures that cannot be read left out: 0.png ..." in said
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "1.png").write_text("no picture")
    with pytest.raises(UserError, match="nothing to mine, none of its pictures can be read"):
        again(data, copied, mine__extra=alone)


def test_kinds_that_are_not_read_are_told_of(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A telephone's pictures may all be HEIC."""
    folder = tmp_path / "telephone"
    shutil.copytree(data / "train", folder)
    (folder / "IMG_1.HEIC").touch()
    (folder / "annotations.json").write_text("{}")
    capsys.readouterr()
    assert again(data, copied, mine__extra=folder)["extra"]["images"] == 8
    said = " ".join(capsys.readouterr().err.split())
    assert "telephone: 1 file is a picture of a kind that is not read: 1 x .heic" in said
    assert "annotations" not in said  # nobody asked for them
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "IMG_1.HEIC").touch()
    with pytest.raises(UserError, match="no picture in it; 1 file is a picture of a kind that is"):
        again(data, copied, mine__extra=alone)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mine__extra": "nowhere"}, "nowhere: there is no such folder of pictures"),
        ({"mine__extra_only": "true"}, "there are no pictures from elsewhere"),
        (
            {"mine__extra": ".", "mine__detections": "theirs.json"},
            r"theirs\.json: another tool's detections are of the training images",
        ),
    ],
)
def test_what_is_told_before_anything_is_run(
    data: Path,
    changes: dict[str, object],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.json").write_text("[]")
    with pytest.raises(UserError, match=what):
        choose.ready(config(data, **changes).mine)


# Re-training


def test_re_training_learns_from_them(data: Path, photos: Path, copied: Path) -> None:
    own = {"mine__extra": photos, "mine__extra_most": 2}
    without = trained(data, copied, first="mine")
    widely = trained(data, copied, first="mine", **own)
    assert widely != without
    # what may be a base object is no background
    (copied / "mine" / "extra" / "base.json").write_text("[]")
    assert trained(data, copied, **own) not in (widely, without)
    # a picture with nothing in the pool is left out
    pool = copied / "mine" / "extra" / "pool.json"
    pool.write_text(json.dumps(small.json_of(pool) | {"annotations": []}))
    assert trained(data, copied, **own) == without
    pool.unlink()
    with pytest.raises(UserError, match=r"extra.pool\.json: it is not there"):
        trained(data, copied, **own)


@pytest.mark.slow
def test_an_edited_pool_of_theirs(
    data: Path, photos: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"mine__extra": photos, "mine__extra_most": 1}
    trained(data, copied, first="mine", **own)
    pool = copied / "mine" / "extra" / "pool.json"
    edited = pool.read_bytes().replace(b'"iscrowd"', b' "iscrowd"', 1)
    pool.write_bytes(edited)
    with pytest.raises(UserError, match=r"not the one of online.*extra.pool\.json changed"):
        stages.run(config(data, **SHORT, **own), copied, last="online")
    stages.run(config(data, **SHORT, **own), copied, first="mine", last="mine")
    assert "it is kept as pool-edited.json" in capsys.readouterr().err
    assert (copied / "pool-edited.json").read_bytes() == edited


def test_an_oracle_has_no_use_for_them(data: Path, photos: Path, tmp_path: Path) -> None:
    without = trained(data, tmp_path / "a", online__oracle="true")
    assert without == trained(data, tmp_path / "b", online__oracle="true", mine__extra=photos)


@pytest.mark.slow
def test_a_teacher_is_not_measured_by_what_nobody_knows(
    data: Path, photos: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    real = retrain._teaching
    monkeypatch.setattr(
        retrain,
        "_teaching",
        lambda run, truth_known: told.append(truth_known) or real(run, truth_known),
    )
    short = {"online__iterations": 2, "online__batch": 4}
    for more in ({}, {"mine__extra": photos}):
        stages.run(config(data, **short, **more), copied, first="mine", last="online")
    assert told == [True, False]


# Given


@pytest.mark.slow
def test_a_given_pool_brings_them_along(
    data: Path, photos: Path, widely: Path, copied: Path, tmp_path: Path
) -> None:
    own = {"mine__extra": photos, "mine__extra_most": 1, "mine__alpha": 0.5}
    expected = trained(data, copied, first="mine", **own)
    given = {"mine__given": widely / "mine" / "pool.json"}
    assert trained(data, copied, first="mine", **given) == expected
    assert of_extra(copied, "base.json") == of_extra(widely, "base.json")
    figures, theirs = load(copied, "metrics.json"), load(widely, "metrics.json")
    assert figures.pop("seconds") < theirs.pop("seconds")  # nothing was scanned here
    del theirs["scan_seconds"]
    assert figures == theirs | {"given": str(given["mine__given"])}
    moved = shutil.copytree(photos, tmp_path / "moved")
    assert trained(data, copied, first="mine", **given, mine__extra=moved) == expected
    assert load(copied, "metrics.json")["extra"]["folder"] == str(moved)


def test_a_given_pool_that_does_not(
    data: Path, photos: Path, finished: Path, widely: Path, tmp_path: Path
) -> None:
    def ready(run: Path, **changes: object) -> None:
        choose.ready(config(data, mine__given=run / "mine" / "pool.json", **changes).mine)

    ready(finished)
    with pytest.raises(UserError, match="mined without pictures from elsewhere"):
        ready(finished, mine__extra=photos)
    ready(widely, mine__extra=photos)
    with pytest.raises(UserError, match="gone: there is no such folder of pictures"):
        ready(widely, mine__extra=tmp_path / "gone")
    torn = tmp_path / "torn"
    shutil.copytree(widely / "mine", torn / "mine")
    (torn / "mine" / "metrics.json").unlink()
    ready(torn, mine__extra=photos)
    with pytest.raises(UserError, match="nothing says which pictures"):
        ready(torn)
    (torn / "mine" / "extra" / "base.json").unlink()
    with pytest.raises(UserError, match=r"base\.json: it is not there"):
        ready(torn, mine__extra=photos)


# `mini mine RUN --extra FOLDER`


def test_the_command(mini: Any, photos: Path, copied: Path, tmp_path: Path) -> None:
    code, out, err = mini("mine", copied, "--extra", photos, "--set", "mine.extra_most=1")
    assert code == 0, err
    tables = [line.split()[:2] for line in out.splitlines()]
    assert tables == [["class", "candidates"], ["blue,", "light"]] * 2
    assert "precision" in out.splitlines()[0]
    assert "precision" not in out.splitlines()[2]
    assert f"{photos}: 6 pictures from elsewhere" in " ".join(err.split())
    before = load(copied, "metrics.json")
    (tmp_path / "empty").mkdir()
    code, _, err = mini("mine", copied, "--extra", tmp_path / "empty")
    assert code == 2
    assert "nothing to mine, there is no picture in it" in " ".join(err.split())
    assert load(copied, "metrics.json") == before  # nothing was touched
