"""`report.html`: what it holds for whole and partial runs, and that nothing in it can do harm."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from helpers.made_run import audit, facts, gauges, score, write_run
from helpers.tiny_run import copy_runs
from mini_fsod.errors import UserError
from mini_fsod.report.page import CONTENTS, write_report

VOID = {"meta", "img", "line", "rect", "path", "br", "link", "input"}


class Page(HTMLParser):
    """The elements, ids and text of a page; refuses elements that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    @property
    def sections(self) -> list[str]:
        return [str(attrs["id"]) for tag, attrs in self.tags if tag == "section"]


@pytest.fixture(scope="module")
def hostile_page(hostile_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(write_report(hostile_run, out=tmp_path_factory.mktemp("page") / "report.html"))


def made_page(tmp_path: Path, **changes: Any) -> Page:
    return Page(write_report(write_run(tmp_path / "run", **changes)))


def test_report_shows_everything_of_a_whole_run(hostile_page: Page) -> None:
    wanted = [name for name in CONTENTS if name != "compare"]
    # what is confused with what needs errors; thresholds too
    assert hostile_page.sections == wanted
    images = [attrs for tag, attrs in hostile_page.tags if tag == "img"]
    # two shots, mined boxes and near misses, and two pictures for each test picture shown
    assert len(images) > 6
    assert all(attrs["alt"] and attrs["width"] and attrs["height"] for attrs in images)


def test_report_escapes_names(hostile_page: Page) -> None:
    assert '<script>alert("1")</script>&\\u202e' in hostile_page.text
    assert '"><img src=x onerror=alert(1)>.png' in hostile_page.text
    assert "mini run <b>" in hostile_page.text
    assert not any(tag in ("script", "b") for tag, _ in hostile_page.tags)
    assert not any(name.startswith("on") for _, attrs in hostile_page.tags for name in attrs)
    assert "\u202e" not in hostile_page.source


def test_report_needs_no_network_and_runs_no_script(hostile_page: Page) -> None:
    for tag, attrs in hostile_page.tags:
        assert tag not in ("script", "link", "iframe", "object", "form", "base")
        assert "style" not in attrs  # the policy would refuse it
        for name in ("src", "href", "srcset", "action", "data"):
            if value := attrs.get(name):
                assert value.startswith(("data:image/webp;base64,", "#"))
    assert not re.search(r"@import|url\(", hostile_page.source)
    policy = next(a["content"] for t, a in hostile_page.tags if t == "meta" and "content" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")


def test_report_is_accessible(hostile_page: Page) -> None:
    tags = hostile_page.tags
    assert [tag for tag, _ in tags].count("h1") == 1
    ids = {attrs["id"] for _, attrs in tags if "id" in attrs}
    assert all(attrs["aria-labelledby"] in ids for tag, attrs in tags if tag == "section")
    links = [str(attrs["href"])[1:] for tag, attrs in tags if tag == "a"]
    assert set(links) <= ids
    assert all("scope" in attrs for tag, attrs in tags if tag == "th")
    assert [tag for tag, _ in tags].count("caption") == [tag for tag, _ in tags].count("table")
    charts = [attrs for tag, attrs in tags if tag == "svg" and attrs.get("class") == "chart"]
    assert charts
    assert all(attrs["role"] == "img" for attrs in charts)


def test_report_of_a_run_whose_data_is_gone(hostile_run: Path, tmp_path: Path) -> None:
    run = copy_runs(hostile_run, tmp_path)
    config = (run / "config.yaml").read_text()
    root = str(hostile_run.parent.parent / "data")
    (run / "config.yaml").write_text(config.replace(root, str(tmp_path / "gone")))
    page = Page(write_report(run))
    for what in ("The shots", "Mined boxes", "They"):
        assert f"{what} cannot be shown" in page.text
    assert {"results", "operating", "confusion", "training"} <= {*page.sections}
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_report_of_files_that_are_damaged(hostile_run: Path, tmp_path: Path) -> None:
    run = copy_runs(hostile_run, tmp_path)
    for name in ("candidates.json", "audit.json"):
        (run / "mine" / name).write_text("[{")
    next((run / "tune").glob("detections-*.npz")).write_bytes(b"no zip")
    (run / "data.json").write_text('{"classes": 3}')
    page = Page(write_report(run))
    assert "Files that could not be read" in page.text
    assert "not the detections on this test set" in page.text
    assert {"results", "shots", "mining"} <= {*page.sections}


def test_report_passes_over_scores_that_are_links_to_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "transfer" / "score-1.json").symlink_to("nowhere")
    assert "nAP50" in Page(write_report(run)).text


def test_report_of_a_run_with_the_base_stage_alone(tmp_path: Path) -> None:
    without = ("transfer", "scan", "mine", "online")
    classes = facts()["classes"]
    no_shots = {name: row | {"shots": None, "shot_side": None} for name, row in classes.items()}
    page = made_page(tmp_path, without=without, facts=facts() | {"classes": no_shots})
    assert "bAP50" in page.text
    assert "74.0" in page.text
    assert not {"mining", "shots"} & {*page.sections}


def test_report_of_a_run_without_a_test_set(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("nAP50", "bAP50", "AP50"))
    empty = {"score": {"metric": "voc", **nothing, "per_class": {}}}
    page = made_page(
        tmp_path,
        facts=facts(test_images=None),
        stages=dict.fromkeys(("base", "transfer", "online"), empty),
    )
    assert "No stage of this run has a score" in page.text
    assert "There is no test set" in page.text


def test_report_of_a_run_that_was_killed(tmp_path: Path) -> None:
    stopped = {"metrics": None, "score": None, "log": gauges()[:7]}
    page = made_page(tmp_path, stages={"online": stopped})
    assert "Not finished: stopped in the stage online" in page.text
    assert "Loss of the stage online" in page.text


def test_report_of_a_run_that_was_killed_in_its_first_stage(tmp_path: Path) -> None:
    later = ("transfer", "scan", "mine", "online")
    first = {"metrics": None, "score": None}
    page = made_page(tmp_path, without=later, stages={"base": first}, facts=None)
    assert "Not finished: stopped in the stage base" in page.text


def test_report_names_the_oracle_beside_the_run(tmp_path: Path) -> None:
    best = score(84.0, ap={"bolt": 91.5})
    keys = {"online": {"oracle": True}}
    write_run(tmp_path / "best", keys=keys, stages={"online": {"score": best}})
    other = score(99.0, test_set="another test set")
    write_run(tmp_path / "other", keys=keys, stages={"online": {"score": other}})
    page = made_page(tmp_path)
    assert "The oracle is the run best" in page.text
    assert "91.5" in page.text
    assert "99.0" not in page.text
    oracle = Page(write_report(tmp_path / "best"))
    assert "An oracle is trained on all hidden objects" not in oracle.text  # it has mined
    assert "Oracle: trained with the ground truth of all hidden objects" in oracle.text


def test_report_compares_runs(tmp_path: Path) -> None:
    second = write_run(
        tmp_path / "second",
        keys={"mine": {"alpha": 2.5}},
        stages={"online": {"score": score(66.6)}, "mine": {"files": {"audit.json": audit()}}},
    )
    run = write_run(tmp_path / "run")
    page = Page(write_report(run, [second]))
    assert page.sections[1] == "compare"
    part = page.text.split("Compared with other runs")[1].split("AP50 by stage")[0]
    for words in ("second", "mine.alpha", "2.5", "66.6"):
        assert words in part
    assert "online.delta" not in part


def test_report_says_that_a_pool_was_corrected(tmp_path: Path) -> None:
    pool = {"edited": True, "boxes": 230, "removed": 12, "added": 2, "relabelled": 1}
    assert "230 boxes, 12 removed, 2 added, 1 relabelled" in made_page(tmp_path, pool=pool).text


def test_report_of_a_run_that_was_moved_without_its_results(
    hostile_run: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(hostile_run, alone, symlinks=True)
    with pytest.raises(UserError, match="its results are not here"):
        write_report(alone)


def test_report_says_how_many_annotations_are_too_few_to_judge(
    hostile_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.report.mined.seem_complete", lambda objects, mined: False)
    text = Page(write_report(hostile_run, out=tmp_path / "report.html")).text
    assert re.search(
        r"Only \d+ hidden objects are annotated for \d+ mined boxes; [1-9]\d* match", text
    )
    assert "nobody knows" not in text


def test_report_of_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the folder of a run"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_report_stays_below_15_mb(
    hostile_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.report.pictures.MOST_BYTES", 4000)
    page = Page(write_report(hostile_run, out=tmp_path / "report.html"))
    uris = [str(attrs["src"]) for tag, attrs in page.tags if tag == "img"]
    assert 0 < sum(map(len, uris)) <= 4000
    assert "Left out: the report would be too large." in page.text


def test_report_shows_pictures_that_cannot_be_read_as_a_note(
    hostile_run: Path, tmp_path: Path
) -> None:
    run = copy_runs(hostile_run, tmp_path)
    data = tmp_path / "data"
    shutil.copytree(hostile_run.parent.parent / "data", data)
    for picture in (data / "test").iterdir():
        picture.write_bytes(b"no picture")
    config = (run / "config.yaml").read_text()
    old = str(hostile_run.parent.parent / "data")
    (run / "config.yaml").write_text(config.replace(json.dumps(old)[1:-1], str(data)))
    assert "The picture cannot be read." in Page(write_report(run)).text
