from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from helpers.training import CPU, Small
from mini_fsod.errors import UserError
from mini_fsod.train import state as states
from mini_fsod.train.ema import Average
from mini_fsod.train.step import make_optimiser

DROPPED = object()
PROGRESS = {"step": 3, "total": None, "seconds": 0.5, "identity": "x"}


def a_state(step: int) -> states.State:
    return {"weights": {}, "momentum": {}, "averaged": None} | PROGRESS | {"step": step}


def after_steps(steps: int, layout: torch.memory_format = torch.contiguous_format):
    """A model, its optimiser and its average after some steps."""
    model = Small()
    model.add_module("conv", torch.nn.Conv2d(2, 3, 3).to(memory_format=layout))
    optimiser, average = make_optimiser(model, CPU, 0.0), Average(model, CPU)
    optimiser.param_groups[0]["lr"].fill_(0.1)
    for n in range(steps):
        optimiser.zero_grad()
        x = torch.full((2, 3), float(n)) + torch.eye(3)[:2]
        losses = model.losses((x, x[:, :2]))
        (sum(losses.values()) + model.conv(torch.ones(1, 2, 4, 4)).square().sum()).backward()
        optimiser.step()
        average.decay.fill_(0.5)
        average.update()
    return model, optimiser, average


def test_snapshot_holds_copies_of_what_training_changes() -> None:
    """What learns and what moves; not what is frozen. Copies: training goes on meanwhile."""
    model, optimiser, average = after_steps(2)
    state = states.snapshot(model, optimiser, average)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning > {"first.weight", "norm.weight"}
    assert learning.isdisjoint({"frozen.weight", "frozen.bias"})
    moving = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert state["weights"].keys() == state["averaged"].keys() == learning | moving
    assert state["momentum"].keys() == learning
    before = state["weights"]["first.weight"].clone()
    with torch.no_grad():
        model.first.weight.add_(1)
    assert torch.equal(state["weights"]["first.weight"], before)


def test_snapshot_before_the_first_step_has_no_momentum() -> None:
    model, optimiser, _ = after_steps(0)
    state = states.snapshot(model, optimiser, None)
    assert state["momentum"] == {}
    assert state["averaged"] is None
    states.restore(state, *after_steps(0)[:2], None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_restore_gives_back_a_snapshot(tmp_path: Path, layout: torch.memory_format) -> None:
    """Through a file that torch reads without trust, into the layout that the weights have."""
    state = states.snapshot(*after_steps(3, layout))
    with states.StateWriter(tmp_path) as writer:
        writer.write(state | PROGRESS)
    read = states.read_state(tmp_path)
    assert read is not None
    assert (read["step"], read["identity"]) == (3, "x")
    model, optimiser, average = after_steps(1, layout)
    states.restore(read, model, optimiser, average)
    again = states.snapshot(model, optimiser, average)
    for key in ("weights", "momentum", "averaged"):
        assert again[key].keys() == state[key].keys()
        for name, value in state[key].items():
            assert torch.equal(again[key][name], value)
    kept = optimiser.state[model.conv.weight]["momentum_buffer"]
    assert kept.is_contiguous(memory_format=layout)
    assert kept.stride() == model.conv.weight.stride()


def test_restore_refuses_another_shape() -> None:
    state = states.snapshot(*after_steps(1))
    model, optimiser, average = after_steps(0)
    model.last = torch.nn.Linear(8, 3)
    with pytest.raises(ValueError, match="those of another model"):
        states.restore(state, model, optimiser, average)


def test_read_state_without_a_file(tmp_path: Path) -> None:
    assert states.read_state(tmp_path) is None
    assert states.read_state(tmp_path / "absent") is None


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_read_state_refuses_a_damaged_file(tmp_path: Path, share: float) -> None:
    with states.StateWriter(tmp_path) as writer:
        writer.write(states.snapshot(*after_steps(1)))
    path = tmp_path / states.FILE
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(
        UserError, match=r"progress\.pt: the training state cannot be read"
    ) as caught:
        states.read_state(tmp_path)
    assert caught.value.fix == "Delete the file to start the stage from the beginning."


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}q\x00.", b"PK\x03\x04" + b"x" * 50])
def test_read_state_refuses_another_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / states.FILE).write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        states.read_state(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", None, "step: Input should be"),
        ("step", -1, "step: Input should be"),
        ("total", "12", "total: Input should be"),
        ("weights", [1], "weights: Input should be"),
        ("momentum", {"first.weight": 3}, "momentum.first.weight: Input should be"),
        ("averaged", {3: torch.ones(1)}, "averaged.3"),
        ("identity", DROPPED, "identity: Field required"),
        ("momentum", {"a": torch.ones(2, device="meta")}, "momentum: tensors without values: a"),
    ],
)
def test_read_state_refuses_missing_keys_and_wrong_types(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    state = {k: v for k, v in (a_state(3) | {key: value}).items() if v is not DROPPED}
    torch.save(state, tmp_path / states.FILE)
    with pytest.raises(UserError, match=message) as caught:
        states.read_state(tmp_path)
    assert "Delete the file" in caught.value.fix


def test_read_state_refuses_what_is_no_state(tmp_path: Path) -> None:
    torch.save([1], tmp_path / states.FILE)
    with pytest.raises(UserError, match=r"\(ValueError: Input should be a valid dictionary\)"):
        states.read_state(tmp_path)


def test_delete_state_leaves_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / states.FILE).touch()
    for _ in range(2):
        states.delete_state(tmp_path)
        assert not any(tmp_path.iterdir())
    (tmp_path / states.FILE).mkdir()
    states.delete_state(tmp_path)
    assert (tmp_path / states.FILE).is_dir()


def test_read_state_refuses_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / states.FILE)
    with pytest.raises(UserError, match="cannot be read"):
        states.read_state(tmp_path)


def test_restore_refuses_momentum_of_another_shape() -> None:
    state = states.snapshot(*after_steps(2))
    state["momentum"]["first.weight"] = torch.ones(1)  # would broadcast
    with pytest.raises(ValueError, match="momentum is that of another model"):
        states.restore(state, *after_steps(0))


def test_restore_of_some_momentum_goes_on_training() -> None:
    """A weight without a gradient has none in the file; SGD takes all or nothing."""
    state = states.snapshot(*after_steps(2))
    kept = state["momentum"].pop("first.weight")
    model, optimiser, average = after_steps(0)
    states.restore(state, model, optimiser, average)
    buffer = optimiser.state[model.first.weight]["momentum_buffer"]
    assert kept.any()
    assert not buffer.any()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimiser.step()
    assert torch.equal(buffer, torch.ones_like(buffer))


def test_state_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """And nothing else."""
    with states.StateWriter(tmp_path) as writer:
        writer.write(a_state(5))
    left = tmp_path / f".{states.FILE}.0123abcd.part"
    left.write_bytes(b"half")
    other = tmp_path / ".checkpoint.safetensors.0123abcd.part"
    other.write_bytes(b"half")
    assert states.read_state(tmp_path) == a_state(5)
    with states.StateWriter(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, states.FILE]


def test_state_writer_keeps_the_last_state(tmp_path: Path) -> None:
    with states.StateWriter(tmp_path) as writer:
        for step in range(20):
            writer.write(a_state(step))
    assert states.read_state(tmp_path) == a_state(19)
    assert [path.name for path in tmp_path.iterdir()] == [states.FILE]


def test_state_writer_raises_on_a_failed_write(tmp_path: Path) -> None:
    """It is caught by the next write, or at the end; the state before stays."""
    with states.StateWriter(tmp_path) as writer:
        writer.write({"step": 1})
    place = tmp_path / states.FILE
    place.rename(tmp_path / "kept")
    place.mkdir()
    with (
        pytest.raises(UserError, match=r"progress\.pt: cannot be written"),
        states.StateWriter(tmp_path) as writer,
    ):
        writer.write({"step": 2})
