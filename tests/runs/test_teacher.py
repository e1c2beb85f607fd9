"""The stage `online` with a teacher: what it sees, and what comes out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mini_fsod import checkpoint
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.errors import UserError
from mini_fsod.loader.augment import draw_strong, strong_view
from mini_fsod.mining.delta import adapted
from mini_fsod.online import health, retrain
from mini_fsod.online.targets import Learnt
from mini_fsod.online.teacher import losses_with_teacher
from mini_fsod.runs import run, stages
from mini_fsod.train.ema import Average, warmed_decay
from runs import small
from runs.taught import config, lines, settings, weights

GAUGES = {
    *("mined", "online", "offline", "base", "pool", "agreed", "overlap", "found"),
    f"found_{small.NOVEL}",
    *("right", "confidence", "mined_loss", "precision", "agreement", "placement", "mined_share"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def mined(data: Path) -> Path:
    """A run up to the pool. Not to be changed: see `copied`."""
    out = data.parent / "mined"
    stages.run(config(data), out, last="mine")
    return out


@pytest.fixture(scope="module")
def finished(data: Path, mined: Path) -> Path:
    out = Path(shutil.copytree(mined, data.parent / "finished"))
    stages.run(config(data), out, last="online")
    return out


@pytest.fixture
def copied(mined: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mined, tmp_path / "copied"))


def trained(data: Path, out: Path, **changes: object) -> bytes:
    stages.run(config(data, **changes), out, first="online", last="online")
    return weights(out)


def test_what_it_leaves(finished: Path) -> None:
    results = small.json_of(finished / "results.json")["stages"]
    assert list(results) == ["base", "transfer", "mine", "online"]
    assert results["mine"]["kept"] == 5
    header = checkpoint.read_header(finished / "online" / "checkpoint.safetensors")
    assert (header.labels.base, header.labels.novel) == (("red", "green"), (small.NOVEL,))
    assert header.settings.classifier == "linear"
    assert header.settings.iou_branch
    assert header.settings.rpn.after_nms_test == 30  # the configuration's, not the teacher's own
    assert not (finished / "online" / "progress.pt").exists()


def test_gauges_end_in_the_log(finished: Path) -> None:
    told = lines(finished)
    assert [line["step"] for line in told] == [5, 10, 12]
    for line in told:
        assert line.keys() >= GAUGES
        losses = [line[name] for name in line if name.startswith("loss_")]
        assert len(losses) == 5
        assert line["loss"] == pytest.approx(sum(losses))  # gauges are not learnt from
        assert line["mined"] == pytest.approx(line["online"] + line["offline"])
        assert line["precision"] == pytest.approx(line["right"] / line["mined"])
        assert line["agreement"] == pytest.approx(line["agreed"] / line["pool"])
        assert 0 < line["mined_share"] < 1
    events = [*(finished / "online" / "tensorboard").iterdir()]
    assert b"online/agreement" in events[0].read_bytes()


class Spied:
    """What the loop was given, and what it showed the losses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model: Any = None
        self.average: Any = None
        self.inputs: list[tuple[Tensor, ...]] = []
        self.followed: list[tuple[Tensor, Tensor]] = []
        train, update = run.train, Average.update

        def training(model: Any, *words: Any) -> Any:
            self.model, self.average = model, words[7]
            return train(model, *words)

        def losses(*words: Any) -> Any:
            inner = losses_with_teacher(*words)

            def seen(*inputs: Tensor) -> dict[str, Tensor]:
                self.inputs.append(inputs)
                return inner(*inputs)

            return seen

        def updating(average: Any) -> None:
            update(average)
            self.followed.append(
                (
                    self.model.predictor.boxes.bias.detach().clone(),
                    average.model.predictor.boxes.bias.clone(),
                )
            )

        monkeypatch.setattr(run, "train", training)
        monkeypatch.setattr(retrain, "losses_with_teacher", losses)
        monkeypatch.setattr(Average, "update", updating)


def test_the_teacher_comes_out_and_trails_the_student(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied = Spied(monkeypatch)
    trained(data, copied)
    saved = load_file(copied / "online" / "checkpoint.safetensors")
    apart = 0.0
    for name, value in spied.average.model.state_dict().items():
        assert torch.equal(saved[name], value), name
        apart = max(apart, (value - spied.model.state_dict()[name]).abs().max().item())
    assert apart > 1e-4
    own = torch.zeros_like(spied.followed[0][0])  # forgotten at once: the first decay is 0
    for n, (student, teacher) in enumerate(spied.followed):
        decay = warmed_decay(n, 0.8)
        own = decay * own + (1 - decay) * student
        torch.testing.assert_close(teacher, own)
    assert not any(p.requires_grad for p in spied.average.model.parameters())


@pytest.mark.parametrize("strong", [True, False])
def test_the_teacher_sees_the_weak_view_of_the_same_geometry(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, strong: bool
) -> None:
    spied, made = Spied(monkeypatch), []

    def drawing(seed: int, plan: Any) -> Any:
        made.append(draw_strong(seed, plan))
        return made[-1]

    monkeypatch.setattr(retrain, "draw_strong", drawing)
    trained(data, copied, online__strong=str(strong).lower(), online__iterations=3)
    for n, (weak, student, sizes, *_) in enumerate(spied.inputs):
        assert weak.shape == student.shape
        if strong:
            assert torch.equal(student, strong_view(weak, sizes, made[n]))
            assert not torch.equal(student, weak)
        else:
            assert torch.equal(student, weak)
    assert len(spied.inputs) == 3
    assert len(made) == (3 if strong else 0)


def test_hidden_boxes_are_for_the_gauge_alone(
    data: Path, finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_known(data: Any, labels: Any) -> Learnt:
        return Learnt(data, NO_BOXES, NO_BOXES.area, NO_BOXES)

    monkeypatch.setattr(retrain, "oracle", nothing_known)
    monkeypatch.setattr(retrain, "annotated", lambda data, shots, labels: 0)
    assert trained(data, copied) == weights(finished)
    assert all("right" not in line and "precision" not in line for line in lines(copied))


@pytest.mark.slow
def test_where_the_shots_are_all_that_is_known(data: Path, copied: Path) -> None:
    """Five of five: whether a mined box is right cannot be told, as with people's own data."""
    stages.run(config(data, shots__k=5), copied, first="transfer", last="online")
    assert all("right" not in line and line["mined"] > 0 for line in lines(copied))


@pytest.mark.slow
def test_each_switch_is_another_training(data: Path, copied: Path) -> None:
    found = {}
    for switch in (
        {},
        {"online__delta": 0.9},
        {"online__mingle__rpn": "false"},
        {"online__mingle__rcnn": "false"},
        {"online__iou_branch": "false"},
        {"online__shots": "true"},
        {"mine__drop_on_base": "true"},  # last: the pool is made anew
    ):
        first = "mine" if "mine__drop_on_base" in switch else "online"
        own = config(data, online__iterations=3, **switch)
        stages.run(own, copied, first=first, last="online")
        found[str(switch)] = weights(copied)
    assert len({*found.values()}) == len(found)


def test_deltas_move_by_what_is_found(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the tensor that the losses read; by what the candidates' scores add up to."""
    read: list[Tensor] = []

    def losses(*words: Any) -> Any:
        inner, delta = losses_with_teacher(*words), words[3]

        def seen(*inputs: Tensor) -> dict[str, Tensor]:
            read.append(delta.clone())
            return inner(*inputs)

        return seen

    monkeypatch.setattr(retrain, "losses_with_teacher", losses)
    trained(data, copied)
    assert [delta.item() for delta in read] == pytest.approx([0.2] * 12)
    read.clear()
    trained(data, copied, online__adapt_delta="true", online__delta=0.02)
    told = [line[f"delta_{small.NOVEL}"] for line in lines(copied)]
    assert [delta.item() for delta in read] == pytest.approx(
        [0.02] * 5 + [told[0]] * 5 + [told[1]] * 2
    )
    candidates = small.json_of(copied / "mine" / "candidates.json")
    images = len(small.json_of(data / "annotations" / "train.json")["images"])
    expected = sum(c["score_detector"] for c in candidates) / images
    before = 0.02
    for line, iterations, now in zip(lines(copied), (5, 5, 2), told, strict=True):
        found = line[f"found_{small.NOVEL}"]
        assert now == pytest.approx(adapted(before, found, expected, 4 * iterations, iterations))
        assert now > before  # so little is asked for that more is found
        before = now


def test_gauges_know_which_images_are_seen_more_often(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is normal is told for an image that is seen, and so is what is expected to be right."""
    normal, expected = [], []
    watch, deltas = retrain._watch, retrain._deltas

    def watching(*words: Any) -> Any:
        of = watch(*words)
        normal.append(of.normal.pool[small.NOVEL])
        return of

    def moving(*words: Any) -> Any:
        of = deltas(*words)
        expected.append(of.expected[small.NOVEL])
        return of

    monkeypatch.setattr(retrain, "_watch", watching)
    monkeypatch.setattr(retrain, "_deltas", moving)
    for times in (1, 3):
        trained(
            data, copied, online__adapt_delta="true", online__iterations=1, online__repeat=times
        )
    pool = small.json_of(copied / "mine" / "pool.json")
    shown = {a["image_id"] for a in pool["annotations"]}
    images, boxes = len(pool["images"]), len(pool["annotations"])
    assert 0 < len(shown) < images
    assert normal == pytest.approx([boxes / images, 3 * boxes / (images + 2 * len(shown))])
    candidates = small.json_of(copied / "mine" / "candidates.json")
    sure = {
        times: sum(
            c["score_detector"] * (times if c["image_id"] in shown else 1) for c in candidates
        )
        for times in (1, 3)
    }
    assert expected == pytest.approx([sure[1] / images, sure[3] / (images + 2 * len(shown))])


def test_an_empty_pool_and_a_teacher_that_finds_nothing(data: Path, copied: Path) -> None:
    """The paper's zeros: the student learns base classes alone."""
    pool = small.json_of(copied / "mine" / "pool.json")
    (copied / "mine" / "pool.json").write_text(json.dumps(pool | {"annotations": []}))
    trained(data, copied, online__delta=0.9999, online__iterations=6)
    for line in lines(copied):
        assert line["mined"] == line["pool"] == line["mined_loss"] == 0
        assert "agreement" not in line
        assert "precision" not in line


@pytest.mark.slow
def test_a_collapsed_teacher_is_named_and_stopped(
    data: Path, finished: Path, copied: Path, mini: Any
) -> None:
    words = small.words(data, copied, "--to", "online", **settings(data))
    with pytest.MonkeyPatch.context() as changed:
        for name, value in (("LOOKS", 1), ("SOME", 1), ("HOPELESS", 10), ("BLIND", 1.1)):
            changed.setattr(health, name, value)
        code, _, said = mini(*words)
    assert code == 2
    assert "The teacher has collapsed: at iteration 10, it takes everything for background" in said
    assert "--from online" in said
    assert (copied / "online" / "progress.pt").exists()  # of iteration 5
    assert [line["step"] for line in lines(copied)] == [5]
    assert not (copied / "online" / "checkpoint.safetensors").exists()
    assert mini(*words)[0] == 0
    assert weights(copied) == weights(finished)


@pytest.mark.slow
def test_another_pool_is_not_gone_on_with(data: Path, copied: Path) -> None:
    """Not even one with other scores: they decide what is mingled."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(health.Watch, "look", stop_at(10))
        with pytest.raises(UserError, match="enough"):
            stages.run(config(data), copied, last="online")
    pool = small.json_of(copied / "mine" / "pool.json")
    pool["annotations"][0]["score"] = 0.99
    (copied / "mine" / "pool.json").write_text(json.dumps(pool))
    with pytest.raises(UserError, match=r"pool\.json changed"):
        stages.run(config(data), copied, last="online")


def stop_at(iteration: int) -> Any:
    def watch(self: Any, step: int, means: Any) -> dict[str, float]:
        if step == iteration:
            raise UserError("enough")
        return {}

    return watch


@pytest.mark.slow
def test_two_processes(data: Path, finished: Path, copied: Path) -> None:
    """They mine, learn and look alike, but for rounding."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = small.words(data, copied, "--to", "online", **settings(data))
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "mini_fsod", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for one, other in zip(lines(copied), lines(finished), strict=True):
        for name in ("base", "pool"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)
        for name in ("loss", "mined", "mined_loss", "confidence"):
            assert one[name] == pytest.approx(other[name], rel=0.05)
