"""Which keys and which content change the hash of which stage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mini_fsod.config.schema import STAGES, Config
from mini_fsod.errors import UserError
from mini_fsod.runs.identity import (
    HASHED_BYTES,
    file_content,
    needs,
    stage_key,
    stages_of,
    static_keys,
)


class FakeContent:
    """Data and files by name; a test changes one."""

    def __init__(self, **changes: str) -> None:
        self.parts = {"base": "b", "mined": "m", "shots": "s", "classes": "c", "pools": "p"}
        self.parts |= changes

    def data(self, part: str) -> str | None:
        return self.parts[part]

    def file(self, name: str | Path | None) -> str | None:
        return self.parts.get(str(name), str(name))

    def extra(self, folder: Path | None) -> str | None:
        return str(folder)

    def pools(self) -> list[str]:
        return [self.parts["pools"]]


def config(**changes: object) -> Config:
    """`base__seed=1` changes base.seed; `seed=1` the seed of the run."""
    keys: dict[str, object] = {}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            keys.setdefault(section, {})[key] = value  # type: ignore[index]
        else:
            keys[name] = value
    return Config.model_validate(keys)


def stage_keys(config: Config, content: FakeContent | None = None) -> dict[str, str]:
    keys: dict[str, str] = {}
    for stage in stages_of(config, "tune"):
        keys[stage] = stage_key(config, stage, keys, content or FakeContent())
    return keys


def changed(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {stage for stage in STAGES if one.get(stage) != other.get(stage)}


# online depends on the content of the pool, not on how it was mined
@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({"seed": 1}, {"base", "transfer", "scan", "mine", "online", "tune"}),
        ({"base__iterations": 5}, {"base", "transfer", "scan", "mine"}),
        ({"detector__anchors": [8, 16, 32, 64, 128]}, set(STAGES)),
        ({"views__zoom": [0.5, 1.0]}, {"base", "transfer", "scan", "mine", "online", "tune"}),
        ({"views__few_shot": [320]}, {"transfer", "scan", "mine", "tune"}),
        ({"transfer__iterations": 5}, {"transfer", "scan", "mine"}),
        ({"mine__min_score": 0.1}, {"scan", "mine"}),
        ({"discriminator__weights": "resnet50:IMAGENET1K_V1"}, {"scan", "mine"}),
        ({"mine__alpha": 2}, {"mine"}),
        ({"mine__segmenter": "mobile_sam.pt"}, {"mine"}),
        ({"transfer__calibration": "prototypes"}, {"mine"}),
        ({"discriminator__crop": None}, {"scan", "mine"}),
        ({"discriminator__crop": 224}, {"scan", "mine"}),
        ({"discriminator__whiten": True}, {"mine"}),
        ({"discriminator__refine": 9, "discriminator__compete": 0.5}, {"mine"}),
        ({"mine__drop_on_base": True}, {"mine", "online", "tune"}),
        ({"online__delta": 0.5}, {"online", "tune"}),
        ({"tune__rate": 0.01}, {"tune"}),
        ({"tune__part": "head"}, {"tune"}),
        ({"device": "cpu"}, set()),
        ({"data__metric": "coco"}, set()),
        ({"data__cache": "elsewhere"}, set()),
        ({"data__loading": "stream"}, set()),
        ({"base__save_seconds": 5}, set()),
        ({"base__rate": 0.02}, set()),  # what null means for a batch of 16
    ],
)
def test_stage_key_changes_where_a_key_is_read(
    changes: dict[str, object], stages: set[str]
) -> None:
    assert changed(stage_keys(config()), stage_keys(config(**changes))) == stages


@pytest.mark.parametrize(
    ("content", "stages"),
    [
        ({"base": "other"}, {"base", "transfer", "scan", "mine"}),
        ({"mined": "other"}, {"scan", "mine", "online", "tune"}),
        ({"shots": "other"}, {"transfer", "scan", "mine", "tune"}),
        ({"classes": "other"}, {"transfer", "scan", "mine", "online", "tune"}),
        ({"pools": "other"}, {"online", "tune"}),
    ],
)
def test_stage_key_changes_where_content_is_read(content: dict[str, str], stages: set[str]) -> None:
    assert changed(stage_keys(config()), stage_keys(config(), FakeContent(**content))) == stages


def test_stage_key_shots_count_for_online_only_where_they_are_targets() -> None:
    plain, other = config(online__shots=True), FakeContent(shots="other")
    assert "online" in changed(stage_keys(plain), stage_keys(plain, other))


def test_stage_key_start_from_transfer_depends_on_it() -> None:
    start = {"online__start": "transfer"}
    one, other = config(**start), config(**start, transfer__iterations=5)
    assert "online" in changed(stage_keys(one), stage_keys(other))


def test_stage_key_file_by_content(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"one")
    by_name = config(detector__weights=str(weights))
    before = stage_keys(by_name, FakeContent(**{str(weights): "digest 1"}))
    after = stage_keys(by_name, FakeContent(**{str(weights): "digest 2"}))
    assert "base" in changed(before, after)


def test_stage_key_segmenter_by_content() -> None:
    keys = config(mine__segmenter="a.pt")
    other = FakeContent(**{"a.pt": "other weights"})
    assert changed(stage_keys(keys), stage_keys(keys, other)) == {"mine"}


def test_needs_only_what_the_result_is_built_on(tmp_path: Path) -> None:
    assert stages_of(config(), "tune") == STAGES
    assert stages_of(config(), "transfer") == ("base", "transfer")
    oracle = config(online__oracle=True)
    assert stages_of(oracle, "online") == ("online",)
    from_transfer = config(online__oracle=True, online__start="transfer")
    assert stages_of(from_transfer, "online") == ("base", "transfer", "online")
    assert stages_of(config(mine__detections="found.json"), "mine") == ("scan", "mine")
    assert stages_of(config(mine__pool="pool.json"), "tune") == ("mine", "online", "tune")
    assert needs(config(transfer__checkpoint="few.safetensors"), "transfer") == ()


def test_static_keys_are_equal_for_shared_stages() -> None:
    one, other = static_keys(config(), "tune"), static_keys(config(mine__alpha=2), "tune")
    assert changed(one, other) == {"mine", "online", "tune"}
    draws = static_keys(config(shots__seed=1), "tune")
    assert changed(one, draws) == {"transfer", "scan", "mine", "online", "tune"}
    assert list(static_keys(config(), "transfer")) == ["base", "transfer"]


def test_file_content_reads_the_file_and_keeps_names(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(b"one")
    one = file_content(file)
    assert file_content(f"resnet50:{file}") == f"resnet50:{one}"
    copy = tmp_path / "copy.pth"
    copy.write_bytes(b"one")
    assert file_content(copy) == one  # the content counts, not the name
    file.write_bytes(b"two!")
    assert file_content(file) != one
    assert file_content("resnet50:IMAGENET1K_V1") == "resnet50:IMAGENET1K_V1"
    assert file_content(None) is None
    os.truncate(file, HASHED_BYTES + 1)  # sparse: to read it would take long
    with pytest.raises(UserError, match=r"weights\.pth: larger than 8,192 MB"):
        file_content(file)


def test_static_keys_of_another_class_left_out_differ() -> None:
    one, other = (static_keys(config(data__leave_out=name), "base") for name in ("bird", "bus"))
    assert one != other


def test_transfer_depends_on_mining_if_it_mines_shots() -> None:
    once, twice = (config(transfer__mined_shots=n) for n in (0, 25))
    assert stage_keys(once)["transfer"] != stage_keys(twice)["transfer"]
    for changes in ({"mine__alpha": 2.0}, {"mine__min_score": 0.1}, {"discriminator__short": 320}):
        assert stage_keys(config(**changes))["transfer"] == stage_keys(once)["transfer"]
        changed = config(transfer__mined_shots=25, **changes)
        assert stage_keys(changed)["transfer"] != stage_keys(twice)["transfer"]
