"""What a run will cost. No test looks at how long anything takes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.given import write_detector, write_photos
from helpers.tiny_run import config, discriminator
from helpers.tiny_segmenter import TINY, write_segmenter
from mini_fsod.config.schema import Config
from mini_fsod.runs import probe
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import new_detector
from mini_fsod.runs.estimate import MINE_SECONDS, RunEstimate, estimate_run
from mini_fsod.segmenter import load
from mini_fsod.tfa.transfer import few_shot_detector

CPU = torch.device("cpu")


def estimated(config: Config, *stages: str, **more: Any) -> RunEstimate:
    return estimate_run(config, CPU, stages or None, seconds=0.0, **more)


def tiny(data: Path, **changes: object) -> Config:
    return config(data, shots__k=2, **changes)


def few_shot_parameters(config: Config) -> list[torch.nn.Parameter]:
    labels = RunData(config, CPU).labels
    base = new_detector(config, len(labels.base))
    return list(few_shot_detector(base, labels, seed=0).predictor.parameters())


class Clock:
    """A clock that goes on by a second with every look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(probe, "clock", clock)
    return clock


def test_estimate_run_has_the_stages_of_the_run(data: Path) -> None:
    found = estimated(tiny(data, **discriminator(data), online__start="transfer"))
    stages = {stage.stage: stage for stage in found.stages}
    assert list(stages) == ["base", "transfer", "scan", "mine", "online", "tune"]
    assert [stages[name].iterations for name in stages] == [12, 25, None, None, 4, 4]
    assert all(stage.minutes > 0 and stage.memory > 2**20 for stage in found.stages)
    for name in ("base", "transfer", "scan", "online", "tune"):
        assert (stages[name].images_per_second or 0) > 0
    for name in ("base", "transfer", "online", "tune"):
        assert 0 < stages[name].scoring < stages[name].minutes
    assert found.minutes == pytest.approx(
        found.decoding + sum(stage.minutes for stage in found.stages)
    )
    assert found.memory == max(stage.memory for stage in found.stages)


def test_estimate_run_takes_only_the_stages_asked_for(data: Path) -> None:
    assert [stage.stage for stage in estimated(tiny(data), "base", "mine").stages] == [
        "base",
        "mine",
    ]


def test_estimate_run_grows_with_the_iterations(data: Path, seconds: Clock) -> None:
    one, two = (
        estimated(tiny(data, base__iterations=n), "base").stages[0].minutes for n in (100, 200)
    )
    each = (two - one) / 100
    assert each > 0
    assert two - 200 * each == pytest.approx(one - 100 * each)


def test_estimate_run_takes_a_budget_as_it_is(data: Path, seconds: Clock) -> None:
    wanted = tiny(data, base__iterations="null", base__minutes=3)
    (stage,) = estimated(wanted, "base").stages
    assert stage.minutes == pytest.approx(3)
    assert stage.iterations is not None
    assert stage.images_per_second is not None
    trained = stage.iterations * wanted.base.batch / stage.images_per_second
    assert 0 < trained < 60 * (stage.minutes - stage.scoring)  # start and scoring are in it


def test_estimate_run_says_where_scoring_breaks_a_budget(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the minutes is trained for, as in the loop."""
    monkeypatch.setattr("mini_fsod.runs.estimate.scoring_seconds", lambda *_: 600.0)
    wanted = tiny(data, base__iterations="null", base__minutes=4)
    (stage,) = estimated(wanted, "base").stages
    assert stage.scoring == 10
    assert 11 < stage.minutes < 12


def test_estimate_run_counts_only_scoring_for_a_given_detector(data: Path, tmp_path: Path) -> None:
    given = write_detector(tmp_path / "given.safetensors", ("red", "green"))
    (stage,) = estimated(tiny(data, base__checkpoint=given), "base").stages
    assert stage.iterations is None
    assert stage.minutes == stage.scoring > 0


def test_estimate_run_reads_no_weights_beside_a_given_detector(data: Path, tmp_path: Path) -> None:
    given = write_detector(tmp_path / "given.safetensors", ("red", "green"))
    keys = {"base__checkpoint": given, "detector__weights": "missing.pth"}
    keys |= {"detector__norm": "frozen", "online__start": "transfer"}
    stages = estimated(tiny(data, **keys), "transfer", "online").stages
    assert all(stage.minutes > 0 for stage in stages)


def test_estimate_run_counts_looking_for_base_objects(tmp_path: Path) -> None:
    """In a run without labels, before the few-shot detector is trained and in the scan."""
    photos = write_photos(tmp_path)
    given = write_detector(tmp_path / "given.safetensors", ("red", "green"))
    keys = {"base__checkpoint": given, "shots__file": photos.shots, "shots__root": photos.root}
    found = estimated(config(photos.root, **keys, transfer__data="known", online__shots="true"))
    base, transfer, scan, *_ = found.stages
    assert base.minutes > 0 == base.scoring
    assert transfer.minutes > 0
    assert scan.minutes > 0


def test_estimate_run_counts_nothing_for_no_fine_tuning(data: Path) -> None:
    mine, tune = estimated(tiny(data, tune__data="none"), "mine", "tune").stages
    assert (tune.minutes, tune.iterations) == (0, None)
    assert mine.minutes == pytest.approx(MINE_SECONDS / 60)


def test_estimate_run_counts_the_segmenter(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MOBILE_SAM", TINY)
    file = write_segmenter(tmp_path / "tiny.pt")
    (mine,) = estimated(tiny(data, mine__segmenter=file), "mine").stages
    assert mine.minutes > MINE_SECONDS / 60


def test_estimate_run_counts_no_scoring_without_a_test_set(data: Path, seconds: Clock) -> None:
    wanted = tiny(data)
    run = RunData(wanted, CPU)
    vars(run)["test"] = None
    (stage,) = estimated(wanted, "base", data=run).stages
    assert stage.scoring == 0
    assert stage.minutes > 0


def test_estimate_run_counts_the_views_of_all_shots(
    data: Path, seconds: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the scales, twice the views to cache; the iterations are the same."""
    monkeypatch.setattr(probe, "peak_memory", lambda _: 0)
    one, two = (
        estimated(tiny(data, views__few_shot=f, transfer__iterations=1), "transfer").stages[0]
        for f in ("[64]", "[64, 64]")
    )
    assert two.minutes > one.minutes
    assert two.images_per_second == pytest.approx(one.images_per_second)
    kept = 2 * sum(p.numel() for p in few_shot_parameters(tiny(data))) * 4
    assert two.memory - kept == 2 * (one.memory - kept) > 0


def test_estimate_run_counts_the_crops_of_a_discriminator(data: Path, seconds: Clock) -> None:
    keys = discriminator(data)
    plain, crops, correction = (
        estimated(tiny(data, **keys, **more), "scan").stages[0].minutes
        for more in (
            {},
            {"discriminator__crop": 32},
            {"discriminator__crop": 32, "mine__box_correction": True},
        )
    )
    assert plain < crops < correction


def test_estimate_run_writes_digests_of_pictures_alone(data: Path, tmp_path: Path) -> None:
    before = {path for path in data.parent.rglob("*") if "cache" not in path.parts}
    estimated(tiny(data, **discriminator(data), data__cache=tmp_path / "cache"))
    assert {path for path in data.parent.rglob("*") if "cache" not in path.parts} - before <= {
        data.parent / "narrow-0.safetensors"
    }
    (digests,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert digests.match("cache/contents-*.json")


def test_estimate_run_counts_decoding_until_it_is_done(data: Path, tmp_path: Path) -> None:
    wanted = tiny(data, data__cache=tmp_path / "cache")
    assert estimated(wanted, "base").decoding > 0
    run = RunData(wanted, CPU)
    run.batches(run.base)  # decodes
    assert estimated(wanted, "base").decoding == 0
    streamed = tiny(data, data__cache=tmp_path / "other", data__loading="stream")
    assert estimated(streamed, "base").decoding == 0


def test_estimate_run_leaves_random_numbers_alone(data: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    estimated(tiny(data), "base", "transfer")
    assert torch.equal(torch.rand(4), expected)


def test_estimate_run_uses_data_that_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tiny(data)
    run = RunData(wanted, CPU)
    assert len(run.base)
    again = cached_property(lambda _: pytest.fail("read again"))
    again.__set_name__(RunData, "whole")
    monkeypatch.setattr(RunData, "whole", again)
    assert estimated(wanted, "base", data=run).stages[0].minutes > 0
