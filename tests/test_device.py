from __future__ import annotations

import pytest
import torch

from mini_fsod.device import torch_device
from mini_fsod.errors import UserError


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", ""])
def test_torch_device_rejects_unknown_devices(name: str) -> None:
    with pytest.raises(UserError) as error:
        torch_device(name)
    assert error.value.fix == "Use auto, cpu, cuda or cuda:N."


def test_torch_device_by_name() -> None:
    assert torch_device("cpu") == torch.device("cpu")
    assert torch_device("auto").type in ("cpu", "cuda")
