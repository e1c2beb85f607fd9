"""Results of stages taken from another run: every stage can be handed over, and is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mini_fsod.config.load import Config, resolve
from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from mini_fsod.runs.data import Material
from runs import small

SHORT = {
    "shots__k": 2,
    "base__iterations": 2,
    "transfer__iterations": 2,
    "mine__cut": 0.01,
    "online__iterations": 2,
    "online__batch": 4,
    "tune__iterations": 2,
    "tune__batch": 4,
}


def config(data: Path, **changes: object) -> Config:
    (data.parent / "small.yaml").touch()
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **SHORT | changes))


def test_every_stage_can_be_handed_over(tmp_path: Path) -> None:
    data = small.write_data(tmp_path / "data")
    first = tmp_path / "first"
    theirs = stages.run(config(data), first)["stages"]
    given = {
        "base__checkpoint": first / "base" / "checkpoint.safetensors",
        "transfer__checkpoint": first / "transfer" / "checkpoint.safetensors",
        "mine__given": first,  # a run's folder does as well
        "online__checkpoint": first,
    }
    second = tmp_path / "second"
    ours = stages.run(config(data, **given), second)["stages"]
    for stage in ("base", "transfer", "online"):
        assert not (second / stage / "checkpoint.safetensors").exists()
        assert ours[stage]["AP50"] == theirs[stage]["AP50"]
        assert ours[stage]["checkpoint"].startswith(str(first))
    assert ours["mine"]["kept"] == theirs["mine"]["kept"]
    pools = [(run / "mine" / "pool.json").read_bytes() for run in (first, second)]
    assert pools[0] == pools[1]
    ends = [(run / "tune" / "checkpoint.safetensors").read_bytes() for run in (first, second)]
    assert ends[0] == ends[1]


def test_a_given_detector_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study gives it to each of its runs; another metric is another figure."""
    data = small.write_data(tmp_path / "data")
    stages.run(config(data), tmp_path / "first", last="base")
    alone = tmp_path / "alone.safetensors"  # nothing lies beside it that tells its figures
    alone.write_bytes((tmp_path / "first" / "base" / "checkpoint.safetensors").read_bytes())
    tests: list[str] = []
    score = Material.score

    def counted(self: Material, *words: Any) -> dict[str, Any]:
        tests.append(self._config.data.metric)
        return score(self, *words)

    monkeypatch.setattr(Material, "score", counted)
    found = [
        stages.run(config(data, base__checkpoint=alone, **more), tmp_path / str(n), last="base")
        for n, more in enumerate(({}, {"seed": 1}, {"data__metric": "voc07"}))
    ]
    assert tests == ["voc", "voc07"]
    one, again, other = (run["stages"]["base"] for run in found)
    assert one["per_class"] == again["per_class"]
    assert (one["metric"], other["metric"]) == ("voc", "voc07")


def test_figures_of_other_annotations_do_not_count(tmp_path: Path) -> None:
    """As many pictures of the same names, and other boxes on them."""
    data = small.write_data(tmp_path / "data")
    first = stages.run(config(data, base__iterations=60), tmp_path / "first", last="base")

    def given(name: str) -> dict[str, Any]:
        changes = {"base__iterations": 60, "base__checkpoint": tmp_path / "first"}
        return stages.run(config(data, **changes), tmp_path / name, last="base")["stages"]["base"]

    assert given("same")["bAP50"] == first["stages"]["base"]["bAP50"] > 0
    small.rewrite(
        data / "annotations" / "test.json",
        lambda content: [a.update(bbox=[0, 0, 4, 4]) for a in content["annotations"]],
    )
    data._read.cache_clear()  # as a later process would read it
    assert given("other")["bAP50"] == 0


@pytest.mark.slow
def test_mining_takes_a_given_detector(tmp_path: Path) -> None:
    data = small.write_data(tmp_path / "data")
    first, second = tmp_path / "first", tmp_path / "second"
    stages.run(config(data), first, last="mine")
    changes = {"base__checkpoint": first, "transfer__checkpoint": first}
    stages.run(config(data, **changes), second, last="mine")
    found = [(run / "mine" / "candidates.json").read_bytes() for run in (first, second)]
    assert found[0] == found[1]


def test_a_pool_alone_is_enough(tmp_path: Path) -> None:
    """As it comes back from a labelling tool, under any name."""
    data = small.write_data(tmp_path / "data")
    first, second = tmp_path / "first", tmp_path / "second"
    stages.run(config(data), first, last="online")
    alone = tmp_path / "reviewed" / "boxes.json"
    alone.parent.mkdir()
    (alone.parent / "pool.json").write_text("another one")
    alone.write_bytes((first / "mine" / "pool.json").read_bytes())
    given = {"base__checkpoint": first, "transfer__checkpoint": first, "mine__given": alone}
    stages.run(config(data, **given), second, last="online")
    ends = [(run / "online" / "checkpoint.safetensors").read_bytes() for run in (first, second)]
    assert ends[0] == ends[1]
    for key in ("ignore_candidates", "adapt_delta"):
        wanting = config(data, **given, **{f"online__{key}": "true", "online__teacher": "true"})
        with pytest.raises(UserError, match=r"no candidates\.json lies beside it") as error:
            stages.run(wanting, tmp_path / "third")
        assert f"online.{key}" in error.value.fix
        assert not (tmp_path / "third").exists()


def test_an_oracle_from_nothing_has_one_stage(tmp_path: Path) -> None:
    data = small.write_data(tmp_path / "data")
    own = config(data, online__oracle="true", online__teacher="false", online__iou_branch="false")
    results = stages.run(own, tmp_path / "run", last="online")
    assert list(results["stages"]) == ["online"]
    with pytest.raises(UserError, match="begins from nothing has no stage mine"):
        stages.run(own, tmp_path / "run", first="mine", last="online")


@pytest.mark.parametrize("stage", ["base", "transfer", "online"])
def test_a_given_detector_is_looked_at_before_anything_runs(tmp_path: Path, stage: str) -> None:
    data = small.write_data(tmp_path / "data")
    with pytest.raises(UserError, match="nosuch"):
        stages.run(config(data, **{f"{stage}__checkpoint": "nosuch"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "key", ["base__checkpoint", "transfer__checkpoint", "mine__given", "online__checkpoint"]
)
def test_a_run_is_not_given_its_own(tmp_path: Path, key: str) -> None:
    """It would be cleared away by --from, before it is taken."""
    data, run = small.write_data(tmp_path / "data"), tmp_path / "run"
    stage = "mine" if "mine" in key else key.partition("_")[0]
    kept = run / stage / ("pool.json" if stage == "mine" else "checkpoint.safetensors")
    kept.parent.mkdir(parents=True)
    kept.write_text("precious")
    for given in (run, kept):
        with pytest.raises(UserError, match="is this run's own"):
            stages.run(config(data, **{key: given}), run, first=stage)
    assert kept.read_text() == "precious"


def test_a_pool_that_is_not_there(tmp_path: Path) -> None:
    data = small.write_data(tmp_path / "data")
    with pytest.raises(UserError, match="there is no such pool"):
        stages.run(config(data, mine__given=tmp_path / "none.json"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
