from __future__ import annotations

import pytest
import torch

from mini_fsod.device import torch_device
from mini_fsod.errors import UserError


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", ""])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError):
        torch_device(name)
    assert torch_device("cpu") == torch.device("cpu")
    assert torch_device("auto").type in ("cpu", "cuda")
