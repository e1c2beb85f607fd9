"""The reference of all keys: complete, useful and up to date."""

from __future__ import annotations

from pathlib import Path

from mini_fsod.config.load import KEYS, SHARED
from mini_fsod.config.reference import key_comments, key_reference, markdown_reference
from mini_fsod.study.known import STUDIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "keys.md"


def test_markdown_reference_is_the_page_in_docs() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown_reference(), (
        "run mini presets --keys > docs/keys.md"
    )


def test_key_reference_has_every_key_once() -> None:
    names = [key.name for key in key_reference()]
    assert len(names) == len({*names})
    assert {*names} | {*SHARED} == {*KEYS}


def test_key_reference_every_key_is_set_somewhere_or_says_when_to_change_it() -> None:
    study = {
        text.partition("=")[0]
        for study in STUDIES.values()
        for row in study.rows
        for text in row.sets
    }
    assert [
        key.name for key in key_reference() if not (key.presets or key.change or key.name in study)
    ] == []


def test_key_reference_every_key_has_a_meaning() -> None:
    assert [key.name for key in key_reference() if not key.meaning] == []
    assert {*key_comments()} == {*KEYS}


def test_key_reference_describes_types_and_presets() -> None:
    rows = {key.name: key for key in key_reference()}
    assert rows["data.metric"].values == "voc07, voc or coco"
    assert rows["train.bf16"].values == "auto, true or false"
    assert rows["detector.frozen_stages"].values == "whole number ≥ 0 and ≤ 5 or null"
    assert rows["views.short"].values == "list of whole number ≥ 1"
    assert rows["online.mingle.keep_pool"].presets == ("voc-320-plus", "photos", "photos-cpu")
    assert rows["train.clip"].presets == (
        "voc-320-plus (`online.clip`)",
        "photos (`online.clip`)",
        "photos-cpu (`online.clip`)",
        "demo (`base.clip`, `online.clip`)",
    )
    assert (rows["train.warm_up"].default, rows["tune.warm_up"].default) == ("100", "0")
    assert rows["train.batch"].change == "if memory runs out"
    assert "base.batch" not in rows
