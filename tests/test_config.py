"""What people type becomes one configuration, or one list of all that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mini_fsod import show
from mini_fsod.config import KEYS, STAGES, Config, from_file, parts, resolve
from mini_fsod.errors import DataError, UserError

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


def problems(source: str, *sets: str) -> list[str]:
    with pytest.raises(DataError) as caught:
        resolve(source, sets)
    return [str(p).replace(source, Path(source).name) for p in caught.value.problems]


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
    ("text", "message"),
    [
        ("base.iterations=many", 'must be a whole number, not "many"'),
        ("base.iterations=true", 'must be a whole number, not "true"'),
        ("base.iterations=2.5", "must be a whole number, not 2.5"),
        ("base.iterations=0", "must be at least 1, not 0"),
        ("base.iterations=[1]", "must be a whole number, not a list"),
        ("base.rate=fast", 'must be a number, not "fast"'),
        ("base.rate=true", 'must be a number, not "true"'),
        ("base.rate=0", "must be above 0, not 0"),
        ("base.rate=inf", "must be a finite number, not inf"),
        ("base.momentum=1", "must be below 1, not 1"),
        ("base.ema=1.5", "must be below 1, not 1.5"),
        ("base.batch=null", "must be a whole number, not null"),
        ("base.decay=[0.9, 0.5]", "must ascend, not [0.9, 0.5]"),
        ("base.decay=[0.5, 0.5]", "must ascend, not [0.5, 0.5]"),
        (
            "base.decay=[0.5, 12]",
            "must be shares of the run, above 0 and at most 1, not [0.5, 12.0]",
        ),
        ("base.decay=[0, 0.5]", "must be above 0, not 0"),
        ("base.accumulate=3", "must divide the batch of 16, not 3"),
        ("base.bf16=perhaps", 'must be auto, true or false, not "perhaps"'),
        ("base=5", "must hold keys, not 5"),
        ("views.flip=perhaps", 'must be true or false, not "perhaps"'),
        ("views.short=[]", "must hold at least one value, not a list"),
        ("views.short=[320, x]", 'must be a whole number, not "x"'),
        ("views.short=[320, 0]", "must be at least 1, not 0"),
        ("views.test=2000", "must not be more than long, not 2000"),
        ("views.zoom=[1.25, 0.5]", "must ascend, not [1.25, 0.5]"),
        ("views.zoom=[1]", "must be two factors, as in [0.5, 1.25], not 1"),
        ("views.zoom=[0, 1]", "must be above 0, not 0"),
        ("detector.anchors=[32, 64]", "must be 5 sizes, one a level, not 2"),
        ("detector.frozen_stages=6", "must be at most 5, not 6"),
        (
            "detector.norm=group",
            "group is for training from nothing: set detector.weights to null",
        ),
        ("data.metric=voc08", 'must be voc07, voc or coco, not "voc08". Did you mean "voc07"?'),
        (
            "data.split=pascal",
            'must be voc-split1, voc-split2, voc-split3 or coco, not "pascal"',
        ),
        ("data.novel=[bird, bus, bird]", "names bird twice"),
        ("data.novel=[bird", "broken YAML in line 1: expected ',' or ']', but got '<stream end>'"),
        ("data.root=[a]", "must be a path, not a list"),
        ("data.train=[a]", "must be a word, not a list"),
        ("device=gpu", 'must be auto, cpu, cuda or cuda:1, not "gpu". Did you mean "cpu"?'),
        ("seed=-1", "must be at least 0, not -1"),
        ("seed=" + "9" * 5000, f'must be a smaller number, not "{"9" * 56}...'),
        ("base.itertions=5", 'no such key. Did you mean "base.iterations"?'),
        ("iterations=5", 'no such key. Did you mean "base.iterations"?'),
        ("bass.iterations=5", 'no such key. Did you mean "base.iterations"?'),
        ("transfer.official=x", 'no such key. Did you mean "shots.official"?'),
        ("k=5", 'no such key. Did you mean "shots.k"?'),
        ("base.rate.high=5", 'no such key. Did you mean "base.rate"?'),
        ("zzz=5", "no such key"),
        ("seed", "not of the form KEY=VALUE"),
        ("=5", "not of the form KEY=VALUE"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(text: str, message: str) -> None:
    assert problems(VOC, text) == [f"--set {text}: {message}"]


def test_all_problems_come_at_once_in_the_order_of_the_keys(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "preset: voc-split1-1shto\n"
        "speed: 5\n"
        "transfer: {rate: fast}\n"
        "base:\n"
        "  iterations: many\n"
        "  momentun: 0.5\n"
        "views: 800\n"
        "detector: {norm: batch}\n"
        "device: gpu\n",
    )
    assert problems(source, "shots.k=none", "base.batch=2.5", "nonsense") == [
        "--set nonsense: not of the form KEY=VALUE",
        'my.yaml, device: must be auto, cpu, cuda or cuda:1, not "gpu". Did you mean "cpu"?',
        '--set shots.k=none: must be a whole number, not "none"',
        'my.yaml, detector.norm: must be frozen or group, not "batch"',
        "my.yaml, views: must hold keys, not 800",
        'my.yaml, base.iterations: must be a whole number, not "many"',
        "--set base.batch=2.5: must be a whole number, not 2.5",
        'my.yaml, base.momentun: no such key. Did you mean "base.momentum"?',
        'my.yaml, transfer.rate: must be a number, not "fast"',
        'my.yaml, preset: no preset is called "voc-split1-1shto". Did you mean "voc-split1-1shot"?',
        'my.yaml, speed: no such key. Did you mean "seed"?',
    ]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ["base.iterations=null"],
            "--set base.iterations=null, base.minutes: must be given where iterations is not",
        ),
        (
            ["base={iterations: 5, minutes: 8}"],
            "--set base={iterations: 5, minutes: 8}, base.minutes: cannot be given together with "
            "iterations: leave one of them out",
        ),
        (
            ["data={split: coco, novel: [bird]}"],
            "--set data={split: coco, novel: [bird]}, data.novel: cannot be given together with "
            "split: leave one of them out",
        ),
        (
            ["shots={official: voc, file: a.json}"],
            "--set shots={official: voc, file: a.json}, shots.file: cannot be given together with "
            "official: leave one of them out",
        ),
        (
            ["views.short=1400"],
            "preset voc-split1-1shot, views.long: must not be less than the largest of short, "
            "not 1333",
        ),
        (
            ["detector.weights=null", "detector.norm=group", "detector.frozen_stages=2"],
            "--set detector.frozen_stages=2: must be 0 with norm: group, which trains from nothing",
        ),
    ],
)
def test_keys_that_contradict_each_other(sets: list[str], message: str) -> None:
    assert problems(VOC, *sets) == [message]


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"base: [1\n", "my.yaml: broken YAML in line 2: expected ',' or ']', but got"),
        (b"a: &x 1\nb: *x\n", "my.yaml: broken YAML: aliases are not read"),
        (b"seed: 1\nseed: 2\n", "my.yaml: broken YAML: seed twice near line 1"),
        (b"- seed\n", "my.yaml: not a table of keys, such as seed: 1"),
        (b"voc\n", "my.yaml: not a table of keys, such as seed: 1"),
        (b"\xff\xd8\xff\xe0", "my.yaml: not text in UTF-8"),
        (b"seed: \x00", "my.yaml: broken YAML: unacceptable character"),
        (b"? [a]\n: 1\n", "my.yaml: broken YAML in line 1: found unhashable key"),
        (b"[" * 5000, "my.yaml: broken YAML"),
        (b" " * (1 << 20) + b"\n", "my.yaml: far too large for a configuration"),
        (b"preset: [a]\n", "my.yaml, preset: no preset is called a list"),
    ],
)
def test_a_file_that_holds_no_keys_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    found = problems(str(path))
    assert len(found) == 1
    assert found[0].startswith(message)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    assert problems("voc-split1-1shots") == [
        "voc-split1-1shots: no such file, nor a preset of this name. "
        'Did you mean "voc-split1-1shot"?'
    ]
    assert problems("nowhere/at/all.yaml", "base.rate=x") == [
        "all.yaml: no such file, nor a preset of this name",
        '--set base.rate=x: must be a number, not "x"',
    ]
    assert problems("a\0b") == ["a\0b: no such file, nor a preset of this name"]
    assert problems(str(tmp_path)) == [f"{tmp_path.name}: cannot be read (not a regular file)"]


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = resolve("demo", ["data.root=~/voc", "data.cache=~x"])
    assert (config.data.root, config.data.cache) == (Path("/home/someone/voc"), Path("~x"))


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
    "mine.threshold": ("0.7", ""),
    "discriminator_normalisation": ("caffe", ""),
    "discriminator_stride_in_1x1": ("true", ""),
    "centre": ("true", ""),
    "whiten": ("true", ""),
    "start": ("base", ""),
    "drop_on_base": ("true", ""),
    "oracle": ("true", ""),
    "teacher": ("false", ""),
    "delta": ("0.5", ""),
    "iou_branch": ("false", ""),
    "online.mingle.rpn": ("false", "online"),
    "online.mingle.rcnn": ("false", "online"),
    "online.mingle.nms": ("agnostic", "online"),
    "tune.data": ("novel", ""),
    "strong": ("false", ""),
    "online.shots": ("true", ""),
    "ignore_candidates": ("true", ""),
    "mined_boxes": ("false", ""),
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


def test_a_given_base_detector_stands_for_its_training() -> None:
    given = resolve("demo", ["base.checkpoint=a.safetensors"])
    assert parts(given, "base")["base"] == {"checkpoint": "a.safetensors"}
    assert parts(given, "base") == parts(
        given.model_copy(update={"base": given.base.model_copy(update={"rate": 0.5})}), "base"
    )
    assert set(parts(given, "base")) == {"seed", "data", "detector", "views", "base"}
    assert set(parts(given, "transfer")) == {*parts(given, "base"), "shots", "transfer"}


def test_all_problems_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError) as caught:
        resolve("demo", ["seed=x", "base.rate=[/bold]"])
    show.error(caught.value)
    said = capsys.readouterr().err
    assert '--set seed=x: must be a whole number, not "x"' in said
    assert "--set base.rate=[/bold]: must be a number" in said
    assert "pydantic" not in said
