"""Detectors in files: saved, loaded, made smaller, and rejected if damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchvision.models import resnet18

from mini_fsod import checkpoint
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import (
    BackboneSettings,
    DetectorSettings,
    RoISettings,
    RPNSettings,
    TestSettings,
)
from mini_fsod.errors import UserError
from mini_fsod.labels import LabelMap

LABELS = LabelMap(("car", "bus"), ("bird",))


def settings(**backbone: Any) -> DetectorSettings:
    return DetectorSettings(
        num_classes=3,
        backbone=BackboneSettings("resnet18", **backbone),
        channels=16,
        classifier="cosine",
        rpn=RPNSettings(before_nms_test=50, after_nms_test=20),
        roi=RoISettings(width=16, box_weights=(10.0, 10.0, 5.0, 5.0)),
        test=TestSettings(score_cut=0.125, min_size=64, max_size=96),
    )


def detector(weights: Path | None = None, **backbone: Any) -> Detector:
    torch.manual_seed(0)
    made = Detector(settings(**backbone), weights)
    with torch.no_grad():
        made.predictor.classifier.weight.normal_(std=0.5)
    return made.eval()


def state_of(model: Detector) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained from random weights: GroupNorm, nothing frozen."""
    path = tmp_path_factory.mktemp("full") / "a.safetensors"
    about: checkpoint.About = {"stage": "base", "seed": 3, "rate": 0.02, "weights": None}
    checkpoint.save(path, detector(norm="group"), LABELS, about)
    return path


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights under torchvision's names, its norms not all the same."""
    torch.manual_seed(1)
    net = resnet18()
    for norm in (m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        assert norm.running_var is not None
        norm.running_var.uniform_(0.5, 90_000)  # beyond float16, as in the real ones
    path = tmp_path_factory.mktemp("weights") / "r18.safetensors"
    save_file(net.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, imagenet: Path) -> Path:
    """Trained from weights: stem and res2 are frozen."""
    path = tmp_path_factory.mktemp("frozen") / "a.safetensors"
    model = detector(imagenet, frozen_stages=2)
    checkpoint.save(path, model, LABELS, {"weights": str(imagenet)})
    return path


@pytest.fixture
def slim(tmp_path: Path, frozen: Path) -> Path:
    out = tmp_path / "slim.safetensors"
    done = checkpoint.slim(frozen, out)
    assert (done.left_out, done.kept, done.float32) == (5, "", ())  # stem, two blocks of two
    return out


def rewrite(
    source: Path,
    out: Path,
    tensors: Callable[[dict[str, Any]], Any] = lambda t: None,
    metadata: Callable[[dict[str, Any]], Any] = lambda s: None,
) -> Path:
    """A copy of a checkpoint with changes made by hand."""
    with safe_open(source, "pt") as file:
        header = json.loads(file.metadata()["mini"])
    state = load_file(source)
    tensors(state)
    metadata(header)
    save_file(state, out, {"mini": json.dumps(header)})
    return out


def test_load_restores_the_detector_bit_by_bit(full: Path) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    saved = checkpoint.load(full)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's random numbers"
    model = detector(norm="group")
    theirs = model.state_dict()
    ours = saved.detector.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert saved.detector.settings == model.settings
    assert saved.labels == LABELS
    assert saved.about == {"stage": "base", "seed": 3, "rate": 0.02, "weights": None}


def test_save_writes_equal_bytes_for_equal_detectors(tmp_path: Path, full: Path) -> None:
    """However they lie in memory, and in whatever order `about` was filled."""
    copy = tmp_path / "b.safetensors"
    model = detector(norm="group").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    about: checkpoint.About = {"weights": None, "rate": 0.02, "seed": 3, "stage": "base"}
    checkpoint.save(copy, model, LABELS, about)
    assert copy.read_bytes() == full.read_bytes()


def test_load_of_a_frozen_backbone_needs_no_weights(frozen: Path, imagenet: Path) -> None:
    saved = checkpoint.load(frozen)
    theirs = detector(imagenet, frozen_stages=2).state_dict()
    assert all(torch.equal(v, theirs[n]) for n, v in saved.detector.state_dict().items())
    learn = [p.requires_grad for p in saved.detector.backbone.parameters()]
    assert not any(learn[:5])
    assert all(learn[5:])


def test_load_rejects_truncated_files(tmp_path: Path, full: Path) -> None:
    content = full.read_bytes()
    path = tmp_path / "torn.safetensors"
    path.write_bytes(content)
    size = len(content)
    for length in (size - 1, size // 2, 20_000, 5_000, 4_000, 1_000, 100, 9, 8, 7, 1, 0):
        os.truncate(path, length)
        with pytest.raises(UserError, match=r"torn\.safetensors: incomplete, or not a safetensors"):
            checkpoint.load(path)
    path.write_bytes(content + b"x")
    with pytest.raises(UserError, match="incomplete, or not a safetensors"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda t: t.pop("predictor.boxes.bias"), r"predictor.boxes.bias is missing\."),
        (lambda t: t.update(extra=torch.ones(1)), r"extra is unknown\."),
        (
            lambda t: t.update({"predictor.boxes.bias": torch.ones(4)}),
            r"predictor.boxes.bias has shape \(4,\) instead of \(12,\)\.",
        ),
        (lambda t: t.clear(), r"is missing \(and [0-9]+ more\)\."),
    ],
)
def test_load_rejects_tensors_that_do_not_fit(
    tmp_path: Path, full: Path, tensors: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = rewrite(full, tmp_path / "x.safetensors", tensors)
    with pytest.raises(UserError, match=f"x.safetensors: .* its settings: .*{message}"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (lambda s: s.update(format=2), "a newer mini .format 2; this one reads 1"),
        (lambda s: s.pop("format"), "metadata cannot be read .*format"),
        (lambda s: s.update(settings=None), "must be an object"),
        (lambda s: s["settings"].update(chanels=3), '"chanels".* Did you mean "channels"'),
        (lambda s: s["settings"].pop("num_classes"), "incomplete"),
        (lambda s: s["settings"]["backbone"].update(name="nonet"), "nonet"),
        (
            lambda s: s["settings"].update(channels="many"),
            "channels: Input should be a valid integer",
        ),
        (lambda s: s["settings"].update(channels=10**9), "channels: Input should be less than"),
        (lambda s: s["settings"]["rpn"].update(nms="x"), "rpn.nms: Input should be a valid number"),
        (lambda s: s["settings"]["test"].update(detections=-1), "test.detections: Input should"),
        (lambda s: s["settings"].update(classifier="x"), "classifier: Input should be 'linear'"),
        (lambda s: s.update(format="1"), "metadata cannot be read .format"),
        (lambda s: s["about"].update(weights=[1]), "metadata cannot be read .about.weights"),
        (lambda s: s.update(left_out={"tensors": "x"}), "metadata cannot be read .left_out"),
        (lambda s: s["labels"].update(novel=[]), "2 class names for 3 classes"),
        (lambda s: s["labels"].update(novel=[7]), "labels.novel.0: Input should be a valid string"),
        (lambda s: s.update(labels=3), "metadata cannot be read"),
        (lambda s: s.update(about=3), "metadata cannot be read"),
    ],
)
def test_load_rejects_wrong_metadata(
    tmp_path: Path, full: Path, metadata: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = rewrite(full, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(UserError, match=f"x.safetensors: .*{message}"):
        checkpoint.load(path)


def test_load_rejects_other_files(tmp_path: Path, imagenet: Path) -> None:
    with pytest.raises(UserError, match=r"r18.safetensors: .* not a checkpoint of mini"):
        checkpoint.load(imagenet)
    (tmp_path / "text").write_text("hello, this is not a file of tensors")
    with pytest.raises(UserError, match="text: incomplete, or not a safetensors"):
        checkpoint.load(tmp_path / "text")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="this checkpoint does not exist"):
            checkpoint.load(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="this checkpoint does not exist"):
        checkpoint.load(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("change", "tensor"),
    [({"channels": 60_000}, "box_head"), ({"roi": {"width": 60_000}}, "box_head")],
)
def test_load_allocates_nothing_for_settings_of_a_giant(
    tmp_path: Path, full: Path, change: dict[str, Any], tensor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its convolutions would take more than 100 GB."""

    def update(metadata: dict[str, Any]) -> None:
        for key, value in change.items():
            of_part = metadata["settings"][key]
            metadata["settings"][key] = of_part | value if isinstance(value, dict) else value

    giant = rewrite(full, tmp_path / "giant.safetensors", metadata=update)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(UserError, match=rf"{tensor}.* has shape"):
        checkpoint.load(giant)


def test_slim_stores_float16_without_frozen_layers(slim: Path, frozen: Path) -> None:
    state, whole = load_file(slim), load_file(frozen)
    left_out = whole.keys() - state.keys()
    assert left_out == {"backbone.conv1.weight"} | {
        f"backbone.layer1.{block}.conv{conv}.weight" for block in (0, 1) for conv in (1, 2)
    }
    for name, value in state.items():
        norm_or_bias = name.endswith(("scale", "shift", "bias"))
        assert value.dtype == (torch.float32 if norm_or_bias else torch.float16), name
        if norm_or_bias:
            assert torch.equal(value, whole[name]), name
    bytes_left_out = sum(whole[name].nbytes for name in left_out)
    assert slim.stat().st_size < (frozen.stat().st_size - bytes_left_out) * 0.51


def test_load_restores_a_slim_file(slim: Path, frozen: Path, imagenet: Path) -> None:
    ours, theirs = checkpoint.load(slim), checkpoint.load(frozen)
    assert (ours.labels, ours.about) == (theirs.labels, theirs.about)
    state = ours.detector.state_dict()
    for name, value in theirs.detector.state_dict().items():
        if name.startswith(("backbone.conv1", "backbone.layer1")):
            assert torch.equal(state[name], value), name
        else:  # ten bits of a number, or the smallest that float16 knows
            torch.testing.assert_close(state[name], value, rtol=2**-11, atol=2**-25)
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    sizes = torch.tensor([[64, 96], [60, 80]])
    scores = [m.detector.eval().infer(images, sizes).scores for m in (ours, theirs)]
    best = [s.flatten(1).sort(1, descending=True).values[:, :20] for s in scores]
    torch.testing.assert_close(best[0], best[1], rtol=0.02, atol=0.002)
    assert checkpoint.load(slim, imagenet).labels == LABELS


@pytest.mark.slow
def test_slim_of_a_slim_file_is_the_same(tmp_path: Path, slim: Path) -> None:
    checkpoint.slim(slim, tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == slim.read_bytes()


def test_load_finds_frozen_layers_beside_the_file(
    tmp_path: Path, slim: Path, imagenet: Path
) -> None:
    elsewhere = rewrite(
        slim,
        tmp_path / "x.safetensors",
        metadata=lambda m: m["about"].update(weights="old/net.safetensors"),
    )
    with pytest.raises(
        UserError, match=r"old/net.safetensors: there is no such weights file.* frozen"
    ) as caught:
        checkpoint.load(elsewhere)
    assert "net.safetensors" in caught.value.fix
    assert "beside" in caught.value.fix
    (tmp_path / "net.safetensors").write_bytes(imagenet.read_bytes())
    assert checkpoint.load(elsewhere).labels == LABELS
    (tmp_path / "net.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="slim"):
        checkpoint.load(elsewhere)


@pytest.mark.parametrize("name", ["net.pth", "net.pth.tar", "net.bin", "net", "net.PTH", "net.pkl"])
def test_load_reads_no_pickle_that_a_checkpoint_names(
    tmp_path: Path, slim: Path, imagenet: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(load_file(imagenet), tmp_path / name)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    for weights in (name, str(tmp_path / name)):
        elsewhere = rewrite(
            slim,
            tmp_path / "x.safetensors",
            metadata=lambda m, weights=weights: m["about"].update(weights=weights),
        )
        with pytest.raises(UserError, match="The checkpoint is slim"):
            checkpoint.load(elsewhere)
    if name == "net.pth.tar":
        (tmp_path / "net.safetensors").write_bytes(imagenet.read_bytes())
        assert checkpoint.load(elsewhere).labels == LABELS
    monkeypatch.undo()
    assert checkpoint.load(elsewhere, tmp_path / name).labels == LABELS  # given by the user


def test_load_rejects_other_weights_of_frozen_layers(
    tmp_path: Path, slim: Path, imagenet: Path
) -> None:
    state = load_file(imagenet)
    state["layer1.1.conv2.weight"][0, 0, 0, 0] += 1e-3
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"other weights than those in .*other\.safetensors"):
        checkpoint.load(slim, tmp_path / "other.safetensors")
    unknown = rewrite(
        slim, tmp_path / "x.safetensors", metadata=lambda s: s["left_out"]["tensors"].append("y")
    )
    with pytest.raises(UserError, match="'y' was left out"):
        checkpoint.load(unknown)
    nameless = rewrite(slim, tmp_path / "x.safetensors", metadata=lambda s: s["about"].clear())
    with pytest.raises(UserError, match="does not name the weights"):
        checkpoint.load(nameless)


@pytest.mark.slow
def test_slim_keeps_frozen_layers_that_it_could_not_restore(tmp_path: Path, frozen: Path) -> None:
    """Frozen layers that are not those of the weights, or weights that are not there."""
    out = tmp_path / "slim.safetensors"
    changed = rewrite(
        frozen, tmp_path / "x.safetensors", lambda t: t["backbone.conv1.weight"].mul_(2)
    )
    assert "other weights" in checkpoint.slim(changed, out).kept
    assert "backbone.conv1.weight" in load_file(out)
    assert checkpoint.load(out).labels == LABELS
    moved = rewrite(
        frozen,
        tmp_path / "x.safetensors",
        metadata=lambda s: s["about"].update(weights="gone.safetensors"),
    )
    assert "gone.safetensors" in checkpoint.slim(moved, out).kept
    assert checkpoint.load(out).labels == LABELS


def test_slim_without_frozen_layers_leaves_nothing_out(tmp_path: Path, full: Path) -> None:
    out = tmp_path / "slim.safetensors"

    def enlarge(state: dict[str, Any]) -> None:
        state["fpn.outer.0.weight"][0, 0, 0, 0] = 70_000.0  # float16 ends at 65,504

    done = checkpoint.slim(rewrite(full, tmp_path / "x.safetensors", enlarge), out)
    assert (done.left_out, done.kept, done.float32) == (0, "", ("fpn.outer.0.weight",))
    state = load_file(out)
    assert state.keys() == load_file(full).keys()
    assert state["fpn.outer.0.weight"].dtype == torch.float32
    assert state["backbone.bn1.weight"].dtype == torch.float32
    assert state["backbone.conv1.weight"].dtype == torch.float16
    assert checkpoint.load(out).labels == LABELS
    with pytest.raises(UserError, match="overwrite the checkpoint itself"):
        checkpoint.slim(out, tmp_path / "." / "slim.safetensors")


def test_find_returns_the_last_stage_of_a_run_or_the_named_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "base").mkdir(parents=True)
    for path, message in ((run, "there is no trained detector"), (run / "x", "does not exist")):
        with pytest.raises(UserError, match=message):
            checkpoint.find(path)
    (run / "detector.safetensors").touch()  # all that a run copied without its results has
    assert checkpoint.find(run) == run / "detector.safetensors"
    with pytest.raises(UserError, match="run: there is no base detector"):
        checkpoint.find(run, "base")
    for stage in ("base", "transfer", "tune"):
        file = run / stage / "checkpoint.safetensors"
        file.parent.mkdir(exist_ok=True)
        file.touch()
        assert checkpoint.find(run) == checkpoint.find(run, stage) == file
        assert checkpoint.find(file.parent) == checkpoint.find(file.parent, stage) == file
    assert checkpoint.find(run, "base") == run / "base" / "checkpoint.safetensors"
    assert checkpoint.find(file) == checkpoint.find(file, "base") == file
