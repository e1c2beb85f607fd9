"""The command as people meet it."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer.main
from PIL import Image

from helpers import tiny
from mini_fsod import __version__, cli
from mini_fsod.cli import app

HEAVY = {
    "torch",
    "torchvision",
    "numpy",
    "PIL",
    "pydantic",
    "faster_coco_eval",
    "sklearn",
    "skimage",
}


def test_version(mini) -> None:
    assert mini("--version") == (0, f"mini {__version__}\n", "")


def test_every_command_and_option_has_a_help_line_with_an_example() -> None:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"mini {name}" in command.help, name
        for option in command.params:
            words = option.help or ""
            assert "Example: " in words, (name, option.name)


def test_start_up_imports_nothing_heavy() -> None:
    code = "import sys, mini_fsod.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(said.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "demo"), "Stopped. The same command goes on.\n"),
        (("run", "demo", "--from", "base"), "Stopped. The same command without --from goes on.\n"),
        (("run", "demo", "--from=base"), "Stopped. The same command without --from goes on.\n"),
        (("check", "."), "Stopped.\n"),
    ],
    ids=["run", "from", "from=", "check"],
)
def test_stopped_by_ctrl_c(
    mini, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"mini_fsod.commands.{words[0]}.run", interrupted)
    code, _, err = mini(*words)
    assert code == 130
    assert err.endswith(said)


def test_a_full_disk(mini, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mini_fsod.commands.run.run", full)
    code, _, err = mini("run", "demo")
    assert code == 2
    assert "No space left on device. Free some space and repeat the command" in err


def test_threads_fail_in_silence_on_a_full_disk_alone(
    mini, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    mini("--version")
    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EACCES, "Permission denied"),
        ValueError("a fault of ours"),
    ):
        args = (type(error), error, None, None)
        threading.excepthook(threading.ExceptHookArgs(args))
    said = capsys.readouterr().err
    assert "No space" not in said
    assert "Permission denied" in said
    assert "a fault of ours" in said


def test_check_of_a_sound_set(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    sheet = tmp_path / "sheet.png"
    code, out, err = mini("check", path, "--novel", "bird", "--images", "--sheet", sheet)
    assert code == 0
    assert "3 images, 5 boxes, 3 classes" in out
    assert re.search(r"bird \(novel\) +2 +2 .* 1 of 2 \(50%\)", out)
    assert "No problems" in err
    with Image.open(sheet) as picture:
        assert picture.width > 500


def test_check_tells_all_problems_at_once(tmp_path: Path, mini) -> None:
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


def test_check_as_json(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    code, out, _ = mini("check", tiny.write_coco(tmp_path, content), "--json", "--no-sheet")
    result = json.loads(out)
    assert code == 2
    assert result["classes"]["bird"]["boxes"] == 2
    assert [p["kind"] for p in result["problems"]] == ["box-no-area"]
    assert result["label_map"]["classes"] == ["bird", "bus", "car"]


def test_check_and_repair(tmp_path: Path, mini) -> None:
    content = tiny.coco()
    content["annotations"][0]["bbox"] = [1, 1, 0, 0]
    path = tiny.write_coco(tmp_path / "in", content)
    code, _, err = mini("check", path, "--no-sheet", "--fix", tmp_path / "out")
    assert code == 2
    assert "1 x box-no-area: left out" in err
    assert mini("check", tmp_path / "out", "--no-sheet", "--images")[0] == 0


def test_the_contact_sheet_is_named_after_the_data(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write_yolo(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    assert mini("check", "photos")[0] == 0
    assert (tmp_path / "photos-check.png").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nowhere"], "no such file"),
        (["check", "a" * 300], "no such file"),
        (["check", "loop"], "no such file"),
        (["check", "data", "--novel", "bird", "--split", "coco"], "exclude each other"),
        (["check", "data", "--root", "data"], "--root is for a COCO file"),
        (["sample", "data", "--novel", "brid", "--shots", "1", "-o", "s.json"], 'mean "bird"'),
        (["sample", "data", "--shots", "1", "-o", "data/annotations.json"], "would be lost"),
        (["sample", "data", "--shots", "1", "-o", "data"], "no regular file"),
        (["sample", "plain", "--shots", "1", "-o", "s.json"], "no boxes to draw"),
        (["eval", "plain", "--detections", "nowhere.json"], "nothing to score against"),
        (["check", "data", "--subset", "x", "--no-sheet"], 'no image set "x"'),
        (["sample", "data", "--shots", "9", "-o", "s.json"], "Too few boxes for 9 shots"),
        (
            ["sample", "data", "--shots", "1", "--official", "voc", "-o", "s.json"],
            "not in the data",
        ),
        (["eval", "data", "--detections", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(
    tmp_path: Path, mini, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    tiny.write_coco(tmp_path / "data")
    tiny.write_pictures(tmp_path / "plain")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    code, out, err = mini(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "What to do:" in err
    assert not (tmp_path / "s.json").exists()
    assert json.loads((tmp_path / "data" / "annotations.json").read_text()) == tiny.coco()


def detections(path: Path, data: dict, score: float = 0.9) -> Path:
    """The truth as its own detections."""
    results = [
        {k: a[k] for k in ("image_id", "category_id", "bbox")} | {"score": score}
        for a in data["annotations"]
    ]
    path.write_text(json.dumps(results))
    return path


@pytest.mark.parametrize("metric", ["voc07", "voc", "coco"])
def test_eval(tmp_path: Path, mini, metric: str) -> None:
    path = tiny.write_coco(tmp_path)
    found = detections(tmp_path / "dets.json", tiny.coco())
    words = ["eval", path, "--detections", found, "--novel", "bird", "--metric", metric]
    code, out, _ = mini(*words, "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["nAP50"], result["bAP50"], result["AP50"]) == pytest.approx((100, 100, 100))
    assert (result["metric"], result["images"], result["detections"]) == (metric, 3, 5)
    assert set(result["per_class"]) == {"bird", "bus", "car"}
    code, out, _ = mini(*words)
    assert code == 0
    assert re.search(r"novel +100\.0", out)


def test_eval_of_several_files(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    content = tiny.coco()
    first = detections(tmp_path / "1.json", content)
    content["annotations"] = content["annotations"][:2]
    second = detections(tmp_path / "2.json", content)
    words = ["eval", path, "--detections", first, "--detections", second, "--metric", "voc"]
    result = json.loads(mini(*words, "--json")[1])
    assert result["per_class"]["bus"]["AP50"] == pytest.approx(50)
    assert result["interval95"]["AP50"] > 0
    assert [r["detections"] for r in result["runs"]] == [5, 2]
    assert "±" in mini(*words)[1]


def test_eval_of_a_named_split_on_a_part_of_voc(tmp_path: Path, mini) -> None:
    """A detector of all twenty classes finds some that this part does not hold."""
    tiny.write_voc(tmp_path)
    found = tmp_path / "dets.json"
    box = {"image_id": "c", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box | {"category": "bus"}, box | {"category_id": 20}]))
    words = ["eval", tmp_path, "--subset", "test", "--split", "voc-split1", "--detections", found]
    result = json.loads(mini(*words, "--metric", "voc07", "--json")[1])
    assert result["nAP50"] == pytest.approx(100)
    assert result["per_class"]["tvmonitor"]["AP50"] is None
    assert result["images"] == 1


def test_eval_of_a_split_of_other_classes(tmp_path: Path, mini) -> None:
    """COCO's classes have no numbers in VOC; those that VOC has keep theirs."""
    tiny.write_voc(tmp_path)
    found = tmp_path / "dets.json"
    box = {"image_id": "c", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box | {"category_id": 6}, box | {"category": "zebra"}]))
    code, out, err = mini("eval", tmp_path, "--split", "coco", "--detections", found, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["per_class"]["bus"]["AP50"] == pytest.approx(100)
    assert result["per_class"]["zebra"]["AP50"] is None


def test_eval_tells_the_problems_of_all_files(tmp_path: Path, mini) -> None:
    path = tiny.write_coco(tmp_path)
    for n in (1, 2):
        (tmp_path / f"{n}.json").write_text("[7]")
    words = [w for n in (1, 2, 3) for w in ("--detections", tmp_path / f"{n}.json")]
    code, _, err = mini("eval", path, *words)
    assert code == 2
    assert all(f"{n}.json" in err.split("\n", 1)[1] for n in (1, 2, 3))


def test_eval_of_a_set_that_shares_names_with_another(tmp_path: Path, mini) -> None:
    home = tiny.write_yolo(tmp_path)
    for kind, suffix in (("images", "png"), ("labels", "txt")):
        (home / kind / "val" / f"c.{suffix}").rename(home / kind / "val" / f"a.{suffix}")
    found = tmp_path / "dets.json"
    box = {"image_id": "a", "category": "bus", "bbox": [40, 20, 50, 30], "score": 0.5}
    found.write_text(json.dumps([box]))
    words = ["eval", home, "--subset", "val", "--detections", found, "--json"]
    assert json.loads(mini(*words)[1])["per_class"]["bus"]["AP50"] == pytest.approx(100)


def test_eval_of_ids_that_several_image_sets_have(tmp_path: Path, mini) -> None:
    for part in ("train", "valid", "test"):
        tiny.write_pictures(tmp_path / part)
        (tmp_path / part / "_annotations.coco.json").write_text(json.dumps(tiny.coco()))
    found = detections(tmp_path / "dets.json", tiny.coco())
    code, _, err = mini("eval", tmp_path, "--detections", found)
    assert code == 2
    assert "the id 10 is in test, train and valid: choose one with --subset" in err
    assert "no image with the id" not in err
    assert mini("eval", tmp_path, "--subset", "valid", "--detections", found)[0] == 0


# Memory


@pytest.mark.parametrize(
    ("largest", "asked"),
    [
        (1 << 40, [(-3, 1 << 30), (-1, 1 << 30)]),
        (1 << 25, [(-3, 1 << 30), (-3, 1 << 25), (-1, 1 << 25)]),  # older ones of glibc
        # to keep more at the top alone would end glibc's own adapting, for the worse
        (0, [(-3, 1 << 30), (-3, 1 << 25)]),
    ],
)
def test_freed_memory_is_kept(
    largest: int, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Library:
        def mallopt(self, key: int, value: int) -> int:
            calls.append((key, value))
            return int(value <= largest)

    monkeypatch.setattr(cli.sys, "platform", "linux")
    monkeypatch.setattr(cli.ctypes, "CDLL", lambda _: Library())
    cli._keep_memory()
    assert calls == asked


def test_other_libraries_keep_their_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.ctypes, "CDLL", lambda _: object())  # musl
    monkeypatch.setattr(cli.sys, "platform", "linux")
    cli._keep_memory()
    monkeypatch.setattr(cli.ctypes, "CDLL", None)
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    cli._keep_memory()
