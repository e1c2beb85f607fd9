from __future__ import annotations

import hashlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet18

from mini_fsod.detector import download
from mini_fsod.detector.backbone import make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.discriminator.load import load_discriminator
from mini_fsod.errors import UserError

SETTINGS = BackboneSettings("resnet18")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch, and no patience."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(download, "SECONDS", 0.3)
    return tmp_path / "checkpoints"


def test_fetch_torchvision_ends_soon_where_a_server_is_silent(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/net.pth"
        start = time.perf_counter()
        with pytest.raises(
            UserError, match="weights of resnet18 could not be downloaded"
        ) as caught:
            download.fetch_torchvision("resnet18", url)
    assert time.perf_counter() - start < 3
    for words in (url, "another computer", str(cache)):
        assert words in caught.value.fix


def test_fetch_torchvision_ends_soon_where_no_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(20))
    start = time.perf_counter()
    with pytest.raises(UserError, match="no answer within"):
        download.fetch_torchvision("resnet18", "http://nowhere.invalid/net.pth")
    assert time.perf_counter() - start < 3


def test_fetch_torchvision_downloads_once(tmp_path: Path, cache: Path) -> None:
    state = resnet18().state_dict()
    torch.save(state, tmp_path / "net.pth")
    content = (tmp_path / "net.pth").read_bytes()
    source = tmp_path / f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    source.write_bytes(content)
    found = download.fetch_torchvision("resnet18", source.as_uri())
    assert found == cache / source.name
    source.unlink()
    assert download.fetch_torchvision("resnet18", source.as_uri()) == found
    assert torch.equal(make_backbone(SETTINGS, found).conv1.weight, state["conv1.weight"])


def test_make_backbone_reads_the_cache_without_running_code(cache: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return (cache / "ran").mkdir, ()

    cache.mkdir()
    torch.save({"conv1.weight": Payload()}, cache / "resnet18-f37072fd.pth")
    with pytest.raises(UserError, match="any program"):
        make_backbone(SETTINGS, "IMAGENET1K_V1")
    assert not (cache / "ran").exists()


class TestTimm:
    timm = pytest.importorskip("timm")

    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
        monkeypatch.setattr(download, "urlopen", lambda *_, **__: time.sleep(20))

    @pytest.mark.parametrize("name", ["resnet10t", "vit_small_patch16_224.dino"])
    def test_load_discriminator_says_where_to_fetch_the_file(self, name: str) -> None:
        start = time.perf_counter()
        with pytest.raises(UserError, match=f"weights of {name} could not be downloaded") as caught:
            load_discriminator(name, torch.device("cpu"))
        assert time.perf_counter() - start < 8
        assert f"https://huggingface.co/timm/{name}" in caught.value.fix
        assert f"discriminator.weights={name}:FILE" in caught.value.fix

    def test_make_backbone_reads_a_cached_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import huggingface_hub

        state = self.timm.create_model("resnet10t").state_dict()
        path = tmp_path / "model.safetensors"
        save_file(state, path)
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(path))
        backbone = make_backbone(BackboneSettings("resnet10t"), "pretrained")
        assert torch.equal(backbone.net.state_dict()["conv1.0.weight"], state["conv1.0.weight"])
        del state["layer2.0.conv1.weight"]
        save_file(state, path)
        with pytest.raises(UserError, match=r"missing tensors \(1\): layer2\.0\.conv1"):
            make_backbone(BackboneSettings("resnet10t"), "pretrained")

    @pytest.mark.parametrize("name", ["hf-hub:someone/evil", "local-dir:/tmp", "resnet_51"])
    def test_make_backbone_knows_only_models_of_timm_itself(self, name: str) -> None:
        with pytest.raises(UserError, match="There is no model"):
            make_backbone(BackboneSettings(name))

    def test_make_backbone_rejects_unknown_names_of_weights(self) -> None:
        with pytest.raises(UserError, match='"IMAGENET1K_V2" is neither a file nor weights'):
            make_backbone(BackboneSettings("resnet10t"), "IMAGENET1K_V2")
