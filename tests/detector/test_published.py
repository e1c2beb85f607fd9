"""torchvision's detectors by name, from files of random weights under torchvision's names."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models import detection
from torchvision.models._api import WeightsEnum

from mini_fsod.detector import download, published
from mini_fsod.detector.published import classes_of, published_detector
from mini_fsod.errors import UserError

NAMES = ("fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2")
NO_CLASS = [i for i, c in enumerate(published.COCO[NAMES[0]].meta["categories"]) if c == "N/A"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch, and no patience."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(download, "SECONDS", 0.3)
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def random_state(name: str) -> dict[str, Tensor]:
    """Weights with which the detector finds objects of many classes, none of them without name."""
    torch.manual_seed(0)
    model = getattr(detection, name)(weights=None, weights_backbone=None)
    for module in model.modules():
        if hasattr(module, "running_var"):
            module.running_mean.uniform_(-1e-3, 1e-3)
            module.running_var.uniform_(0.5e-4, 1.5e-4)  # so small that the norm's epsilon matters
            module.weight.data.uniform_(0.4e-2, 0.6e-2)
    with torch.no_grad():
        model.rpn.head.cls_logits.weight.normal_(std=1.0)
        model.rpn.head.bbox_pred.weight.normal_(std=0.02)
        model.roi_heads.box_predictor.cls_score.weight.normal_(std=8)
        model.roi_heads.box_predictor.cls_score.bias[NO_CLASS] = -1e9
        model.roi_heads.box_predictor.bbox_pred.weight.normal_(std=0.1)
    state = model.state_dict()
    return {n: value for n, value in state.items() if not n.endswith("num_batches_tracked")}


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As in torchvision's file of the first version."""

    def old(name: str) -> str:
        for block in ("inner_blocks", "layer_blocks"):
            for n in range(4):
                name = name.replace(f"{block}.{n}.0.", f"{block}.{n}.")
        return name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")

    return {old(name): value for name, value in state.items()}


def put(name: str, state: dict[str, Tensor], cache: Path, monkeypatch: Any) -> Path:
    """The weights as torchvision's file, whose name has its hash."""
    old = cache / "weights.pth"
    # torchvision's file of the first version is older than zip archives
    torch.save(OrderedDict(state), old, _use_new_zipfile_serialization=name.endswith("_v2"))
    path = cache / f"{name}-{hashlib.sha256(old.read_bytes()).hexdigest()[:8]}.pth"
    old.rename(path)
    monkeypatch.setattr(published, "url_of", lambda _: f"https://nowhere.invalid/{path.name}")
    return path


def real_pictures() -> list[Tensor]:
    """Photographs that scikit-image brings along, at a size that costs little."""
    data = pytest.importorskip("skimage.data")
    images = [torch.from_numpy(getattr(data, name)()) for name in ("astronaut", "coffee")]
    return [image.permute(2, 0, 1)[:, ::4, ::4].contiguous() / 255 for image in images]


@pytest.mark.parametrize("name", NAMES)
def test_published_detector_gives_the_same_detections_as_torchvision(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random_state(name)
    put(name, old_names(state) if name == NAMES[0] else state, cache, monkeypatch)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: state)
    small = {"min_size": 96, "max_size": 160, "rpn_post_nms_top_n_test": 60}
    theirs = getattr(detection, name)(weights=published.COCO[name], **small).eval()
    ours, classes = published_detector(name)
    assert ours.settings.num_classes == len(classes) == 80
    assert ours.settings.test.score_cut == theirs.roi_heads.score_thresh == 0.05
    assert ours.settings.backbone.frozen_stages == 2
    categories = published.COCO[name].meta["categories"]
    images = real_pictures()
    with torch.no_grad():
        wanted = theirs(images)
    rpn, test = ours.settings.rpn, ours.settings.test
    ours.settings = replace(
        ours.settings,
        rpn=replace(rpn, after_nms_test=60),
        test=replace(test, min_size=96, max_size=160),
    )
    found = ours.predict(images)
    assert sum(len(w["boxes"]) for w in wanted) > 30
    for one, other in zip(found, wanted, strict=True):
        names = [classes[i - 1] for i in one["labels"].tolist()]
        assert names == [categories[i] for i in other["labels"].tolist()]
        torch.testing.assert_close(one["boxes"], other["boxes"], atol=0.05, rtol=0)
        torch.testing.assert_close(one["scores"], other["scores"], atol=1e-3, rtol=0)


def test_classes_of_are_the_80_names_of_coco() -> None:
    for name in NAMES:
        names = classes_of(name)
        assert len(set(names)) == 80
        assert (names[0], names[11], names[-1]) == ("person", "stop sign", "toothbrush")


def test_published_detector_says_which_file_to_put_where(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_url = "https://download.pytorch.org/models/fasterrcnn_resnet50_fpn_coco-258fb6c6.pth"
    assert published.url_of(NAMES[0]) == published_url
    monkeypatch.setattr(download, "_refuse_silence", offline)
    with pytest.raises(UserError, match="torchvision:fasterrcnn_resnet50_fpn could not") as caught:
        published_detector(NAMES[0])
    fix = f"Fetch {published_url} on another computer, and put the file into {cache}."
    assert caught.value.fix == fix


def offline(_: str) -> None:
    raise OSError("no network")


def test_published_detector_refuses_a_file_of_another_hash(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("fasterrcnn_resnet50_fpn", {"conv.weight": torch.ones(1)}, cache, monkeypatch)
    with pytest.raises(UserError, match="missing tensors"):
        published_detector(NAMES[0])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="incomplete or changed"):
        published_detector(NAMES[0])
