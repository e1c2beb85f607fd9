"""The presets."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.config.load import KEYS, for_folder, resolve
from mini_fsod.config.presets import PRESETS
from mini_fsod.config.schema import TRAINED
from mini_fsod.demo import NOVEL
from mini_fsod.demo.scenes import PARTS
from mini_fsod.runs.identity import static_keys


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_valid_and_equal_when_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve(name)
    assert set(PRESETS[name].keys) <= set(KEYS)
    path = Path("config.yaml")
    path.write_text(for_folder(config, path.parent).to_yaml(), encoding="utf-8")
    assert resolve(path) == config
    lacking = ["data.novel=bolt"] if name.startswith("photos") else []
    resolve(name, ["data.root=somewhere", *lacking]).ready()


@pytest.mark.parametrize("name", ["paper", "voc-320", "voc-320-plus"])
def test_presets_of_voc_start_with_split_1_and_one_official_shot(name: str) -> None:
    config = resolve(name)
    assert (config.data.split, config.data.metric) == ("voc-split1", "voc07")
    assert (config.shots.k, config.shots.seed, config.shots.official) == (1, 0, "voc")


@pytest.mark.parametrize(
    ("shots", "iterations", "falls"),
    [(1, 4000, 3000), (2, 8000, 7000), (3, 12000, 11000), (5, 20000, 18000), (10, 40000, 36000)],
)
def test_paper_has_the_schedule_of_the_paper(shots: int, iterations: int, falls: int) -> None:
    config = resolve("paper", split="voc-split3", shots=shots)
    base, transfer, views = config.base, config.transfer, config.views
    assert config.data.split == "voc-split3"
    assert (base.iterations, base.batch, base.learning_rate, base.warm_up) == (18000, 16, 0.02, 100)
    assert [round(18000 * share) for share in base.decay] == [12000, 16000]
    assert (transfer.iterations, transfer.batch) == (iterations, 16)
    assert transfer.learning_rate == 0.001
    assert [round(iterations * share) for share in transfer.decay] == [falls]
    assert (base.weight_decay, config.detector.backbone) == (1e-4, "resnet101")
    assert views.short == tuple(range(480, 801, 32))
    assert (views.long, views.test, views.flip) == (1333, 800, True)
    online = config.online
    assert (online.iterations, online.ema, online.ema_warm_up) == (18000, 0.999, 1)
    assert (config.discriminator.weights, config.discriminator.short) == (
        "resnet50:IMAGENET1K_V1",
        800,
    )


def test_coco_has_the_schedule_of_the_paper() -> None:
    config = resolve("coco")
    base, online = config.base, config.online
    assert (config.data.split, config.data.metric, config.shots.k) == ("coco", "coco", 10)
    assert (base.iterations, base.warm_up) == (110_000, 1_000)
    assert [round(110_000 * share) for share in base.decay] == [85_000, 100_000]
    assert online.iterations == 160_000
    assert [round(160_000 * share) for share in online.decay] == [110_000, 145_000]
    assert (online.delta, config.mine.per_class, config.tune.part) == (0.8, 3_000, "head")
    assert config.mine.extra_per_class == 2_000
    assert config.views.short == tuple(range(640, 801, 32))
    assert config.tune.learning_rate == 0.001


def test_voc_320_trains_the_base_detector_by_time() -> None:
    config = resolve("voc-320")
    assert (config.base.iterations, config.base.minutes) == (None, 8)
    assert config.views.few_shot == (320, 368, 416, 464, 512)
    assert (config.discriminator.short, config.discriminator.crop) == (320, "file")


@pytest.mark.parametrize("shots", [1, 5])
def test_voc_320_plus_changes_nothing_up_to_the_base_detector(shots: int) -> None:
    plain, plus = resolve("voc-320", shots=shots), resolve("voc-320-plus", shots=shots)
    for section in ("data", "shots", "detector", "views", "train"):
        assert getattr(plus, section) == getattr(plain, section)
    assert plus.base.model_copy(update={"sure": None}) == plain.base  # it changes no base training
    assert static_keys(plus, "base") == static_keys(plain, "base")
    assert plus.transfer.iterations == plain.transfer.iterations
    assert plus.tune.data == "none"


def test_photos_is_voc_320_plus_for_your_own_pictures() -> None:
    photos, plus = resolve("photos"), resolve("voc-320-plus", shots=5)
    assert photos.online.start == "transfer"
    for name in ("crop", "whiten", "refine", "weights"):
        assert getattr(photos.discriminator, name) == getattr(plus.discriminator, name)
    assert photos.mine == plus.mine
    assert photos.discriminator.short == photos.views.test
    assert (photos.base.minutes, photos.online.minutes) == (20, 15)


def test_photos_cpu_is_photos_with_less_to_compute() -> None:
    light, photos = resolve("photos-cpu"), resolve("photos")
    assert light.detector.rpn_post_nms < photos.detector.rpn_post_nms
    assert max(light.views.short) < min(photos.views.short)
    assert light.discriminator.short == light.views.test
    assert light.online.minutes < photos.online.minutes
    for section in ("data", "shots", "mine", "tune"):
        assert getattr(light, section) == getattr(photos, section)
    # nothing that a finished base detector would have to be trained for
    for key in ("backbone", "norm", "anchors", "fpn_channels", "head_width"):
        assert getattr(light.detector, key) == getattr(photos.detector, key)


def test_demo_computes_in_float32_on_every_cpu() -> None:
    assert all(getattr(resolve("demo"), stage).bf16 is False for stage in TRAINED)


def test_demo_fits_its_data() -> None:
    config = resolve("demo")
    assert config.data.novel == NOVEL
    assert {config.data.train, config.data.test, config.shots.subset} == set(PARTS)
    assert (config.detector.norm, config.detector.weights) == ("group", None)


def test_demo_keeps_the_numbers_it_was_measured_with() -> None:
    sections = [getattr(resolve("demo"), stage) for stage in TRAINED]
    assert [section.learning_rate for section in sections] == [0.02, 0.001, 0.02, 0.0003]
    assert [section.batch for section in sections] == [8, 8, 8, 8]
    assert [section.clip for section in sections] == [10, None, 10, None]
    assert [section.warm_up for section in sections] == [100, 0, 100, 0]
    assert [section.iterations for section in sections] == [1000, 1000, 300, 300]
    assert resolve("demo").online.ema_warm_up is None
