"""Mining extra images without annotations (`mine.extra`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import shapes
from helpers.mining_run import mine_again, mined, mining_config, mining_run, scan_and_mine
from helpers.run_data import run_data
from helpers.shapes import NOVEL
from mini_fsod.errors import UserError
from mini_fsod.mining.choose import check_mining, mine
from mini_fsod.mining.extra import extra_images, read_extra
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.scan import EXTRA_PAIRS, PAIRS, scan

FILES = ("candidates.json", "thresholds.json", "pool.json", "base.json")


@pytest.fixture(scope="module")
def photos(shapes_data: Path) -> Path:
    """Six other images, and annotations that nobody may read."""
    folder = shapes_data.parent / "photos"
    content = shapes.pictures(folder / "deep", 6, seed=9, name="other")
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def with_photos(shapes_data: Path, photos: Path) -> Path:
    """A run that has mined them too, as the caller of the stages leaves it. Not to be changed."""
    out = shapes_data.parent / "with-photos"
    keys = {"mine__extra": photos, "mine__extra_per_class": 1}
    figures = scan_and_mine(shapes_data, out, **keys)
    (out / "mine" / "metrics.json").write_text(json.dumps(figures | {"seconds": 1.0}))
    shutil.copy(out / "mine" / "pool.json", out / "pool.json")
    shutil.copy(out / "mine" / "extra" / "pool.json", out / "pool-extra.json")
    return out


def of_extra(out: Path, name: str) -> Any:
    return mined(out, f"extra/{name}")


def test_mine_writes_files_of_the_extra_images(photos: Path, with_photos: Path) -> None:
    names = {path.name for path in (with_photos / "mine" / "extra").iterdir()}
    assert names == {*FILES, "1-blue--light.png"}  # no audit
    found, thresholds, pool, base = (of_extra(with_photos, name) for name in FILES)
    about = {
        "folder": str(photos),
        "images": 6,
        "candidates": len(found),
        "kept": 1,
        "best_score": max(c["score"] for c in found),
    }
    assert mined(with_photos, "metrics.json")["extra"] == about
    row = thresholds["classes"][NOVEL]
    assert (row["N"], row["candidates"], row["kept"]) == (1, len(found), 1)
    assert [a["score"] for a in pool["annotations"]] == [max(c["score"] for c in found)]
    assert [i["file_name"] for i in pool["images"]] == [f"deep/other{n}.png" for n in range(6)]
    assert pool["categories"] == mined(with_photos, "pool.json")["categories"]
    assert {c["category"] for c in found} == {NOVEL}
    assert {c["category"] for c in base} <= {"red", "green"}
    assert len(base) > 0
    assert all(c["score"] > 0.01 for c in base)


def test_mine_of_training_images_ignores_the_extra_images(
    finished: Path, with_photos: Path
) -> None:
    for name in ("pool.json", "candidates.json", "audit.json"):
        assert mined(finished, name) == mined(with_photos, name)
    assert not (finished / "mine" / "extra").exists()


def test_mine_with_another_limit_for_extra_images(
    shapes_data: Path, photos: Path, with_photos: Path, tmp_path: Path
) -> None:
    keys = {"mine__extra": photos, "mine__extra_per_class": 2}
    mine_again(shapes_data, tmp_path, with_photos, **keys)
    assert len(of_extra(tmp_path, "pool.json")["annotations"]) == 2


def test_scan_extra_only_leaves_the_training_images_out(
    shapes_data: Path, photos: Path, with_photos: Path, tmp_path: Path
) -> None:
    keys = {"mine__extra": photos, "mine__extra_per_class": 1, "mine__extra_only": "true"}
    figures = scan_and_mine(shapes_data, tmp_path, **keys)
    assert (figures["candidates"], figures["kept"], figures["extra"]["kept"]) == (0, 0, 1)
    pool = mined(tmp_path, "pool.json")
    assert (len(pool["images"]), pool["annotations"]) == (8, [])
    assert of_extra(tmp_path, "pool.json") == of_extra(with_photos, "pool.json")


def test_scan_compares_crops_of_extra_images_with_the_data(
    shapes_data: Path, photos: Path, tmp_path: Path
) -> None:
    keys = {"discriminator__whiten": "true", "discriminator__refine": 2}
    scan_and_mine(shapes_data, tmp_path, **keys, discriminator__crop=32, mine__extra=photos)
    found = of_extra(tmp_path, "candidates.json")
    assert len(found) > 5
    for c in found:
        assert c["score"] == pytest.approx((c["score_detector"] * c["cosine"]) ** 0.5, rel=1e-5)
    ours, theirs = (Pairs.load(tmp_path / "scan" / name).crops for name in (PAIRS, EXTRA_PAIRS))
    assert ours is not None
    assert theirs is not None
    assert theirs.base_label.tolist() == ours.base_label.tolist()
    np.testing.assert_array_equal(theirs.shots, ours.shots)
    assert len(theirs.pairs) == len(found)


# Which images


def test_extra_images_leaves_out_the_images_of_the_data(shapes_data: Path, tmp_path: Path) -> None:
    """Above all those of the test set."""
    folder = tmp_path / "mixed"
    shutil.copytree(shapes_data / "train", folder / "copies")
    (folder / "linked.png").symlink_to(shapes_data / "test" / "0.png")
    data = mining_run(shapes_data, tmp_path).data
    found = extra_images(data, folder)
    assert len(found) == 8
    assert found.classes == data.mined.classes
    assert found.notes == (f"{folder}: 1 image of the data set or of shots left out",)
    with pytest.raises(UserError, match="all of its images are in the data set"):
        extra_images(data, shapes_data / "train")


def test_extra_images_leaves_out_the_images_of_shots(shapes_data: Path, tmp_path: Path) -> None:
    """Beside labelled photos, the boxes of a new class may be in others of the folder."""
    content = shapes.pictures(tmp_path / "more", 6, seed=9, name="other")
    shots = [box for box in content["annotations"] if box["image_id"] == 2]
    (tmp_path / "more" / "shots.json").write_text(json.dumps(content | {"annotations": shots}))
    data = run_data(shapes_data, shots__file=tmp_path / "more" / "shots.json")
    found = extra_images(data, tmp_path / "more")
    assert found.files == tuple(f"other{n}.png" for n in (0, 2, 3, 4, 5))


def test_extra_images_leaves_out_unreadable_images(shapes_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(shapes_data / "train", folder)
    whole = (folder / "0.png").read_bytes()
    (folder / "0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "1.png").write_text("no image")
    data = mining_run(shapes_data, tmp_path).data
    found = extra_images(data, folder)
    assert len(found) == 6
    assert found.notes == (f"{folder}: 2 unreadable images left out: 0.png ...",)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "1.png").write_text("no image")
    with pytest.raises(UserError, match="none of its images can be read"):
        extra_images(data, alone)


def test_extra_images_notes_formats_that_are_not_read(shapes_data: Path, tmp_path: Path) -> None:
    """A phone's images may all be HEIC."""
    folder = tmp_path / "phone"
    shutil.copytree(shapes_data / "train", folder)
    (folder / "IMG_1.HEIC").touch()
    (folder / "annotations.json").write_text("{}")
    data = mining_run(shapes_data, tmp_path).data
    (note,) = extra_images(data, folder).notes
    assert "1 x .heic" in note
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "IMG_1.HEIC").touch()
    with pytest.raises(UserError, match=r"there is no image in it; .*\.heic"):
        extra_images(data, alone)


def test_mine_refuses_missing_extra_images(shapes_data: Path, photos: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    run = mining_run(shapes_data, tmp_path, mine__extra=folder)
    scan(run, run.folder("scan"))
    (folder / "deep" / "other3.png").unlink()
    with pytest.raises(UserError, match=r"1 scanned image missing, such as deep/other3\.png"):
        mine(run, run.folder("mine"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mine__extra": "nowhere"}, "nowhere: there is no such folder"),
        ({"mine__extra_only": "true"}, "there are no extra images"),
        (
            {"mine__extra": ".", "mine__detections": "theirs.json"},
            r"mine\.detections \(theirs\.json\) has detections on the training images only",
        ),
    ],
)
def test_check_mining_refuses_wrong_keys_of_extra_images(
    shapes_data: Path,
    changes: dict[str, object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.json").write_text("[]")
    with pytest.raises(UserError, match=message):
        check_mining(mining_config(shapes_data, **changes))


# For re-training


def test_read_extra_reads_the_pool_of_the_run(
    shapes_data: Path, with_photos: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(with_photos, tmp_path / "run"))
    run = mining_run(shapes_data, out)
    extra = read_extra(run)
    assert extra is not None
    assert (len(extra.data), len(extra.pool)) == (6, 1)
    novel, base = (of_extra(out, name) for name in ("candidates.json", "base.json"))
    assert extra.candidates is not None
    assert extra.base is not None
    assert (len(extra.candidates), len(extra.base)) == (len(novel), len(base))
    assert extra.missing.tolist() == [[True, True]] * 6
    pool = out / "pool-extra.json"
    pool.write_text(json.dumps(shapes.json_of(pool) | {"annotations": []}))
    corrected = read_extra(run)
    assert corrected is not None
    assert len(corrected.pool) == 0
    (out / "mine" / "extra" / "base.json").unlink()
    with pytest.raises(UserError, match=r"base\.json: the file is missing"):
        read_extra(run)


def test_read_extra_without_extra_images(shapes_data: Path, finished: Path) -> None:
    assert read_extra(mining_run(shapes_data, finished)) is None


# A given pool


def test_mine_copies_the_extra_files_of_a_given_pool(
    shapes_data: Path, photos: Path, with_photos: Path, tmp_path: Path
) -> None:
    before = mined(with_photos, "metrics.json")
    for n, given in enumerate((with_photos, with_photos / "mine" / "pool.json")):
        run = mining_run(shapes_data, tmp_path / str(n), mine__pool=given)
        figures = mine(run, run.folder("mine"))
        pool = given / "pool.json" if n == 0 else given
        assert figures == {k: v for k, v in before.items() if k != "seconds"} | {"given": str(pool)}
        for name in FILES:
            assert of_extra(tmp_path / str(n), name) == of_extra(with_photos, name)
    moved = Path(shutil.copytree(photos, tmp_path / "moved"))
    run = mining_run(shapes_data, tmp_path / "2", mine__pool=with_photos, mine__extra=moved)
    assert mine(run, run.folder("mine"))["extra"]["folder"] == str(moved)


def test_mine_copies_the_corrected_extra_pool_of_a_run(
    shapes_data: Path, with_photos: Path, tmp_path: Path
) -> None:
    given = Path(shutil.copytree(with_photos, tmp_path / "given"))
    pool = shapes.json_of(given / "pool-extra.json") | {"annotations": []}
    (given / "pool-extra.json").write_text(json.dumps(pool))
    run = mining_run(shapes_data, tmp_path / "run", mine__pool=given)
    mine(run, run.folder("mine"))
    assert of_extra(tmp_path / "run", "pool.json") == pool


def test_check_mining_of_a_given_pool_with_extra_images(
    shapes_data: Path, photos: Path, finished: Path, with_photos: Path, tmp_path: Path
) -> None:
    def check(run: Path, **changes: object) -> None:
        pool = run / "mine" / "pool.json"
        check_mining(mining_config(shapes_data, mine__pool=pool, **changes))

    check(finished)
    with pytest.raises(UserError, match="mined without extra images"):
        check(finished, mine__extra=photos)
    check(with_photos, mine__extra=photos)
    with pytest.raises(UserError, match="gone: there is no such folder"):
        check(with_photos, mine__extra=tmp_path / "gone")
    damaged = tmp_path / "damaged"
    shutil.copytree(with_photos / "mine", damaged / "mine")
    (damaged / "mine" / "metrics.json").unlink()
    check(damaged, mine__extra=photos)
    with pytest.raises(UserError, match="the folder of the extra images is not known"):
        check(damaged)
    (damaged / "mine" / "extra" / "base.json").unlink()
    with pytest.raises(UserError, match=r"base\.json: the file is missing"):
        check(damaged, mine__extra=photos)
