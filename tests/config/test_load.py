"""A preset, a file and --set become one configuration, or one list of all problems."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from mini_fsod import console
from mini_fsod.config.load import is_configuration, resolve
from mini_fsod.config.schema import TRAINED, Config
from mini_fsod.errors import DataError


def write(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems(source: str, *sets: str, **options: Any) -> list[str]:
    with pytest.raises(DataError) as caught:
        resolve(source, sets, **options)
    return [str(p).replace(source, Path(source).name) for p in caught.value.problems]


# Layers


@pytest.mark.parametrize(
    ("source", "sets", "k"),
    [
        ("photos", ["shots.file=a.json"], None),
        ("photos", ["shots.file=a.json", "shots.k=3"], 3),
        ("photos", [], 5),
        ("photos", ["shots.k=2"], 2),
    ],
)
def test_resolve_takes_k_from_a_file_of_shots_unless_it_is_given(
    source: str, sets: list[str], k: int | None
) -> None:
    config = resolve(source, sets)
    assert config.shots.k == k
    assert config.mine.mean_score == resolve(source, [f"shots.k={k or 5}"]).mine.mean_score


def test_resolve_refuses_no_k_without_a_file() -> None:
    said = problems("photos", "shots.k=null")
    assert said == ["--set shots.k=null, shots.file: must be given where shots.k is null"]


def test_resolve_blames_what_the_user_set_and_not_the_preset() -> None:
    (said,) = problems("photos", "views.short=1200")
    assert said == (
        "--set views.short=1200, views.long: must not be less than the largest of short, not 1000"
    )


@pytest.mark.parametrize(
    ("sets", "key", "unset"),
    [
        (["base.minutes=6"], "base.iterations", None),
        (["base.minutes=6", "base.iterations=50"], "base.minutes", None),  # the later wins
        (["online.minutes=0.1"], "online.iterations", None),
        (["data.novel=bird"], "data.split", None),
        (["data.novel=bird", "data.split=coco"], "data.novel", ()),
        (["shots.file=mine.json"], "shots.official", None),
    ],
)
def test_resolve_setting_one_key_of_a_pair_unsets_the_other(
    sets: list[str], key: str, unset: object
) -> None:
    config = resolve("paper", sets)
    assert attrgetter(key)(config) == unset
    assert attrgetter(sets[-1].partition("=")[0])(config)  # what was set stays


def test_resolve_file_changes_its_preset_and_set_changes_both(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "# my own\npreset: voc-320\nseed: 1\nshots: {k: 5}\nbase:\n  rate: 1e-2\n  iterations: 70\n"
        "transfer:\nviews.test: 300\n",
    )
    config = resolve(source, ["seed=2", "seed=4"])
    assert (config.seed, config.base.rate, config.base.iterations) == (4, 0.01, 70)
    assert (config.base.minutes, config.views.test, config.views.short) == (None, 300, (416,))
    assert (config.data.split, config.shots.k) == ("voc-split1", 5)
    assert config.transfer == resolve("voc-320", shots=5).transfer


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "base:\n", "base: {}\n"])
def test_resolve_file_without_keys_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert resolve(write(tmp_path, text)) == Config()


def test_resolve_short_options_act_like_later_sets() -> None:
    config = resolve("voc-320", ["shots.k=2", "data.novel=bird"], "voc-split3", 10, 4)
    same = resolve(
        "voc-320", ["data.novel=bird", "data.split=voc-split3", "shots.k=10", "shots.seed=4"]
    )
    assert config == same
    assert (config.data.split, config.data.novel, config.shots.k) == ("voc-split3", (), 10)
    assert (config.shots.seed, config.seed) == (4, 0)


# Keys shared with `train`


def test_resolve_stages_inherit_train(tmp_path: Path) -> None:
    config = resolve(write(tmp_path, "train: {batch: 4, clip: 10, warm_up: 7}"))
    for stage in TRAINED:
        section = getattr(config, stage)
        assert (section.batch, section.clip, section.warm_up) == (4, 10, 7)


def test_resolve_stage_keeps_its_default_where_train_is_not_set(tmp_path: Path) -> None:
    config = resolve(write(tmp_path, "train: {batch: 4}"))
    assert (config.train.warm_up, config.base.warm_up, config.tune.warm_up) == (100, 100, 0)
    assert config.transfer.decay == (0.9,)


def test_resolve_stage_key_of_any_layer_beats_train(tmp_path: Path) -> None:
    source = write(tmp_path, "online: {batch: 2, clip: null}\nbase: {batch: 8}")
    config = resolve(source, ["train.batch=4", "train.clip=5", "base.batch=16"])
    assert (config.online.batch, config.base.batch, config.tune.batch) == (2, 16, 4)
    assert (config.online.clip, config.base.clip) == (None, 5)


def test_resolve_reports_an_invalid_value_of_train_once(tmp_path: Path) -> None:
    assert problems(write(tmp_path, ""), "train.accumulate=3") == [
        "--set train.accumulate=3: must divide the batch of 16, not 3"
    ]
    assert problems(write(tmp_path, ""), "train.accumulate=4", "tune.batch=6") == [
        "--set train.accumulate=4, tune.accumulate: must divide the batch of 6, not 4"
    ]


# Problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base=5", "must hold keys, not 5"),
        ("views.test=2000", "must not be more than long, not 2000"),
        (
            "detector.norm=group",
            "group is for training from random weights: set detector.weights to null",
        ),
        ("online.ema=null", "must be a number where online.teacher is true"),
        (
            "data.novel=[bird",
            "invalid YAML in line 1: expected ',' or ']', but got '<stream end>'",
        ),
        ("base.itertions=5", "unknown key `base.itertions`: did you mean `base.iterations`?"),
        ("bas=5", "unknown key `bas`: did you mean `base`?"),
        ("iterations=5", "unknown key `iterations`: did you mean `base.iterations`?"),
        ("batch=5", "unknown key `batch`: did you mean `train.batch`?"),
        ("bass.iterations=5", "unknown key `bass.iterations`: did you mean `base.iterations`?"),
        ("transfer.official=x", "unknown key `transfer.official`: did you mean `shots.official`?"),
        ("k=5", "unknown key `k`: did you mean `shots.k`?"),
        ("base.rate.high=5", "unknown key `base.rate.high`: did you mean `base.rate`?"),
        ("zzz=5", "unknown key `zzz`"),
        ("seed", "must be KEY=VALUE"),
        ("=5", "must be KEY=VALUE"),
    ],
)
def test_resolve_explains_a_wrong_set(text: str, message: str) -> None:
    assert problems("voc-320", text) == [f"--set {text}: {message}"]


def test_resolve_explains_a_wrong_short_option() -> None:
    assert problems("voc-320", split="pascal", shots=0, seed=-1) == [
        '--split pascal: must be voc-split1, voc-split2, voc-split3 or coco, not "pascal"',
        "--shots 0: must be at least 1, not 0",
        "--seed -1: must be at least 0, not -1",
    ]


def test_resolve_lists_all_problems_in_the_order_of_the_keys(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "preset: voc-321\n"
        "speed: 5\n"
        "transfer: {rate: fast}\n"
        "base:\n"
        "  iterations: many\n"
        "  warm_upp: 5\n"
        "views: 800\n"
        "detector: {norm: batch}\n"
        "device: gpu\n",
    )
    assert problems(source, "shots.k=none", "base.batch=2.5", "nonsense") == [
        "--set nonsense: must be KEY=VALUE",
        'my.yaml, device: must be auto, cpu, cuda or cuda:1, not "gpu". Did you mean "cpu"?',
        '--set shots.k=none: must be a whole number, not "none"',
        'my.yaml, detector.norm: must be frozen or group, not "batch"',
        "my.yaml, views: must hold keys, not 800",
        "--set base.batch=2.5: must be a whole number, not 2.5",
        'my.yaml, base.iterations: must be a whole number, not "many"',
        "my.yaml: unknown key `base.warm_upp`: did you mean `base.warm_up`?",
        'my.yaml, transfer.rate: must be a number, not "fast"',
        'my.yaml, preset: no preset is named "voc-321": did you mean `voc-320`?',
        "my.yaml: unknown key `speed`: did you mean `seed`?",
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
            "iterations: remove one of them",
        ),
        (
            ["data={split: coco, novel: [bird]}"],
            "--set data={split: coco, novel: [bird]}, data.novel: cannot be given together with "
            "split: remove one of them",
        ),
        (
            ["shots={official: voc, file: a.json}"],
            "--set shots={official: voc, file: a.json}, shots.file: cannot be given together with "
            "official: remove one of them",
        ),
        (
            ["views.short=1400"],
            "--set views.short=1400, views.long: must not be less than the largest of short, "
            "not 1333",
        ),
        (
            ["detector.weights=null", "detector.norm=group", "detector.frozen_stages=2"],
            "--set detector.frozen_stages=2: must be 0 with norm: group, which trains from random "
            "weights",
        ),
    ],
)
def test_resolve_explains_keys_that_contradict_each_other(sets: list[str], message: str) -> None:
    assert problems("paper", *sets) == [message]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"base: [1\n", "my.yaml: invalid YAML in line 2: expected ',' or ']', but got"),
        (b"a: &x 1\nb: *x\n", "my.yaml: invalid YAML: aliases are not supported"),
        (b"seed: 1\nseed: 2\n", "my.yaml: invalid YAML: duplicate key seed in the table at line 1"),
        (b"- seed\n", "my.yaml: does not hold keys and values, such as seed: 1"),
        (b"voc\n", "my.yaml: does not hold keys and values, such as seed: 1"),
        (b"\xff\xd8\xff\xe0", "my.yaml: not text in UTF-8"),
        (b"seed: \x00", "my.yaml: invalid YAML: unacceptable character"),
        (b"? [a]\n: 1\n", "my.yaml: invalid YAML in line 1: found unhashable key"),
        (b"[" * 5000, "my.yaml: invalid YAML"),
        (b" " * (1 << 20) + b"\n", "my.yaml: cannot be read (larger than 1 MB)"),
        (b"preset: [a]\n", "my.yaml, preset: no preset is named a list"),
    ],
)
def test_resolve_explains_an_unreadable_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    found = problems(str(path))
    assert len(found) == 1
    assert found[0].startswith(message)


def test_resolve_explains_a_missing_source(tmp_path: Path) -> None:
    assert problems("voc-230") == ["voc-230: no such file or preset: did you mean `voc-320`?"]
    assert problems("nowhere/at/all.yaml", "base.rate=x") == [
        "all.yaml: no such file or preset",
        '--set base.rate=x: must be a number, not "x"',
    ]
    assert problems("a\0b") == ["a\0b: no such file or preset"]
    assert problems(str(tmp_path)) == [f"{tmp_path.name}: cannot be read (not a regular file)"]


def test_console_shows_all_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError) as caught:
        resolve("demo", ["seed=x", "base.rate=[/bold]"])
    console.error(caught.value)
    said = capsys.readouterr().err
    assert '--set seed=x: must be a whole number, not "x"' in said
    assert "--set base.rate=[/bold]: must be a number" in said
    assert "pydantic" not in said


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"key{n}: 1\n" for n in range(20_000)),
        "base:\n" + "".join(f"  key{n}: 1\n" for n in range(20_000)),
        "data:\n  novel: [" + ", ".join(f"c{n}" for n in range(40_000)) + ", c1]",
        "seed: " + "x " * 400_000,
        "x" * 400_000 + ": 1",
    ],
    ids=["keys", "keys of a stage", "names", "long value", "long key"],
)
def test_resolve_refuses_huge_configurations_in_seconds(text: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    start = process_time()
    with pytest.raises(DataError) as caught:
        resolve(str(path))
    assert process_time() - start < 10
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
def test_resolve_refuses_what_is_not_a_small_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 3 << 30)
    with pytest.raises(DataError, match="cannot be read"):
        resolve(str(path))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("preset: photos\n", True),
        ("data: {root: a}\n", True),
        ("train: images/train\nval: images/val\nnames: [cat]\n", False),
        ("train: images\ndata: here\nnames: [cat]\n", False),
        ("- preset\n", False),
        ("preset: [", False),
    ],
)
def test_is_configuration_tells_it_from_data_yaml(tmp_path: Path, text: str, is_one: bool) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert is_configuration(tmp_path / "a.yaml") == is_one
    assert not is_configuration(tmp_path)
