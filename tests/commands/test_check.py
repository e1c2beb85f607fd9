"""`mini check` on sound data, and on the odd and broken data that people have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from helpers import shapes, tiny


def test_check_of_sound_data_has_no_problems(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    sheet = tmp_path / "sheet.png"
    code, out, err = mini("check", path, "--novel", "bird", "--images", "--sheet", sheet)
    assert code == 0
    assert "3 images, 5 boxes, 3 classes" in out
    assert re.search(r"bird \(novel\) +2 +2 .* 1 of 2 \(50%\)", out)
    assert "No problems" in err
    with Image.open(sheet) as picture:
        assert picture.width > 500


def test_check_reports_all_problems_together(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [float("nan"), 1, 2, 3]
    content["annotations"][1]["category_id"] = 99
    content["images"][1]["width"] = 61
    path = tiny.write_coco(tmp_path, content)
    (tmp_path / "c.png").unlink()
    code, _, err = mini("check", path, "--no-sheet")
    assert code == 2
    assert "annotations.json, annotation 1: the box x nan" in err
    assert "annotations.json, annotation 2: category id 99 is unknown" in err
    assert "annotations.json, image 11: b.png: declared 61 x 60, but the picture is 60 x 60" in err
    assert "annotations.json, image 12: c.png: the picture does not exist" in err
    assert err.count("fix:") == 4
    assert "4 problems" in err


def test_check_prints_json(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    code, out, _ = mini("check", tiny.write_coco(tmp_path, content), "--json", "--no-sheet")
    result = json.loads(out)
    assert code == 2
    assert result["classes"]["bird"]["boxes"] == 2
    assert [p["kind"] for p in result["problems"]] == ["box-no-area"]
    assert result["label_map"]["classes"] == ["bird", "bus", "car"]


def test_check_fix_writes_a_copy_without_problems(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    path = tiny.write_coco(tmp_path / "in", content)
    code, _, err = mini("check", path, "--no-sheet", "--fix", tmp_path / "out")
    assert code == 2
    assert "1 x box-no-area: left out" in err
    assert mini("check", tmp_path / "out", "--no-sheet", "--images")[0] == 0


def test_check_names_the_sheet_after_the_data(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_yolo(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    assert mini("check", "photos")[0] == 0
    assert (tmp_path / "photos-check.png").is_file()


# Odd names and places

ODD = ["[red]bird", "[/bold]", ":car:"]


def odd_coco() -> dict:
    content = tiny.coco()
    for category, name in zip(content["categories"], ODD, strict=True):
        category["name"] = name
    return content


def test_check_shows_markup_in_names_literally(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path / "[red]a" / "[bold]", odd_coco()).parent
    code, out, err = mini("check", path, "--novel", "[/bold]", "--fix", tmp_path / "out[" / "z]")
    assert code == 0, err
    assert all(name in out for name in ODD)
    assert "[bold]  COCO" in out
    assert f"in {tmp_path}/out[/z]: 3 images" in err
    assert "No problems in [bold]" in err
    found = tmp_path / "d.json"
    found.write_text("[]")
    assert all(name in mini("eval", path, "--detections", found)[1] for name in ODD)
    code, _, err = mini("check", path, "--novel", "[/blod]", "--no-sheet")
    assert 'No such class in the data: "[/blod]". Did you mean "[/bold]"?' in err


def test_check_escapes_control_characters(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["categories"][0]["name"] = "a\x1b[31mb\nc"
    content["images"][0]["file_name"] = "\x1b]0;x\x07.png"
    _, out, err = mini("check", tiny.write_coco(tmp_path, content), "--no-sheet")
    assert "\x1b" not in out + err
    assert "a\\x1b[31mb\\nc" in out
    assert "\\x1b]0;x\\x07.png" in err


@pytest.mark.parametrize("words", [["--json"], []])
def test_check_prints_to_an_ascii_terminal(tmp_path: Path, words: list[str]) -> None:
    content = tiny.coco()
    content["categories"][0]["name"] = "\u9ce5"
    path = tiny.write_coco(tmp_path, content)
    (tmp_path / "a.png").unlink()
    said = subprocess.run(
        [sys.executable, "-m", "mini_fsod", "check", str(path), "--no-sheet", *words],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert said.returncode == 2
    assert b"Traceback" not in said.stderr
    assert b"\\u9ce5" in said.stdout
    if words:
        assert "\u9ce5" in json.loads(said.stdout)["classes"]


def test_check_reports_an_unknown_novel_class_with_other_problems(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    path = tiny.write_coco(tmp_path / "data", content)
    code, out, err = mini("check", path, "--novel", "brid,cow", "--no-sheet")
    assert code == 2
    assert "3 images, 5 boxes" in out
    assert 'Did you mean "bird"' in err
    assert "has no area" in err
    assert "2 problems in annotations.json; --fix" in err
    result = json.loads(mini("check", path, "--split", "voc-spilt1", "--no-sheet", "--json")[1])
    assert [p["kind"] for p in result["problems"]] == ["box-no-area", "novel-unknown"]


def test_check_reports_a_novel_class_without_boxes(tmp_path: Path, mini) -> None:
    data = shapes.write_data(tmp_path / "data")
    path = data / "annotations" / "train.json"
    content = json.loads(path.read_text())
    content["annotations"] = [a for a in content["annotations"] if a["category_id"] != 2]
    path.write_text(json.dumps(content))
    code, out, _ = mini("check", path, "--root", data / "train", "--novel", "green", "--json")
    assert code == 2
    (problem,) = json.loads(out)["problems"]
    assert (problem["kind"], problem["record"]) == ("novel-empty", "class green")


def test_check_and_sample_report_lone_surrogates(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["categories"][0]["name"] = "c\ud800t"
    path = tiny.write_coco(tmp_path, content)
    for words in (["check", path, "--no-sheet"], ["sample", path, "--shots", 1, "-o", "s.json"]):
        code, _, err = mini(*words)
        assert code == 2
        assert 'category 5: name "c\\ud800t" is not valid Unicode' in err
    code, out, _ = mini("check", path, "--no-sheet", "--json")
    assert json.loads(out)["problems"][0]["kind"] == "name-wrong"


def test_check_writes_null_for_figures_that_are_not_finite(
    tmp_path: Path, mini, recwarn: pytest.WarningsRecorder
) -> None:
    content = tiny.coco()
    for annotation in content["annotations"]:
        if annotation["category_id"] == 5:
            annotation["bbox"] = [float("nan")] * 4
        if annotation["category_id"] == 6:
            annotation["bbox"] = [1, 1, 1e308, 1e308]
    path = tiny.write_coco(tmp_path / "data", content)
    words = ["check", path, "--sheet", tmp_path / "sheet.png"]
    _, out, err = mini(*words, "--json")
    result = json.loads(out, parse_constant=lambda word: pytest.fail(word))
    assert [result["classes"][n]["median_side"] for n in tiny.CLASSES] == [None, None, 15]
    assert "Warning" not in err
    assert not recwarn.list
    _, out, _ = mini(*words)
    assert re.search(r"bird +2 +2 +0 +-", out)


def test_check_writes_the_sheet_outside_the_data(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    home = tiny.write_coco(tmp_path / "photos", content).parent
    (home / "below").mkdir()
    before = sorted(home.rglob("*"))
    for here, data in ((home, "."), (home / "below", ".."), (home, "annotations.json")):
        monkeypatch.chdir(here)
        _, out, err = mini("check", data)
        assert re.search(r"box-no-area.*contact sheet:.*1 problem in", err, re.DOTALL)
        assert out.startswith(("photos  COCO", "annotations.json  COCO"))
    assert sorted(home.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.glob("*.png")) == [
        "annotations-check.png",
        "photos-check.png",
    ]


def test_check_suggests_root_where_all_images_are_missing(tmp_path: Path, mini) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(tiny.coco()))
    code, _, err = mini("check", path, "--no-sheet")
    assert code == 2
    assert "fix: name the folder of the images with --root" in err
    assert "--fix OUT" not in err  # nothing would be left
    tiny.write_pictures(tmp_path / "photos")
    assert mini("check", path, "--no-sheet", "--root", tmp_path / "photos")[0] == 0


def test_check_reports_data_without_annotations(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path, tiny.coco() | {"annotations": []})
    code, _, err = mini("check", path, "--no-sheet")
    assert code == 2
    assert "annotations.json: no boxes" in err
    assert "missing" not in err
    assert "1 problem in annotations.json\n" in err


def test_check_reports_two_categories_of_one_name(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["categories"][1]["name"] = "bird"
    path = tiny.write_coco(tmp_path, content)
    code, out, err = mini("check", path, "--no-sheet")
    assert code == 2
    assert err.count('categories 5, 6 are all named "bird"') == 1
    assert re.search(r"bird +3 +3", out)
    (tmp_path / "d.json").write_text("[]")
    for words in (["sample", path, "--shots", 1, "-o", "s.json"], ["eval", path, "--detections"]):
        more = [tmp_path / "d.json"] if words[0] == "eval" else []
        assert mini(*words, *more)[0] == 2


def test_check_does_not_wrap_class_names(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny.coco()
    name = "a class with a name of several words, as long as names get"
    content["categories"][0]["name"] = name
    path = tiny.write_coco(tmp_path, content)
    monkeypatch.setattr("mini_fsod.console.out._width", 80)
    _, out, _ = mini("check", path, "--novel", "bus", "--no-sheet")
    assert re.search(rf"^{name} +2 ", out, re.MULTILINE)
    assert "next to a base object" in out


def test_check_reports_standard_output_on_a_full_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    words = ["check", str(tiny.write_coco(tmp_path)), "--no-sheet", "--json"]
    with Path("/dev/full").open("wb") as full:
        said = subprocess.run(
            [sys.executable, "-m", "mini_fsod", *words], stdout=full, stderr=subprocess.PIPE
        )
    assert said.returncode != 0
    assert b"No space left" in said.stderr
    assert b"Traceback" not in said.stderr


def test_check_does_not_warn_of_broken_exif(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01" * 50
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png", "JPEG", exif=exif)
    code, _, err = mini("check", path, "--images", "--sheet", tmp_path / "sheet.png")
    assert code == 0
    assert "Warning" not in err


@pytest.mark.parametrize(("novel", "said"), [("bus,bus", "Named twice"), ("", "--novel is empty")])
def test_check_reports_a_wrong_novel_option_with_other_problems(
    tmp_path: Path, mini, novel: str, said: str
) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    path = tiny.write_coco(tmp_path, content)
    code, _, err = mini("check", path, "--novel", novel, "--no-sheet")
    assert code == 2
    assert said in err
    assert "has no area" in err
    assert "2 problems" in err


def test_check_counts_mineable_boxes_in_the_training_images(tmp_path: Path, mini) -> None:
    """All buses are in val, where nothing is mined; one of two birds is next to a car."""
    home = tiny.write_yolo(tmp_path / "photos")
    _, out, err = mini("check", home, "--novel", "bird,bus", "--no-sheet")
    assert "base set    1 image with a base box in train\n" in out
    assert "next to a base object in train" in out
    assert re.search(r"bird \(novel\) +2 +2 .* 1 of 2 \(50%\)", out)
    assert re.search(r"bus \(novel\) +1 +1 .* 0 of 0 *\n", out)
    assert "Mining searches all images in train. Only labelled novel boxes are counted" in out
    assert "NOTE bus has no box in train, where a run trains" in err
    assert "(1 elsewhere); shots.file takes shots from another data set" in err
    assert "bird has no box" not in err
    figures = json.loads(mini("check", home, "--novel", "bird,bus", "--no-sheet", "--json")[1])
    assert (figures["training_set"], figures["training_images"]) == ("train", 2)
    assert figures["base_set_images"] == 1
    assert figures["classes"]["bus"]["boxes"] == 1
    assert figures["classes"]["bus"]["training_boxes"] == 0
    assert len(figures["notes"]) == 1


def test_check_counts_mineable_boxes_in_the_given_subset(tmp_path: Path, mini) -> None:
    home = tiny.write_yolo(tmp_path / "photos")
    _, out, err = mini("check", home, "--novel", "bus", "--subset", "val", "--no-sheet")
    assert "base set    1 image with a base box\n" in out
    assert re.search(r"bus \(novel\) +1 +1 .* 1 of 1 \(100%\)", out)
    assert "NOTE" not in err
    _, out, _ = mini("check", tiny.write_coco(tmp_path / "one"), "--novel", "bird", "--no-sheet")
    assert "base set    2 images with a base box\n" in out  # no image sets: all is training


def test_check_notes_that_all_classes_are_novel(tmp_path: Path, mini) -> None:
    """As `mini init` takes it: a finished detector brings the base classes."""
    path = tiny.write_coco(tmp_path / "one")
    code, _, err = mini("check", path, "--novel", "bird,bus,car", "--no-sheet")
    assert code == 0, err
    assert "NOTE all classes are novel: there is no box of a base class to train on" in err
    assert "base.checkpoint: torchvision:" in err
    _, _, err = mini("check", path, "--novel", "bird,car", "--no-sheet")
    assert "all classes are novel" not in err


def test_check_reports_training_images_without_base_boxes(tmp_path: Path, mini) -> None:
    """The only bus is in val. If train cannot be read, that is reported instead."""
    home = tiny.write_yolo(tmp_path / "photos")
    words = ["check", home, "--novel", "bird,car", "--no-sheet"]
    _, _, err = mini(*words)
    assert "photos: there is no box of a base class to train on in train\n" in err
    assert mini(*words, "--subset", "train")[0] == 0  # looked at alone
    text = (home / "data.yaml").read_text()
    (home / "data.yaml").write_text(text.replace("images/train", "images/trian"))
    _, _, err = mini(*words)
    assert "set-missing" in err
    assert "base-empty" not in err


def test_check_says_how_a_folder_of_images_can_be_mined(tmp_path: Path, mini) -> None:
    tiny.write_pictures(tmp_path / "photos")
    for words in ([], ["--novel", "bolt"]):
        code, out, err = mini("check", tmp_path / "photos", *words, "--no-sheet")
        assert code == 0, err
        assert "images without annotations, 3 images" in out
        assert "3 images without labels can all be mined" in err
        assert "base.checkpoint: torchvision:fasterrcnn_resnet50_fpn knows 80" in err
        assert "shots.file" in err


def test_check_says_what_becomes_of_images_without_a_box(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    some = [box for box in content["annotations"] if box["image_id"] == 10]
    path = tiny.write_coco(tmp_path, content | {"annotations": some})
    code, _, err = mini("check", path, "--novel", "bird", "--no-sheet")
    assert code == 0, err
    assert "2 of 3 images have no box. With a given detector (base.checkpoint)" in err
    alone = [box for box in some if box["category_id"] == 5]
    path = tiny.write_coco(tmp_path / "novel", content | {"annotations": alone})
    code, _, err = mini("check", path, "--novel", "bird", "--no-sheet")
    assert code == 2
    assert "or give a finished detector" in err


def test_check_says_how_many_pictures_the_annotations_leave_out(tmp_path: Path, mini) -> None:
    tiny.write_coco(tmp_path)
    (picture,) = [*tmp_path.rglob("a.png")]
    picture.with_name("new.png").write_bytes(picture.read_bytes())
    _, _, err = mini("check", str(tmp_path), "--no-sheet")
    assert "are not in the annotations" in err
    assert "data.unlisted" in err
