"""Re-training on base boxes and a pool, without a teacher: what goes in decides what comes out.

Two runs that learn from the same boxes end with the same bytes: so the pool of a file, the oracle
and an edited pool are compared by the weights they lead to.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_fsod import checkpoint
from mini_fsod.config.load import Config, resolve
from mini_fsod.errors import DataError, UserError
from mini_fsod.online import retrain
from mini_fsod.online.targets import losses_with_mined
from mini_fsod.runs import stages
from runs import small

SHORT = {
    "base__iterations": 2,
    "transfer__iterations": 2,
    "online__iterations": 6,
    "online__batch": 4,
    "online__save_seconds": 0,
    "online__teacher": "false",
    "online__iou_branch": "false",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


def novel_boxes(data: Path) -> list[dict[str, Any]]:
    truth = small.json_of(data / "annotations" / "train.json")["annotations"]
    return [a for a in truth if a["category_id"] == 3]


def settings(data: Path, **changes: object) -> dict[str, object]:
    """The detections to mine from are the hidden boxes, and others that are wrong."""
    given = data.parent / "given.json"
    if not given.exists():
        own = [{k: a[k] for k in ("image_id", "category_id", "bbox")} for a in novel_boxes(data)]
        rows = [row | {"score": 0.9 - n / 100} for n, row in enumerate(own)]
        rows += [row | {"bbox": [1, 2, 20, 16], "score": 0.3} for row in own]
        given.write_text(json.dumps(rows))
    return {"mine__detections": given, "mine__threshold": 0.5, **SHORT, **changes}


def config(data: Path, **changes: object) -> Config:
    (data.parent / "small.yaml").touch()
    return resolve(str(data.parent / "small.yaml"), small.sets(data, **settings(data, **changes)))


@pytest.fixture(scope="module")
def finished(data: Path) -> Path:
    out = data.parent / "finished"
    stages.run(config(data), out, last="online")
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def weights(out: Path) -> bytes:
    return (out / "online" / "checkpoint.safetensors").read_bytes()


def trained(data: Path, out: Path, first: str = "online", **changes: object) -> bytes:
    stages.run(config(data, **changes), out, first=first, last="online")
    return weights(out)


def edit(out: Path, annotations: list[dict[str, Any]]) -> None:
    pool = small.json_of(out / "mine" / "pool.json")
    pool["annotations"] = annotations
    (out / "mine" / "pool.json").write_text(json.dumps(pool))


def test_what_it_leaves(data: Path, finished: Path) -> None:
    results = small.json_of(finished / "results.json")["stages"]
    assert list(results) == ["base", "transfer", "mine", "online"]
    assert results["mine"]["kept"] == len(novel_boxes(data)) == 5
    assert results["online"]["iterations"] == 6
    assert list(results["online"]["per_class"]) == list(small.CLASSES)
    header = checkpoint.read_header(finished / "online" / "checkpoint.safetensors")
    assert (header.labels.base, header.labels.novel) == (("red", "green"), (small.NOVEL,))
    assert header.about["stage"] == "online"
    assert header.settings.classifier == "linear"


def test_the_same_pool_gives_the_same_bytes(data: Path, finished: Path, copied: Path) -> None:
    assert trained(data, copied) == weights(finished)
    assert trained(data, copied, first="mine") == weights(finished)


@pytest.mark.slow
def test_an_edited_pool_is_honoured(data: Path, finished: Path, copied: Path) -> None:
    edit(copied, [])
    emptied = trained(data, copied)
    assert emptied != weights(finished)
    # nothing is mined above the highest threshold
    assert trained(data, copied, first="mine", mine__threshold=1.0) == emptied
    assert small.json_of(copied / "mine" / "metrics.json")["kept"] == 0
    # scores do not matter without a teacher, nor does the order of the boxes in the file
    pool = small.json_of(finished / "mine" / "pool.json")
    plain = [{k: v for k, v in a.items() if k != "score"} for a in pool["annotations"]]
    edit(copied, plain)
    assert trained(data, copied, mine__threshold=1.0) == weights(finished)


def test_the_oracle_learns_from_all_hidden_boxes(data: Path, finished: Path, copied: Path) -> None:
    pool = small.json_of(finished / "mine" / "pool.json")
    assert sorted(a["bbox"] for a in pool["annotations"]) == sorted(
        a["bbox"] for a in novel_boxes(data)
    )
    edit(copied, [])
    assert trained(data, copied, online__oracle="true") == weights(finished)


def test_how_mined_boxes_are_learnt(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def losses(*words: Any) -> Any:
        seen.append(words[1:])
        return losses_with_mined(*words)

    monkeypatch.setattr(retrain, "losses_with_mined", losses)
    changes = {"online__mined_weight": 2, "online__mined_boxes": "none", "online__iterations": 1}
    trained(data, copied, first="mine", **changes, mine__drop_nested="true")
    assert seen == [(2.0, False, True)]


@pytest.mark.slow
def test_each_switch_is_another_training(data: Path, finished: Path, copied: Path) -> None:
    found = {"": weights(finished)}
    for switch in (
        {"online__ignore_candidates": "true"},
        {"online__mined_weight": 2},
        {"online__mined_boxes": "none"},
        {"online__repeat": 2},
        {"online__strong": "false"},
    ):
        (name,) = switch
        found[name] = trained(data, copied, **switch)
        assert checkpoint.load(copied / "online" / "checkpoint.safetensors")
    assert len({*found.values()}) == len(found)


def test_it_may_begin_as_the_base_detector(data: Path, copied: Path) -> None:
    trained(data, copied, online__start="base", online__rate=1e-9)
    base, new = (
        checkpoint.load(copied / stage / "checkpoint.safetensors").detector.state_dict()
        for stage in ("base", "online")
    )
    for name, value in base.items():
        own = new[name][: len(value)] if value.dim() else new[name]  # rows of new classes follow
        assert torch.allclose(own, value, atol=1e-6), name
    drawn = new["predictor.classifier.weight"][3:]
    assert drawn.shape[0] == 1
    assert drawn.abs().max() < 0.1


@pytest.mark.parametrize("iou_branch", ["true", "false"])
def test_it_may_begin_as_the_few_shot_detector(data: Path, copied: Path, iou_branch: str) -> None:
    trained(
        data, copied, online__start="transfer", online__rate=0.02, online__iou_branch=iou_branch
    )
    before, new = (
        checkpoint.load(copied / stage / "checkpoint.safetensors").detector
        for stage in ("transfer", "online")
    )
    assert new.settings.classifier == "cosine"
    assert (new.iou_branch is not None) == (iou_branch == "true")
    old = before.state_dict()
    moved = {n for n, v in new.named_parameters() if n in old and not torch.equal(v, old[n])}
    learning = {n for n, v in new.named_parameters() if v.requires_grad and n in old}
    assert moved == learning  # not the predictors alone
    assert any(name.startswith("backbone") for name in moved)


@pytest.mark.parametrize("name", ["pool.json", "candidates.json"])
def test_without_the_files_of_mining(data: Path, copied: Path, name: str) -> None:
    (copied / "mine" / name).unlink()
    with pytest.raises(UserError, match=f"{name}: it is not there") as told:
        trained(data, copied, online__ignore_candidates="true")
    assert "--from mine" in told.value.fix


def test_a_pool_of_other_pictures(data: Path, copied: Path) -> None:
    pool = small.json_of(copied / "mine" / "pool.json")
    for image in pool["images"]:
        image["file_name"] = f"elsewhere/other-{image['id']}.png"
    (copied / "mine" / "pool.json").write_text(json.dumps(pool))
    with pytest.raises(DataError, match="the data has no picture"):
        stages.run(config(data), copied, first="online", last="online")


@pytest.mark.slow
def test_killed_and_started_again(data: Path, finished: Path, copied: Path) -> None:
    kill = """
import os, pathlib, signal
count, replace = 0, pathlib.Path.replace
def killing(self, target):
    global count
    done = replace(self, target)
    count += str(target).endswith("online/progress.pt")
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
pathlib.Path.replace = killing
"""
    unbroken = small.process(
        small.words(data, copied, "--from", "online", "--to", "online", **settings(data))
    )
    assert unbroken.returncode == 0, unbroken.stderr
    whole = weights(copied)
    shutil.rmtree(copied / "online")
    words = small.words(data, copied, "--to", "online", **settings(data))
    assert small.process(words, before=kill).returncode == -9
    assert (copied / "online" / "progress.pt").exists()
    # a pool that was changed in between is not the one it began with
    pool = (copied / "mine" / "pool.json").read_bytes()
    edit(copied, [])
    refused = small.process(words)
    assert refused.returncode == 2
    assert "pool.json changed" in " ".join(refused.stderr.split())
    (copied / "mine" / "pool.json").write_bytes(pool)
    done = small.process(words)
    assert done.returncode == 0, done.stderr
    assert weights(copied) == whole
