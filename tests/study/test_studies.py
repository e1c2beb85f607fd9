from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mini_fsod.config.load import resolve
from mini_fsod.config.presets import PLUS
from mini_fsod.config.schema import STAGES
from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.discriminator.load import DiscriminatorHeader, save_discriminator
from mini_fsod.errors import UserError
from mini_fsod.mining.scan import discriminator_of
from mini_fsod.runs.identity import stages_of, static_keys
from mini_fsod.study.known import STUDIES
from mini_fsod.study.paper import TABLES, paper_numbers
from mini_fsod.study.studies import choose_rows, narrow, parse_numbers
from mini_fsod.study.tables import LOWER, UPPER


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
def test_parse_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert parse_numbers(text, "--seeds") == expected


@given(st.sets(st.integers(0, 999), min_size=1))
def test_parse_numbers_sorts_any_numbers(values: set[int]) -> None:
    assert parse_numbers(",".join(map(str, values)), "--seeds") == tuple(sorted(values))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a list of numbers"),
        ("1,", "not a list of numbers"),
        ("-1", "not a list of numbers"),
        ("0.5", "not a list of numbers"),
        ("1...3", "not a list of numbers"),
        ("4..0", r"4\.\.0 is descending"),
        ("0,1", "0 is too small"),
        ("1..1001", "more than 1,000"),
        ("1..999999999", "more than 1,000"),
    ],
)
def test_parse_numbers_explains_wrong_input(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as error:
        parse_numbers(text, "--shots", least=1)
    assert error.value.what.startswith("--shots: ")


# mine.threshold, whether there is a discriminator, online.teacher, .iou_branch, .oracle, last stage
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
def test_components_rows_switch_one_part_of_the_method_each(label: str) -> None:
    row = next(row for row in STUDIES["components"].rows if row.label == label)
    config = resolve("voc-320", row.sets)
    mine, online = config.mine, config.online
    found = (
        mine.threshold,
        config.discriminator.weights != "none",
        online.teacher,
        online.iou_branch,
        online.oracle,
        row.last,
    )
    pairs = zip(found, SWITCHES[label], strict=True)
    assert all(wanted is None or value == wanted for value, wanted in pairs)
    # the paper's settings, and the same training, in every row
    assert (mine.alpha, mine.per_class, online.delta, online.shots) == (1.5, 300, 0.7, False)
    assert (online.mingle.rpn, online.mingle.rcnn, online.start) == (True, True, "weights")
    assert (online.iterations, online.minutes, online.learning_rate) == (12_000, None, 0.02)
    assert config.tune.data == "balanced"


def test_components_fine_tuning_rows_tune_the_same_detector() -> None:
    rows = {row.label: row.sets for row in STUDIES["components"].rows if row.last == "tune"}
    base, novel, low_rate = (
        resolve("voc-320", rows[label])
        for label in (
            "+ fine-tuning",
            "fine-tuning on the novel set",
            "fine-tuning at a tenth of the rate",
        )
    )
    assert len({static_keys(config, "online")["online"] for config in (base, novel, low_rate)}) == 1
    rates = [config.tune.learning_rate for config in (base, novel, low_rate)]
    assert rates == pytest.approx([0.001, 0.001, 0.0001])
    assert (base.tune.data, novel.tune.data, low_rate.tune.data) == ("balanced", "novel", "known")


# What the rivals of the paper's Table 3 change of MINI, and nothing else
RIVALS: dict[str, dict[str, object]] = {
    "STAC": {
        "discriminator.weights": "none",
        "mine.threshold": 0.7,
        "online.teacher": False,
        "online.iou_branch": False,
        "online.strong": "stac",
        "online.mined_weight": 2.0,
    },
    "Unbiased Teacher": {
        "online.start": "transfer",
        "online.ema_warm_up": None,
        "online.iou_branch": False,
        "online.mingle.rpn": False,
        "online.mingle.rcnn": False,
        "online.focal_gamma": 1.5,
        "online.mined_boxes": "none",
        "online.mined_weight": 4.0,
    },
}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        inner = isinstance(value, dict)
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize("source", ["voc-320", "paper"])
@pytest.mark.parametrize("rival", RIVALS)
def test_ssod_rivals_differ_from_mini_only_in_the_switches_they_name(
    rival: str, source: str
) -> None:
    rows = {row.label: row for row in STUDIES["ssod"].rows}
    mini = flat(resolve(source, rows["MINI"].sets).model_dump())
    for delta in (0.5, 0.7, 0.9):
        row = rows[f"{rival}, delta={delta}"]
        found = flat(resolve(source, row.sets).model_dump())
        changed = {key: value for key, value in found.items() if value != mini[key]}
        wanted = RIVALS[rival] | ({"mine.threshold": delta} if rival == "STAC" else {})
        if rival == "Unbiased Teacher" and delta != mini["online.delta"]:
            wanted = wanted | {"online.delta": delta}
        assert changed == wanted
        assert row.last == "online"


def test_ssod_unbiased_teacher_mines_nothing_offline() -> None:
    study = STUDIES["ssod"]
    row = next(row for row in study.rows if row.label.startswith("Unbiased"))
    assert stages_of(resolve(study.source, row.sets), row.last) == ("base", "transfer", "online")


def test_narrow_replaces_splits_shots_seeds_and_schedule() -> None:
    study = STUDIES["tfa"]
    assert (study.splits, study.shots, study.seeds) == ((1,), (1, 2, 3, 5, 10), (0,))
    full = narrow(study, "1,3", "5", "0..2", full=True)
    assert full.source == "paper"
    assert (full.splits, full.shots, full.seeds) == ((1, 3), (5,), (0, 1, 2))
    assert narrow(study, None, None, None, full=False) == study


def test_narrow_refuses_a_full_schedule_where_there_is_none() -> None:
    with pytest.raises(UserError, match="voc-320-plus, which study plus uses, has no full"):
        narrow(STUDIES["plus"], None, None, None, full=True)


def test_choose_rows_counts_from_one() -> None:
    study = STUDIES["components"]
    assert choose_rows(study, "1..2,8") == (*study.rows[:2], study.rows[7])
    with pytest.raises(UserError, match="has 11 rows, there is no 12") as error:
        choose_rows(study, "1..12")
    assert "4 + SSL co-mining" in error.value.fix


@pytest.mark.parametrize("name", STUDIES)
def test_known_studies_have_valid_rows(name: str) -> None:
    study = STUDIES[name]
    assert study.name == name
    assert study.about
    assert len({row.slug for row in study.rows}) == len(study.rows)
    for row in study.rows:
        for shots in study.shots:
            resolve(study.source, [*row.sets, "data.root=somewhere"], shots=shots).ready()
        assert row.last in STAGES
        assert all(paper_numbers(label, 1)[1] for label in row.paper)


def changes_of(study: str, label: str) -> dict[str, object]:
    """The keys in which a row differs from its study's preset."""
    row = next(row for row in STUDIES[study].rows if row.label == label)
    source = STUDIES[study].source
    plain, found = (flat(resolve(source, sets).model_dump()) for sets in ((), row.sets))
    return {key: value for key, value in found.items() if value != plain[key]}


def test_main_voc_has_all_methods_of_the_table_of_the_paper() -> None:
    study = STUDIES["main-voc"]
    shown = [label for row in study.rows for label in row.paper]
    assert sorted(shown) == sorted(TABLES["tab:voc_main"].rows)
    assert (study.splits, study.shots) == ((1, 2, 3), (1, 2, 3, 5, 10))


@pytest.mark.parametrize("shots", [1, 5])
def test_main_voc_plus_is_the_preset_voc_320_plus(shots: int) -> None:
    row = STUDIES["main-voc"].rows[2]
    assert resolve("voc-320", row.sets, shots=shots) == resolve("voc-320-plus", shots=shots)


@pytest.mark.parametrize("shots", [1, 5])
def test_main_voc_plus_with_the_full_schedule_is_paper_with_what_helped(shots: int) -> None:
    study = narrow(STUDIES["main-voc"], None, None, None, full=True)
    row = study.rows[2]
    found = flat(resolve(study.source, row.sets, shots=shots).model_dump())
    paper, plus = (
        flat(resolve(name, shots=shots).model_dump()) for name in ("paper", "voc-320-plus")
    )
    beyond = {*PLUS, "online.start"}
    assert {key: value for key, value in found.items() if key not in beyond} == {
        key: value for key, value in paper.items() if key not in beyond
    }
    assert {key: found[key] for key in beyond} == {key: plus[key] for key in beyond}
    assert found["online.iterations"] == 18_000


def test_main_voc_oracle_is_one_training_for_all_shots() -> None:
    study = STUDIES["main-voc"]
    row = next(row for row in study.rows if row.label == "oracle")
    keys = [static_keys(resolve(study.source, row.sets, shots=k), row.last) for k in study.shots]
    assert len({each["online"] for each in keys}) == 1
    assert {LOWER, UPPER} <= {row.label for row in study.rows}  # the share of the gap is printed


def test_main_coco_has_all_methods_of_the_table_of_the_paper() -> None:
    study = STUDIES["main-coco"]
    assert sorted(name for row in study.rows for name in row.paper) == sorted(
        TABLES["tab:coco_main"].rows
    )
    assert paper_numbers("MINI", None)[1][30] == {"nAP": 27.3, "nAP50": 44.9, "nAP75": 28.5}


NO_TEACHER = {"online.teacher": False, "online.iou_branch": False}


@pytest.mark.parametrize(
    ("study", "label", "changes"),
    [
        ("miners", "MINI by TFA with prototypes", {"transfer.calibration": "prototypes"}),
        ("hyper", "alpha=3.0", {**NO_TEACHER, "mine.alpha": 3.0}),
        ("hyper", "alpha=1.5", NO_TEACHER),
        ("hyper", "N=450", {**NO_TEACHER, "mine.per_class": 450}),
        ("hyper", "delta=0.9", {"online.delta": 0.9}),
        ("hyper", "beta=2.0", {"online.iou_beta": 2.0}),
        ("robustness", "MINI without sofa", {"data.leave_out": "sofa"}),
        ("external", "extra set", {"mine.extra_only": True}),
        ("external", "base set", {}),
        ("external-coco", "base and extra set", {}),
    ],
)
def test_rows_change_only_what_they_name(
    study: str, label: str, changes: dict[str, object]
) -> None:
    assert changes_of(study, label) == changes


def test_external_rows_beyond_the_base_set_need_a_folder(tmp_path: Path, mini) -> None:
    words = ("study", "external", "--dry-run", "-o", tmp_path / "out", "--set", "mine.extra=photos")
    code, out, _ = mini(*words)
    assert code == 0
    assert "extra-set" in out


def test_hyper_rows_of_one_pool_share_its_stages() -> None:
    study = STUDIES["hyper"]
    keys = [static_keys(resolve(study.source, row.sets), row.last) for row in study.rows]
    assert len({each["scan"] for each in keys}) == 1
    assert len({each["mine"] for each in keys}) == 5  # alpha and N: three each, one in common


def test_robustness_trains_a_base_detector_for_each_class() -> None:
    study = STUDIES["robustness"]
    keys = [static_keys(resolve(study.source, row.sets), row.last) for row in study.rows]
    assert len({each["base"] for each in keys}) == 5


def test_discriminator_rows_compare_boxes_in_one_way(tmp_path: Path) -> None:
    """Whatever the file of the row with MoCo says of crops; torchvision's weights say nothing."""
    study, net = (
        STUDIES["discriminator"],
        make_backbone(BackboneSettings("resnet18-narrow", "group")),
    )
    weights = {"resnet50:IMAGENET1K_V1": None, "moco.safetensors": 32}
    crops = {}
    for row in study.rows[1:]:
        config = resolve(study.source, row.sets)
        name, path = config.discriminator.weights, tmp_path / f"{row.slug}.safetensors"
        header = DiscriminatorHeader("resnet18-narrow", "group", weights[name], {})
        save_discriminator(path, net, header)
        given = resolve(study.source, [*row.sets, f"discriminator.weights={path}"])
        found = discriminator_of(given, torch.device("cpu"))
        assert found is not None
        crops[name] = found.crop
    assert crops == dict.fromkeys(weights)
