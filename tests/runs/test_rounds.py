"""Rounds of mining: the second is what a run would mine that was given the first one's detector."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mini_fsod.errors import UserError
from mini_fsod.runs import stages
from runs import small
from runs.mined import FILES, config, load

SHORT = {
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 4,
    "online__batch": 4,
    "online__teacher": "false",
    "online__iou_branch": "false",
    "mine__discriminator": "none",
}


@pytest.fixture(scope="module")
def twice(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rounds") / "twice"
    stages.run(config(data, **SHORT, mine__rounds=2), out, last="online")
    return out


def test_the_second_round_mines_with_what_the_first_has_trained(
    data: Path, twice: Path, tmp_path: Path
) -> None:
    once, by_hand = tmp_path / "once", tmp_path / "by-hand"
    stages.run(config(data, **SHORT), once, last="online")
    first = twice / "round-1"
    for name in ("mine/pool.json", "mine/candidates.json", "online/checkpoint.safetensors"):
        assert (first / name).read_bytes() == (once / name).read_bytes()
    given = once / "online" / "checkpoint.safetensors"
    stages.run(config(data, **SHORT, transfer__checkpoint=given), by_hand, last="mine")
    for name in FILES:
        assert (twice / "mine" / name).read_bytes() == (by_hand / "mine" / name).read_bytes()
    assert load(twice, "candidates.json") != load(once, "candidates.json")
    assert {*small.json_of(first / "results.json")["stages"]} == {
        *("base", "transfer", "mine", "online")
    }


def test_a_given_detector_is_that_of_the_last_round(
    data: Path, twice: Path, tmp_path: Path
) -> None:
    given = config(data, **SHORT, mine__rounds=2, online__checkpoint=twice)
    told = stages.run(given, tmp_path / "given", last="online")["stages"]
    first = tmp_path / "given" / "round-1" / "online" / "checkpoint.safetensors"
    assert first.read_bytes() == (twice / "round-1/online/checkpoint.safetensors").read_bytes()
    own = small.json_of(twice / "results.json")["stages"]
    for stage, name in (("mine", "pool_sha256"), ("online", "checkpoint_sha256")):
        assert told[stage][name] == own[stage][name]


def test_finished_rounds_are_not_run_again(
    data: Path, twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: (twice / "mine" / name).read_bytes() for name in FILES}
    trained = twice / "round-1" / "online" / "metrics.json"
    before = trained.stat().st_mtime_ns
    shutil.rmtree(twice / "mine")
    stages.run(config(data, **SHORT, mine__rounds=2), twice, last="mine")
    assert trained.stat().st_mtime_ns == before
    assert {name: (twice / "mine" / name).read_bytes() for name in FILES} == files
    said = capsys.readouterr().err
    assert said.index("round 1 of 2") < said.index("online: finished already")
    assert said.index("online: finished already") < said.index("round 2 of 2")


def test_a_changed_re_training_is_one_of_all_rounds(data: Path, twice: Path) -> None:
    settings = config(data, **SHORT | {"online__iterations": 3}, mine__rounds=2)
    with pytest.raises(UserError, match=r"mine and online.*online\.iterations changed") as told:
        stages.run(settings, twice, last="online")
    assert "--from mine" in told.value.fix
    stages.run(settings, twice, first="mine", last="mine")
    figures = small.json_of(twice / "round-1" / "online" / "metrics.json")
    assert figures["iterations"] == 3
