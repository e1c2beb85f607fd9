"""What people type becomes one configuration (what is wrong with it: test_config_problems.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mini_fsod.config.load import KEYS, STAGES, Config, from_file, parts, resolve, stages_of
from mini_fsod.errors import UserError

VOC = "voc-split1-1shot"


def value(config: Config, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


def write(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", 3),
        ("base.rate=1e-4", 1e-4),  # a string to PyYAML
        ("base.rate=1", 1.0),
        ("base.rate = 0.5", 0.5),
        ("base.weight_decay=0", 0.0),
        ("base.iterations=1_000", 1000),
        ("base.decay=[0.5,0.9]", (0.5, 0.9)),
        ("base.decay=0.5,0.9", (0.5, 0.9)),
        ("base.decay=[]", ()),
        ("base.decay=1", (1.0,)),
        ("base.clip=null", None),
        ("base.ema=0.999", 0.999),
        ("base.bf16=true", True),
        ("base.bf16=auto", "auto"),
        ("base.save_seconds=0", 0.0),
        ("base.checkpoint=runs/a", Path("runs/a")),
        ("transfer.cached=no", False),
        ("views.short=320", (320,)),
        ("views.short=[320, 480]", (320, 480)),
        ("views.zoom=[0.5, 1.25]", (0.5, 1.25)),
        ("views.flip=off", False),
        ("data.novel=[no, off, null, 1.0, true]", ("no", "off", "null", "1.0", "true")),
        ("data.novel=traffic light, bus", ("traffic light", "bus")),
        ('data.novel=["a, b"]', ("a, b",)),
        ("data.novel=", ()),
        ("data.train=2007", "2007"),
        ("data.root=my #1: @pictures", Path("my #1: @pictures")),
        ("data.root='a b'", Path("a b")),
        ("data.root=~", None),
        ("detector.frozen_stages=0", 0),
        ("detector.weights=null", None),
        ("shots.official=lists.json", "lists.json"),
        ("device=cuda:12", "cuda:12"),
    ],
)
def test_a_word_is_what_its_key_wants(text: str, expected: object) -> None:
    found = value(resolve(VOC, [text]), text.partition("=")[0].strip())
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("sets", "key", "taken_back"),
    [
        (["base.minutes=6"], "base.iterations", None),
        (["base.minutes=6", "base.iterations=50"], "base.minutes", None),  # the later wins
        (["transfer.minutes=0.1"], "transfer.iterations", None),
        (["data.novel=bird"], "data.split", None),
        (["data.novel=bird", "data.split=coco"], "data.novel", ()),
        (["shots.file=mine.json"], "shots.official", None),
    ],
)
def test_who_gives_one_key_of_a_pair_takes_the_other_back(
    sets: list[str], key: str, taken_back: object
) -> None:
    config = resolve(VOC, sets)
    assert value(config, key) == taken_back
    assert value(config, sets[-1].partition("=")[0])  # what was given stays


def test_a_file_changes_its_preset_and_set_changes_both(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "# my own\npreset: voc-split2-5shot-320\nseed: 1\nbase:\n  rate: 1e-2\n  iterations: 70\n"
        "transfer:\nviews.test: 300\n",
    )
    config = resolve(source, ["seed=2", "seed=4"])
    assert (config.seed, config.base.rate, config.base.iterations) == (4, 0.01, 70)
    assert (config.base.minutes, config.views.test, config.views.short) == (None, 300, (416,))
    assert (config.data.split, config.shots.k) == ("voc-split2", 5)
    assert config.transfer == resolve("voc-split2-5shot-320").transfer


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "base:\n", "base: {}\n"])
def test_a_file_without_keys_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert resolve(write(tmp_path, text)) == Config()


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = resolve("demo", ["data.root=~/voc", "data.cache=~x"])
    assert (config.data.root, config.data.cache) == (Path("/home/someone/voc"), Path("~x"))


@pytest.mark.slow
@settings(deadline=None)
@given(
    novel=st.lists(st.text(min_size=1), unique=True, max_size=4),
    root=st.text(st.characters(exclude_characters="\0"), min_size=1),
    rate=st.floats(min_value=1e-12, max_value=1e9),
    zoom=st.none() | st.tuples(st.floats(0.01, 1), st.floats(1.5, 9)),
    bf16=st.sampled_from(["auto", True, False]),
)
def test_a_written_configuration_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    novel: list[str],
    root: str,
    rate: float,
    zoom: tuple[float, float] | None,
    bf16: object,
) -> None:
    config = Config.model_validate(
        {
            "data": {"novel": novel, "root": root},
            "views": {"zoom": zoom},
            "base": {"rate": rate, "bf16": bf16},
        }
    )
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(config.to_yaml().encode())
    assert from_file(path) == config
    assert from_file(path).to_yaml() == config.to_yaml()


def test_yaml_holds_every_key_in_order() -> None:
    lines = Config().to_yaml().splitlines()
    found: list[str] = []
    sections: list[str] = []
    for line in lines:
        key = line.partition(":")[0]
        depth = (len(key) - len(key.lstrip())) // 2
        sections[depth:] = [key.strip()]
        if not line.endswith(":"):
            found.append(".".join(sections))
    assert tuple(found) == KEYS


def test_nothing_can_be_changed_or_added_later() -> None:
    config = Config()
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.base.rate = 1.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Config.model_validate({"sed": 1})
    with pytest.raises(ValidationError, match="must be a number, not true"):
        Config.model_validate({"base": {"iterations": True}})


@pytest.mark.parametrize(
    ("sets", "words", "fix"),
    [
        (["data.root=x"], "lacks data.split or data.novel.", "--set data.split=voc-split1"),
        (["data.novel=bird"], "lacks data.root.", "--set data.root=FOLDER"),
        ([], "lacks data.root and data.split or data.novel.", "--set data.root=FOLDER --set data"),
    ],
)
def test_what_a_run_must_be_told(tmp_path: Path, sets: list[str], words: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(write(tmp_path, ""), sets).ready()
    assert words in caught.value.what
    assert fix in caught.value.fix


def test_a_preset_with_a_data_folder_is_ready() -> None:
    resolve(VOC, ["data.root=voc"]).ready()
    resolve("demo").ready()


# a changed value of every key, and the first stage whose result it changes
CHANGES = {
    "seed": ("1", "base"),
    "device": ("cpu", None),
    "data.root": ("x", "base"),
    "data.split": ("coco", "base"),
    "data.novel": ("bird", "base"),
    "data.train": ("x", "base"),
    "data.test": ("x", "base"),
    "data.metric": ("coco", "base"),
    "data.cache": ("x", None),
    "data.feed": ("stream", None),
    "shots.k": ("2", "transfer"),
    "shots.seed": ("1", "transfer"),
    "shots.official": ("x", "transfer"),
    "shots.file": ("x", "transfer"),
    "shots.subset": ("x", "transfer"),
    "detector.backbone": ("x", "base"),
    "detector.weights": ("x", "base"),
    "detector.norm": ("group", "base"),
    "detector.stride_in_1x1": ("true", "base"),
    "detector.normalisation": ("caffe", "base"),
    "detector.frozen_stages": ("1", "base"),
    "detector.anchors": ("[1, 2, 3, 4, 5]", "base"),
    "detector.score_cut": ("0.1", "base"),
    "detector.nms": ("0.4", "base"),
    "views.short": ("[320]", "base"),
    "views.long": ("1000", "base"),
    "views.test": ("600", "base"),
    "views.flip": ("false", "base"),
    "views.zoom": ("[0.5, 2]", "base"),
    "save_seconds": ("1", None),
    "decay": ("[0.5]", ""),
    "momentum": ("0.5", ""),
    "ema": ("0.5", ""),
    "bf16": ("true", ""),
    "cached": ("false", ""),
    "mine.images": ("base", ""),
    "mine.cut": ("0.1", ""),
    "mine.tau": ("0.5", ""),
    "mine.threshold": ("0.7", ""),
    "discriminator_normalisation": ("caffe", ""),
    "discriminator_stride_in_1x1": ("true", ""),
    "centre": ("true", ""),
    "whiten": ("true", ""),
    "stretch": ("true", ""),
    "transfer.boxes": ("fixed", "transfer"),
    "tune.boxes": ("fixed", "tune"),
    "rank_by_iou": ("true", ""),
    "start": ("base", ""),
    "drop_on_base": ("true", ""),
    "drop_nested": ("true", ""),
    "extra_only": ("true", ""),
    "oracle": ("true", ""),
    "teacher": ("false", ""),
    "delta": ("0.5", ""),
    "iou_branch": ("false", ""),
    "online.mingle.rpn": ("false", "online"),
    "online.mingle.rcnn": ("false", "online"),
    "online.mingle.nms": ("agnostic", "online"),
    "online.mingle.keep_pool": ("true", "online"),
    "tune.data": ("novel", ""),
    "transfer.data": ("known", ""),
    "strong": ("false", ""),
    "online.shots": ("true", ""),
    "ignore_candidates": ("true", ""),
    "adapt_delta": ("true", ""),
    "ignore_above": ("0.3", ""),
    "expected": ("0.6", ""),
    "mined_boxes": ("pool", ""),
    "checkpoint": ("x", ""),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_stage_depends_on_what_can_change_its_result(tmp_path: Path, key: str) -> None:
    section, _, leaf = key.rpartition(".")
    text, first = CHANGES.get(key) or CHANGES.get(leaf) or ("8", "")
    first = section if first == "" and section in STAGES else "base" if first == "" else first
    source = write(tmp_path, "")
    before, after = resolve(source), resolve(source, [f"{key}={text}"])
    assert before != after
    stale = [stage for stage in STAGES if parts(before, stage) != parts(after, stage)]
    assert stale == ([] if first is None else list(STAGES[STAGES.index(first) :]))
    json.dumps(parts(after, "transfer"), allow_nan=False)


def test_an_oracle_from_nothing_is_the_same_for_every_k() -> None:
    def depends(*sets: str) -> dict[str, object]:
        name = f"voc-split1-{sets[0]}shot-320"
        return parts(resolve(name, ["online.oracle=true", *sets[1:]]), "online")

    assert depends("1") == depends("5") == depends("5", "mine.alpha=2", "base.minutes=1")
    assert depends("1") != depends("1", "mine.images=base")
    assert depends("1") != depends("1", "online.rate=0.01")
    assert depends("1", "online.shots=true") != depends("5", "online.shots=true")
    assert depends("1", "online.start=transfer") != depends("5", "online.start=transfer")

    def tuned(*sets: str) -> dict[str, object]:
        name = f"voc-split1-{sets[0]}shot-320"
        return parts(resolve(name, ["online.oracle=true", *sets[1:]]), "tune")

    assert tuned("1") == tuned("1", "mine.alpha=2", "base.minutes=1")
    assert tuned("1") != tuned("1", "shots.seed=1")
    assert tuned("1", "tune.data=none") == tuned("1", "tune.data=none", "shots.seed=1")


def test_re_training_on_a_given_pool_depends_on_more_of_mining() -> None:
    def depends(*sets: str) -> dict[str, object]:
        return parts(resolve(VOC, ["mine.given=pool.json", *sets]), "online")

    assert depends() == depends("mine.alpha=2", "mine.cut=0.1")
    assert depends() != depends("mine.extra=photos")  # where its pictures lie
    for text in ("mine.images=base", "mine.drop_on_base=true", "mine.drop_nested=true"):
        assert depends() != depends(text)


def test_the_stages_of_an_oracle() -> None:
    def stages(*sets: str, last: str = "tune") -> tuple[str, ...]:
        return stages_of(resolve("voc-split1-1shot-320", sets), last)

    assert stages() == STAGES
    assert stages("online.oracle=true") == ("online", "tune")
    assert stages("online.oracle=true", last="mine") == STAGES[:3]
    assert stages("online.oracle=true", "online.start=transfer") == STAGES


@pytest.mark.parametrize(
    ("sets", "rates"),
    [
        ([], (0.02, 0.001, 0.02, 0.001)),
        (["base.batch=4", "online.batch=32", "tune.batch=8"], (0.005, 0.001, 0.04, 0.0005)),
        (["base.batch=4", "base.rate=0.02"], (0.02, 0.001, 0.02, 0.001)),
        (["base.batch=4", "base.rate=0.02", "base.rate=null"], (0.005, 0.001, 0.02, 0.001)),
    ],
)
def test_a_rate_nobody_gave_is_that_of_the_batch(sets: list[str], rates: tuple[float, ...]) -> None:
    config = resolve(VOC, sets)
    sections = (config.base, config.transfer, config.online, config.tune)
    assert tuple(section.learning_rate for section in sections) == rates
    assert parts(config, "tune")["online"]["rate"] == rates[2]


def test_the_digits_keep_the_rates_they_were_measured_with() -> None:
    config = resolve("demo")
    sections = (config.base, config.transfer, config.online, config.tune)
    assert [section.learning_rate for section in sections] == [0.02, 0.001, 0.02, 0.0003]


def test_a_given_base_detector_stands_for_its_training() -> None:
    given = resolve("demo", ["base.checkpoint=a.safetensors"])
    assert parts(given, "base")["base"] == {"checkpoint": "a.safetensors"}
    assert parts(given, "base") == parts(
        given.model_copy(update={"base": given.base.model_copy(update={"rate": 0.5})}), "base"
    )
    assert set(parts(given, "base")) == {"seed", "data", "detector", "views", "base"}
    assert set(parts(given, "transfer")) == {*parts(given, "base"), "shots", "transfer"}
