"""The stage `mine` on tiny data: what it leaves, of which images, and from which detections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs.mined import FILES, again, config, load

from mini_fsod.errors import UserError
from mini_fsod.mining.choose import ready, starving
from mini_fsod.runs import stages
from runs import small


def test_the_files_agree_with_each_other(finished: Path) -> None:
    found, thresholds, pool, audit = (load(finished, name) for name in FILES)
    figures = load(finished, "metrics.json")
    assert figures == small.json_of(finished / "results.json")["stages"]["mine"]
    assert {*figures} == {
        *("candidates", "kept", "precision", "recall", "seconds", "scan_seconds", "pool_sha256"),
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
    assert audit["pool"]["hidden"] == 4  # and the shot
    assert audit["pool"]["without_co_mining"]["candidates"] > 0
    assert (audit["pool"]["precision"], audit["pool"]["recall"]) == (
        figures["precision"],
        figures["recall"],
    )
    names = {path.name for path in (finished / "mine").iterdir()}
    assert names == {*FILES, "metrics.json", "1-blue--light.png"}


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"bird": 19, "sofa": 10}, ""),
        ({"bird": 19, "sofa": 4}, "that is next to nothing of sofa: "),
        ({"bird": 0, "bus": 300, "sofa": 4}, "that is next to nothing of bird, sofa: "),
        ({"bird": 0, "sofa": 0}, "nothing was mined, "),
    ],
)
def test_classes_that_starve_are_told_of(kept: dict[str, int], told: str) -> None:
    line = starving(kept)
    assert line.startswith(told)
    assert bool(line) == bool(told)


def test_a_run_says_that_its_class_starves(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again(data, copied, mine__alpha=1.5)
    err = capsys.readouterr().err
    assert f"that is next to nothing of {small.NOVEL}: " in err


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


@pytest.mark.slow
@pytest.mark.parametrize("but", [1, 3])
def test_own_data_where_nothing_is_hidden(tmp_path: Path, but: int) -> None:
    """Nobody knows what is right where all that is annotated of a novel class are the shots."""
    root = small.write_data(tmp_path / "data")
    without(root, small.NOVEL, but=but)
    figures = stages.run(config(root, shots__k=but, **SHORT), tmp_path / "run", last="mine")
    assert not (tmp_path / "run" / "mine" / "audit.json").exists()
    assert {*figures["stages"]["mine"]} == {
        *("candidates", "kept", "seconds", "scan_seconds", "pool_sha256"),
    }
    assert (tmp_path / "run" / "mine" / "1-blue--light.png").exists()
    again(root, tmp_path / "run", shots__k=but, **SHORT)


@pytest.mark.slow
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


def test_parts_are_candidates_that_are_not_chosen(data: Path, copied: Path) -> None:
    """Each box of the novel class, and the left 0.4 of it."""
    truth = small.json_of(data / "annotations" / "train.json")["annotations"]
    rows = []
    for a in (a for a in truth if a["category_id"] == 3):
        x, y, w, h = a["bbox"]
        for score, width in ((0.9, w), (0.8, 0.4 * w)):
            rows.append({"image_id": a["image_id"], "category_id": 3, "score": score})
            rows[-1]["bbox"] = [x, y, width, h]
    given = copied / "given.json"
    given.write_text(json.dumps(rows))
    own = {"mine__detections": given, "mine__discriminator": "none", "mine__threshold": 0.5}
    both = again(data, copied, **own)
    alone = again(data, copied, **own, mine__drop_nested="true")
    assert both["candidates"] == both["kept"] == alone["candidates"] == len(rows)
    assert alone["kept"] == len(rows) / 2
    scores = [a["score"] for a in load(copied, "pool.json")["annotations"]]
    assert scores == pytest.approx([0.9] * (len(rows) // 2))


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
    assert figures["precision"] == pytest.approx(4 / 12, abs=1e-6)  # the shot does not count


def test_a_few_annotations_judge_nothing(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies on none of them may be right: nobody has drawn all."""
    given = copied / "given.json"
    rows = write_detections(data, given)
    rows += [r | {"bbox": [30, 30, 6, 6]} for r in rows if r["bbox"] == [0, 0, 5, 5]]
    given.write_text(json.dumps(rows))
    own = {"mine__detections": given, "mine__cut": 0.05, "mine__discriminator": "none"}
    figures = again(data, copied, **own, mine__threshold=0.1)
    assert figures["kept"] == 21
    assert "precision" not in figures
    assert not (copied / "mine" / "audit.json").exists()
    said = " ".join(capsys.readouterr().err.split())
    assert "4 of them are among the 4 new objects that are annotated beyond the shots" in said


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


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mine__discriminator": "resnet18:nosuch"}, "nosuch"),
        ({"mine__discriminator": "resnet81"}, "resnet81"),
    ],
)
def test_a_discriminator_that_is_none_is_told_at_once(
    data: Path, tmp_path: Path, changes: dict[str, str], what: str
) -> None:
    """Not behind hours of base training."""
    with pytest.raises(UserError, match=what):
        stages.run(config(data, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_keys_that_nothing_comes_of(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = {"mine__discriminator": "none", "mine__refine": 100, "mine__whiten": "true"}
    ready(config(data, **idle).mine)
    said = capsys.readouterr().err
    assert "without mine.discriminator nothing comes of mine.whiten, mine.refine" in said
