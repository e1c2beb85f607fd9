"""All that is wrong with what people type is told at once, in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod import console
from mini_fsod.config.load import resolve
from mini_fsod.errors import DataError

VOC = "voc-split1-1shot"


def problems(source: str, *sets: str) -> list[str]:
    with pytest.raises(DataError) as caught:
        resolve(source, sets)
    return [str(p).replace(source, Path(source).name) for p in caught.value.problems]


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
        (
            "online.ignore_above=0.7",
            "must be below online.delta, above which boxes are taught, not 0.7",
        ),
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
    source = tmp_path / "my.yaml"
    source.write_text(
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
    assert problems(str(source), "shots.k=none", "base.batch=2.5", "nonsense") == [
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


def test_all_problems_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError) as caught:
        resolve("demo", ["seed=x", "base.rate=[/bold]"])
    console.error(caught.value)
    said = capsys.readouterr().err
    assert '--set seed=x: must be a whole number, not "x"' in said
    assert "--set base.rate=[/bold]: must be a number" in said
    assert "pydantic" not in said
