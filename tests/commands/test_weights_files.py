"""Files of weights that carry code or are damaged, for every key and command that takes one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import shapes, tiny_run
from mini_fsod.train.state import FILE


class Payload:
    """Unpickling it creates the folder "ran" in the current folder."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def _save(content: Any, new: bool = True) -> Callable[[Path], Any]:
    return lambda path: torch.save(content, path, _use_new_zipfile_serialization=new)


FILES: dict[str, Callable[[Path], Any]] = {
    "zip.pth": _save({"conv1.weight": Payload()}),
    "old.pth": _save({"state_dict": Payload()}, new=False),
    "bare.pth": lambda path: path.write_bytes(pickle.dumps(Payload())),
    "pickle.safetensors": _save({"conv1.weight": Payload()}),
    "empty.pth": lambda path: path.touch(),
    "empty.safetensors": lambda path: path.touch(),
    "list.pth": _save([torch.zeros(2)]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights_files")
    shapes.pictures(folder / "many", 20, seed=3)
    return shapes.write_data(folder / "data")


@pytest.mark.parametrize("name", FILES)
def test_no_command_runs_code_in_a_file_of_weights(
    data: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path, out = tmp_path / name, tmp_path / "runs" / "a"
    FILES[name](path)
    frozen = {"detector__norm": "frozen"}
    places = [
        tiny_run.words(data, out, detector__weights=path, **frozen),
        tiny_run.words(data, out, "--to", "mine", discriminator__weights=path),
        tiny_run.words(data, out, "--to", "mine", discriminator__weights=f"resnet18-narrow:{path}"),
        tiny_run.words(data, out, base__checkpoint=path),
        tiny_run.words(data, out, transfer__checkpoint=path),
        ["predict", path, data / "train"],
        ["checkpoint", "show", path],
        ["checkpoint", "slim", path, "-o", tmp_path / "slim.safetensors"],
    ]
    if path.suffix == ".safetensors":
        places.append(["pretrain", data.parent / "many", "-o", path, "--device", "cpu"])
    for words in places:
        code, _, err = mini(*words)
        assert code == 2, words
        assert f"Error {path}: " in err, words
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["zip.pth", "old.pth", "bare.pth", "empty.pth"])
def test_run_refuses_a_training_state_that_carries_code(
    data: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = tiny_run.words(data, tmp_path / "runs" / "a", "--to", "base", base__iterations=2)
    assert mini(*words)[0] == 0
    folder = (tmp_path / "runs" / "a" / "base").resolve()
    (folder / "metrics.json").unlink()  # as if it had not finished
    FILES[name](folder / FILE)
    code, _, err = mini(*words)
    assert code == 2
    assert FILE in err
    assert not Path("ran").exists()
