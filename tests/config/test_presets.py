"""Presets: all of them sound, their numbers those of the protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_fsod.commands import presets as command
from mini_fsod.config.load import KEYS, Config, from_file, resolve
from mini_fsod.config.presets import PRESETS, preset
from mini_fsod.demo import NOVEL
from mini_fsod.demo.scenes import PARTS
from mini_fsod.errors import UserError

VOC = [f"voc-split{s}-{k}shot" for s in (1, 2, 3) for k in (1, 2, 3, 5, 10)]


def test_the_names() -> None:
    voc = [name + suffix for suffix in ("", "-320", "-plus", "-320-plus") for name in VOC]
    assert list(PRESETS) == [*voc, "photos", "demo"]


@pytest.mark.parametrize("suffix", ["", "-320"])
def test_plus_changes_nothing_of_data_views_and_base(suffix: str) -> None:
    plain, plus = (resolve(f"voc-split2-5shot{suffix}{end}") for end in ("", "-plus"))
    for section in ("data", "shots", "detector", "views", "base"):
        assert getattr(plus, section) == getattr(plain, section)
    for stage in ("transfer", "tune"):
        one, other = getattr(plain, stage), getattr(plus, stage)
        assert (one.iterations, one.minutes, one.batch) == (
            other.iterations,
            other.minutes,
            other.batch,
        )


@pytest.mark.parametrize(
    ("name", "start", "iterations"),
    [
        ("voc-split1-1shot-320-plus", "transfer", 7_000),
        ("voc-split1-3shot-320-plus", "transfer", 7_000),
        ("voc-split1-5shot-320-plus", "weights", 12_000),
        ("voc-split1-10shot-320-plus", "weights", 12_000),
        ("voc-split1-1shot-plus", "transfer", 18_000),
        ("voc-split1-5shot-plus", "weights", 18_000),
    ],
)
def test_few_shots_and_many_begin_differently(name: str, start: str, iterations: int) -> None:
    """A teacher from nothing must not trust its first iterations (docs/decisions/0006)."""
    online = resolve(name).online
    assert (online.start, online.iterations) == (start, iterations)
    assert online.ema_growth == (1 if start == "weights" else 0.1)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_sound_and_survives_its_file(tmp_path: Path, name: str) -> None:
    config = resolve(name)
    assert set(preset(name)) <= set(KEYS)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert from_file(path) == config
    lacking = ["data.novel=bolt"] if name == "photos" else []
    resolve(name, ["data.root=somewhere", *lacking]).ready()


@pytest.mark.parametrize(
    ("shots", "iterations", "falls"),
    [(1, 4000, 3000), (2, 8000, 7000), (3, 12000, 11000), (5, 20000, 18000), (10, 40000, 36000)],
)
def test_the_papers_schedule(shots: int, iterations: int, falls: int) -> None:
    config = resolve(f"voc-split3-{shots}shot")
    base, transfer = config.base, config.transfer
    assert (config.data.split, config.data.metric) == ("voc-split3", "voc07")
    assert (config.shots.k, config.shots.seed, config.shots.official) == (shots, 0, "voc")
    assert (base.iterations, base.batch, base.learning_rate, base.warm_up) == (18000, 16, 0.02, 100)
    assert [round(18000 * share) for share in base.decay] == [12000, 16000]
    assert (transfer.iterations, transfer.batch) == (iterations, 16)
    assert transfer.learning_rate == 0.001
    assert [round(iterations * share) for share in transfer.decay] == [falls]
    assert (base.momentum, base.weight_decay, config.detector.backbone) == (0.9, 1e-4, "resnet101")
    views = config.views
    assert (views.short[0], views.short[1], views.short[-1], len(views.short)) == (
        480,
        512,
        800,
        11,
    )
    assert (views.long, views.test, views.flip) == (1333, 800, True)


def test_a_320_preset_has_a_budget_of_time_that_iterations_replace() -> None:
    config = resolve("voc-split1-1shot-320")
    assert config.base.iterations is None
    assert config.base.minutes is not None
    replaced = resolve("voc-split1-1shot-320", ["base.iterations=50"]).base
    assert (replaced.iterations, replaced.minutes) == (50, None)


def test_the_demo_fits_its_data() -> None:
    config = resolve("demo")
    assert config.data.novel == NOVEL
    assert {config.data.train, config.data.test, config.shots.subset} == set(PARTS)
    assert (config.detector.norm, config.detector.weights) == ("group", None)


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r'no preset "dem"\. Did you mean "demo"'):
        preset("dem")


def test_a_preset_cannot_be_changed_by_those_who_use_it() -> None:
    preset("demo")["seed"] = 5
    assert "seed" not in preset("demo")


def test_the_table_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(as_json=False)
    shown = [text.splitlines() for text in capsys.readouterr().out.strip().split("\n\n")]
    names = [name for name, *_ in shown]
    assert names[:2] == ["photos", "demo"]  # what people begin with
    unfolded = {
        name.replace("{1,2,3}", split).replace("{1,2,3,5,10}", k)
        for name in names
        for split in "123"
        for k in ("1", "2", "3", "5", "10")
    }
    assert unfolded == set(PRESETS)
    facts = {name: lines for name, _, *lines in shown}
    assert facts["voc-split{1,2,3}-{1,2,3,5,10}shot"] == [
        "resnet101, 480 to 800 pixels; base 18,000 iterations, online 18,000 iterations; "
        "needs data.root, weights IMAGENET1K_V2"
    ]
    few, many = facts["voc-split{1,2,3}-{1,2,3,5,10}shot-320-plus"]
    assert few.startswith("voc-split{1,2,3}-{1,2,3}shot-320-plus: resnet50, 416 pixels")
    assert many.startswith("voc-split{1,2,3}-{5,10}shot-320-plus: resnet50, 416 pixels")
    assert facts["photos"][0].endswith("needs data.root, data.novel, weights IMAGENET1K_V2")
    assert "GroupNorm" in facts["demo"][0]


def test_json_holds_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    command.run(as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert list(result) == list(PRESETS)
    assert result["demo"]["config"] == resolve("demo").model_dump(mode="json")
    assert all(entry["about"] for entry in result.values())


@pytest.mark.parametrize("name", ["photos", "demo", "voc-split1-5shot-320-plus"])
def test_all_keys_of_one_with_what_they_mean(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a configuration file itself."""
    command.run_one(name, as_json=False)
    text = capsys.readouterr().out
    (tmp_path / "whole.yaml").write_text(text)
    assert from_file(tmp_path / "whole.yaml") == resolve(name)
    lines = [line.split("  # ") for line in text.splitlines()]
    meant = {line[0].strip().partition(":")[0]: line[1] for line in lines if len(line) > 1}
    assert meant["alpha"] == "Eq. 5"
    assert meant["start"].startswith("what it begins as: the backbone's own weights, the base")
    assert meant["keep_pool"] == "the pool's box stays, however sure the teacher is of its own"
    assert len(text.splitlines()) == 1 + len(KEYS) + 10  # what it is about; sections
    command.run_one(str(tmp_path / "whole.yaml"), as_json=True)
    assert json.loads(capsys.readouterr().out) == resolve(name).model_dump(mode="json")


def test_every_key_of_mining_says_what_it_means() -> None:
    """Those that do not are called as everybody calls them."""
    meanings = command._meanings(Config)
    silent = {key.rpartition(".")[2] for key in KEYS if not meanings[key]}
    assert silent == {
        *("flip", "iterations", "momentum", "weight_decay"),
        *("discriminator_short_side", "discriminator_normalisation"),
        "discriminator_stride_in_1x1",
    }
