from __future__ import annotations

from pathlib import Path

import pytest

from helpers import exports
from helpers.photos import bolts, write_boxes, write_photos
from mini_fsod.config.load import resolve
from mini_fsod.errors import UserError
from mini_fsod.runs.estimate import RunEstimate, StageEstimate


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos and five boxes, and nothing else."""
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", 60)
    write_boxes(tmp_path / "five.json", *bolts(range(5)))
    return tmp_path


def test_init_writes_a_configuration_and_says_what_to_do_next(mini, here: Path) -> None:
    code, out, _ = mini("init", "photos", "--boxes", "five.json", "--no-estimate")
    assert code == 0
    assert out.rstrip().endswith("mini run photos.yaml")
    config = resolve("photos.yaml")
    assert (config.data.novel, config.shots.k) == (("bolt",), 5)
    assert config.shots.root == Path("photos")
    assert str(config.base.checkpoint) == "torchvision:fasterrcnn_resnet50_fpn"
    for words in ("60 photos without labels", "5 boxes in 5 photos (COCO)", "What may go wrong"):
        assert words in out


def test_init_overwrites_only_with_force(mini, here: Path) -> None:
    words = ("init", "photos", "--boxes", "five.json", "--no-estimate")
    assert mini(*words)[0] == 0
    (here / "photos.yaml").write_text("mine: 1\n")
    code, _, err = mini(*words)
    assert (code, "--force" in err) == (2, True)
    assert (here / "photos.yaml").read_text() == "mine: 1\n"
    assert mini(*words, "--force")[0] == 0
    assert mini(*words, "-o", "other.yaml")[0] == 0
    assert (here / "other.yaml").is_file()


def test_init_takes_several_new_classes_with_commas(mini, here: Path) -> None:
    write_boxes(here / "b.json", *bolts(), (7, "nut, hex", (1, 1, 90, 90)), (8, "x", (1, 1, 9, 9)))
    words = ("--novel", "nut, hex", "--novel", "bolt", "--no-estimate")
    assert mini("init", "photos", "--boxes", "b.json", *words)[0] == 0
    assert resolve("photos.yaml").data.novel == ("nut, hex", "bolt")


def test_init_takes_an_export_straight_out_of_its_zip(mini, here: Path) -> None:
    exports.write_label_studio(here / "export")
    for picture in (here / "export").glob("*.png"):
        picture.replace(here / "photos" / picture.name)
    exports.zipped(here / "export", here / "project.zip")
    words = ("--boxes", "project.zip", "--novel", "bird", "--no-estimate")
    code, out, err = mini("init", "photos", *words)
    assert code == 0, err
    assert "Label Studio" in out
    assert resolve("photos.yaml").shots.file == Path("project.zip")


@pytest.mark.parametrize("out", ["configs/bolts.yaml", "../configs/bolts.yaml"])
def test_init_writes_paths_as_seen_from_the_configuration(
    mini, here: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mini("init", "photos", "--boxes", "five.json", "--no-estimate", "-o", out)[0] == 0
    folder = (here / out).resolve().parent
    for seen_from in (here, folder):
        monkeypatch.chdir(seen_from)
        config = resolve(folder / "bolts.yaml")
        assert config.data.root is not None
        assert config.shots.file is not None
        assert config.data.root.samefile(here / "photos")
        assert config.shots.file.samefile(here / "five.json")
        assert str(config.base.checkpoint) == "torchvision:fasterrcnn_resnet50_fpn"


def test_init_mines_photos_that_no_annotation_lists(mini, here: Path) -> None:
    """As labelling tools leave a folder: an annotation for some of the photos."""
    write_boxes(here / "photos" / "boxes.json", *bolts(range(5)))
    code, out, err = mini("init", "photos", "--novel", "bolt", "--no-estimate")
    assert code == 0, err
    assert "55 of them not in the annotations" in out
    assert "Nothing to mine" not in out
    config = resolve("photos.yaml")
    assert config.data.unlisted
    assert config.mine.extra is None


def test_init_mines_unlisted_photos_as_extra_ones_beside_base_labels(mini, here: Path) -> None:
    """They would count as labelled, and to show nothing."""
    gears = [(n, "gear", (9.0, 9.0, 90.0, 90.0)) for n in range(20, 30)]
    write_boxes(here / "photos" / "gears.json", *gears)
    code, out, err = mini("init", "photos", "--boxes", "five.json", "--no-estimate")
    assert code == 0, err
    config = resolve("photos.yaml")
    assert (config.mine.extra, config.data.unlisted) == (Path("photos"), False)
    assert config.base.checkpoint is None
    assert "Nothing to mine" not in out


def test_init_writes_nothing_where_it_fails(mini, here: Path) -> None:
    code, _, err = mini("init", "photos", "--boxes", "five.json", "--novel", "nut")
    assert code == 2
    assert 'no box of "nut"' in err
    assert not (here / "photos.yaml").exists()


def test_init_shows_what_the_run_will_cost(
    mini, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = (
        StageEstimate("base", 0.0, 0.0, None, None, 1 << 30),
        StageEstimate("transfer", 2.5, 0.0, 4_000, 31.5, 2 << 30),
        StageEstimate("online", 14.6, 0.0, 900, 4.25, 3 << 30),
    )
    monkeypatch.setattr("mini_fsod.runs.estimate.estimate_run", lambda *_: RunEstimate(stages, 0.5))
    _, out, _ = mini("init", "photos", "--boxes", "five.json")
    rows = {words[0]: words[1:] for line in out.splitlines() if (words := line.split())}
    assert rows["transfer"] == ["2:30", "min", "4,000", "32", "2.0", "GiB"]
    assert rows["online"] == ["14:36", "min", "900", "4.2", "3.0", "GiB"]
    assert rows["all"] == ["17:36", "min", "3.0", "GiB"]
    assert "base" not in rows


def test_init_says_why_nothing_was_measured(
    mini, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object) -> RunEstimate:
        raise UserError("weights could not be fetched.", "Put the file there.")

    monkeypatch.setattr("mini_fsod.runs.estimate.estimate_run", offline)
    code, out, _ = mini("init", "photos", "--boxes", "five.json")
    assert code == 0
    assert "not measured" in out
    assert "Put the file there." in out
    assert (here / "photos.yaml").is_file()


def test_init_fits_in_80_columns(mini, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_fsod import console

    monkeypatch.setattr(console.out, "_width", 80)
    _, out, _ = mini("init", "photos", "--boxes", "five.json", "--no-estimate")
    assert max(map(len, out.splitlines())) <= 80
