from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.config.load import parts, resolve
from mini_fsod.errors import UserError
from mini_fsod.study.from_file import find
from mini_fsod.study.studies import STUDIES, narrowed, numbers

STAGES = ("base", "transfer")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0..4", (0, 1, 2, 3, 4)),
        ("0,3,7", (0, 3, 7)),
        ("7, 0..2", (0, 1, 2, 7)),
        ("5", (5,)),
        ("3..3,3", (3,)),
    ],
)
def test_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text, "--seeds") == expected


@given(st.sets(st.integers(0, 999), min_size=1))
def test_numbers_written_out_come_back(values: set[int]) -> None:
    assert numbers(",".join(map(str, values)), "--seeds") == tuple(sorted(values))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no list of numbers"),
        ("1,", "no list of numbers"),
        ("-1", "no list of numbers"),
        ("0.5", "no list of numbers"),
        ("1...3", "no list of numbers"),
        ("4..0", "4..0 goes down"),
        ("0,1", "0 is too small"),
        ("1..1001", "more than 1,000"),
        ("1..999999999", "more than 1,000"),
    ],
)
def test_what_is_no_list_of_numbers(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as error:
        numbers(text, "--shots", least=1)
    assert error.value.what.startswith("--shots: ")


# mine.threshold, whether a discriminator looks, online.teacher, .iou_branch, .oracle, last stage
SWITCHES = {
    "TFA": (None, None, None, None, None, "transfer"),
    "+ TFA mining": (0.7, False, False, False, False, "online"),
    "+ adaptive thresholding": ("adaptive", False, False, False, False, "online"),
    "+ SSL co-mining": ("adaptive", True, False, False, False, "online"),
    "+ adaptive mingling": ("adaptive", True, True, False, False, "online"),
    "+ IoU branch": ("adaptive", True, True, True, False, "online"),
    "+ fine-tuning": ("adaptive", True, True, True, False, "tune"),
    "oracle": (None, None, False, False, True, "online"),
}


@pytest.mark.parametrize("label", SWITCHES)
def test_rows_of_the_components(label: str) -> None:
    row = next(row for row in STUDIES["components"].rows if row.label == label)
    config = resolve("voc-split1-1shot-320", row.sets)
    mine, online = config.mine, config.online
    found = (
        mine.threshold,
        mine.discriminator != "none",
        online.teacher,
        online.iou_branch,
        online.oracle,
        row.last,
    )
    pairs = zip(found, SWITCHES[label], strict=True)
    assert all(wanted is None or own == wanted for own, wanted in pairs)
    # the paper's, and the same training, in every row
    assert (mine.alpha, mine.most, online.delta, online.shots) == (1.5, 300, 0.7, False)
    assert (online.mingle.rpn, online.mingle.rcnn, online.start) == (True, True, "weights")
    assert (online.iterations, online.minutes, online.learning_rate) == (12_000, None, 0.02)
    assert config.tune.data == "balanced"


def test_rows_of_the_last_fine_tuning_tune_the_same_detector() -> None:
    rows = {row.label: row.sets for row in STUDIES["components"].rows if row.last == "tune"}
    base, novel, gentle = (
        resolve("voc-split1-1shot-320", rows[label])
        for label in (
            "+ fine-tuning",
            "fine-tuning on the novel set",
            "fine-tuning at a tenth of the rate",
        )
    )
    assert parts(base, "online") == parts(novel, "online") == parts(gentle, "online")
    rates = [config.tune.learning_rate for config in (base, novel, gentle)]
    assert rates == pytest.approx([0.001, 0.001, 0.0001])
    assert (base.tune.data, novel.tune.data, gentle.tune.data) == ("balanced", "novel", "known")


def test_the_study_tfa() -> None:
    study = find("tfa", STAGES)
    assert study.source == "voc-split{split}-{shots}shot-320"
    assert (study.splits, study.shots, study.seeds) == ((1,), (1, 2, 3, 5, 10), (0,))
    full = narrowed(study, "1,3", "5", "0..2", full=True)
    assert full.source == "voc-split{split}-{shots}shot"
    assert (full.splits, full.shots, full.seeds) == ((1, 3), (5,), (0, 1, 2))
    assert narrowed(study, None, None, None, full=False) == study
    plus = narrowed(STUDIES["plus"], None, None, None, full=True)
    assert plus.source == "voc-split{split}-{shots}shot-plus"


def test_every_row_is_a_sound_configuration() -> None:
    for study in STUDIES.values():
        for row in study.rows:
            source = study.source.format(split=1, shots=study.shots[0])
            resolve(source, [*study.sets, *row.sets, "data.root=somewhere"]).ready()


def test_named_studies_end_at_stages_there_are_and_cite_what_there_is() -> None:
    from mini_fsod.config.load import STAGES
    from mini_fsod.study.paper import TABLES

    for study in STUDIES.values():
        assert len({row.slug for row in study.rows}) == len(study.rows)
        for row in study.rows:
            assert row.last in STAGES
            assert all(name in TABLES[table] for table, name in row.paper)
