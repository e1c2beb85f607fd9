"""Sections of a configuration: what they refuse, and a configuration as YAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mini_fsod.config.load import KEYS, resolve
from mini_fsod.config.schema import TRAINED, Config
from mini_fsod.errors import UserError


def test_config_is_frozen_and_has_no_other_keys() -> None:
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
    ("sets", "rates"),
    [
        ([], (0.02, 0.001, 0.02, 0.001)),
        (["train.batch=8"], (0.01, 0.0005, 0.01, 0.0005)),
        (["base.batch=4", "online.batch=32", "tune.batch=8"], (0.005, 0.001, 0.04, 0.0005)),
        (["base.batch=4", "base.rate=0.02"], (0.02, 0.001, 0.02, 0.001)),
        (["base.batch=4", "base.rate=0.02", "base.rate=null"], (0.005, 0.001, 0.02, 0.001)),
    ],
)
def test_learning_rate_is_in_proportion_to_the_batch(
    sets: list[str], rates: tuple[float, ...]
) -> None:
    config = resolve("paper", sets)
    assert tuple(getattr(config, stage).learning_rate for stage in TRAINED) == rates


@pytest.mark.parametrize(
    ("sets", "words", "fix"),
    [
        (["data.root=x"], "lacks data.split or data.novel.", "--set data.split=voc-split1"),
        (["data.novel=bird"], "lacks data.root.", "--set data.root=FOLDER"),
        ([], "lacks data.root and data.split or data.novel.", "--set data.root=FOLDER --set data"),
    ],
)
def test_ready_names_missing_keys(tmp_path: Path, sets: list[str], words: str, fix: str) -> None:
    (tmp_path / "my.yaml").touch()
    with pytest.raises(UserError) as caught:
        resolve(str(tmp_path / "my.yaml"), sets).ready()
    assert words in caught.value.what
    assert fix in caught.value.fix
    assert "mini init" in caught.value.fix


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["mine.candidates=proposals", "mine.mean_score=0.7"], "must be null with mine.candidates"),
        (["mine.candidates=proposals", "mine.detections=a.json"], "replaces mine.candidates"),
        (["discriminator.compete=0.5"], "needs discriminator.refine"),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, sets: list[str], words: str) -> None:
    (tmp_path / "my.yaml").touch()
    with pytest.raises(UserError, match=words):
        resolve(str(tmp_path / "my.yaml"), sets)


def test_ready_accepts_a_preset_with_a_data_folder() -> None:
    resolve("paper", ["data.root=voc"]).ready()
    resolve("demo").ready()


def _keys_of(text: str) -> list[str]:
    found, path = [], []
    for line in text.splitlines():
        key = line.partition(":")[0]
        path[(len(key) - len(key.lstrip())) // 2 :] = [key.strip()]
        if not line.endswith(":"):
            found.append(".".join(path))
    return found


def test_to_yaml_holds_every_key_in_order_without_repeating_train() -> None:
    shared = {f"{stage}.{name}" for stage in TRAINED for name in type(Config().train).model_fields}
    differing = {
        f"{stage}.{name}" for stage in ("transfer", "tune") for name in ("warm_up", "decay")
    }
    assert _keys_of(Config().to_yaml()) == [
        key for key in KEYS if key not in shared or key in differing
    ]


@pytest.mark.parametrize(
    "sets",
    [
        ["train.batch=8", "online.batch=4"],
        ["train.warm_up=0", "train.decay=[0.9]"],  # the default of two stages
        ["train.warm_up=5", "tune.warm_up=100"],  # the default of train
        ["tune.warm_up=100", "tune.decay=[0.666667, 0.888889]"],
        ["train.clip=10", "base.clip=null"],
        ["base.iterations=null", "base.minutes=3"],
    ],
)
def test_to_yaml_is_read_back_as_an_equal_config(tmp_path: Path, sets: list[str]) -> None:
    (tmp_path / "empty.yaml").touch()
    config = resolve(str(tmp_path / "empty.yaml"), sets)
    (tmp_path / "written.yaml").write_text(config.to_yaml())
    assert resolve(tmp_path / "written.yaml") == config


@pytest.mark.slow
@settings(deadline=None)
@given(
    novel=st.lists(st.text(min_size=1), unique=True, max_size=4),
    root=st.text(st.characters(exclude_characters="\0"), min_size=1),
    rate=st.floats(min_value=1e-12, max_value=1e9),
    zoom=st.none() | st.tuples(st.floats(0.01, 1), st.floats(1.5, 9)),
    bf16=st.sampled_from(["auto", True, False]),
)
def test_to_yaml_is_read_back_whatever_the_text(
    tmp_path_factory: pytest.TempPathFactory,
    novel: list[str],
    root: str,
    rate: float,
    zoom: tuple[float, float] | None,
    bf16: object,
) -> None:
    config = Config.model_validate(
        {
            "data": {"novel": novel, "root": f"/{root}"},
            "views": {"zoom": zoom},
            "base": {"rate": rate, "bf16": bf16},
        }
    )
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_bytes(config.to_yaml().encode())
    assert resolve(path) == config
    assert resolve(path).to_yaml() == config.to_yaml()


def test_importing_the_configuration_is_light() -> None:
    code = "import sys, mini_fsod.config.reference; print(*{m.split('.')[0] for m in sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "torchvision", "numpy", "PIL", "rich"} & set(said.stdout.split())
