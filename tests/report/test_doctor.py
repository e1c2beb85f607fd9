"""`report/doctor.py`: each cause is found in a made run, and a healthy run has none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from helpers import made_run
from helpers.made_run import audit, facts, gauges, losses, score, thresholds, write_run
from mini_fsod.config.load import resolve
from mini_fsod.report.causes_data import same_word
from mini_fsod.report.doctor import diagnose
from mini_fsod.report.finding import Finding
from mini_fsod.report.run_files import read_run


def findings(tmp_path: Path, **changes: Any) -> list[Finding]:
    run = read_run(write_run(tmp_path / "run", **changes))
    assert run.problems == []
    return diagnose(run)


def test_diagnose_finds_nothing_in_a_healthy_run(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


POOR = {"ap": {"bolt": 20.0}}


def online(**changes: Any) -> dict[str, Any]:
    return {"stages": {"online": {"score": score(**changes)}}}


def mined(**files: Any) -> dict[str, Any]:
    usual = {"thresholds.json": thresholds(), "audit.json": audit()}
    more = {f"{name}.json": content for name, content in files.items()}
    return {"stages": {"mine": {"files": usual | more}}}


# name: (changes, what is said, evidence, one of the changes)
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no test set": (
        {
            "facts": facts(test_images=None),
            "stages": {
                stage: {"score": {**score(), "nAP50": None, "bAP50": None, "AP50": None}}
                for stage in ("base", "transfer", "online")
            },
        },
        "no test set",
        "data.test",
        "data.test=NAME",
    ),
    "spelt differently": (
        {"facts": facts(bolt={"test": 0}, Bolts={"train": 0, "test": 44})},
        "bolt is spelt differently in the test set",
        "44 boxes of Bolts",
        "write bolt",
    ),
    "not in the test set": (
        {"facts": facts(bolt={"test": 0})},
        "bolt cannot be scored",
        "no box of bolt",
        "data.test=NAME",
    ),
    "too few test boxes": (
        {
            "facts": facts(bolt={"test": 6}),
            **online(interval={"nAP50": [30.0, 71.0]}),
        },
        "too small to compare settings",
        "30 to 71; test boxes: bolt 6",
        "more test pictures",
    ),
    "tiny shots": (
        {"facts": facts(tiny=["bolt: 4 of 5 shots smaller than 64 pixels"]), **online(**POOR)},
        "shots are tiny",
        "4 of 5 shots",
        "views.test=624",
    ),
    "shots unlike the rest": (
        {"facts": facts(bolt={"shot_side": 260.0}), **online(**POOR)},
        "shots of bolt differ in size",
        "3.0 times larger",
        "views.zoom",
    ),
    "another scale": (
        {"facts": facts(**{n: {"test_side": 40.0} for n in made_run.BASE})},
        "smaller than in training pictures",
        "90 pixels in training pictures and 40",
        "views.test=936",
    ),
    "below the anchors": (
        {"facts": facts(bolt={"test_side": 15.0, "shot_side": 16.0}), **online(**POOR)},
        "smaller than the smallest anchor",
        "bolt 15",
        "detector.anchors=[16, 32, 64, 128, 256]",
    ),
    "little to mine in": (
        {"facts": facts(mined_images=12)},
        "few images to mine",
        "12 pictures",
        "mine.extra=FOLDER",
    ),
    "weak base": (
        {"stages": {"base": {"score": score(None, 6.0)}}},
        "base detector is weak",
        "bAP50 is 6.0",
        "detector.weights",
    ),
    "base classes lost": (
        online(bap=60.0),
        "online lowered the AP of the base classes",
        "14.0 points lower",
        "online.rate",
    ),
    "worse than before": (
        online(nap=31.0),
        "online lowered the AP of the new classes",
        "40.0 after the stage transfer, and is 31.0",
        "",
    ),
    "no candidates": (
        mined(thresholds=thresholds(bolt={"candidates": 0, "kept": 0, "delta": None}), audit=None),
        "no candidates of bolt",
        "mine.min_score=0.05",
        "mine.min_score=0.01",
    ),
    "few mined": (
        mined(thresholds=thresholds(bolt={"kept": 3}), audit=None),
        "Few boxes of bolt were mined",
        "3 of 900 candidates (threshold 0.35)",
        "mine.alpha=0.75",
    ),
    "threshold too low": (
        mined(audit=audit(bolt={"precision": 0.3})),
        "Most mined boxes of bolt are wrong: the threshold is too low",
        "30% of all 120 are right, 6 are on background",
        "mine.alpha=2.25",
    ),
    "surest wrong": (
        mined(audit=audit(bolt={"precision": 0.3, "precision_by_rank": {"10": 0.2}})),
        "Even the mined boxes of bolt with the highest scores are wrong",
        "20% of the top 10",
        "shots.k",
    ),
    "threshold too high": (
        mined(audit=audit(bolt={"recall": 0.1, "precision": 0.99})),
        "threshold of bolt is too high",
        "only 10% of 200 hidden",
        "mine.alpha=0.75",
    ),
    "not seen": (
        mined(audit=audit(bolt={"recall": 0.1, "candidates_recall": 0.2})),
        "does not find most objects of bolt",
        "20% of 200 hidden",
        "transfer.mined_shots=25",
    ),
    "badly placed in the pool": (
        mined(audit=audit(bolt={"false_on": {"background": 0, "badly_placed": 50, "classes": {}}})),
        "Mined boxes of bolt are badly placed",
        "50 of 120",
        "",
    ),
    "removed by hand": (
        {"pool": {"edited": True, "boxes": 100, "removed": 90, "added": 0, "relabelled": 0}},
        "Many mined boxes were removed by hand",
        "90 of 190",
        "mine.alpha=2.25",
    ),
    "one class takes the pool": (
        mined(
            thresholds=thresholds(bolt={"kept": 280}, nut={"kept": 15}, washer={"kept": 12}),
            audit=None,
        ),
        "Most boxes of the pool are bolt",
        "280 of 307",
        "mine.per_class=30",
    ),
    "taken for another class": (
        online(**POOR, bolt={"missed_as": {"spring": 70, "background": 10}}),
        "bolt is mistaken for spring",
        "70 of 150 boxes",
        "shots that show",
    ),
    "another class taken for it": (
        online(**POOR, bolt={"false_on": {"nut": 60, "background": 2}}),
        "nut is mistaken for bolt",
        "60 of 140 detections",
        "online.mingle.nms=agnostic",
    ),
    "badly placed": (
        online(**POOR, bolt={"missed_as": {"badly placed": 80}}),
        "Boxes of bolt are badly placed",
        "80 of 150",
        "fit the object tightly",
    ),
    "background": (
        online(**POOR, bolt={"recall_any": 0.2, "missed_as": {"background": 110}}),
        "objects of bolt are missed at any score",
        "only 20% of 150",
        "mine.alpha=0.75",
    ),
    "background, with as many boxes as may be mined": (
        {
            "stages": {
                "mine": {"files": {"thresholds.json": thresholds(bolt={"kept": 300})}},
                **online(**POOR, bolt={"recall_any": 0.2, "missed_as": {"background": 110}})[
                    "stages"
                ],
            }
        },
        "objects of bolt are missed at any score",
        "only 20% of 150",
        "mine.per_class=900",
    ),
    "on background": (
        online(**POOR, bolt={"false_on": {"background": 90}}),
        "Background is mistaken for bolt",
        "90 of 140",
        "mine.alpha=2.25",
    ),
    "too short": (
        {"stages": {"base": {"log": losses((2.0, 1.6, 1.2, 0.9, 0.8))}}},
        "training of base was too short",
        "loss fell from",
        "base.minutes=40",
    ),
    "loss rose": (
        {"stages": {"transfer": {"log": losses((0.5, 0.4, 0.4, 0.6, 0.9))}}},
        "loss of transfer rose",
        "0.900 at the end, and was 0.400",
        "transfer.clip=10",
    ),
    "rate and batch": (
        {"keys": {"online": {"rate": 0.2}, "train": {"batch": 4}}},
        "learning rate of online does not fit its batch size",
        "0.2 with a batch of 4: 40 times",
        "online.rate=0.005",
    ),
    "teacher collapsed": (
        {"stages": {"online": {"log": [*gauges()[:20], *gauges(confidence=0.01)[20:]]}}},
        "teacher has collapsed",
        "background",
        "online.rate",
    ),
    "teacher finds nothing": (
        {"stages": {"online": {"log": gauges(mined=0.0, online=0.0)}}},
        "teacher's metrics look wrong",
        "no mined box",
        "online.delta=0.5",
    ),
    "teacher ignored": (
        {"stages": {"online": {"log": gauges(online=0.0)}}},
        "teacher adds nothing",
        "0.0%",
        "online.delta=0.5",
    ),
    "not finished": (
        {"stages": {"online": {"metrics": None, "score": None, "log": gauges()[:7]}}},
        "run is not finished",
        "stopped in the stage online after 175 iterations",
        "mini run",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_diagnose_finds_each_cause(tmp_path: Path, name: str) -> None:
    changes, what, evidence, change = CASES[name]
    everything = findings(tmp_path, **changes)
    found = [one for one in everything if what in one.what]
    assert len(found) == 1
    assert evidence in found[0].evidence
    assert not change or any(change in one for one in found[0].changes)
    # what is proposed as key=value can be typed after --set
    proposed = [one for finding in everything for one in finding.changes]
    resolve("photos", [one for one in proposed if re.fullmatch(r"[a-z_.]+=[^A-Z]\S*", one)])


def test_diagnose_puts_what_blocks_everything_first(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        facts=facts(mined_images=12),
        stages={"base": {"score": score(None, 6.0)}, "online": {"log": gauges(online=0.0)}},
    )
    assert [one.rank for one in found] == ["blocks everything", "possible", "worth knowing"]


def test_diagnose_never_wants_more_and_fewer_mined_boxes_of_a_class(tmp_path: Path) -> None:
    errors = {"recall_any": 0.2, "missed_as": {"background": 110}, "false_on": {"background": 90}}
    found = findings(tmp_path, **online(**POOR, bolt=errors))
    unseen, background = sorted(found, key=lambda one: "Most objects" not in one.what)
    assert unseen.what == "Most objects of bolt are missed at any score"
    assert not any(change.startswith("mine.") for change in unseen.changes)
    assert "mine.alpha=2.25" in background.changes


def test_diagnose_of_a_useless_base_detector_proposes_no_setting_of_mining(tmp_path: Path) -> None:
    stages = {
        "base": {"score": score(None, 6.0)},
        **mined(audit=audit(bolt={"precision": 0.3}))["stages"],
        **online(**POOR, bolt={"recall_any": 0.2, "missed_as": {"background": 110}})["stages"],
    }
    found = findings(tmp_path, stages=stages)
    assert "base detector is weak" in found[0].what
    assert "Most mined boxes of bolt are wrong" in found[1].what
    assert not any(change.startswith("mine.") for one in found for change in one.changes)


def test_diagnose_of_an_oracle_says_nothing_of_mining(tmp_path: Path) -> None:
    keys = {"online": {"oracle": True}}
    changes = mined(thresholds=thresholds(bolt={"kept": 0}))
    assert findings(tmp_path, keys=keys, **changes) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("bolt", "Bolts", True),
        ("traffic-cone", "traffic cone", True),
        ("motorbike", "motorbkie", True),
        ("cat", "car", False),
        ("bolt", "nut", False),
        ("s", "-", False),
    ],
)
def test_same_word_knows_spellings_of_one_name(one: str, other: str, same: bool) -> None:
    assert same_word(one, other) == same
