from __future__ import annotations

import pytest
import torch

from mini_fsod.device import fast_bf16, torch_device
from mini_fsod.errors import UserError


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", ""])
def test_torch_device_rejects_unknown_devices(name: str) -> None:
    with pytest.raises(UserError) as error:
        torch_device(name)
    assert error.value.fix == "Use auto, cpu, cuda or cuda:N."


def test_torch_device_by_name() -> None:
    assert torch_device("cpu") == torch.device("cpu")
    assert torch_device("auto").type in ("cpu", "cuda")


UNITS = ("avx512_bf16", "amx_bf16")


@pytest.mark.parametrize(
    ("units", "fast"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, False),
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({}, False),
    ],
)
def test_fast_bf16_of_a_cpu_needs_units_for_it(
    units: dict[str, bool], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.device.BF16_UNITS", UNITS)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units, raising=False)
    assert fast_bf16(torch.device("cpu")) is fast
    assert fast_bf16(torch.device("cuda"))


def test_fast_bf16_is_false_where_pytorch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_fsod.device.BF16_UNITS", UNITS)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not fast_bf16(torch.device("cpu"))
