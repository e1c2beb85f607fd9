"""Values as people type them: what they become, and the messages for invalid ones."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest

from mini_fsod.config.load import resolve
from mini_fsod.errors import DataError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", 3),
        ("base.rate=1e-4", 1e-4),  # a string to YAML 1.1
        ("base.rate=1", 1.0),
        ("base.rate = 0.5", 0.5),
        ("base.weight_decay=0", 0.0),
        ("base.iterations=1_000", 1000),
        ("base.decay=[0.5,0.9]", (0.5, 0.9)),
        ("base.decay=0.5,0.9", (0.5, 0.9)),
        ("base.decay=[]", ()),
        ("base.decay=1", (1.0,)),
        ("base.clip=null", None),
        ("online.ema=0.999", 0.999),
        ("base.bf16=true", True),
        ("base.bf16=auto", "auto"),
        ("base.save_seconds=0", 0.0),
        ("base.checkpoint=runs/a", Path("runs/a")),
        ("online.teacher=no", False),
        ("views.short=320", (320,)),
        ("views.short=[320, 480]", (320, 480)),
        ("views.few_shot=null", None),
        ("views.zoom=[0.5, 1.25]", (0.5, 1.25)),
        ("views.zoom=null", None),
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
        ("mine.threshold=adaptive", "adaptive"),
        ("mine.threshold=0.7", 0.7),
        ("shots.official=lists.json", "lists.json"),
        ("device=cuda:12", "cuda:12"),
    ],
)
def test_resolve_converts_text_to_the_type_of_the_key(text: str, expected: object) -> None:
    found = attrgetter(text.partition("=")[0].strip())(resolve("paper", [text]))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base.iterations=many", 'must be a whole number, not "many"'),
        ("base.iterations=true", 'must be a whole number, not "true"'),
        ("base.iterations=2.5", "must be a whole number, not 2.5"),
        ("base.iterations=0", "must be at least 1, not 0"),
        ("base.iterations=auto", 'must be a whole number, not "auto"'),  # depends on no K
        ("base.iterations=[1]", "must be a whole number, not a list"),
        ("base.rate=fast", 'must be a number, not "fast"'),
        ("base.rate=true", 'must be a number, not "true"'),
        ("base.rate=0", "must be above 0, not 0"),
        ("base.rate=inf", "must be a finite number, not inf"),
        ("mine.min_score=1", "must be below 1, not 1"),
        ("online.ema=1.5", "must be below 1, not 1.5"),
        ("train.batch=null", "must be a whole number, not null"),
        ("train.decay=[0.9, 0.5]", "must ascend, not [0.9, 0.5]"),
        ("train.decay=[0.5, 0.5]", "must ascend, not [0.5, 0.5]"),
        ("train.decay=[0.5, 12]", "must be fractions of the run, at most 1, not [0.5, 12.0]"),
        ("train.decay=[0, 0.5]", "must be above 0, not 0"),
        ("train.bf16=perhaps", 'must be auto, true or false, not "perhaps"'),
        ("views.flip=perhaps", 'must be true or false, not "perhaps"'),
        ("views.short=[]", "must have at least one value, not a list"),
        ("views.short=[320, x]", 'must be a whole number, not "x"'),
        ("views.short=[320, 0]", "must be at least 1, not 0"),
        ("views.zoom=[1.25, 0.5]", "must ascend, not [1.25, 0.5]"),
        ("views.zoom=[1]", "must be two factors, as in [0.5, 1.25], not 1"),
        ("views.zoom=[0, 1]", "must be above 0, not 0"),
        ("detector.anchors=[32, 64]", "must be 5 sizes, one per pyramid level, not 2"),
        ("detector.frozen_stages=6", "must be at most 5, not 6"),
        ("data.metric=voc08", 'must be voc07, voc or coco, not "voc08". Did you mean "voc07"?'),
        ("data.split=pascal", 'must be voc-split1, voc-split2, voc-split3 or coco, not "pascal"'),
        ("data.novel=[bird, bus, bird]", "names bird twice"),
        ("data.root=[a]", "must be a path, not a list"),
        ("data.train=[a]", "must be text, not a list"),
        ("mine.threshold=2", 'must be adaptive or a number from 0 to 1, not "2"'),
        ("device=gpu", 'must be auto, cpu, cuda or cuda:1, not "gpu". Did you mean "cpu"?'),
        ("seed=-1", "must be at least 0, not -1"),
        ("seed=" + "9" * 5000, f'must be a smaller number, not "{"9" * 56}...'),
    ],
)
def test_resolve_explains_an_invalid_value(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        resolve("paper", [text])
    given = text if len(text) <= 200 else f"{text[:197]}..."
    assert [str(problem) for problem in caught.value.problems] == [f"--set {given}: {message}"]


def test_resolve_expands_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = resolve("demo", ["data.root=~/voc", "data.cache=~x"])
    assert (config.data.root, config.data.cache) == (Path("/home/someone/voc"), Path("~x"))


def test_resolve_finds_the_pool_in_the_folder_of_a_run(tmp_path: Path) -> None:
    assert resolve("demo", [f"mine.pool={tmp_path}"]).mine.pool == tmp_path / "pool.json"
    file = tmp_path / "other.json"
    assert resolve("demo", [f"mine.pool={file}"]).mine.pool == file
